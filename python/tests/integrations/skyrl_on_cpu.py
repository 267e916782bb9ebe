# SPDX-License-Identifier: Apache-2.0
"""Lets SkyRL's FSDP policy worker run on a CPU with gloo. It names CUDA devices and NCCL; nothing else is replaced."""

from __future__ import annotations

import functools
from typing import Any

import ray
import torch
from skyrl.backends.skyrl_train.distributed import fsdp_utils
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase


def allow_cpu() -> None:
    """In this process, for ever."""
    cpu = torch.device("cpu")
    empty, shard = torch.empty, fsdp_utils.fully_shard
    distributed = torch.distributed
    mesh, group = distributed.device_mesh.init_device_mesh, distributed.init_process_group

    def empty_on_cpu(*sizes: Any, **options: Any) -> torch.Tensor:
        return empty(*sizes, **{**options, "device": cpu} if options.get("device") == "cuda" else options)

    @functools.wraps(shard)
    def shard_with_sums(module: Any, **options: Any) -> Any:
        sharded = shard(module, **options)
        sharded.set_force_sum_reduction_for_comms(True)  # Gloo has no average.
        return sharded

    torch.empty = empty_on_cpu
    torch.Tensor.cuda = torch.Tensor.clone
    torch.cuda.current_device = lambda: cpu
    torch.cuda.set_device = torch.cuda.synchronize = lambda *_: None
    distributed.init_process_group = lambda **options: group(**{**options, "backend": "gloo"})
    distributed.device_mesh.init_device_mesh = lambda _, *sizes, **options: mesh("cpu", *sizes, **options)
    fsdp_utils.init_device_mesh = distributed.device_mesh.init_device_mesh
    fsdp_utils.fully_shard = shard_with_sums


class CpuPolicyWorkerBase(FSDPPolicyWorkerBase):
    def __init__(self, **options: Any) -> None:
        allow_cpu()
        super().__init__(**options)

    def init_model(self, *arguments: Any, **options: Any) -> None:
        super().init_model(*arguments, **options)
        # SkyRL asks every model that knows experts for what its routers say; one of dense layers has no routers.
        self.model.model.config.output_router_logits = False

    def last_report(self) -> dict[str, int]:
        """Numbers of this rank's last sync."""
        report = self._weight_sync_engine.last_report
        return {name: getattr(report, name) for name in ("version", "changed", "sent_bytes")}


PolicyWorker = ray.remote(num_gpus=1)(CpuPolicyWorkerBase)
