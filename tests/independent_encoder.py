# SPDX-License-Identifier: Apache-2.0
"""A small encoder of deltas for independent_decoder_test.py, written from docs/wire-format.md alone.

Scalar and slow on purpose: it shares no arithmetic with the decoder's vectors. The numbers in comments are sections of
docs/wire-format.md.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

import numpy as np

import independent_blocks as blocks
import independent_decoder as decoder
from independent_blocks import BITMAP, CONTEXT, DENSE, EXPONENT_FIELDS, GAP16, INDEX32, PACKED, TILE, ULP

AUTO = -1
STREAM = bytes(range(16))


@dataclass
class Change:
    """A tensor before and after."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    old: np.ndarray
    new: np.ndarray

    def __post_init__(self) -> None:
        self.bits = 8 * blocks.DTYPES[self.dtype][1]


class BitWriter:
    def __init__(self) -> None:
        self.bits: list[int] = []

    def field(self, value: int, width: int) -> None:
        self.bits += [value >> i & 1 for i in range(width)]

    def unary(self, value: int) -> None:
        self.bits += [0] * value + [1]

    def golomb(self, value: int) -> None:
        width = (value + 1).bit_length()
        self.unary(width - 1)
        self.field(value + 1, width - 1)

    def part(self) -> bytes:
        padded = self.bits + [0] * (-len(self.bits) % 32)
        return np.packbits(np.array(padded, np.uint8), bitorder="little").tobytes()


