# SPDX-License-Identifier: Apache-2.0
"""Supported dtypes, in torch, and tensors as checkpoints have them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sparsecast import buffers

CanonicalTensor = tuple[str, str, Sequence[int]]
"""Name, safetensors dtype (such as "BF16") and shape, in elements, of a tensor of the trainer."""

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, key) for key, name in buffers.TORCH_DTYPES.items() if hasattr(torch, key)
} | {"I4X2": torch.uint8}
"""torch dtype by safetensors name, for the dtypes that the installed torch has; pairs of 4-bit integers (I4X2) are
uint8.
"""


def in_checkpoint(tensor: CanonicalTensor) -> CanonicalTensor:
    """Returns name, dtype and shape of a tensor as the engine's checkpoint has it. Only tensors of pairs of 4-bit
    numbers differ from the trainer's. They have dtype U8 and the same shape; or dtype I32 and a shape without the last
    dimension, if that is not the only one and has the 4 bytes of a word.
    """
    name, dtype, shape = tensor
    if dtype not in buffers.PAIRS:
        return tensor
    if len(shape) > 1 and shape[-1] == buffers.WORD_BYTES:
        return name, "I32", tuple(shape[:-1])
    return name, "U8", tuple(shape)


def pairs_of(canonical: Sequence[CanonicalTensor]) -> dict[str, str]:
    """Returns the trainer's dtype, by name, of each tensor in `canonical` that holds pairs of 4-bit numbers."""
    return {name: dtype for name, dtype, _ in canonical if dtype in buffers.PAIRS}
