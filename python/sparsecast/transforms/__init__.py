# SPDX-License-Identifier: Apache-2.0
"""Transforms of tensors before they are compared and sent: LoRA and QLoRA merges, quantisation.

An engine often holds other tensors than the trainer: merged weights where the trainer has a frozen base and adapters,
or weights of 8 or 4 bits where it has bf16. The publisher then compares the *results*. :class:`Transforms` chains steps; called
with a local shard, it writes to outputs whose addresses never change, and which are registered with a publisher::

    transforms = Transforms([LoraMerge({name: [adapter]}), Fp8BlockQuantize()], table)
    for name, tensor, box in shards:          # every step, before publisher.sync()
        for out_name, out, out_box in transforms(name, tensor, box):
            ...                               # the same `out` every time

Shards are boxes of canonical tensors, as in a :class:`~sparsecast.Layout`. Nothing is gathered: a step works on the
shard alone, but for :class:`Quantize` with a group, which takes a maximum over the ranks that share blocks.
"""

from __future__ import annotations

from .formats import (
    FP8_CHANNELS,
    FP8_TENSOR,
    MODELOPT_FP8,
    MODELOPT_NVFP4,
    MXFP4,
    MXFP8,
    NVFP4,
    QuantFormat,
    fp8_blocks,
    int4_groups,
)
from .lora import DequantizeMerge, LoraAdapter, LoraMerge
from .pipeline import Transforms
from .quantize import KEPT_BY_DEFAULT, Fp8BlockQuantize, Quantize
from .shards import transformed
from .step import Piece, TensorSpec, Transform

__all__ = [
    "FP8_CHANNELS",
    "FP8_TENSOR",
    "KEPT_BY_DEFAULT",
    "MODELOPT_FP8",
    "MODELOPT_NVFP4",
    "MXFP4",
    "MXFP8",
    "NVFP4",
    "DequantizeMerge",
    "Fp8BlockQuantize",
    "LoraAdapter",
    "LoraMerge",
    "Piece",
    "QuantFormat",
    "Quantize",
    "TensorSpec",
    "Transform",
    "Transforms",
    "fp8_blocks",
    "int4_groups",
    "transformed",
]
