# SPDX-License-Identifier: Apache-2.0
"""The fp32 masters of Megatron-core's distributed optimizer: the parts of parameters that a data-parallel rank owns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UnsupportedError
from .layout import megatron_tensors


@dataclass(frozen=True)
class MasterShard:
    """Part of a parameter that the optimizer of this rank steps: elements [begin, end) of the flattened parameter.

    In the parameter buffer number ``buffer``, in its bucket number ``bucket``, the part is elements [buffer_begin,
    buffer_begin + end - begin). Every bucket is split into equal parts, one for each data-parallel rank, regardless of
    parameter boundaries. After the step ``master`` is cast to these elements, and an all-gather fetches the parts of
    the other ranks: before the all-gather, only the parts of this rank have new values here.
    """

    parameter: str  #: Name of the parameter in megatron_tensors.
    begin: int
    end: int
    buffer: int
    bucket: int
    buffer_begin: int
    #: fp32, ``end - begin`` elements; None where the optimizer keeps none of its own (fp32 parameters, which are stepped
    #: in place, and masters inside of a precision-aware optimizer).
    master: torch.Tensor | None


def master_shards(optimizer: Any, model_chunks: Any) -> list[MasterShard]:
    """Returns the parts of parameters that this rank owns in a DistributedOptimizer, or in the several that a
    ChainedOptimizer has, in the order of the buffers.

    ``model_chunks`` is a model, or the list of this rank's virtual stages, as for megatron_layout. Raises
    UnsupportedError for another optimizer, and for a parameter that the model does not have.
    """
    names = {tensor.data_ptr(): name for name, tensor in megatron_tensors(model_chunks).items() if tensor.numel()}
    shards: list[MasterShard] = []
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        if not hasattr(one, "gbuf_ranges"):
            raise UnsupportedError(f"{type(one).__name__} is not Megatron-core's DistributedOptimizer")
        for buffer, by_dtype in enumerate(one.gbuf_ranges):
            for buckets in by_dtype.values():
                shards += _of_buffer(buffer, buckets, names)
    return shards


def _of_buffer(buffer: int, buckets: Sequence[Any], names: dict[int, str]) -> list[MasterShard]:
    shards = []
    for bucket, ranges in enumerate(buckets):
        for parameter, where in ranges["param_map"].items():
            name = names.get(parameter.data_ptr())
            if name is None:
                raise UnsupportedError(f"a parameter of {list(parameter.shape)} in bucket {bucket} is not the model's")
            master = getattr(parameter, "main_param", None)
            own, place = where["param"], where["gbuf_world"]
            shards.append(MasterShard(name, own.start, own.end, buffer, bucket, place.start, master))
    return sorted(shards, key=lambda shard: shard.buffer_begin)
