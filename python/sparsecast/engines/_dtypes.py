# SPDX-License-Identifier: Apache-2.0
"""Supported dtypes, in torch."""

from __future__ import annotations

import torch

from sparsecast import buffers

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, key) for key, name in buffers.TORCH_DTYPES.items() if hasattr(torch, key)
} | {"I4X2": torch.uint8}
"""torch dtype by safetensors name, of those that this torch has; pairs of integers are bytes there."""