def rice_parameter(total: int, count: int) -> int:
    """5.2"""
    return max((total * 123 // (128 * count)).bit_length() - 1, 0)


def put_quotients(out: BitWriter, quotients: list[int]) -> None:
    """4.1, packed: the codes and their tails"""
    tails = BitWriter()
    for q in quotients:
        t = (q - 7).bit_length() - 1 if q >= 8 else 0
        out.unary(8 + t if q >= 8 else q)
        tails.field(q - 7 if t else 0, t)
    out.bits += tails.bits


def encode_packed(gaps: list[int], kp: int) -> BitWriter:
    """4.1, packed"""
    out = BitWriter()
    for gap in gaps:
        out.field(gap, kp)
    put_quotients(out, [gap >> kp for gap in gaps])
    return out


def choose_kp(gaps: list[int]) -> int:
    """5.2"""
    kp = rice_parameter(sum(gaps), len(gaps))  # The gaps add up to the last position + 1 - n.
    while kp > 0 and len(encode_packed(gaps, kp - 1).bits) < len(encode_packed(gaps, kp).bits):
        kp -= 1
    return kp


def encode_positions(codec: int, p: list[int], span: int, kp: int | None = None) -> tuple[bytes, int]:
    """4.1: the part, and kp"""
    out = BitWriter()
    gaps = [b - a - 1 for a, b in zip([-1] + p, p)]
    if codec == INDEX32:
        return struct.pack(f"<{len(p)}I", *p), 0
    if codec == GAP16:
        wide = max(gaps) > 65535
        for gap in gaps:
            out.field(gap, 32 if wide else 16)
        return out.part(), int(wide)
    if codec == PACKED:
        kp = choose_kp(gaps) if kp is None else kp
        return encode_packed(gaps, kp).part(), kp
    present = set(p)
    out.bits = [int(e in present) for e in range(span)] if codec == BITMAP else []
    return out.part(), 0


def choose_kv(m: list[int], width: int) -> int | None:
    """5.3; None for the form with lengths"""
    if 4 * sum(v != 0 for v in m) <= len(m):
        return 0

    def cost(kv: int) -> int:
        high = [v >> kv for v in m if v >> kv]
        e, n = len(high), len(m)
        k = rice_parameter(n - e, e) if e else 0
        rice = e * (1 + k) + (n - e >> k) if e else 0
        return n * kv + rice + sum(2 * v.bit_length() - 1 for v in high)

    best = min(range(width), key=cost)
    with_lengths = len(m) * (width.bit_length() - 1) + sum(max(v.bit_length() - 1, 0) for v in m)
    return None if with_lengths < cost(best) else best


def magnitudes(c: list[int], width: int) -> list[int]:
    return [(1 << width) - word - 1 if word >> width - 1 else word - 1 for word in c]


def encode_lengths(c: list[int], width: int) -> bytes:
    """4.2, the form with lengths"""
    out, m = BitWriter(), magnitudes(c, width)
    for word in c:
        out.field(word >> width - 1, 1)
    for v in m:
        out.field(v.bit_length(), width.bit_length() - 1)
    for v in m:
        out.field(v, max(v.bit_length() - 1, 0))
    return out.part()


def put_exceptions(out: BitWriter, h: dict[int, int]) -> int:
    """4.2, point 3, and 5.3: writes h by index, and returns ke"""
    x, highs = list(h), list(h.values())
    ke = rice_parameter(x[-1] + 1 - len(x), len(x)) if x else 0
    out.golomb(len(x))
    gaps = [i - before - 1 for before, i in zip([-1] + x, x)]
    for gap in gaps:
        out.field(gap, ke)
    for gap in gaps:
        out.unary(gap >> ke)
    for high in highs:
        out.unary(high.bit_length() - 1)
    for high in highs:
        out.field(high, high.bit_length() - 1)
    return ke


def encode_ulp(c: list[int], width: int, kv: int) -> tuple[bytes, int, int]:
    """4.2, the form without lengths: the part, kv and ke"""
    out, m = BitWriter(), magnitudes(c, width)
    for word in c:
        out.field(word >> width - 1, 1)
    for v in m:
        out.field(v, kv)
    ke = put_exceptions(out, {i: v >> kv for i, v in enumerate(m) if v >> kv})
    return out.part(), kv, ke


def context_key(word: int, dtype: int) -> int:
    """4.3"""
    shift, width = EXPONENT_FIELDS[dtype]
    f = word >> shift & (1 << width) - 1
    return min(max(f - 832, 0), 255) if dtype == 4 else f


def choose_classes(keys: list[int]) -> tuple[int, int, int]:
    """5.6: hi, classes and width, from the keys of the changes"""
    h, n = [keys.count(e) for e in range(256)], len(keys)
    hi = min(255, 1 + max(e for e in range(256) if 16 * sum(h[e:]) >= n))
    lo = min(e for e in range(256) if 16 * sum(h[: e + 1]) >= n)
    r = max(0, hi - lo)
    width = 1 if r < 8 else 2
    return hi, min(16, (r + width - 1) // width + 1), width


def choose_rice(keys: list[int], m: list[int]) -> int:
    """5.6"""
    rice = 0
    for e in sorted(set(keys)):
        own = [value for key, value in zip(keys, m) if key == e]
        if 8 * sum(value != 0 for value in own) < len(own):
            break
        rice = e + 1
    return rice


def low_bits(key: int, scale: int, width: int) -> int:
    """4.3: v"""
    return min(width - 1, max(0, scale - key))


def choose_scale(keys: list[int], m: list[int], rice: int, width: int) -> int:
    """5.6"""
    if rice == 0:
        return 0
    counted: dict[tuple[int, int], int] = {}
    for key, value in zip(keys, m):
        if key < rice:
            counted[key, value.bit_length()] = counted.get((key, value.bit_length()), 0) + 1

    def cost(scale: int) -> int:
        total = 0
        for (key, length), times in counted.items():
            v = low_bits(key, scale, width)
            b = max(0, length - v)
            total += times * (2 * v + ((2, 4, 7, 13, 25)[b] if b <= 4 else 4 * b + 13))
        return total

    return min(range(max(0, rice - 8), rice + width), key=cost)


def encode_context_positions(old: list[int], p: list[int], dtype: int, width: int) -> tuple[bytes, list[int]]:
    """4.3, position part; also the positions in the order of the changes"""
    keys = [context_key(word, dtype) for word in old]
    hi, classes, keys_of_class = choose_classes([keys[i] for i in p])
    changed, members = set(p), [0] * classes
    ranks: list[list[int]] = [[] for _ in range(classes)]
    order: list[list[int]] = [[] for _ in range(classes)]
    for i, e in enumerate(keys):
        c = 0 if e >= hi else min(classes - 1, (hi - e + keys_of_class - 1) // keys_of_class)
        if i in changed:
            ranks[c].append(members[c])
            order[c].append(i)
        members[c] += 1
    data = b"".join(word.to_bytes(width // 8, "little") for word in old)
    data += bytes(-len(data) % 4)
    check = sum(struct.unpack(f"<{len(data) // 4}I", data)) + 0x9E3779B1 * sum(p)

    out = BitWriter()
    for value, size in ((hi, 8), (classes - 1, 4), (keys_of_class - 1, 1), (check, 32)):
        out.field(value, size)
    for own in ranks[:-1]:
        out.field(len(own), len(p).bit_length())
    gaps = [[b - a - 1 for a, b in zip([-1] + own, own)] for own in ranks]
    k = [choose_kp(own) if own else 0 for own in gaps]
    for own, parameter in zip(gaps, k):
        out.field(parameter, 5 if own else 0)
    for own, parameter in zip(gaps, k):
        for gap in own:
            out.field(gap, parameter)
    put_quotients(out, [gap >> parameter for own, parameter in zip(gaps, k) for gap in own])
    return out.part(), [i for own in order for i in own]


def encode_context_words(c: list[int], keys: list[int], width: int) -> tuple[bytes, int]:
    """4.3, value part: the part, and ke; words and keys in the order of the changes"""
    out, m = BitWriter(), magnitudes(c, width)
    rice = choose_rice(keys, m)
    scale = choose_scale(keys, m, rice, width)
    out.field(rice, 9)
    out.field(scale, 9)
    for word in c:
        out.field(word >> width - 1, 1)
    below = [(value, low_bits(key, scale, width)) for key, value in zip(keys, m) if key < rice]
    for value, v in below:
        out.field(value, v)
    ke = put_exceptions(out, {i: value for i, value in enumerate(m) if keys[i] >= rice and value})
    put_quotients(out, [value >> v for value, v in below])
    return out.part(), ke


def encode_context(old: list[int], p: list[int], words: list[int], dtype: int, width: int) -> tuple[bytes, bytes, int]:
    """4.3: both parts, and ke"""
    positions, order = encode_context_positions(old, p, dtype, width)
    part, ke = encode_context_words([words[i] for i in order], [context_key(old[i], dtype) for i in order], width)
    return positions, part, ke


def pair_word(low: int, high: int) -> int:
    """4.2: the code of two steps"""
    if low == -8:
        return 128 + high
    if high == -8:
        return 120 + low if low < 0 else 136 + low
    k = max(abs(low), abs(high))
    if k == 0:
        return 0
    p, q, t = (low, high, 0) if abs(low) == k else (high, low, 1)
    if p < 0:
        q = -q
    z = 2 * q - 1 if q > 0 else -2 * q
    m = 2 * k * (k - 1) + min(2 * z + t, 4 * k - 1)
    return m + 1 if p > 0 else 255 - m


def coded_word(old: int, new: int, values: int, dtype: int, width: int) -> int:
    """4.2"""

    def ordered(u: int, bits: int) -> int:
        if dtype > 6 and dtype != blocks.F4X2:
            return u
        return u ^ ((1 << bits) - 1 if u >> bits - 1 else 1 << bits - 1)

    if values == ULP and dtype in (blocks.I4X2, blocks.F4X2):
        low, high = (ordered(new >> s & 15, 4) - ordered(old >> s & 15, 4) for s in (0, 4))
        return pair_word((low + 8) % 16 - 8, (high + 8) % 16 - 8)
    return (new, new ^ old, (ordered(new, width) - ordered(old, width)) % (1 << width))[values]


def encode_block(change: Change, first: int, span: int, mode: int, values: int) -> tuple[int, int, bytes]:
    """n, coding, payload. `mode` AUTO chooses as 5.4 says; another codec is taken as it is."""
    old = change.old[first : first + span].tolist()
    new = change.new[first : first + span].tolist()
    p = [i for i in range(span) if old[i] != new[i]]
    es, width = change.bits // 8, change.bits
    words = [coded_word(a, b, values, change.dtype, width) for a, b in zip(old, new)]

    def whole(chosen: list[int]) -> bytes:
        data = b"".join(word.to_bytes(es, "little") for word in chosen)
        return data + bytes(-len(data) % 4)

    if mode == CONTEXT:
        positions, part, ke = encode_context(old, p, words, change.dtype, width)
        return len(p), CONTEXT | values << 3 | ke << 16, positions + part
    codec = PACKED if mode == AUTO else mode
    positions, kp = encode_positions(codec, p, span)
    if mode == AUTO and (span + 31) // 32 * 4 < len(positions):
        codec, (positions, kp) = BITMAP, encode_positions(BITMAP, p, span)
    kv = ke = lengths = 0
    if values == ULP and codec != DENSE:
        changed = [words[i] for i in p]
        chosen = choose_kv(magnitudes(changed, width), width)
        lengths = int(chosen is None)
        part, kv, ke = (encode_lengths(changed, width), 0, 0) if lengths else encode_ulp(changed, width, chosen)
    else:
        part = whole(words if codec == DENSE else [words[i] for i in p])
    if mode == AUTO and span * es < len(positions) + len(part):
        codec, kp, kv, ke, lengths, positions, part = DENSE, 0, 0, 0, 0, b"", whole(words)
    return len(p), codec | values << 3 | kp << 5 | kv << 10 | ke << 16 | lengths << 21, positions + part


def cut_blocks(change: Change, limit: int = 512) -> list[tuple[int, int]]:
    """5.1: first tile and number of tiles of each block; `limit`: L"""
    counts = [
        int((change.old[i : i + TILE] != change.new[i : i + TILE]).sum()) for i in range(0, len(change.old), TILE)
    ]
    found: dict[tuple[int, int, bool], list[int]] = {}
    before = 0
    for tile, count in enumerate(counts):
        before = 0 if tile % 256 == 0 else before
        if count:
            found.setdefault((tile // 256, before // limit, count >= limit), []).append(tile)
        before += count
    return [(tiles[0], tiles[-1] - tiles[0] + 1) for tiles in found.values()]


Coded = tuple[int, int, int, int, bytes]  # first tile, tiles, n, coding, payload


def encode_blocks(change: Change, mode: int, values: int) -> list[Coded]:
    """5.1 and 5.4"""

    def coded(cut: tuple[int, int], mode: int) -> Coded:
        first, tiles = cut
        span = min((first + tiles) * TILE, len(change.old)) - first * TILE
        return (first, tiles, *encode_block(change, first * TILE, span, mode, values))

    small = [coded(cut, AUTO if mode == CONTEXT else mode) for cut in cut_blocks(change)]
    if mode != CONTEXT or change.dtype > 6:
        return small
    chosen: list[Coded] = []
    for cut in cut_blocks(change, 4096):
        divided = [block for block in small if cut[0] <= block[0] < cut[0] + cut[1]]
        whole = coded(cut, CONTEXT)
        chosen += [whole] if 16 + len(whole[4]) < sum(16 + len(block[4]) for block in divided) else divided
    return chosen


def table_entry(change: Change) -> bytes:
    name = change.name.encode()
    return struct.pack(f"<HBB{len(change.shape)}Q", len(name), change.dtype, len(change.shape), *change.shape) + name


WORD, HALF = (1 << 64) - 1, (1 << 32) - 1


def mix(key: int, i: int, u: int, width: int) -> int:
    """6, as it is written"""
    x = (key & WORD) + (i + 1) * 0x9E3779B97F4A7C15 & WORD
    x = (x & HALF) * 0xBB67AE86 ^ x ^ key >> 64
    x = (x >> 32) * 0xA54FF53B ^ (x & HALF) << 32
    x = (x >> 32) * 0x9B05688D ^ (x & HALF) << 32
    if width < 64:
        return (x | 1) * (u * (u + 1) // 2 % (1 << width))
    low, high = u & HALF, u >> 32
    low = (low + high) & HALF
    return (x | 1) * (high << 32 | (low * (low + 1) // 2 & HALF))


def digest(changes: list[Change], attribute: str) -> int:
    """6; but a tensor that would take minutes by the decoder's vectors"""
    total = 0
    for change in changes:
        key = decoder.xxh3_128(table_entry(change)) or 0
        if len(change.old) > 1 << 20:
            total += decoder.tensor_digest(key, getattr(change, attribute))
            continue
        width = 8 * blocks.DTYPES[change.dtype][1]
        total += sum(mix(key, i, u, width) for i, u in enumerate(getattr(change, attribute).tolist()))
    return total % (1 << 128)


def compress(data: bytes, wanted: bool) -> tuple[bytes, int]:
    packed = decoder.zstandard.ZstdCompressor(level=3).compress(data) if wanted else data
    return (packed, 1) if len(packed) < len(data) else (data, 0)


def word_sum(data: bytes) -> bytes:
    """2.3: S of a FRAME"""
    total = sum(mix(0, i, v, 64) for i, v in enumerate(struct.unpack(f"<{len(data) // 8}Q", data)))
    return (total % (1 << 128)).to_bytes(16, "little")


def add_checksum(records: list[bytes]) -> bytes:
    """Joins records after giving each the delta_id and the checksums that its bytes ask for."""
    hash64 = decoder.xxh3_64
    header = records[0][:120] + struct.pack("<Q", hash64(records[0][:120]) or 0)
    checksummed, checksums = [header], b""
    for record in records[1:]:
        record = record[:8] + header[120:] + record[16:]
        if record[:4] == b"SCC1":
            record = record[:64] + struct.pack("<Q", hash64(checksums) or 0) + record[72:88]
            record += struct.pack("<Q", hash64(record) or 0)
        else:
            table = record[:4] == b"SCT1"
            fixed = 48 if table else 64
            stored = record[48 : 48 + struct.unpack_from("<I", record, 16)[0]] if table else word_sum(record[64:])
            checksum = struct.pack("<Q", hash64(stored, hash64(record[: fixed - 8]) or 0) or 0)
            record = record[: fixed - 8] + checksum + record[fixed:]
            checksums += b"" if table else checksum
        checksummed.append(record)
    return b"".join(checksummed)


def encode(
    changes: list[Change],
    mode: int = AUTO,
    values: int = ULP,
    zstd: bool = False,
    blocks_a_frame: int = 1 << 30,
) -> list[bytes]:
    """The records of a delta, to be checksummed."""
    table = struct.pack("<I", len(changes)) + b"".join(map(table_entry, changes))
    directory = [(i, block) for i, change in enumerate(changes) for block in encode_blocks(change, mode, values)]
    frames, total = [], 0
    for begin in range(0, len(directory), blocks_a_frame):
        groups: dict[int, int] = {}
        entries, payload, changed = b"", b"", 0
        for i, (tile, tiles, n, coding, data) in directory[begin : begin + blocks_a_frame]:
            payload += data
            groups[i] = groups.get(i, 0) + 1
            changed += n
            entries += struct.pack("<4I", tile, n | tiles - 1 << 24, len(payload), coding)
        body = b"".join(struct.pack("<2I", *group) for group in groups.items()) + entries + payload
        stored, flags = compress(body, zstd)
        padded = stored + bytes(-len(stored) % 8)
        frames.append(
            decoder.FRAME.pack(
                b"SCF1",
                64 + len(padded),
                0,
                len(frames),
                len(groups),
                len(entries) // 16,
                flags,
                len(stored),
                len(body),
                changed,
                8,
                0,
            )
            + padded
        )
        total += changed
    stored, flags = compress(table, zstd)
    padded = stored + bytes(-len(stored) % 8)
    header = decoder.HEADER.pack(
        b"SCH1",
        128,
        1,
        0,
        0,
        STREAM,
        8,
        7,
        (decoder.xxh3_128(table) or 0).to_bytes(16, "little"),
        digest(changes, "old").to_bytes(16, "little"),
        sum(len(c.old) for c in changes),
        len(changes),
        1 << 20,
        max(mode, 0) if mode in (AUTO, DENSE, CONTEXT) else (3, 2, 1, 4)[mode],
        values,
        bytes(22),
        0,
    )
    commit = decoder.COMMIT.pack(
        b"SCC1",
        96,
        0,
        8,
        len(frames),
        0,
        total,
        sum(map(len, frames)),
        digest(changes, "new").to_bytes(16, "little"),
        0,
        bytes(16),
        0,
    )
    fixed = decoder.TABLE.pack(b"SCT1", 48 + len(padded), 0, len(stored), len(table), flags, len(changes), 0, 0)
    return [header, fixed + padded, *frames, commit]


def random_change(rng: random.Random, name: str, dtype: int, count: int, density: float) -> Change:
    width = 8 * blocks.DTYPES[dtype][1]
    old = [rng.getrandbits(width) for _ in range(count)]
    new = list(old)
    for i in range(count):
        if rng.random() < density:  # Mostly neighbours, sometimes anything: signs, NaN, infinities.
            near = (old[i] + rng.choice((-1, 1, -2, 3))) % (1 << width)
            new[i] = near if rng.random() < 0.8 else rng.getrandbits(width)
    kind = f"<u{width // 8}"
    return Change(name, dtype, (count,), np.array(old, kind), np.array(new, kind))


def weights_change(rng: random.Random, name: str, dtype: int, count: int, step: int) -> Change:
    """A floating tensor as training changes it: the smaller a weight the likelier and the further, about `step` ULP."""
    width, (shift, size) = 8 * blocks.DTYPES[dtype][1], EXPONENT_FIELDS[dtype]
    old, new = [], []
    for _ in range(count):
        below = min(int(rng.expovariate(0.5)), (1 << size - 1) - 1)  # The binary order of magnitude below 1.
        word = rng.getrandbits(1) << width - 1 | (1 << size - 1) - 1 - below << shift | rng.getrandbits(shift)
        distance = 1 + int(rng.expovariate(1) * step * 2**below / 4) if rng.random() < 0.002 * 2**below else 0
        old.append(word)
        new.append((word + rng.choice((-1, 1)) * distance) % (1 << width))
    kind = f"<u{width // 8}"
    return Change(name, dtype, (count,), np.array(old, kind), np.array(new, kind))
