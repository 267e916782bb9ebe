# SPDX-License-Identifier: Apache-2.0
"""Writes testdata/quantize/fp8_blocks.safetensors: small matrices and what torch's own fp8 cast makes of their blocks."""

from __future__ import annotations

import json
import struct
import sys

import torch

BLOCK = (16, 24)
SHAPE = (40, 52)
NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3"}


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrix as float8_e4m3fn, and its blocks' weight_scale_inv; every number is finite."""
    rows, columns = weight.shape
    grid = (-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))
    scales = torch.empty(grid, dtype=torch.float32)
    fp8 = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i in range(grid[0]):
        for j in range(grid[1]):
            where = slice(i * BLOCK[0], (i + 1) * BLOCK[0]), slice(j * BLOCK[1], (j + 1) * BLOCK[1])
            block = weight[where].float()
            amax = block.abs().max()
            scale = amax / 448.0 if amax > 0 else torch.tensor(1.0)
            scales[i, j] = scale
            fp8[where] = (block / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return fp8, scales


def main(path: str) -> None:
    torch.manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)):
        weight = torch.randn(SHAPE) * torch.logspace(-4, 0, SHAPE[0])[:, None]
        weight[16:32, 24:48] = 0.0
        weight[0, 0] = -0.0
        tensors[name] = weight.to(dtype)
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale_inv"] = quantize(tensors[name])
    header: dict[str, object] = {}
    body = b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        offsets = [len(body), len(body) + len(raw)]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        body += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


if __name__ == "__main__":
    main(sys.argv[1])
