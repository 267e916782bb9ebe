# SPDX-License-Identifier: Apache-2.0
"""One of two trainer ranks with FSDP2-like shards (DTensors over a mesh), whose server's calls go over stdout and stdin.

python vllm_source_rank.py RANK STORE KIND
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
import vllm_models as models
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from vllm.distributed.weight_transfer import ModuleSource, WeightTransferTrainerFactory

from sparsecast.engines.vllm.plugin import register
from sparsecast.engines.vllm.trainer import SparsecastTrainerInitInfo


class PipedServer:
    """A `VLLMWeightSyncClient` whose server is behind stdout and stdin."""

    base_url = None

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def _call(self, name: str, *arguments: Any) -> None:
        with self._lock:
            print("CALL " + json.dumps([name, arguments]), flush=True)
            answer = json.loads(sys.stdin.readline())
        if answer:
            raise RuntimeError(answer)

    def get_world_size(self) -> int:
        return 2

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._call("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update", weight_version)


class Sharded(torch.nn.Module):
    """The checkpoint's tensors as DTensors: by rows, by columns, and some on both ranks."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (2,))
        for index, (name, tensor) in enumerate(tensors.items()):
            placement = Shard(index % tensor.dim()) if index % 5 else Replicate()
            local = part(tensor, placement).clone()
            sharded = DTensor.from_local(local, mesh, [placement], shape=tensor.shape, stride=tensor.stride())
            self.register_parameter(name.replace(".", "|"), torch.nn.Parameter(sharded, requires_grad=False))

    def step(self, tensors: dict[str, torch.Tensor]) -> None:
        for name, parameter in self.named_parameters():
            new = part(tensors[name.replace("|", ".")], parameter.placements[0])
            models.bits_of(parameter.to_local().data).copy_(models.bits_of(new))


def part(tensor: torch.Tensor, placement: Any) -> torch.Tensor:
    """What this rank of two holds."""
    if not isinstance(placement, Shard):
        return tensor
    return tensor.chunk(2, placement.dim)[dist.get_rank()].contiguous()


class Named(ModuleSource):
    """The names of the checkpoint, which parameters of one module cannot have."""

    def iter_local(self) -> Any:
        for name, tensor in super().iter_local():
            yield name.replace("|", "."), tensor


def main() -> None:
    rank, store, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    register()
    tensors = models.checkpoint(kind, seed=1)
    module = Sharded(tensors)
    source = Named(module)
    metadata = [type(m)(m.name.replace("|", "."), m.dtype, m.shape, owners=m.owners, mesh_shape=m.mesh_shape,
                        placements=m.placements) for m in source.metadata]  # fmt: skip
    source.__dict__["metadata"] = metadata
    info = SparsecastTrainerInitInfo(rank=rank, host="127.0.0.1", may_miss=("*.attn.*_scale",), timeout=60.0)
    engine: Any = WeightTransferTrainerFactory.trainer_init(info, client=PipedServer(), source=source)
    for update in range(2):
        tensors = models.random_updates(tensors, seed=100 + update)
        module.step(tensors)
        engine.send_weights()
    dist.barrier()
    engine.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
