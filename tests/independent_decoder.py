#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second, independent decoder of sparsecast deltas, written from docs/wire-format.md alone.

    independent_decoder.py [DIR]              decode every golden vector of DIR (default: testdata/golden)
    independent_decoder.py --inspect FILE.scd show what a delta holds

It needs numpy. Checksums and digests are verified when the module `xxhash` can be imported, compressed bodies
decoded when `zstandard` can. The numbers in comments are sections of docs/wire-format.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import pathlib
import struct
import sys
from dataclasses import dataclass, field

import numpy as np

from independent_blocks import (
    CONTEXT,
    DTYPES,
    POSITION_NAMES,
    ULP,
    VALUE_NAMES,
    Block,
    FormatError,
    Tensor,
    apply_block,
    read_block,
    require,
)

try:
    import xxhash
except ImportError:
    xxhash = None
try:
    import zstandard
except ImportError:
    zstandard = None

HEADER = struct.Struct("<4sIHHI16sQQ16s16sQIIBB22sQ")  # 2.1
TABLE = struct.Struct("<4sIQIIIIQQ")  # 2.2
FRAME = struct.Struct("<4sIQIIIIIIQQQ")  # 2.3
COMMIT = struct.Struct("<4sIQQIIQQ16sQ16sQ")  # 2.4
Checkpoint = dict[str, tuple[str, tuple[int, ...], np.ndarray]]  # name -> dtype, shape, storage bits


class Unavailable(Exception):
    """A Python module that is needed to go on is not installed."""


def xxh3_64(data: bytes, seed: int = 0) -> int | None:
    return xxhash.xxh3_64_intdigest(data, seed) if xxhash else None


def xxh3_128(data: bytes) -> int | None:
    return xxhash.xxh3_128_intdigest(data) if xxhash else None


def require_hash(stored: int, computed: int | None, what: str) -> None:
    require(computed is None or stored == computed, f"{what} does not agree")


def h128(data: bytes) -> int:
    return int.from_bytes(data, "little")  # The low word comes first, so this is high * 2^64 + low.


@dataclass
class Delta:
    version: int
    base_version: int
    base_digest: int
    result_digest: int
    value_codec: int
    frame_capacity: int
    changed: int
    tensors: list[Tensor]
    frames: list[list[Block]] = field(default_factory=list)


def unpack_stored(stored: bytes, compressed: bool, size: int) -> bytes:
    """The decoded bytes of a TABLE or FRAME: 2.2, 2.3"""
    if not compressed:
        require(len(stored) == size, "stored bytes are not as many as the decoded ones")
        return stored
    if zstandard is None:
        raise Unavailable("module zstandard")
    try:
        require(zstandard.frame_content_size(stored) == size, "a zstd frame does not state the announced size")
    except zstandard.ZstdError as error:
        raise FormatError(f"zstd: {error}") from None
    try:  # First without letting it produce more than it may, then for its exact end.
        produced = zstandard.ZstdDecompressor().stream_reader(stored).read(size + 1)
        require(len(produced) == size, "a zstd frame has another size than announced")
        whole = zstandard.ZstdDecompressor().decompressobj()
        whole.decompress(stored)
    except zstandard.ZstdError as error:
        raise FormatError(f"zstd: {error}") from None
    require(whole.eof and not whole.unused_data, "stored bytes are not exactly one zstd frame")
    return produced


def split_records(data: bytes) -> list[bytes]:
    """2"""
    records = []
    while data:
        require(len(data) >= 8, "a record is cut short")
        size = int.from_bytes(data[4:8], "little")
        require(size >= 8 and size % 8 == 0 and size <= len(data), "record_bytes is impossible")
        records.append(data[:size])
        data = data[size:]
    return records


def unpack_record(form: struct.Struct, magic: bytes, record: bytes) -> tuple:
    require(record[:4] == magic, f"a {magic.decode()} record was expected")
    require(len(record) >= form.size, f"{magic.decode()} is too short")
    return form.unpack_from(record)


