# SPDX-License-Identifier: Apache-2.0
"""Blocks of a delta and the codecs inside them: sections 1 and 4 of docs/wire-format.md, written from that text alone.

The part of independent_decoder.py that knows bit strings, positions and values. It needs numpy only.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

TILE, SECTION_TILES = 1 << 14, 256  # 4
INDEX32, GAP16, PACKED, BITMAP, DENSE, CONTEXT = range(6)
RAW, XOR, ULP = range(3)
POSITION_NAMES = ("index32", "gap16", "packed", "bitmap", "dense", "context")
VALUE_NAMES = ("raw", "xor", "ulp")
DTYPES = {
    1: ("BF16", 2),
    2: ("F16", 2),
    3: ("F32", 4),
    4: ("F64", 8),
    5: ("F8_E4M3", 1),
    6: ("F8_E5M2", 1),
    7: ("I8", 1),
    8: ("U8", 1),
    9: ("I16", 2),
    10: ("I32", 4),
    11: ("I64", 8),
    12: ("BOOL", 1),
    13: ("I4X2", 1),
    14: ("F4X2", 1),
    15: ("F8_E8M0", 1),
    16: ("U16", 2),
    17: ("U32", 4),
    18: ("U64", 8),
    19: ("C64", 8),
    20: ("F8_E4M3FNUZ", 1),
    21: ("F8_E5M2FNUZ", 1),
    22: ("F6_E2M3", 1),
    23: ("F6_E3M2", 1),
}
I4X2, F4X2, F8_E8M0, U16 = 13, 14, 15, 16
EXPONENT_FIELDS = {1: (7, 8), 2: (10, 5), 3: (23, 8), 4: (52, 11), 5: (3, 4), 6: (2, 5)}  # 4.3: lowest bit, bits


class FormatError(Exception):
    """The bytes are not a delta that a reader may apply."""


def require(condition: bool, why: str) -> None:
    if not condition:
        raise FormatError(why)


@dataclass
class Tensor:
    name: str
    dtype: int
    shape: tuple[int, ...]
    key: int | None  # 3: XXH3-128 of the tensor's own table entry

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        return 8 * DTYPES[self.dtype][1]

    @property
    def floating(self) -> bool:
        return self.dtype <= 6


@dataclass
class Block:
    tensor: int
    first: int  # element index in the tensor
    span: int
    changed: int
    codec: int
    positions: np.ndarray  # relative to `first`; of a context block in the order of its changes
    words: np.ndarray  # coded words, unsigned integers of the element's width
    context: tuple[bytes, int] | None = None  # 4.3: payload and ke; read_context finds positions and words in them


class Bits:
    """A bit string (1) with a reading position."""

    def __init__(self, data: bytes) -> None:
        self.bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        self.text = self.bits.tobytes()  # the same, one byte a bit: for searches
        self.at = 0

    def take(self, count: int) -> np.ndarray:
        require(self.at + count <= len(self.bits), "a code runs past the payload")
        self.at += count
        return self.bits[self.at - count : self.at]

    def fields(self, count: int, width: int) -> np.ndarray:
        taken = self.take(count * width)
        values = np.zeros(count, np.uint64)
        for bit in range(width):
            values |= taken[bit::width].astype(np.uint64) << np.uint64(bit)
        return values

    def field(self, width: int) -> int:
        return sum(int(bit) << i for i, bit in enumerate(self.take(width)))

    def unary(self) -> int:
        one = self.text.find(b"\x01", self.at)
        require(one >= 0, "a unary code runs past the payload")
        zeros, self.at = one - self.at, one + 1
        return zeros

    def unaries(self, count: int) -> np.ndarray:
        ones = np.flatnonzero(self.bits[self.at :])[:count]
        require(len(ones) == count, "a unary code runs past the payload")
        self.at += int(ones[-1]) + 1 if count else 0
        return np.diff(ones, prepend=-1).astype(np.uint64) - np.uint64(1)

    def golomb(self) -> int:
        zeros = self.unary()
        require(zeros <= 63, "an exponential-Golomb code has more than 63 leading zeros")
        return (1 << zeros | self.field(zeros)) - 1

    def end_part(self) -> None:
        require(not self.take(-self.at % 32).any(), "padding bits are set")


def read_positions(bits: Bits, codec: int, kp: int, n: int, span: int) -> np.ndarray:
    """4.1"""
    require(kp <= {PACKED: 22, GAP16: 1}.get(codec, 0), "kp is out of range")
    if codec == DENSE:
        return np.arange(span)
    if codec == BITMAP:
        positions = np.flatnonzero(bits.take(span))
        require(len(positions) == n, "the bitmap does not have n bits set")
    elif codec == INDEX32:
        positions = bits.fields(n, 32).astype(np.int64)
        require(bool((np.diff(positions) > 0).all()), "positions do not increase")
    else:
        if codec == GAP16:
            gaps = bits.fields(n, 32 if kp else 16)
        else:
            remainders = bits.fields(n, kp)
            gaps = remainders | np.array(read_quotients(bits, n, 29), np.uint64) << np.uint64(kp)
        positions = np.cumsum(gaps.astype(np.int64) + 1) - 1
    bits.end_part()
    require(int(positions[-1]) < span, "a position is outside the block")
    return positions


def read_quotients(bits: Bits, count: int, most: int) -> list[int]:
    """4.1, packed: the codes of quotients, with at most `most` zeros, and their tails"""
    zeros = bits.unaries(count).tolist()
    require(max(zeros, default=0) <= most, f"a quotient has more than {most} zeros")
    return [z if z < 8 else 7 + (1 << z - 8 | bits.field(z - 8)) for z in zeros]


def read_exceptions(bits: Bits, ke: int, n: int) -> dict[int, int]:
    """4.2, point 3: h by index"""
    exceptions = bits.golomb()
    require(exceptions <= n, "more exceptions than changes")
    require(exceptions > 0 or ke == 0, "ke without exceptions")
    remainders = bits.fields(exceptions, ke)
    gaps = [bits.unary() << ke | int(remainders[j]) for j in range(exceptions)]
    x = [j + gap for j, gap in enumerate(itertools.accumulate(gaps))]
    require(not x or x[-1] < n, "an exception index is out of range")
    widths = [bits.unary() for _ in x]
    require(max(widths, default=0) <= 63, "a difference has more than 63 leading zeros")
    return {at: 1 << low | bits.field(low) for at, low in zip(x, widths)}


def read_ulp_words(bits: Bits, kv: int, ke: int, n: int, width: int) -> np.ndarray:
    """4.2, ulp under every position codec but dense"""
    require(kv <= width - 1 and ke <= 22, "kv or ke is out of range")
    signs = bits.fields(n, 1)
    m = bits.fields(n, kv)
    for at, high in read_exceptions(bits, ke, n).items():
        value = high << kv | int(m[at])
        require(value < 1 << width - 1, "a difference is out of range")
        m[at] = value
    return ulp_words(m, signs, width)


def read_ulp_lengths(bits: Bits, n: int, width: int) -> np.ndarray:
    """4.2, ulp with lengths"""
    signs = bits.fields(n, 1)
    lengths = bits.fields(n, width.bit_length() - 1)
    m = np.array([1 << int(k) - 1 | bits.field(int(k) - 1) if k else 0 for k in lengths], np.uint64)
    return ulp_words(m, signs, width)


def ulp_words(m: np.ndarray, signs: np.ndarray, width: int) -> np.ndarray:
    limit = np.uint64((1 << width - 1) - 1) + signs
    require(bool((m < limit).all()), "a difference is out of range")
    distance = m + np.uint64(1)
    return np.where(signs == 1, ~distance + np.uint64(1), distance).astype(f"<u{width // 8}")


def read_words(bits: Bits, count: int, width: int) -> np.ndarray:
    return np.packbits(bits.take(count * width), bitorder="little").view(f"<u{width // 8}")


def context_keys(old: np.ndarray, dtype: int) -> np.ndarray:
    """4.3: the key of each element"""
    shift, width = EXPONENT_FIELDS[dtype]
    field = (old >> old.dtype.type(shift)).astype(np.int64) & (1 << width) - 1
    return np.clip(field - 832, 0, 255) if dtype == 4 else field


def context_check(old: np.ndarray, positions: np.ndarray) -> int:
    """4.3"""
    data = old.tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 4), "<u4")
    return (int(words.sum(dtype=np.uint64)) + 0x9E3779B1 * int(positions.sum())) % (1 << 32)


def read_context_positions(bits: Bits, n: int, keys: np.ndarray) -> tuple[np.ndarray, int]:
    """4.3, position part: the positions in the order of the changes, and check"""
    hi, classes, width, check = bits.field(8), bits.field(4) + 1, bits.field(1) + 1, bits.field(32)
    counts = [bits.field(n.bit_length()) for _ in range(classes - 1)]
    require(sum(counts) <= n, "more changes in the classes than n")
    counts.append(n - sum(counts))
    parameters = [bits.field(5) if count else 0 for count in counts]
    require(max(parameters) <= 22, "the k of a class is out of range")
    low = [int(v) for count, k in zip(counts, parameters) for v in bits.fields(count, k)]
    quotients = read_quotients(bits, n, 29)
    bits.end_part()
    class_of = np.where(keys >= hi, 0, np.minimum(classes - 1, (hi - keys + width - 1) // width))
    positions: list[int] = []
    for c, (count, k) in enumerate(zip(counts, parameters)):
        begin = len(positions)
        members = np.flatnonzero(class_of == c).tolist()
        gaps = [quotients[i] << k | low[i] for i in range(begin, begin + count)]
        ranks = [i + gap for i, gap in enumerate(itertools.accumulate(gaps))]
        require(not ranks or ranks[-1] < len(members), "a rank is outside its class")
        positions += [members[rank] for rank in ranks]
    return np.array(positions), check


def read_context_words(bits: Bits, ke: int, keys: np.ndarray, width: int) -> np.ndarray:
    """4.3, value part; `keys` of the changes in their order"""
    require(ke <= 22, "ke is out of range")
    rice, scale = bits.field(9), bits.field(9)
    require(rice <= 256, "rice is out of range")
    signs = bits.fields(len(keys), 1)
    coded = np.flatnonzero(keys < rice).tolist()
    v = [min(width - 1, max(0, scale - int(keys[i]))) for i in coded]
    low = [bits.field(k) for k in v]
    m = read_exceptions(bits, ke, len(keys))
    require(not any(keys[i] < rice for i in m), "an exception has a key below rice")
    quotients = read_quotients(bits, len(coded), 8 + width - 2)
    bits.end_part()
    m.update((i, q << k | rest) for i, k, q, rest in zip(coded, v, quotients, low))
    require(max(m.values(), default=0) < 1 << width - 1, "a difference is out of range")
    return ulp_words(np.array([m.get(i, 0) for i in range(len(keys))], np.uint64), signs, width)


def read_context(block: Block, tensor: Tensor, elements: np.ndarray) -> None:
    """4.3; `elements` of the whole tensor, those of the block as they are in the base."""
    payload, ke = block.context
    bits = Bits(payload)
    old = elements[block.first : block.first + block.span]
    keys = context_keys(old, tensor.dtype)
    block.positions, check = read_context_positions(bits, block.changed, keys)
    require(check == context_check(old, block.positions), "check: the weights are not those of the base")
    block.words = read_context_words(bits, ke, keys[block.positions], tensor.bits)
    require(bits.at == len(bits.bits), "a block's payload is longer than its parts")


def read_block(
    entry: tuple[int, int, int, int], start: int, payload: bytes, index: int, tensor: Tensor, value_codec: int
) -> Block:
    """4"""
    first_tile, extent, end, coding = entry
    n, tiles = extent & 0xFFFFFF, (extent >> 24) + 1
    first, last_tile = first_tile * TILE, first_tile + tiles - 1
    require(first < tensor.elements and last_tile * TILE < tensor.elements, "a block reaches beyond its tensor")
    require(last_tile // SECTION_TILES == first_tile // SECTION_TILES, "a block reaches beyond its section")
    span = min((last_tile + 1) * TILE, tensor.elements) - first
    require(1 <= n <= span, "a block's count of changes is impossible")
    require(end % 4 == 0 and start <= end <= len(payload), "payload_end is impossible")
    codec, values, kp, kv, ke = coding & 7, coding >> 3 & 3, coding >> 5 & 31, coding >> 10 & 63, coding >> 16 & 31
    lengths = coding >> 21
    require(lengths <= 1 and codec <= CONTEXT and values == value_codec, "coding is impossible")
    if codec == CONTEXT:
        require(tensor.floating and values == ULP, "a context block of a tensor or with values that cannot have one")
        require(kp == kv == lengths == 0, "kp, kv or lengths where they have no meaning")
        none = np.zeros(0, np.int64)
        return Block(index, first, span, n, codec, none, none, (payload[start:end], ke))
    bits = Bits(payload[start:end])
    positions = read_positions(bits, codec, kp, n, span)
    if lengths:
        require(values == ULP and codec != DENSE and kv == 0 and ke == 0, "lengths where they have no meaning")
        words = read_ulp_lengths(bits, n, tensor.bits)
    elif values == ULP and codec != DENSE:
        words = read_ulp_words(bits, kv, ke, n, tensor.bits)
    else:
        require(kv == 0 and ke == 0, "kv or ke is set where it has no meaning")
        words = read_words(bits, len(positions), tensor.bits)
    bits.end_part()
    require(bits.at == len(bits.bits), "a block's payload is longer than its parts")
    return Block(index, first, span, n, codec, positions, words)


def ordered(u: np.ndarray, top: np.integer | int) -> np.ndarray:
    return np.where(u & top, ~u, u ^ top)


def unordered(v: np.ndarray, top: np.integer | int) -> np.ndarray:
    return np.where(v & top, v ^ top, ~v)


def pair_steps(c: int) -> tuple[int, int]:
    """4.2: what the low and the high four bits of a pair go"""
    d = c - 128
    if -8 <= d <= 7:
        return -8, d
    if -15 <= d <= 15:
        return d + 8 if d < 0 else d - 8, -8
    if c == 0:
        return 0, 0
    m = c - 1 if c < 128 else 255 - c
    k = max(k for k in range(1, 9) if 2 * k * (k - 1) <= m)
    r = m - 2 * k * (k - 1)
    z, t = (2 * k, 0) if r == 4 * k - 1 else divmod(r, 2)
    p, q = k, (z + 1) // 2 if z % 2 else -z // 2
    if c >= 128:
        p, q = -p, -q
    return (q, p) if t else (p, q)


PAIR_STEPS = np.array([pair_steps(c) for c in range(256)], np.int64)


def apply_pairs(old: np.ndarray, words: np.ndarray, fp4: bool) -> np.ndarray:
    halves = []
    for half, shift in enumerate((0, 4)):
        bits = (old >> shift).astype(np.int64) & 15
        value = (ordered(bits, 8) & 15 if fp4 else bits) + PAIR_STEPS[words, half] & 15
        halves.append(unordered(value, 8) & 15 if fp4 else value)
    return (halves[0] | halves[1] << 4).astype("u1")


def apply_block(block: Block, tensor: Tensor, elements: np.ndarray, value_codec: int) -> None:
    """4.2"""
    if block.codec == CONTEXT:
        read_context(block, tensor, elements)
    where = block.first + block.positions
    old, word = elements[where], block.words
    if value_codec == RAW:
        elements[where] = word
    elif value_codec == XOR:
        elements[where] = old ^ word
    elif tensor.dtype in (I4X2, F4X2):
        elements[where] = apply_pairs(old, word, tensor.dtype == F4X2)
    elif tensor.floating:
        top = elements.dtype.type(1 << tensor.bits - 1)
        elements[where] = unordered(ordered(old, top) + word, top)
    else:
        elements[where] = old + word
