# SPDX-License-Identifier: Apache-2.0
"""two_checkpoints.py ONE TWO: two safetensors files that differ in some elements; by the standard library alone."""

from __future__ import annotations

import json
import random
import struct
import sys


def write(path: str, tensors: dict[str, bytes]) -> None:
    header, offset = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [len(data) // 2], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


rng = random.Random(7)
one = {f"layer.{i}.weight": rng.randbytes(200_000) for i in range(3)}
two = {}
for name, data in one.items():
    changed = bytearray(data)
    for i in rng.sample(range(0, len(data), 2), 1_000):
        changed[i] ^= 1
    two[name] = bytes(changed)
write(sys.argv[1], one)
write(sys.argv[2], two)
