# SPDX-License-Identifier: Apache-2.0
"""The weight-transfer backends that are known: how a server is started with each, and how a trainer begins."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_EXTENSIONS = "--worker-extension-cls"


@dataclass(frozen=True)
class Meeting:
    """What a trainer of one rank has when it begins."""

    client: Any
    """vLLM's HTTP client (`VLLMWeightSyncClient`) for the server."""
    source: Any
    """`WeightSource` of all weights of the checkpoint that the server has (or has to be brought to, if `restarted`)."""
    host: str
    port: int
    """Where the trainer may listen."""
    workers: int
    restarted: bool
    """Whether other trainers have been there before: the backend has to bring the server to the weights of `source`."""
    version: int
    """Number of the version that the weights of `source` are, for backends that number versions."""
    timeout: float
    """Seconds that any wait may take."""


@dataclass(frozen=True)
class Backend:
    """One backend. `start` returns a trainer that has met the server (vLLM's `TrainerWeightTransferEngine`): its
    `send_weights()` then sends what is in the source.
    """

    start: Callable[[Meeting], Any]
    flags: tuple[str, ...] = ()
    """Further arguments of `vllm serve`."""
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables of the server."""
    note: str = ""
    seeds: bool = False
    """Whether a restarted trainer sends all weights when it joins."""
    leave_rendezvous: bool = False
    """Whether the connections of the meeting place are watched by epoll (torch's TCPStore), and left alone."""


def _sparsecast(meeting: Meeting) -> Any:
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

    from sparsecast.engines.vllm.plugin import register
    from sparsecast.engines.vllm.trainer import SparsecastTrainerInitInfo

    register()
    info = SparsecastTrainerInitInfo(
        rank=0,
        host=meeting.host,
        port=meeting.port,
        engine_workers=meeting.workers,
        needs_anchor=meeting.restarted,
        version=meeting.version,
        engine_version=meeting.version,
        timeout=meeting.timeout,
    )
    return WeightTransferTrainerFactory.trainer_init(info, client=meeting.client, source=meeting.source)


def _nccl(meeting: Meeting) -> Any:
    import torch
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    _without_gpu()
    info = NCCLTrainerInitInfo(
        rank=0,
        master_address=meeting.host,
        master_port=meeting.port,
        world_size=1 + meeting.workers,
        packed=torch.cuda.is_available(),
    )
    return WeightTransferTrainerFactory.trainer_init(info, client=meeting.client, source=meeting.source)


def _sparse_nccl(meeting: Meeting) -> Any:
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

    from sparsecast.engines.vllm.plugin import register
    from sparsecast.engines.vllm.stock import StockTrainerInitInfo

    _without_gpu()
    register()
    info = StockTrainerInitInfo(
        meeting.host, meeting.port, world_size=1 + meeting.workers, rank=0, seed=meeting.restarted
    )
    engine = WeightTransferTrainerFactory.trainer_init(info, client=meeting.client, source=meeting.source)
    if meeting.restarted:
        engine.send_weights()
    return engine


def _without_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        from sparsecast.testing.weight_transfer import nccl_on_cpu  # noqa: F401  (Replaces NCCL's communicator.)


def _nccl_flags() -> tuple[str, ...]:
    import torch

    if torch.cuda.is_available():
        return ()
    return (_EXTENSIONS, "sparsecast.testing.weight_transfer.nccl_on_cpu.Extension")


def known() -> dict[str, Backend]:
    """Returns the backends that can be tried on this machine, by name."""
    note = "vLLM's code, over TCP in NCCL's place" if _nccl_flags() else ""
    return {
        "sparsecast": Backend(
            _sparsecast,
            flags=(_EXTENSIONS, "sparsecast.engines.vllm.WorkerExtension"),
            variables=(("VLLM_PLUGINS", "sparsecast"),),
            seeds=True,
        ),
        "nccl": Backend(_nccl, flags=_nccl_flags(), note=note, leave_rendezvous=not note),
        "sparse_nccl": Backend(_sparse_nccl, flags=_nccl_flags(), note=note, leave_rendezvous=not note),
    }


NOT_TRIED = {
    "ipc": "hands over CUDA memory, and trainer and server share a GPU",
    "nccl_m2n": "needs GPUs, the package nccl-extensions, and a trainer of several ranks",
    "sharded_rdt": "needs Ray, GPUs and RDMA",
    "modelexpress": "has no trainer in vLLM's interface, and needs its own server and store",
}
"""vLLM's other backends, and why they are not tried here."""


def find(name: str, start: str = "") -> Backend:
    """Returns a backend by its name, or that of the function `start` ("module:function"), which takes a `Meeting`.

    Raises ValueError with the reason if there is no way to try it.
    """
    if start:
        module, _, function = start.partition(":")
        return Backend(getattr(importlib.import_module(module), function))
    backends = known()
    if name not in backends:
        why = NOT_TRIED.get(name, "it is not known here")
        raise ValueError(f"backend {name!r}: {why}; known are {', '.join(backends)}, others by --start MODULE:FUNCTION")
    return backends[name]
