# SPDX-License-Identifier: Apache-2.0
"""Group of the sender (trainer rank 0, world rank 0) and all rollout workers, and what it says besides records.

Three channels: `world` has all of them and carries messages (JSON); `transport` has the sender and one rollout worker of
each node, its leader, and carries records; `node` has the rollout workers of one node. The framework (verl,
NeMo-RL) hands the meeting's address and secret to all workers through Ray.

A sync, as messages of the sender (S) and of rollout workers (R):

    S, R  hello   version that each holds, trainer step
    S     begin   kind, base version, stream
    S     chunk   names of the tensors of the records that follow; any number of times
    S     end     number of chunks
    S, R  vote    after it nothing can fail but the hand-over
"""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsecast import ControlChannel, Transport, meet, nccl_transport, tcp_transport
from sparsecast.errors import (
    CorruptError,
    Error,
    ForeignStreamError,
    GroupMismatchError,
    IncompleteError,
    PeerFailedError,
    UsageError,
)

PROTOCOL = 1
"""Number of the messages' form; ends with different ones refuse each other."""

_PIECE_BYTES = 1 << 20
_LARGEST_MESSAGE = 1 << 28


@dataclass(frozen=True)
class Hello:
    """What a rank holds when a sync begins. `stream` is empty for one that holds nothing, `step` None where the framework
    does not say it.
    """

    stream: str
    version: int
    step: int | None

    def encode(self) -> bytes:
        fields = {"protocol": PROTOCOL, "stream": self.stream, "version": self.version, "step": self.step}
        return json.dumps(fields).encode()

    @staticmethod
    def decode(data: bytes, rank: int) -> Hello:
        fields = _object(data, f"hello of rank {rank}")
        if fields.get("protocol") != PROTOCOL:
            raise GroupMismatchError(
                f"it speaks form {fields.get('protocol')!r} of the messages, this rank {PROTOCOL}: install the same "
                "sparsecast on trainers and rollout workers",
                f"rank {rank}",
            )
        stream, version, step = fields.get("stream"), fields.get("version"), fields.get("step")
        if not isinstance(stream, str) or type(version) is not int or not (step is None or type(step) is int):
            raise CorruptError("it is not a hello", f"hello of rank {rank}")
        return Hello(stream, version, step)


