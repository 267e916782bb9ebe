# SPDX-License-Identifier: Apache-2.0
"""Supported dtypes, in torch."""

from __future__ import annotations

import torch

from sparsecast import buffers

TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, key) for key, name in buffers.TORCH_DTYPES.items()}
"""torch dtype by safetensors name."""
