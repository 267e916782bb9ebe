# SPDX-License-Identifier: Apache-2.0
"""Group of the sender (trainer rank 0, world rank 0) and all rollout workers, and what it says besides records.

Three channels: `world` has all of them; `transport` has the sender and one rollout worker of each node, its leader, and
carries records, unless a delta log does; `node` has the rollout workers of one node. The framework (verl, NeMo-RL)
hands the meeting's address and secret to all workers through Ray.

A sync over `world`: all ranks gather what they hold, and each makes the same plan of it; the sender names the tensors
of each chunk, whose records follow by `transport`, until there are no more; with a log it then names the version that
has them. All ranks vote, and after the vote nothing can fail but the hand-over to the engine. docs/architecture.md says
why this is not a group of the control plane.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparsecast import ControlChannel, Transport, meet, nccl_transport, tcp_transport
from sparsecast.engines.release import own_release, works_with
from sparsecast.errors import CorruptError, Error, GroupMismatchError, PeerFailedError, UsageError

from ._mirror import Entry, as_json, parse_entries

_HELLO: Mapping[str, tuple[type, ...]] = {
    "release": (str,),
    "stream": (str,),
    "version": (int,),
    "step": (int, type(None)),
    "seed_stream": (str,),
    "verify": (bool,),
}


@dataclass(frozen=True)
class Hello:
    """Message of a rank at the start of a sync: the version of the weights that it holds and, from the sender, options
    of the sync.

    release  version of sparsecast on this rank.
    stream   stream of the weights that this rank holds, at `version`; empty if it holds none.
    step     training step of this sync; None if the framework does not tell it.
    """

    release: str
    stream: str
    version: int
    step: int | None
    seed_stream: str
    """Name of the new stream that this sync begins if it has to send everything."""
    verify: bool
    """Whether the rollout workers compare all their weights after the sync, if it does not send everything."""

    @staticmethod
    def decode(data: bytes, rank: int) -> Hello:
        where = f"hello of rank {rank}"
        fields = json_object(data, where)
        release = str(fields.get("release", "of an older version"))
        if not works_with(release):
            raise GroupMismatchError(
                f"it has sparsecast {release}, and this rank {own_release()}: install the same sparsecast on trainers "
                "and rollout workers",
                where,
            )
        if fields.keys() != _HELLO.keys() or any(type(fields[name]) not in kinds for name, kinds in _HELLO.items()):
            raise CorruptError("it is not a hello", where)
        return Hello(**fields)


@dataclass(frozen=True)
class Plan:
    """Plan of a sync, which is the same on all ranks.

    seed    whether everything is sent, as changes to zeros, in a new stream.
    stream  stream of the sync.
    base    version from which the sync starts; it leads to the version `base + 1`.
    verify  whether the rollout workers compare all their weights after the sync.
    """

    seed: bool
    stream: str
    base: int
    verify: bool

    @staticmethod
    def of(hellos: Sequence[Hello]) -> Plan:
        """Returns the plan that follows from the hellos of all ranks, by rank (the sender is rank 0). It is a seed if
        the sender holds no weights, or if a rollout worker holds another version than the sender. Raises
        GroupMismatchError if the ranks are at different training steps.
        """
        sender = hellos[0]
        for rank, hello in enumerate(hellos):
            if hello.step != sender.step:
                raise GroupMismatchError(
                    f"rollout worker {rank - 1} was called for step {hello.step}, the trainer for {sender.step}: call "
                    "update_weights of both with the same global_steps",
                    "hello",
                )
        held = (sender.stream, sender.version)
        if not sender.stream or any((hello.stream, hello.version) != held for hello in hellos):
            return Plan(True, sender.seed_stream, 0, False)
        return Plan(False, *held, sender.verify)


@dataclass(frozen=True)
class Topology:
    """Nodes of the rollout workers, and where a new group meets: `nodes` has the number of each worker's node, and
    `meeting` is None if the present group is kept.
    """

    meeting: Mapping[str, Any] | None
    nodes: list[int]
    leaders: list[bool]
    """For each rollout worker, whether it is the first of its node."""

    @staticmethod
    def of(sender: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]]) -> Topology:
        """Returns the topology that follows from the results of `describe_rank` on the sender and on the rollout
        workers.
        """
        members = [str(each["member"]) for each in (sender, *rollouts)]
        token = members[0].partition(":")[0]
        keep = bool(token) and members == [_membership(token, rank, len(members)) for rank in range(len(members))]
        nodes = [str(each["node"]) for each in rollouts]
        order = sorted(set(nodes))
        return Topology(
            None if keep else sender["meeting"],
            [order.index(node) for node in nodes],
            [node not in nodes[:index] for index, node in enumerate(nodes)],
        )


def describe_rank(node: str, group: Group | None, host: str | None) -> dict[str, Any]:
    """Returns, as JSON values, the node of a rank and its membership in `group` (empty if there is none or it is
    broken). If `host`, an address of this machine, is given, the result also says where a new group can meet: there, at
    a port that is free now, with a new secret and a new token of the group.
    """
    meeting = None
    if host is not None:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
        meeting = {"host": host, "port": port, "secret": secrets.token_hex(32), "token": secrets.token_hex(8)}
    return {"node": node, "member": group.membership if group and group.healthy else "", "meeting": meeting}


class Group:
    """One rank's connection to the group. Every call ends within `timeout` seconds, or raises and breaks the group."""

    def __init__(
        self,
        meeting: Mapping[str, Any],
        *,
        rank: int,
        size: int,
        node: int,
        leader: bool,
        channels: str | None,
        interface: str,
        timeout: float,
    ) -> None:
        self.rank = rank
        self.leader = leader
        self.membership = _membership(str(meeting["token"]), rank, size)
        self.timeout = timeout
        self.message_bytes = 0
        """Size, in bytes, of the messages that this rank has sent in the present sync."""
        self._broken = False
        self.world = meet(
            str(meeting["host"]),
            int(meeting["port"]),
            rank=rank,
            size=size,
            secret=str(meeting["secret"]),
            interface=interface,
            timeout=timeout,
        )
        carrier = self.world.split(0 if channels and (rank == 0 or leader) else -1, rank, timeout)
        self._node: ControlChannel | None = self.world.split(node if rank > 0 else -1, rank, timeout)
        self._transport: Transport | None = None
        if carrier is not None:
            self._transport = nccl_transport(carrier, timeout=timeout) if channels == "nccl" else tcp_transport(carrier)

    @property
    def transport(self) -> Transport:
        if self._transport is None:
            raise UsageError(f"rank {self.rank} carries no records")
        return self._transport

    @property
    def node(self) -> ControlChannel:
        if self._node is None:
            raise UsageError(f"rank {self.rank} is no rollout worker")
        return self._node

    def reason(self) -> str:
        """Returns the reason that a rank has given for breaking the group; empty if no rank has given one."""
        return self.world.aborted() or ""

    @property
    def healthy(self) -> bool:
        return not self._broken and self.world.aborted() is None

    def give_up(self, reason: str) -> None:
        """Tells the other ranks `reason`, so that none waits for its deadline. The group cannot be used again."""
        self._broken = True
        if self.world.aborted() is None:
            self.world.abort(reason)
        if self._node is not None:
            self._node.abort(reason)
        self._transport = None  # Closes its connections: who waits for records hears of it.

    def fail(self, error: Exception, consequence: str) -> Exception:
        """Gives up because of `error`, and returns the exception to raise: `error` itself, or for an Error of this
        library a copy whose message adds why another rank gave up first, and the `consequence` for the sync.
        """
        if not isinstance(error, Error):
            self.give_up(f"{type(error).__name__}: {error}")
            return error
        reason, message = self.reason(), error.message
        self.give_up(str(error))
        if isinstance(error, PeerFailedError) and reason and reason not in message:
            message = f"{message} ({reason})"
        return type(error)(f"{message}; {consequence}", error.context)

    def plan(self, own: Hello) -> Plan:
        """Returns the plan that follows from `own`, the hello of this rank, and the hellos of all other ranks.
        Collective over the group.
        """
        message = _encode(asdict(own))
        self.message_bytes = len(message)
        answers = self.world.all_gather(message, self.timeout)
        return Plan.of([Hello.decode(answer, rank) for rank, answer in enumerate(answers)])

    def announce(self, new: bool, entries: Sequence[Entry]) -> None:
        """Called on the sender: tells the rollout workers the tensors of the next chunk, and whether they are new."""
        message = _encode({"new": new, "tensors": as_json(entries)})
        self.message_bytes += len(message)
        self.world.broadcast(message, self.timeout)

    def announce_end(self) -> None:
        """Called on the sender: tells the rollout workers that no more chunks come."""
        self.world.broadcast(b"", self.timeout)

    def next_chunk(self) -> tuple[bool, list[Entry]] | None:
        """Called on a rollout worker: returns whether the tensors of the next chunk are new, and their entries. Returns
        None when no more chunks come.
        """
        message = self.world.broadcast(b"", self.timeout)
        if not message:
            return None
        fields = json_object(message, "chunk")
        if type(fields.get("new")) is not bool:
            raise CorruptError("it does not say whether its tensors are new", "chunk")
        return fields["new"], parse_entries(fields.get("tensors"))

    def announce_version(self, version: int) -> None:
        """Called on the sender after `announce_end`, if a log carries the records: tells the rollout workers the version
        of the log that has this sync.
        """
        message = _encode({"version": version})
        self.message_bytes += len(message)
        self.world.broadcast(message, self.timeout)

    def next_version(self) -> int:
        """Called on a rollout worker when no more chunks come: returns the version of `announce_version`."""
        version = json_object(self.world.broadcast(b"", self.timeout), "version").get("version")
        if type(version) is not int or version < 0:
            raise CorruptError(f"{version!r} is no version of a log", "version")
        return version

    def vote(self) -> None:
        """Waits until every rank has called this function. Raises PeerFailedError, with the reason, if a rank has
        failed before.
        """
        self.world.agree(0, 0, self.timeout)


def _membership(token: str, rank: int, size: int) -> str:
    """Returns a text that identifies the place of a rank in a group. Only the same rank of the same group has the same
    text.
    """
    return f"{token}:{rank}:{size}"


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """Returns the fields of a message that is a JSON object. Raises CorruptError, which names `where`, for anything
    else.
    """
    try:
        value = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CorruptError(f"it is not JSON ({error})", where) from error
    if not isinstance(value, dict):
        raise CorruptError("it is not a JSON object", where)
    return value
