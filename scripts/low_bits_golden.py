# SPDX-License-Identifier: Apache-2.0
"""Writes testdata/quantize/compressed_tensors.safetensors: a small matrix and what compressed-tensors makes of it.

    .venv-vllm/bin/python3 scripts/low_bits_golden.py testdata/quantize/compressed_tensors.safetensors

Needs the packages compressed-tensors (0.17.0 wrote the file) and safetensors. python/tests/transforms compares with the
same functions.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam


def arguments(bits: int, kind: str, strategy: str, group: int | None = None, scale: Any = None) -> QuantizationArgs:
    return QuantizationArgs(
        num_bits=bits, type=kind, strategy=strategy, group_size=group, scale_dtype=scale, symmetric=True
    )


#: The library's name of each format, and its arguments.
CASES = {
    "fp8_channels": ("float-quantized", arguments(8, "float", "channel")),
    "mxfp8": ("mxfp8-quantized", arguments(8, "float", "group", 32, torch.uint8)),
    "mxfp4": ("mxfp4-pack-quantized", arguments(4, "float", "group", 32, torch.uint8)),
    "nvfp4": ("nvfp4-pack-quantized", arguments(4, "float", "tensor_group", 16, torch.float8_e4m3fn)),
    "int4_128": ("pack-quantized", arguments(4, "int", "group", 128)),
    "int4_32": ("pack-quantized", arguments(4, "int", "group", 32)),
}


def random_weights(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Weights of bf16 in fp32, in which the library computes what it is given; no group is zero."""
    weights = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.02
    return (weights * torch.logspace(-3, 3, rows)[:, None]).bfloat16().float()


def compressed(weight: torch.Tensor, case: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a checkpoint, scales by the arithmetic of the library's observers."""
    # Its cast to fp4 is compiled otherwise, which takes a minute.
    torch.compiler.set_stance("force_eager")
    compressor, args = CASES[case]
    groups = weight.unflatten(-1, (-1, args.group_size or weight.shape[1]))
    state = {"weight": weight}
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = generate_gparam(weight.min(), weight.max())
    scale, _ = calculate_qparams(
        groups.amin(dim=-1), groups.amax(dim=-1), args, global_scale=state.get("weight_global_scale")
    )
    state["weight_scale"] = scale.bfloat16().float() if args.type == "int" else scale
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    made = dict(BaseCompressor.get_value_from_registry(compressor).compress(state, scheme))
    if args.type == "int":
        made["weight_scale"] = made["weight_scale"].bfloat16()
    return made


def main(path: str) -> None:
    from safetensors.torch import save_file

    weight = random_weights(16, 256, 1)
    tensors = {"weight": weight.bfloat16()}
    for case in CASES:
        tensors |= {f"{case}.{name}": tensor.contiguous() for name, tensor in compressed(weight, case).items()}
    save_file(tensors, path)


if __name__ == "__main__":
    main(sys.argv[1])
