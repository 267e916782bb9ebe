"""The dtypes that sparsecast carries, as torch has them."""

from __future__ import annotations

import torch

from sparsecast import buffers

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, key) for key, name in buffers.TORCH_DTYPES.items()}
"""By safetensors' names."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers of its element size; a view. NaNs and zeros then compare as what they are."""
    return tensor.view(_BITS[tensor.element_size()])
