# SPDX-License-Identifier: Apache-2.0
"""Readers and writers of other systems' layouts, written from docs/interop.md alone, with numpy.

A state is a dict: name -> (dtype as safetensors names it, shape, bytes). Nothing here knows of sparsecast.
"""

import json
import pathlib
import struct
import zlib

import numpy as np
import xxhash
import zstandard

SIZES = {
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "F64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "I16": 2,
    "I32": 4,
    "I64": 8,
    "BOOL": 1,
}
TORCH = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "bool",
}
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def parse_safetensors(data):
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    begin = 8 + length
    tensors = {
        n: (e["dtype"], e["shape"], data[begin + e["data_offsets"][0] : begin + e["data_offsets"][1]])
        for n, e in header.items()
    }
    return tensors, metadata


def read_safetensors(path):
    return parse_safetensors(pathlib.Path(path).read_bytes())


def safetensors_bytes(tensors, metadata=None):
    header = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(bytes(data) for _, _, data in tensors.values())


def write_safetensors(path, tensors, metadata=None):
    pathlib.Path(path).write_bytes(safetensors_bytes(tensors, metadata))


def words(dtype, data):
    return np.frombuffer(data, WORDS[SIZES[dtype]])


def patches(old, new):
    """(name, dtype, shape, element indices, new words) of every tensor that differs."""
    for name, (dtype, shape, data) in new.items():
        before, after = words(dtype, old[name][2]), words(dtype, data)
        indices = np.flatnonzero(before != after)
        if indices.size:
            yield name, dtype, shape, indices, after[indices]


def patched(state, changes):
    """`changes`: name -> (indices, words)."""
    result = dict(state)
    for name, (indices, values) in changes.items():
        dtype, shape, data = state[name]
        copy = words(dtype, data).copy()
        copy[indices] = values
        result[name] = (dtype, shape, copy.tobytes())
    return result


# --- TRL ------------------------------------------------------------------------------------------------------------


def trl_write(path, old, new, version):
    tensors, names = {}, []
    for name, dtype, _, indices, values in patches(old, new):
        tensors[name + ".indices"] = ("I32", [indices.size], indices.astype("<i4").tobytes())
        tensors[name + ".values"] = (dtype, [indices.size], values.tobytes())
        names.append(name)
    write_safetensors(
        path,
        tensors,
        {"sparse": "True", "model_version": str(version), "sparsity": "0.99", "changed_params": json.dumps(names)},
    )


def trl_apply(path, state):
    tensors, metadata = read_safetensors(path)
    assert metadata["sparse"] == "True", metadata
    changes = {}
    for entry, (_, _, data) in tensors.items():
        if entry.endswith(".indices"):
            name = entry[: -len(".indices")]
            dtype, _, values = tensors[name + ".values"]
            assert dtype == state[name][0]
            changes[name] = (np.frombuffer(data, "<i4"), words(dtype, values))
    if "changed_params" in metadata:
        assert sorted(json.loads(metadata["changed_params"])) == sorted(changes)
    return patched(state, changes), int(metadata["model_version"])


# --- slime, miles: delta directories --------------------------------------------------------------------------------


def tensor_checksum(algorithm, data):
    return xxhash.xxh3_128(data).hexdigest() if algorithm == "xxh3-128" else f"{zlib.adler32(data):08x}"


def slime_write(directory, old, new, version, encoding, algorithm="xxh3-128", files=2, labels=None):
    """`labels`: what the index calls the version and its base, where that is not their numbers."""
    label, base_label = labels or (f"{version:06d}", f"{version - 1:06d}")
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    tensors, checksums = [{} for _ in range(files)], [{} for _ in range(files)]
    weight_map = {}
    for place, (name, dtype, _, _, _) in enumerate(patches(old, new)):
        before, after = np.frombuffer(old[name][2], np.uint8), np.frombuffer(new[name][2], np.uint8)
        if encoding == "xor":
            body = (before ^ after).tobytes()
        else:
            positions = np.flatnonzero(before != after).astype("<u4")
            body = struct.pack("<I", positions.size) + positions.tobytes() + after[before != after].tobytes()
        frame = zstandard.ZstdCompressor(level=1).compress(body)
        tensors[place % files][name] = ("U8", [len(frame)], frame)
        checksums[place % files][name] = tensor_checksum(algorithm, new[name][2])
        weight_map[name] = f"model-{place % files:05d}-of-{files:05d}.safetensors"
    for i in range(files):
        write_safetensors(directory / f"model-{i:05d}-of-{files:05d}.safetensors", tensors[i], checksums[i])
    metadata = {
        "version": label,
        "base_version": base_label,
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": algorithm,
    }
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": metadata, "weight_map": weight_map})
    )


def slime_apply(directory, state):
    directory = pathlib.Path(directory)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    metadata, seen = index["metadata"], {}
    result = dict(state)
    for path in sorted(directory.glob("*.safetensors")):
        tensors, checksums = read_safetensors(path)
        for name, (kind, shape, frame) in tensors.items():
            assert kind == "U8" and name not in seen
            seen[name] = path.name
            dtype, full_shape, data = state[name]
            body = np.frombuffer(zstandard.ZstdDecompressor().decompress(frame), np.uint8)
            after = np.frombuffer(data, np.uint8).copy()
            if metadata["delta_encoding"] == "xor":
                assert body.size == after.size
                after ^= body
            else:
                count = int.from_bytes(body[:4].tobytes(), "little")
                after[np.frombuffer(body[4 : 4 + 4 * count].tobytes(), "<u4")] = body[4 + 4 * count :]
            assert tensor_checksum(metadata["checksum_format"], after.tobytes()) == checksums[name], name
            result[name] = (dtype, full_shape, after.tobytes())
    assert seen == index["weight_map"]
    return result, int(metadata["version"]), int(metadata["base_version"])