def stored_hash(form: struct.Struct, record: bytes, stored: bytes) -> int | None:
    """2.2 and 2.3: the checksum of a TABLE or FRAME, its last fixed field"""
    if form is FRAME:
        words = np.frombuffer(record[form.size :], "<u8")
        stored = (tensor_digest(0, words) % (1 << 128)).to_bytes(16, "little")
    return xxh3_64(stored, xxh3_64(record[: form.size - 8]) or 0)


def read_stored(form: struct.Struct, record: bytes, stored_bytes: int, checksum: int) -> bytes:
    """Checks size, padding and checksum of a TABLE or FRAME."""
    stored = record[form.size : form.size + stored_bytes]
    require(len(record) == form.size + (stored_bytes + 7) // 8 * 8, "record_bytes does not fit stored_bytes")
    require(not any(record[form.size + stored_bytes :]), "padding bytes are set")
    require_hash(checksum, stored_hash(form, record, stored), "a record's checksum")
    return stored


def read_tensors(data: bytes) -> list[Tensor]:
    """3"""
    at, names, tensors = 0, set(), []

    def take(size: int) -> bytes:
        nonlocal at
        require(at + size <= len(data), "the tensor table is cut short")
        at += size
        return data[at - size : at]

    count = int.from_bytes(take(4), "little")
    require(count <= 1 << 20, "too many tensors")
    for _ in range(count):
        begin = at
        name_bytes, dtype, rank = struct.unpack("<HBB", take(4))
        require(name_bytes >= 1 and dtype in DTYPES and rank <= 32, "a table entry is impossible")
        shape = struct.unpack(f"<{rank}Q", take(8 * rank))
        try:
            name = take(name_bytes).decode("utf-8")
        except UnicodeDecodeError:
            raise FormatError("a tensor's name is not UTF-8") from None
        require(math.prod(shape) <= 1 << 46, "a tensor is too large")
        require(name not in names, "a tensor's name is repeated")
        names.add(name)
        tensors.append(Tensor(name, dtype, shape, xxh3_128(data[begin:at])))
    require(at == len(data), "bytes after the tensor table")
    return tensors


def read_frame(body: bytes, groups: int, blocks: int, delta: Delta, next_tiles: dict[int, int]) -> list[Block]:
    """2.3; `next_tiles` holds, for each tensor, the first tile that a later block may begin with."""
    require(len(body) >= 8 * groups + 16 * blocks, "a frame's directory is cut short")
    payload = body[8 * groups + 16 * blocks :]
    entries = struct.iter_unpack("<4I", body[8 * groups : 8 * groups + 16 * blocks])
    found: list[Block] = []
    previous, start, counted = -1, 0, 0
    for index, count in struct.iter_unpack("<2I", body[: 8 * groups]):
        require(previous < index < len(delta.tensors), "groups are out of order or out of range")
        counted += count
        require(count >= 1 and counted <= blocks, "a group's count of blocks is impossible")
        previous = index
        for _ in range(count):
            entry = next(entries)
            require(entry[0] >= next_tiles.get(index, 0), "blocks overlap or are out of order")
            block = read_block(entry, start, payload, index, delta.tensors[index], delta.value_codec)
            next_tiles[index] = entry[0] + (entry[1] >> 24) + 1
            start = entry[2]
            found.append(block)
    require(counted == blocks and start == len(payload), "a frame's blocks do not fill it")
    return found


def read_delta(data: bytes) -> Delta:
    """2: a whole delta file"""
    records = split_records(data)
    require(len(records) >= 3, "a delta has a header, a table and a commit")

    (
        _,
        size,
        major,
        minor,
        flags,
        _,
        version,
        base_version,
        table_hash,
        base_digest,
        elements,
        tensors,
        capacity,
        mode,
        values,
        reserved,
        delta_id,
    ) = unpack_record(HEADER, b"SCH1", records[0])
    require(major == 1 and minor == 0, f"unsupported: the delta has format {major}.{minor}")
    require(flags == 0, "unsupported: an unknown feature")
    require_hash(delta_id, xxh3_64(records[0][:120]), "the header's checksum")
    require(size == 128 and base_version != version, "the header is impossible")
    require(1 << 20 <= capacity <= 1 << 30 and mode <= 5 and values <= 2, "a header field is out of range")
    require(mode != 5 or values == ULP, "the position mode context with values other than ulp")
    require(not any(reserved), "a reserved field is set")

    _, _, own_id, stored_bytes, raw_bytes, flags, count, reserved, checksum = unpack_record(TABLE, b"SCT1", records[1])
    require(own_id == delta_id and flags <= 1 and reserved == 0 and raw_bytes <= 1 << 26, "the table is impossible")
    table = unpack_stored(read_stored(TABLE, records[1], stored_bytes, checksum), flags == 1, raw_bytes)
    require_hash(h128(table_hash), xxh3_128(table), "the table's hash")
    delta = Delta(version, base_version, h128(base_digest), 0, values, capacity, 0, read_tensors(table))
    require(count == tensors == len(delta.tensors), "tensors are not as many as announced")
    require(elements == sum(t.elements for t in delta.tensors), "elements are not as many as announced")

    checksums, frame_bytes, next_tiles = b"", 0, {}
    for record in records[2:-1]:
        (_, size, own_id, sequence, groups, blocks, flags, stored_bytes, body_bytes, changed, own_version, checksum) = (
            unpack_record(FRAME, b"SCF1", record)
        )
        require(own_id == delta_id and own_version == version, "a frame of another delta")
        require(sequence == len(delta.frames), "frames are out of order")
        require(size <= capacity and body_bytes <= capacity - 64, "a frame is larger than the capacity")
        require(1 <= groups <= blocks and flags <= 1, "a frame's field is out of range")
        body = unpack_stored(read_stored(FRAME, record, stored_bytes, checksum), flags == 1, body_bytes)
        found = read_frame(body, groups, blocks, delta, next_tiles)
        require(not delta.frames or delta.frames[-1][0].tensor <= found[0].tensor, "frames are out of order")
        require(changed == sum(b.changed for b in found), "a frame's count of changes is wrong")
        require(mode == 5 or all(b.codec != CONTEXT for b in found), "a context block in another position mode")
        delta.frames.append(found)
        delta.changed += changed
        frame_bytes += size
        checksums += checksum.to_bytes(8, "little")

    (
        _,
        size,
        own_id,
        own_version,
        frames,
        flags,
        changed,
        own_bytes,
        result_digest,
        frames_hash,
        reserved,
        checksum,
    ) = unpack_record(COMMIT, b"SCC1", records[-1])
    require_hash(checksum, xxh3_64(records[-1][:88]), "the commit's checksum")
    require(size == 96 and own_id == delta_id and own_version == version, "the commit of another delta")
    require(flags == 0 and not any(reserved), "a reserved field is set")
    require(
        frames == len(delta.frames) and changed == delta.changed and own_bytes == frame_bytes,
        "the commit does not agree with the frames",
    )
    require_hash(frames_hash, xxh3_64(checksums), "the hash of the frames")
    require(frames > 0 or result_digest == base_digest, "a delta without changes has another result")
    delta.result_digest = h128(result_digest)
    return delta


def apply_delta(delta: Delta, base: Checkpoint) -> Checkpoint:
    require({t.name for t in delta.tensors} == set(base), "the base has other tensors")
    for t in delta.tensors:
        require((DTYPES[t.dtype][0], t.shape) == base[t.name][:2], f"{t.name} has another dtype or shape in the base")
    require_hash(delta.base_digest, state_digest(delta, base), "the base's digest")
    result = {name: (dtype, shape, bits.copy()) for name, (dtype, shape, bits) in base.items()}
    for block in (b for frame in delta.frames for b in frame):
        tensor = delta.tensors[block.tensor]
        apply_block(block, tensor, result[tensor.name][2], delta.value_codec)
    require_hash(delta.result_digest, state_digest(delta, result), "the result's digest")
    return result


def sum_of(values: np.ndarray) -> int:
    """The exact sum of 64-bit words."""
    return int((values & np.uint64(0xFFFFFFFF)).sum()) + (int((values >> np.uint64(32)).sum()) << 32)


HALF, LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def triangle(u: np.ndarray, width: int) -> np.ndarray:
    """6: u (u + 1) / 2 mod 2^width; below 2^32, so that nothing is lost"""
    return (u * (u + np.uint64(1)) >> np.uint64(1)) & np.uint64((1 << width) - 1)


def mix(x: np.ndarray, key_high: np.uint64, u: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """6: the factors of the products; x has been counted up, u are words of `width` bits"""
    x = ((x & LOW) * np.uint64(0xBB67AE86)) ^ x ^ key_high
    x = ((x >> HALF) * np.uint64(0xA54FF53B)) ^ ((x & LOW) << HALF)
    x = ((x >> HALF) * np.uint64(0x9B05688D)) ^ ((x & LOW) << HALF)
    if width < 64:
        return x | np.uint64(1), triangle(u, width)
    return x | np.uint64(1), (u >> HALF << HALF) + triangle(((u & LOW) + (u >> HALF)) & LOW, 32)


def tensor_digest(key: int, elements: np.ndarray) -> int:
    """6; the sum of products is taken over their four 32 x 32 bit parts."""
    counters = np.arange(1, len(elements) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    words, width = elements.astype(np.uint64), 8 * elements.itemsize
    a, b = mix(counters + np.uint64(key & (1 << 64) - 1), np.uint64(key >> 64), words, width)
    a0, a1, b0, b1 = a & LOW, a >> HALF, b & LOW, b >> HALF
    return sum_of(a0 * b0) + ((sum_of(a0 * b1) + sum_of(a1 * b0)) << 32) + (sum_of(a1 * b1) << 64)


def state_digest(delta: Delta, state: Checkpoint) -> int | None:
    if any(t.key is None for t in delta.tensors):
        return None
    return sum(tensor_digest(t.key, state[t.name][2]) for t in delta.tensors) % (1 << 128)


def read_safetensors(path: pathlib.Path) -> Checkpoint:
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:begin])
    declared = json.loads(entries.pop("__metadata__", {}).get("sparsecast.dtypes", "{}"))
    for name, e in entries.items():
        if e["dtype"] == "F4":  # Counts numbers of 4 bits.
            declared[name], e["shape"][-1] = "F4X2", e["shape"][-1] // 2
        if e["dtype"].startswith("F6_"):  # Counts numbers of 6 bits.
            e["shape"][-1] = e["shape"][-1] * 3 // 4
        if name in declared and e["dtype"] == "I32":  # Words of four bytes.
            e["shape"].append(4)
        e["dtype"] = declared.get(name, e["dtype"])
    widths = dict(DTYPES.values())
    return {
        name: (
            e["dtype"],
            tuple(e["shape"]),
            np.frombuffer(data[begin + e["data_offsets"][0] : begin + e["data_offsets"][1]], f"<u{widths[e['dtype']]}"),
        )
        for name, e in entries.items()
    }


def check_good(root: pathlib.Path, vector: dict) -> None:
    delta = read_delta((root / vector["delta"]).read_bytes())
    result = apply_delta(delta, read_safetensors(root / vector["base"]))
    wanted = read_safetensors(root / vector["result"])
    require(set(wanted) == set(result), "the result file has other tensors")
    for name, (dtype, shape, bits) in result.items():
        require(wanted[name][:2] == (dtype, shape) and np.array_equal(bits, wanted[name][2]), f"{name} differs")
    require(delta.changed == vector["changed"], "another number of changes than the manifest's")
    require(delta.base_digest == int(vector["base_digest"], 16), "another base digest than the manifest's")
    require(delta.result_digest == int(vector["result_digest"], 16), "another result digest than the manifest's")


def check_bad(root: pathlib.Path, vector: dict) -> str:
    """Why the vector was refused; raises when it was not."""
    try:
        delta = read_delta((root / vector["delta"]).read_bytes())
        apply_delta(delta, read_safetensors(root / vector["base"]))
    except FormatError as error:
        return str(error)
    if xxhash is None:
        raise Unavailable("module xxhash: only a checksum or digest may be wrong")
    raise AssertionError(f"accepted, though: {vector['why']}")


def run_golden(root: pathlib.Path) -> int:
    manifest = json.loads((root / "manifest.json").read_text())
    tally = collections.Counter(passed=0, failed=0)
    for kind in ("good", "bad"):
        for vector in manifest[kind]:
            try:
                said = check_good(root, vector) if kind == "good" else "refused: " + check_bad(root, vector)
                outcome, said = "passed", said or "decoded"
            except Unavailable as missing:
                outcome, said = "skipped", str(missing)
            except Exception as error:  # Whatever it is, this vector failed and the next one is to be tried.
                outcome, said = "failed", f"{type(error).__name__}: {error}"
            tally[outcome] += 1
            print(f"{outcome:8}{vector['name']}: {said}")
    skipped = f", {tally['skipped']} skipped" if tally["skipped"] else ""
    print(f"{tally['passed']} passed, {tally['failed']} failed{skipped}")
    return 1 if tally["failed"] or not tally["passed"] else 0


def inspect(path: pathlib.Path) -> int:
    try:
        delta = read_delta(path.read_bytes())
    except FormatError as error:
        print(f"{path}: refused: {error}", file=sys.stderr)
        return 1
    except Unavailable as missing:
        print(f"{path}: cannot be decoded without {missing}", file=sys.stderr)
        return 1
    blocks = [b for frame in delta.frames for b in frame]
    codecs = collections.Counter(POSITION_NAMES[b.codec] for b in blocks)
    print(f"version {delta.base_version} -> {delta.version}, values {VALUE_NAMES[delta.value_codec]}")
    print(f"base digest   {delta.base_digest:032x}\nresult digest {delta.result_digest:032x}")
    print(
        f"{len(delta.tensors)} tensors, {sum(t.elements for t in delta.tensors)} elements, {delta.changed} changed, "
        f"{len(delta.frames)} frames, {len(blocks)} blocks {dict(codecs)}"
    )
    for i, tensor in enumerate(delta.tensors):
        changed = sum(b.changed for b in blocks if b.tensor == i)
        print(f"  {tensor.name} {DTYPES[tensor.dtype][0]} {list(tensor.shape)}: {changed} changed")
    return 0


def main() -> int:
    golden = pathlib.Path(__file__).resolve().parent.parent / "testdata" / "golden"
    parser = argparse.ArgumentParser(description="Independent decoder of sparsecast deltas.")
    parser.add_argument("directory", nargs="?", type=pathlib.Path, default=golden, metavar="DIR")
    parser.add_argument("--inspect", type=pathlib.Path, metavar="FILE.scd")
    options = parser.parse_args()
    if xxhash is None:
        print("module xxhash is missing: checksums and digests are not verified")
    if zstandard is None:
        print("module zstandard is missing: vectors with compressed records are skipped")
    if options.inspect:
        return inspect(options.inspect)
    if not (options.directory / "manifest.json").is_file():
        print(f"{options.directory}: no manifest.json", file=sys.stderr)
        return 1
    return run_golden(options.directory)


if __name__ == "__main__":
    sys.exit(main())
