# SPDX-License-Identifier: Apache-2.0
"""A relay in the TCP connections of the own process, which fails at a chosen byte.

A backend chooses its ports as it likes, and tells its peers by messages that nobody else can read. So no relay stands
between two addresses. Instead, `Wire.take` gives every connected socket of the process a pair of local sockets in its
place, under the same descriptor, and two threads that carry the bytes on. It needs no privileges. Sockets that are
watched by epoll cannot be taken, since epoll keeps to the socket that was there before: such ports are named in `leave`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Collection
from typing import Literal

Failure = Literal["killed", "cut", "stalled", "flipped"]
_CHUNK = 1 << 16


def connected_sockets() -> list[tuple[int, int, int]]:
    """Returns descriptor, own port and port of the peer of every connected TCP socket of this process."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    found.append((int(entry), copy.getsockname()[1], copy.getpeername()[1]))
        except OSError:  # Closed meanwhile, or not connected.
            continue
    return found


class Wire:
    """The connections that were taken. `sent` counts the bytes that left this process by them. Thread-safe."""

    def __init__(self) -> None:
        self.sent = 0
        self.failed = threading.Event()
        """Set once the wire has failed as it was told."""
        self.is_cut = False
        self._stalled = threading.Event()
        self._lock = threading.Lock()
        self._failure: Failure | None = None
        self._at = 0
        self._outside: list[socket.socket] = []

    def take(self, leave: Collection[int] = ()) -> int:
        """Takes all connected TCP sockets but those with one of the ports `leave` at either end. Returns how many."""
        taken = [one for one in connected_sockets() if not {one[1], one[2]} & set(leave)]
        for descriptor, _, _ in taken:
            self._splice(descriptor)
        return len(taken)

    def fail_at(self, failure: Failure, byte: int) -> None:
        """Has the wire fail when `byte` bytes have been sent from now on: the process is killed; all its TCP
        connections are cut; nothing goes through any more, in silence; or one bit of the next byte is flipped.
        """
        with self._lock:
            self._failure, self._at = failure, self.sent + byte

    def cut(self) -> None:
        """Ends all TCP connections of this process, taken or not; both ends see them closed."""
        self.is_cut = True
        for outside in self._outside:
            _shut(outside)
        for descriptor, _, _ in connected_sockets():
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                _shut(copy)

    def _splice(self, descriptor: int) -> None:
        outside = socket.socket(fileno=os.dup(descriptor))
        inside, own = socket.socketpair()
        os.set_blocking(own.fileno(), os.get_blocking(descriptor))
        os.dup2(own.fileno(), descriptor, inheritable=False)
        own.close()
        outside.setblocking(True)  # Not before: the descriptor shared this flag.
        self._outside.append(outside)
        for source, target, leaves in ((inside, outside, True), (outside, inside, False)):
            threading.Thread(target=self._carry, args=(source, target, leaves), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, leaves: bool) -> None:
        try:
            while data := source.recv(_CHUNK):
                if leaves:
                    data = self._through(data, target)
                while self._stalled.is_set():
                    threading.Event().wait()
                target.sendall(data)
        except OSError:
            pass
        _shut(target)

    def _through(self, data: bytes, target: socket.socket) -> bytes:
        """Counts bytes that leave, and returns what of them is still to be sent."""
        with self._lock:
            at = self._at - self.sent
            self.sent += len(data)
            if self._failure is None or not 0 <= at < len(data):
                return data
            failure, self._failure = self._failure, None
        if failure == "flipped":
            self.failed.set()
            return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        target.sendall(data[:at])
        if failure == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif failure == "cut":
            self.cut()
        else:
            self._stalled.set()
        self.failed.set()
        return b""


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