# --- slime's earlier packed form; verl's flush ------------------------------------------------------------------------


def torch_hash(dtype, data):
    """torch.hash_tensor: exclusive or of the elements as float64 or int64 bits."""
    if dtype in ("F8_E4M3", "F8_E5M2"):
        return None
    if dtype == "BF16":
        wide = (words(dtype, data).astype(np.uint32) << 16).view(np.float32)
    else:
        kind = {
            "F16": np.float16,
            "F32": np.float32,
            "F64": np.float64,
            "I8": np.int8,
            "I16": np.int16,
            "I32": np.int32,
            "I64": np.int64,
            "U8": np.uint8,
            "BOOL": np.uint8,
        }[dtype]
        wide = np.frombuffer(data, kind)
        if dtype == "F16":
            wide = wide.astype(np.float32)  # A float32 on the way makes NaNs quiet, as PyTorch does.
    with np.errstate(invalid="ignore"):
        wide = wide.astype(np.float64 if dtype[0] in "BF" and dtype != "BOOL" else np.int64)
    return int(np.bitwise_xor.reduce(wide.view(np.uint64))) if wide.size else 0


def packed_checksum(positions, dtype, values):
    return torch_hash("U8", positions) ^ (torch_hash(dtype, values) << 1)


def packed_write(directory, old, new, version, encoding, mixed=False, checksum=True):
    """One flush a dtype; with `mixed`, bf16 and f32 in one of f32."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    flushes = {}
    for patch in patches(old, new):
        key = "F32" if mixed and patch[1] in ("BF16", "F32") else patch[1]
        flushes.setdefault(key, []).append(patch)
    for flush, (stored, members) in enumerate(flushes.items()):
        positions, values, params, count = b"", b"", [], 0
        for name, dtype, shape, indices, new_words in members:
            if encoding == "indices":
                blob, width = indices.astype("<u4").tobytes(), 4
            else:
                gaps = np.diff(indices, prepend=-1) - 1
                width = 2 if gaps.max() <= 65535 else 4
                blob = gaps.astype({2: "<u2", 4: "<u4"}[width]).tobytes()
            if stored != dtype:
                new_words = new_words.astype(np.uint32) << 16
            params.append(
                {
                    "name": name,
                    "dtype": TORCH[dtype],
                    "shape": list(shape),
                    "pos_start": len(positions),
                    "pos_end": len(positions) + len(blob),
                    "pos_width": width,
                    "val_start": count,
                    "val_end": count + indices.size,
                }
            )
            positions, values, count = positions + blob, values + new_words.tobytes(), count + indices.size
        metadata = {
            "encoding": encoding,
            "params": json.dumps(params),
            "prev_version": str(version - 1),
            "current_version": str(version),
        }
        if checksum and stored[:2] != "F8":
            metadata["checksum"] = str(packed_checksum(positions, stored, values))
        data = safetensors_bytes(
            {"__positions__": ("U8", [len(positions)], positions), "__values__": (stored, [count], values)}, metadata
        )
        if encoding == "deltas_zstd":
            data = zstandard.ZstdCompressor(level=1).compress(data)
        (directory / f"rank0000_flush{flush:06d}.safetensors").write_bytes(data)
    (directory / "DONE").touch()


def flush_changes(encoding, params, positions, values_dtype, values):
    changes = {}
    for p in params:
        blob = positions[p["pos_start"] : p["pos_end"]]
        numbers = np.frombuffer(blob, {2: "<u2", 4: "<u4"}[p["pos_width"]]).astype(np.int64)
        indices = numbers if encoding == "indices" else np.cumsum(numbers + 1) - 1
        assert TORCH[values_dtype] == p["dtype"]
        changes[p["name"]] = (indices, words(values_dtype, values)[p["val_start"] : p["val_end"]])
    return changes


def packed_apply(directory, state):
    directory = pathlib.Path(directory)
    assert (directory / "DONE").exists()
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        if data[:4] == b"\x28\xb5\x2f\xfd":
            data = zstandard.ZstdDecompressor().decompress(data)
        tensors, metadata = parse_safetensors(data)
        positions, (dtype, _, values) = tensors["__positions__"][2], tensors["__values__"]
        if dtype[:2] != "F8":
            assert int(metadata["checksum"]) == packed_checksum(positions, dtype, values)
        state = patched(
            state, flush_changes(metadata["encoding"], json.loads(metadata["params"]), positions, dtype, values)
        )
    return state


def verl_apply(paths, state):
    for path in paths:
        tensors, _ = read_safetensors(path)
        spec = json.loads(tensors["__delta_spec__"][2])
        positions, (dtype, _, values) = tensors["__positions__"][2], tensors["__values__"]
        assert spec["encoding"] == "indices" and int(spec["checksum"]) == packed_checksum(positions, dtype, values)
        state = patched(state, flush_changes("indices", spec["params"], positions, dtype, values))
    return state
