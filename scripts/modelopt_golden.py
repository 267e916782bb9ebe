# SPDX-License-Identifier: Apache-2.0
"""Writes testdata/quantize/modelopt.safetensors: a small matrix and what ModelOpt makes of it.

    python3 scripts/modelopt_golden.py testdata/quantize/modelopt.safetensors

Needs the packages nvidia-modelopt (0.47.0 wrote the file; it runs on a CPU) and safetensors.
"""

from __future__ import annotations

import sys

import torch
from modelopt.torch.export.quant_utils import QUANTIZATION_FP8, to_quantized_weight
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from safetensors.torch import save_file


def main() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(17)) * 0.02
    weight = weight.bfloat16().float()  # fp32 holds them, so that ModelOpt divides in fp32.
    weight[3, 32:48] = 0
    nvfp4, scale, scale_2 = NVFP4QTensor.quantize(weight, 16)
    fp8_scale = weight.abs().amax() / 448
    tensors = {
        "weight": weight.bfloat16(),
        "nvfp4.weight": nvfp4._quantized_data,
        "nvfp4.weight_scale": scale,
        "nvfp4.weight_scale_2": scale_2,
        "fp8.weight": to_quantized_weight(weight, fp8_scale, QUANTIZATION_FP8),
        "fp8.weight_scale": fp8_scale,
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, sys.argv[1])


if __name__ == "__main__":
    main()