def new_meeting(host: str) -> dict[str, Any]:
    """Returns an address of this machine that is free now, a new secret, and the group's token."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port = int(probe.getsockname()[1])
    return {"host": host, "port": port, "secret": secrets.token_hex(32), "token": secrets.token_hex(8)}


def leaders_of(nodes: Sequence[str]) -> list[bool]:
    """Returns for each rollout worker whether it is the first of its node."""
    return [node not in nodes[:index] for index, node in enumerate(nodes)]


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
        self.size = size
        self.leader = leader
        self.membership = membership(str(meeting["token"]), rank, size)
        self.bytes_said = 0
        self._timeout = timeout
        self._broken = False
        self._sync = ""
        self._index = 0
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
        self.node: ControlChannel | None = self.world.split(node if rank > 0 else -1, rank, timeout)
        self._transport: Transport | None = None
        if rank == 0 or leader:
            self._transport = nccl_transport(carrier, timeout=timeout) if channels == "nccl" else tcp_transport(carrier)

    @property
    def transport(self) -> Transport:
        if self._transport is None:
            raise UsageError(f"rank {self.rank} carries no records")
        return self._transport

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
        if self.node is not None:
            self.node.abort(reason)
        self._transport = None  # Closes its connections: who waits for records hears of it.

    def fail(self, error: Exception, consequence: str) -> Exception:
        """Gives up because of `error`. Returns what to raise: it, or an Error that adds why another rank gave up before
        and what the failure means for the sync.
        """
        if not isinstance(error, Error):
            self.give_up(f"{type(error).__name__}: {error}")
            return error
        reason, message = self.reason(), error.message
        self.give_up(str(error))
        if isinstance(error, PeerFailedError) and reason and reason not in message:
            message = f"{message} ({reason})"
        return type(error)(f"{message}; {consequence}", error.context)

    def greet(self, own: Hello) -> list[Hello]:
        """Returns the hellos of all ranks; collective. Raises GroupMismatchError when they are at different steps."""
        answers = self.world.all_gather(own.encode(), self._timeout)
        hellos = [Hello.decode(answer, rank) for rank, answer in enumerate(answers)]
        for rank, hello in enumerate(hellos):
            if hello.step != hellos[0].step:
                raise GroupMismatchError(
                    f"rollout worker {rank - 1} was called for step {hello.step}, the trainer for {hellos[0].step}: call "
                    "update_weights of both with the same global_steps",
                    "hello",
                )
        return hellos

    def begin(self, fields: Mapping[str, Any]) -> None:
        """The sender's first message of a sync."""
        self._sync = secrets.token_hex(8)
        self._index = 0
        self.say("begin", fields)

    def say(self, kind: str, fields: Mapping[str, Any]) -> None:
        """The sender's next message."""
        message = {"kind": kind, "sync": self._sync, "index": self._index, **fields}
        self._index += 1
        self._broadcast(json.dumps(message).encode())

    def hear_begin(self) -> dict[str, Any]:
        message = self._hear()
        if message["kind"] != "begin" or message["index"] != 0:
            raise IncompleteError(f"{message['kind']} came first: the beginning of the sync was lost", "message")
        self._sync = message["sync"]
        self._index = 1
        return message

    def hear(self, *kinds: str) -> dict[str, Any]:
        """Returns the sender's next message, which must be of this sync, the next one, and one of `kinds`."""
        message = self._hear()
        if message["sync"] != self._sync:
            raise ForeignStreamError("it belongs to another sync", f"message {message['index']}")
        if message["index"] != self._index:
            raise IncompleteError(
                f"message {message['index']} came where message {self._index} was expected: messages were lost, or "
                "changed places",
                "sync",
            )
        if message["kind"] not in kinds:
            raise CorruptError(f"a message of kind {message['kind']!r} came; only {kinds} can", "sync")
        self._index += 1
        return message

    def vote(self) -> None:
        """Returns when every rank has got here; raises PeerFailedError with the reason of one that has not."""
        self.world.agree(0, 0, self._timeout)

    def _broadcast(self, data: bytes) -> None:
        head = len(data).to_bytes(8, "little")
        self.bytes_said += len(head) + len(data)
        blob = head + data
        for first in range(0, len(blob), _PIECE_BYTES):
            self.world.broadcast(blob[first : first + _PIECE_BYTES], self._timeout)

    def _hear(self) -> dict[str, Any]:
        blob = self.world.broadcast(b"", self._timeout)
        if len(blob) < 8:
            raise CorruptError("it has no length", "message")
        length = int.from_bytes(blob[:8], "little")
        if length > _LARGEST_MESSAGE:
            raise CorruptError(f"it claims to have {length} bytes", "message")
        pieces, got = [blob[8:]], len(blob) - 8
        while got < length:
            pieces.append(self.world.broadcast(b"", self._timeout))
            got += len(pieces[-1])
            if not pieces[-1]:
                raise IncompleteError(f"it ends after {got} of {length} bytes", "message")
        if got != length:
            raise CorruptError(f"it has {got} bytes instead of {length}", "message")
        message = _object(b"".join(pieces), "message")
        if not isinstance(message.get("kind"), str) or not isinstance(message.get("sync"), str):
            raise CorruptError("it has no kind or no sync", "message")
        if type(message.get("index")) is not int:
            raise CorruptError("it has no number", "message")
        return message


def membership(token: str, rank: int, size: int) -> str:
    """Returns what a rank says that it is a member of: equal only for the same place in the same group."""
    return f"{token}:{rank}:{size}"


def _object(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CorruptError(f"it is not JSON ({error})", where) from error
    if not isinstance(value, dict):
        raise CorruptError("it is not a JSON object", where)
    return value
