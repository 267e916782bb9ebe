# SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint engine of whole tensors, for rollouts that take no deltas: what travels is what changed, and each
rollout worker hands its server all tensors, whole, as verl's own backends `nccl` and `nixl` do.

All of them, because verl's vLLM worker has every module post-process its weights after an update.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import torch

from .._gathered import drain
from .._whole_tensors import SharedReader, WholeTensorEngine
from .group import VerlEngine
from .sender import metrics_of


class WholeTensorCheckpointEngine(WholeTensorEngine, VerlEngine[SharedReader]):
    """verl's checkpoint engine by sparsecast for whole tensors. Its options are under
    `checkpoint_engine.engine_kwargs.sparsecast`: `channels`, `log`, `positions`, `timeout`, `threads`, `interface`,
    `shared_dir` and `rollout_dtype` of `SparsecastCheckpointEngine`.
    """

    options_at = "engine_kwargs.sparsecast"
    exporter = "the trainer"
    without_copy = "take a backend of verl's own, such as nccl, which has no copy"

    def __init__(self, bucket_size: int, is_master: bool = False, **options: Any) -> None:
        super().__init__(bucket_size, is_master=is_master, load="all", **options)

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> dict[str, float] | None:
        """Runs one sync on a rank of the trainer; rank 0 sends the weights. `weights` gathers tensors over all ranks, so
        every rank reads it to its end. Returns the figures of the sync on rank 0, and None on other ranks.
        """
        iterator = iter(weights)
        try:
            if self._rank != 0:
                return None
            group = self._joined()
            totals, is_seed = self._send(map(self._converted, iterator), global_steps)
            return metrics_of(totals, group.message_bytes, is_seed)
        except Exception as error:
            raise self._failed(error) from error
        finally:
            drain(iterator)

    def _converted(self, named: tuple[str, torch.Tensor]) -> tuple[str, torch.Tensor]:
        name, tensor = named
        tensor = tensor.detach()
        return name, tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def receive_weights(self, global_steps: int | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Receives one sync and yields its tensors: see `_take`."""
        with closing(self._take(global_steps)) as batches:
            for batch in batches:
                yield from batch
