# SPDX-License-Identifier: Apache-2.0
"""Small traces for the tests, and what they should hold, computed without the code under test."""

from __future__ import annotations

import json
import pathlib
import struct

import torch
from torch import nn

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
REAL_TRACE = REPOSITORY / "testdata" / "trace"

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> bytes:
    """The tensor's elements as they lie in memory."""
    return tensor.detach().contiguous().view(-1).view(_INTEGERS[tensor.element_size()]).numpy().tobytes()


def write_safetensors(
    path: pathlib.Path, tensors: dict[str, tuple[str, list[int], bytes]], metadata: dict[str, str] | None = None
) -> None:
    """A safetensors file from the format alone; ``tensors``: name -> (dtype, shape, bytes)."""
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def sparse_step(path: pathlib.Path, changes: dict[str, tuple[list[int], list[int]]]) -> None:
    """A sparse step of BF16 tensors: name -> (indices, bits)."""
    tensors: dict[str, tuple[str, list[int], bytes]] = {}
    for name, (indices, values) in changes.items():
        tensors[f"{name}.indices"] = ("I32", [len(indices)], struct.pack(f"<{len(indices)}i", *indices))
        tensors[f"{name}.values"] = ("BF16", [len(values)], struct.pack(f"<{len(values)}H", *values))
    write_safetensors(path, tensors, {"sparse": "True", "model_version": str(int(path.stem.split("_")[1]))})


class Model(nn.Module):
    """A tied pair, a matrix, a vector, a scalar, a buffer of integers, and weights that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.untouched = nn.Parameter(torch.randn(5, 3))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.count += 1
        hidden = torch.tanh(self.middle(self.embedding(tokens))) * self.scale
        return nn.functional.cross_entropy(self.head(hidden), tokens.roll(1))
