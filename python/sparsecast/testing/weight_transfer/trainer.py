# SPDX-License-Identifier: Apache-2.0
"""A trainer in a process of its own: joins a server with one checkpoint, and sends another one, or fails as told.

The harness writes a JSON object (`Order`) to its standard input, and a line more when the trainer that has joined is to
go on. The trainer writes JSON objects to its standard output: "ready", "joined", and "done", "failed" or "stalled".
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checkpoints
from .backends import Meeting, find
from .wire import Wire, connected_sockets

if TYPE_CHECKING:
    import torch

UNKNOWN_NAME = "model.layers.0.no_such_module.weight"
_SENT_BYTES_OF_TCP_INFO = 200  # Offset of tcpi_bytes_sent in struct tcp_info of Linux, since 4.19.


@dataclasses.dataclass
class Order:
    """What a trainer is told to do."""

    backend: str
    start: str
    url: str
    workers: int
    base: str
    """Checkpoint with which it joins."""
    target: str
    """Checkpoint that it sends."""
    restarted: bool
    """Whether another trainer has joined this server before."""
    version: int
    """Number of the version that the first checkpoint is; what is sent is one more."""
    timeout: float
    pause: str = ""
    """Mode of /pause around the update; empty: generation is not paused."""
    fault: str = "none"
    """Name of a fault (`cases`)."""
    byte: int = 0
    """Byte at which a wire fails."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Client:
    """vLLM's HTTP client, whose process dies before or after a call, and which reaches nobody once the wire is cut."""

    def __init__(self, url: str, timeout: float, wire: Wire, fault: str) -> None:
        from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient

        self.base_url = url
        self._client = HTTPVLLMWeightSyncClient(url, timeout)
        self._wire = wire
        self._fault = fault
        self.armed = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*arguments: Any, **named: Any) -> Any:
            fault = self._fault if self.armed else ""
            if self._wire.is_cut:
                raise ConnectionError(f"{name}: the wire is cut")
            if fault == f"killed before {name}":
                die()
            if fault == f"killed in {name}":
                threading.Timer(0.01, die).start()
            result = method(*arguments, **named)
            if fault == f"killed after {name}":
                die()
            return result

        return call


def make_source(tensors: dict[str, torch.Tensor]) -> Any:
    """Returns vLLM's `WeightSource` of whole tensors, which are read anew in every pass."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    def metadata(_: WeightSource) -> list[Any]:
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]

    def whole(_: WeightSource) -> Iterator[tuple[str, torch.Tensor]]:
        yield from tensors.items()

    # vLLM 0.33 has another name for the one, and another kind of property for the other.
    members: dict[str, Any] = {"__iter__": whole, "metadata": metadata}
    if hasattr(WeightSource, "iter_full"):
        members = {"iter_full": whole, "metadata": functools.cached_property(metadata)}
    return type("Source", (WeightSource,), members)()


def _die_when_sent(byte: int) -> None:
    """Dies as soon as one of the TCP connections has sent so many bytes."""
    while True:
        for descriptor, _, _ in connected_sockets():
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            sent = struct.unpack_from("Q", info, _SENT_BYTES_OF_TCP_INFO)[0] if len(info) >= 208 else 0
            if sent >= byte:
                die()
        time.sleep(0.0005)


@contextlib.contextmanager
def paused(order: Order, wire: Wire) -> Iterator[None]:
    """Pauses generation inside the block, if the order says so. Afterwards it goes on, whatever has happened, unless
    the wire is cut.
    """
    if not order.pause:
        yield
        return
    for_pause, for_resume = f"{order.url}/pause?mode={order.pause}", f"{order.url}/resume"
    urllib.request.urlopen(for_pause, b"", timeout=order.timeout).close()  # noqa: S310
    try:
        yield
    finally:
        if not wire.is_cut:
            urllib.request.urlopen(for_resume, b"", timeout=order.timeout).close()  # noqa: S310


def _weights(order: Order) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Returns the tensors as the trainer holds them first, and as they are sent."""
    base, target = checkpoints.load(Path(order.base)), checkpoints.load(Path(order.target))
    if order.fault == "name unknown":
        some = next(iter(base.values()))
        base[UNKNOWN_NAME], target[UNKNOWN_NAME] = some.clone(), some * 2
    elif order.fault == "name missing":
        name = sorted(name for name in base if name.endswith("down_proj.weight"))[0]
        del base[name], target[name]
    return base, target


def run(order: Order, say: Any) -> None:
    """Joins, waits for a line, sends."""
    import torch
    import vllm.distributed.weight_transfer  # noqa: F401

    from .server import free_port

    wire = Wire()
    client = Client(order.url, order.timeout, wire, order.fault)
    weights, target = _weights(order)
    if torch.cuda.is_available():
        weights = {name: tensor.cuda() for name, tensor in weights.items()}
    say(event="ready")  # Imports may take minutes on a busy machine.
    if order.fault == "killed in the join":
        threading.Thread(target=_die_when_sent, args=(order.byte,), daemon=True).start()
    port = free_port()
    backend = find(order.backend, order.start)
    meeting = Meeting(
        client=client,
        source=make_source(weights),
        host="127.0.0.1",
        port=port,
        workers=order.workers,
        restarted=order.restarted,
        version=order.version,
        timeout=order.timeout,
    )
    engine = backend.start(meeting)
    http = int(order.url.rpartition(":")[2])
    taken = wire.take({http, port} if backend.leave_rendezvous else {http})
    say(event="joined", connections=taken)
    sys.stdin.readline()
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(target[name])
    kind, _, where = order.fault.partition(" at ")
    if where:
        wire.fail_at(kind, order.byte)  # type: ignore[arg-type]
    if kind == "stalled":
        threading.Thread(target=lambda: wire.failed.wait() and say(event="stalled"), daemon=True).start()
    begin, before = time.monotonic(), wire.sent
    with paused(order, wire):
        client.armed = True
        engine.send_weights()
    say(event="done", bytes=wire.sent - before, seconds=time.monotonic() - begin)


def main() -> None:
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # What libraries print is no answer.

    def say(**words: Any) -> None:
        channel.write(json.dumps(words) + "\n")

    order = Order(**json.loads(sys.stdin.readline()))
    try:
        run(order, say)
    except BaseException as error:
        said = getattr(getattr(error, "response", None), "text", "")
        say(event="failed", error=f"{type(error).__name__}: {error} {said}".strip()[:1000])
    sys.stdin.readline()  # Until the harness lets go, so that connections end by what it does.
    os._exit(0)


if __name__ == "__main__":
    main()
