# SPDX-License-Identifier: Apache-2.0
"""Group of the sender (trainer rank 0, world rank 0) and all rollout workers, and what it says besides records.

Three channels: `world` has all of them; `transport` has the sender and one rollout worker of each node, its leader, and
carries records; `node` has the rollout workers of one node. The framework (verl, NeMo-RL) hands the meeting's address
and secret to all workers through Ray.

A sync over `world`: all ranks gather what they hold, and each makes the same plan of it; the sender names the tensors
of each chunk, whose records follow by `transport`, until there are no more; all ranks vote, and after the vote nothing
can fail but the hand-over to the engine.
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
    """What a rank holds when a sync begins, and what the sender wants of the sync. `stream` is empty for a rank that
    holds nothing, `step` None where the framework does not say it.
    """

    release: str
    stream: str
    version: int
    step: int | None
    seed_stream: str
    """Stream of the sync if it has to send everything."""
    verify: bool
    """Whether, if the sync does not send everything, the rollouts compare all that they hold after it."""

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
    """What a sync does, the same on all ranks. `seed`: everything is sent, from zeros, as a new stream."""

    seed: bool
    stream: str
    base: int
    verify: bool

    @staticmethod
    def of(hellos: Sequence[Hello]) -> Plan:
        """Returns the plan for what all ranks hold. Everything is sent when a rollout worker does not hold what the
        sender does. Raises GroupMismatchError when the ranks are at different steps.
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
    """Where the rollout workers are. `meeting` is None where the group stays as it is."""

    meeting: Mapping[str, Any] | None
    nodes: list[int]
    leaders: list[bool]
    """Whether a rollout worker is the first of its node."""

    @staticmethod
    def of(sender: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]]) -> Topology:
        """Returns the topology for what `describe_rank` has returned on the sender and on the rollout workers."""
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
    """Returns in which group a rank is, on which node, and where a new group can meet at an address of this machine, if
    a `host` is given: a port that is free now, a new secret, and the group's token.
    """
    meeting = None
    if host is not None:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
        meeting = {"host": host, "port": port, "secret": secrets.token_hex(32), "token": secrets.token_hex(8)}
    return {"node": node, "member": group.membership if group and group.healthy else "", "meeting": meeting}


class Group:
    """One rank's end of the group. Every call ends within `timeout` seconds, or raises and breaks the group."""

    def __init__(
        self,
        meeting: Mapping[str, Any],
        *,
        rank: int,
        size: int,
        node: int,
        leader: bool,
        channels: str,
        interface: str,
        timeout: float,
    ) -> None:
        self.rank = rank
        self.leader = leader
        self.membership = _membership(str(meeting["token"]), rank, size)
        self.timeout = timeout
        self.message_bytes = 0
        """Bytes of this rank's messages of the sync."""
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
        carrier = self.world.split(0 if rank == 0 or leader else -1, rank, timeout)
        self._node: ControlChannel | None = self.world.split(node if rank > 0 else -1, rank, timeout)
        self._transport: Transport | None = None
        if rank == 0 or leader:
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
        """Returns what a rank has said about why the group broke, if one has."""
        return self.world.aborted() or ""

    @property
    def healthy(self) -> bool:
        return not self._broken and self.world.aborted() is None

    def give_up(self, reason: str) -> None:
        """Tells the others why, so that none waits for its deadline. The group is not used again."""
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
        """Returns the plan for what this rank and all others hold; collective."""
        message = _encode(asdict(own))
        self.message_bytes = len(message)
        answers = self.world.all_gather(message, self.timeout)
        return Plan.of([Hello.decode(answer, rank) for rank, answer in enumerate(answers)])

    def announce(self, new: bool, entries: Sequence[Entry]) -> None:
        """Tells the rollout workers, from the sender, the tensors of the next chunk, and whether they are new."""
        message = _encode({"new": new, "tensors": as_json(entries)})
        self.message_bytes += len(message)
        self.world.broadcast(message, self.timeout)

    def announce_end(self) -> None:
        """Tells the rollout workers, from the sender, that no more chunks come."""
        self.world.broadcast(b"", self.timeout)

    def next_chunk(self) -> tuple[bool, list[Entry]] | None:
        """Returns whether the tensors of the next chunk are new, and the tensors; None when no more chunks come."""
        message = self.world.broadcast(b"", self.timeout)
        if not message:
            return None
        fields = json_object(message, "chunk")
        if type(fields.get("new")) is not bool:
            raise CorruptError("it does not say whether its tensors are new", "chunk")
        return fields["new"], parse_entries(fields.get("tensors"))

    def vote(self) -> None:
        """Returns when every rank has got here; raises PeerFailedError with the reason of one that has not."""
        self.world.agree(0, 0, self.timeout)


def _membership(token: str, rank: int, size: int) -> str:
    """Returns what a rank says that it is a member of: equal only for the same place in the same group."""
    return f"{token}:{rank}:{size}"


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """Returns the fields of a message. Raises CorruptError that names `where` for anything but a JSON object."""
    try:
        value = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CorruptError(f"it is not JSON ({error})", where) from error
    if not isinstance(value, dict):
        raise CorruptError("it is not a JSON object", where)
    return value
