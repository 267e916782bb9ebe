# SPDX-License-Identifier: Apache-2.0
"""Supported dtypes, in torch, and tensors as checkpoints have them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparsecast import buffers

CanonicalTensor = tuple[str, str, Sequence[int]]
"""Name, safetensors dtype ("BF16") and shape of a tensor as the trainer has it."""

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, key) for key, name in buffers.TORCH_DTYPES.items() if hasattr(torch, key)
} | {"I4X2": torch.uint8}
"""torch dtype by safetensors name, for the dtypes that this torch has; pairs of integers are bytes in torch."""


def in_checkpoint(tensor: CanonicalTensor) -> CanonicalTensor:
    """Returns a tensor as the engine's checkpoint has it: pairs of 4-bit numbers are I32 where their last of several
    dimensions is the bytes of a word, and U8 elsewhere.
    """
    name, dtype, shape = tensor
    if dtype not in buffers.PAIRS:
        return tensor
    if len(shape) > 1 and shape[-1] == buffers.WORD_BYTES:
        return name, "I32", tuple(shape[:-1])
    return name, "U8", tuple(shape)


def pairs_of(canonical: Sequence[CanonicalTensor]) -> dict[str, str]:
    """Returns the dtypes of the tensors of pairs, by name."""
    return {name: dtype for name, dtype, _ in canonical if dtype in buffers.PAIRS}
