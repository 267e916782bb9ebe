# SPDX-License-Identifier: Apache-2.0
"""Trainer for vLLM servers on which nothing of sparsecast is installed: finds what changed, and sends it by vLLM's own
backend `sparse_nccl`.

    vllm serve MODEL --weight-transfer-config '{"backend": "sparse_nccl"}'

    info = StockTrainerInitInfo("10.0.0.1", 29500, world_size=1 + workers, rank=0)
    engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(model))
    engine.send_weights()

The changes are found here, against a snapshot of what was sent; the server's side is vLLM's. The server keeps no
version and no digest, does not undo a part of an update, and takes no integers and no NaN: `_LIMITS` is logged when a
trainer is made.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)
from vllm.distributed.weight_transfer.sparse_nccl_engine import (
    SparseNCCLTrainerInitInfo,
    SparseNCCLTrainerWeightTransferEngine,
    SparseWeightPatch,
)

from sparsecast.buffers import bits_of
from sparsecast.engines.vllm.plugin import STOCK_BACKEND, check_version
from sparsecast.engines.vllm.source import whole_tensors
from sparsecast.errors import UnsupportedError, UsageError

_logger = logging.getLogger("vllm.sparsecast")
_MOST_ELEMENTS = 1 << 31
_LIMITS = (
    "sparse_nccl promises less than sparsecast's own backend: no digest proves what the server has, not even that it "
    "began with this trainer's weights (seed=True sends all of them first); an update that fails half way is not undone; "
    "weights are floating-point and never NaN"
)


@dataclass
class StockTrainerInitInfo(TrainerInitInfo):
    """Settings of one trainer rank: the address at which trainer and workers meet, as in vLLM's
    `SparseNCCLTrainerInitInfo`, whether the first transfer sends all elements, and the dtype in which weights are sent.
    """

    backend: ClassVar[str] = STOCK_BACKEND

    master_address: str
    master_port: int
    world_size: int
    """One more than the number of workers of the server, because rank 0 of the trainer counts, too."""
    seed: bool = False
    """Whether the first transfer sends all elements: the server holds other weights than the source has now."""
    wire_dtype: torch.dtype | None = None
    """dtype that the server has instead of the source's: bf16 where the source yields fp32, or nearly all would change.
    """


class StockTrainerWeightTransferEngine(TrainerWeightTransferEngine[StockTrainerInitInfo]):
    """One trainer rank that sends changed weights to a vLLM server without sparsecast, by vLLM's backend `sparse_nccl`.
    Rank 0 keeps a snapshot of what was sent, and sends; the other ranks only take part in the source's gathers.
    """

    init_info_cls = StockTrainerInitInfo

    def __init__(
        self, init_info: StockTrainerInitInfo, client: VLLMWeightSyncClient, source: WeightSource, sender: Any
    ) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self.rank = init_info.rank  # vLLM 0.32 does not keep it.
        self._sender = sender
        self._snapshot: dict[str, torch.Tensor] = {}
        self._send_all = init_info.seed
        self._wire_dtype = init_info.wire_dtype
        self.changed = 0
        """Number of elements that the last transfer sent."""

    @classmethod
    def trainer_init(
        cls, init_info: StockTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> StockTrainerWeightTransferEngine:
        """Makes the engine of one trainer rank. Collective over the ranks of the trainer.

        The sending rank copies the weights of `source` as its snapshot. vLLM's own sparse NCCL trainer then connects to
        the workers. Raises UsageError if `source` is None, and UnsupportedError naming a tensor that vLLM's sparse NCCL
        backend cannot carry.
        """
        check_version()
        if source is None:
            raise UsageError("the backend finds the changes itself: give it a WeightSource")
        if init_info.is_sender:
            _logger.warning("%s", _LIMITS)
        engine = cls(init_info, client, source, None)
        for name, tensor in engine._whole():
            _refuse(name, tensor)
            if init_info.is_sender:
                engine._snapshot[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        engine._sender = SparseNCCLTrainerWeightTransferEngine.trainer_init(
            SparseNCCLTrainerInitInfo(
                init_info.master_address, init_info.master_port, init_info.world_size, rank=init_info.rank
            ),
            client=client,
        )
        return engine

    @torch.no_grad()
    def send_weights(self) -> None:
        """Sends what has changed since the last transfer; collective over the trainer.

        Raises UnsupportedError naming a tensor with a NaN, before anything is sent. After any other error the server
        may have only a part of the changes: the next transfer sends all elements.
        """
        patches: list[SparseWeightPatch] = []
        for name, tensor in self._whole():
            if self.is_sender:
                patch = self._patch(name, tensor)
                if patch is not None:
                    patches.append(patch)
        self.changed = sum(patch.indices.numel() for patch in patches)
        self._send_all = True
        self._sender.send_weights(patches)
        self._send_all = False
        for patch in patches:
            own = self._snapshot[patch.name].view(-1)
            own[patch.indices.to(own.device, torch.int64)] = patch.values.to(own.device)

    def shutdown(self) -> None:
        """Leaves vLLM's group of trainer and workers."""
        self._sender.shutdown()

    def _patch(self, name: str, tensor: torch.Tensor) -> SparseWeightPatch | None:
        known = self._snapshot.get(name)
        if known is None or known.shape != tensor.shape or known.dtype != tensor.dtype:
            raise UsageError("the source yields it with another shape or dtype than before", f"tensor '{name}'")
        flat = tensor.detach().contiguous().view(-1)
        if self._send_all:
            indices = torch.arange(flat.numel(), device=flat.device)
        else:
            indices = (bits_of(flat) != bits_of(known.view(-1))).nonzero().view(-1)
        if not indices.numel():
            return None
        values = flat[indices]
        if bool(torch.isnan(values).any()):
            raise UnsupportedError("it has a NaN, which sparse_nccl takes for 'unchanged'", f"tensor '{name}'")
        return SparseWeightPatch(name, indices.to(torch.int32), values, tuple(tensor.shape))

    def _whole(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields the whole tensors of the source (`whole_tensors`), in the dtype in which they are sent."""
        for name, tensor in whole_tensors(self.source):
            cast = self._wire_dtype is not None and tensor.is_floating_point()
            yield name, tensor.to(self._wire_dtype) if cast else tensor


def _refuse(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_floating_point():
        raise UnsupportedError(f"sparse_nccl carries no {tensor.dtype}", f"tensor '{name}'")
    if tensor.numel() > _MOST_ELEMENTS:
        raise UnsupportedError(f"{tensor.numel()} elements: sparse_nccl has int32 positions", f"tensor '{name}'")
