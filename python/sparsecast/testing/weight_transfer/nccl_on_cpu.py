# SPDX-License-Identifier: Apache-2.0
"""vLLM's backends `nccl` and `sparse_nccl` on a machine without GPUs: TCP connections where NCCL's communicator would
be. All else is vLLM's own code: its trainers, its engines, its loaders.

A process gets it by importing this module: a server's workers by `--worker-extension-cls
sparsecast.testing.weight_transfer.nccl_on_cpu.Extension`. A TCP connection ends with its peer, so a receive fails at once
that would hang in NCCL: what is seen here is better than what NCCL does.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

import torch

_MEET_SECONDS = 60.0


class TcpGroup:
    """What vLLM uses of its `PyNcclCommunicator`: broadcasts from rank 0."""

    device = torch.device("cpu")

    def __init__(self, host: str, port: int, rank: int, world_size: int) -> None:
        self._sends = rank == 0
        if self._sends:
            with socket.create_server((host, port)) as listener:
                listener.settimeout(_MEET_SECONDS)
                self._peers = [listener.accept()[0] for _ in range(world_size - 1)]
        else:
            self._peers = [_reach(host, port)]
        for peer in self._peers:
            peer.settimeout(None)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: object = None) -> None:
        """Sends the bytes of `tensor` at rank 0, and fills it with them at the others."""
        raw: Any = tensor.view(-1).view(torch.uint8).numpy()
        view = memoryview(raw)
        for peer in self._peers:
            if self._sends:
                peer.sendall(view)
                continue
            done = 0
            while done < len(view):
                count = peer.recv_into(view[done:])
                if count == 0:
                    raise ConnectionError(f"rank {src} closed the connection after {done} of {len(view)} bytes")
                done += count

    def destroy(self) -> None:
        for peer in self._peers:
            peer.close()


def _reach(host: str, port: int) -> socket.socket:
    until = time.monotonic() + _MEET_SECONDS
    while True:
        try:
            return socket.create_connection((host, port), timeout=_MEET_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def replace_nccl() -> None:
    """Puts `TcpGroup` in the place of NCCL in this process, and has the CUDA streams that vLLM asks for be none."""
    from vllm.distributed.weight_transfer import nccl_common

    def group(host: str, port: int, rank: int, world_size: int, device: Any) -> TcpGroup:
        return TcpGroup(host, port, rank, world_size)

    nccl_common.stateless_init_process_group = group
    without_accelerator: dict[Any, dict[str, Any]] = {
        torch.cuda: {"current_stream": lambda device=None: None},
        torch.accelerator: {
            "current_device_index": lambda: 0,
            "device_index": lambda index: contextlib.nullcontext(),
            "synchronize": lambda device=None: None,
        },
    }
    for module, functions in without_accelerator.items():
        for name, function in functions.items():
            setattr(module, name, function)


class Extension:
    """Worker extension without methods: vLLM's workers import this module for it."""


if not torch.cuda.is_available():
    replace_nccl()
