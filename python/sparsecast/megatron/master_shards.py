# SPDX-License-Identifier: Apache-2.0
"""The fp32 masters of Megatron-core's optimizers: the parts of parameters that a data-parallel rank owns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import UnsupportedError
from .layout import megatron_tensors


@dataclass(frozen=True)
class MasterShard:
    """Part of a parameter that the optimizer of this rank steps: elements [begin, end) of the flattened parameter.

    After the step ``master`` is cast to these elements. Where other ranks step the other parts, an all-gather fetches
    them: before the all-gather, only the parts of this rank have new values here.

    A DistributedOptimizer splits every bucket of its parameter buffers into equal parts, one for each data-parallel
    rank, regardless of parameter boundaries. In the parameter buffer number ``buffer`` of such an optimizer, in its
    bucket number ``bucket``, the part is elements [buffer_begin, buffer_begin + end - begin). Other optimizers step
    whole parameters, and the three are None.
    """

    parameter: str  #: Name of the parameter in megatron_tensors.
    begin: int
    end: int
    buffer: int | None
    bucket: int | None
    buffer_begin: int | None
    #: fp32, ``end - begin`` elements; None where the optimizer keeps none of its own (fp32 parameters, which are stepped
    #: in place, and masters inside of a precision-aware optimizer).
    master: torch.Tensor | None


def master_shards(optimizer: Any, model_chunks: Any) -> list[MasterShard]:
    """Returns the parts of parameters that this rank owns, in the order of the optimizer.

    ``optimizer`` is a DistributedOptimizer, a Float16OptimizerWithFloat16Params around any optimizer (Muon, for
    example), which steps whole parameters, a LayerWiseDistributedOptimizer, which has those of whole parameters that
    this rank steps, or a ChainedOptimizer of these. ``model_chunks`` is a model, or the list of this rank's virtual
    stages, as for megatron_layout. Raises UnsupportedError for another optimizer, and for a parameter that the model
    does not have.
    """
    names = {tensor.data_ptr(): name for name, tensor in megatron_tensors(model_chunks).items() if tensor.numel()}
    return list(_of_optimizer(optimizer, names))


def _of_optimizer(optimizer: Any, names: dict[int, str]) -> Iterator[MasterShard]:
    if hasattr(optimizer, "chained_optimizers"):
        for one in optimizer.chained_optimizers:
            yield from _of_optimizer(one, names)
    elif hasattr(optimizer, "gbuf_ranges"):
        for buffer, by_dtype in enumerate(optimizer.gbuf_ranges):
            for buckets in by_dtype.values():
                yield from _of_buffer(buffer, buckets, names)
    elif hasattr(optimizer, "fp32_from_float16_groups"):
        for parameters, masters in zip(optimizer.float16_groups, optimizer.fp32_from_float16_groups, strict=True):
            for parameter, master in zip(parameters, masters, strict=True):
                yield _whole(parameter, master, names)
        for parameters in optimizer.fp32_from_fp32_groups:
            for parameter in parameters:
                yield _whole(parameter, None, names)
    elif not getattr(optimizer, "is_stub_optimizer", False):  # A stub is where a rank trains no parameter.
        raise UnsupportedError(
            f"where {type(optimizer).__name__} keeps fp32 masters is not known; the model's parameters after its step "
            "can be published without it"
        )


def _of_buffer(buffer: int, buckets: Sequence[Any], names: dict[int, str]) -> Iterator[MasterShard]:
    for bucket, ranges in enumerate(buckets):
        for parameter, where in sorted(ranges["param_map"].items(), key=lambda entry: entry[1]["gbuf_world"].start):
            own, master = where["param"], getattr(parameter, "main_param", None)
            begin = where["gbuf_world"].start
            yield MasterShard(_name(parameter, names), own.start, own.end, buffer, bucket, begin, master)


def _whole(parameter: torch.Tensor, master: torch.Tensor | None, names: dict[int, str]) -> MasterShard:
    flat = None if master is None else master.view(-1)
    return MasterShard(_name(parameter, names), 0, parameter.numel(), None, None, None, flat)


def _name(parameter: torch.Tensor, names: dict[int, str]) -> str:
    name = names.get(parameter.data_ptr())
    if name is None:
        raise UnsupportedError(f"a parameter of {list(parameter.shape)} in the optimizer is not the model's")
    return name
