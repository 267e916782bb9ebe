# SPDX-License-Identifier: Apache-2.0
"""On the path of a vLLM without sparsecast's plug-in, which does the same: its own kernels keep to ONEDNN_MAX_CPU_ISA."""

import torch

torch.cpu._is_amx_tile_supported = lambda: False
