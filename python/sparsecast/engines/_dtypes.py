"""The dtypes that sparsecast carries, as torch has them."""

from __future__ import annotations

import torch

from sparsecast import buffers

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, key) for key, name in buffers.TORCH_DTYPES.items()}
"""By safetensors' names."""
