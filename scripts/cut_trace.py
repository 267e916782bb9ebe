#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts a recorded training trace down to some tensors and steps.

A trace is a directory of safetensors files in order of their names: an anchor with every tensor, then sparse steps with
`NAME.indices` (I32) and `NAME.values`. The cut keeps the chosen tensors of the anchor and of the first steps, bit for bit.

    scripts/cut_trace.py SOURCE TARGET --steps 6 --tensors 'e.weight' 'b.0.*' 'h.weight'
"""

import argparse
import fnmatch
import json
import pathlib
import struct


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    return header.pop("__metadata__", {}), header, data[8 + length :]


def write_safetensors(path, metadata, entries):
    """entries: (name, dtype, shape, bytes), written in this order."""
    header = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, dtype, shape, data in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(entry[3] for entry in entries))


def tensor_name(entry_name):
    return entry_name.removesuffix(".indices").removesuffix(".values")


def cut(source, target, patterns):
    metadata, header, data = read_safetensors(source)
    entries = []
    for name, field in header.items():
        if any(fnmatch.fnmatchcase(tensor_name(name), pattern) for pattern in patterns):
            begin, end = field["data_offsets"]
            entries.append((name, field["dtype"], field["shape"], data[begin:end]))
    kept = {key: metadata[key] for key in ("sparse", "model_version") if key in metadata}
    write_safetensors(target, kept, entries)
    return sum(len(entry[3]) for entry in entries)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=6, help="sparse steps to keep after the anchor")
    parser.add_argument("--tensors", nargs="+", default=["*"], help="names or shell patterns")
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    for source in sorted(arguments.source.glob("*.safetensors"))[: arguments.steps + 1]:
        print(f"{source.name}: {cut(source, arguments.target / source.name, arguments.tensors)} bytes of data")


if __name__ == "__main__":
    main()
