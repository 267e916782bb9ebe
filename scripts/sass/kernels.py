# SPDX-License-Identifier: Apache-2.0
"""Runs the compiled kernels of a delta one after another on random changes: detect, form_blocks, form_contexts,
encode_contexts, encode_runs and encode_blocks, choose_blocks, decode_runs and decode_blocks twice, with and without entries, write_entries, and digest_live. Checks
what each leaves in memory, and returns what its warps took."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .listing import Instruction
from .machine import Cta
from .memory import Memory

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import independent_blocks as blocks  # noqa: E402

TILE = blocks.TILE
CTA = 256  # Threads of most kernels.
WARPS = 128  # Threads of those that give a block to a warp.
KEY = (0x1234567890ABCDEF, 0xFEDCBA0987654321)
KERNELS = {  # By name in the listing's demangled symbols, with the source and the type of the elements.
    "detect": "detect<(DetectSource){source}>",
    "form": "form_blocks",
    "form contexts": "form_contexts",
    "encode contexts": "encode_contexts<(DetectSource){source}, {type}>",
    "choose": "choose_blocks",
    "encode by a warp": "encode_runs<{type}>",
    "encode by a CTA": "encode_blocks<(DetectSource){source}, {type}>",
    "stage by a warp": "decode_runs<{type}, false>",
    "stage by a CTA": "decode_blocks<{type}, false>",
    "apply by a warp": "decode_runs<{type}, true>",
    "apply by a CTA": "decode_blocks<{type}, true>",
    "keep entries by a warp": "decode_runs<{type}, false>",
    "write entries": "write_entries<{type}>",
    "stage context": "decode_context<{type}>",
    "digest": "digest_live",
}


class Weights(NamedTuple):
    """What a delta is of: a dtype, and how the kernels are told of its new bits (DetectSource)."""

    dtype: int  # Its number in docs/wire-format.md.
    bits: type[np.unsignedinteger[Any]]
    type: str
    source: int
    mantissa: int  # Its bits.
    exponent: int  # The lowest of eight; of fp8 of four.
    row: int = 0  # Elements of a row, each one and a half times as long in memory; 0: contiguous.
    lead: int = 0  # Elements that current, old and live bits lie behind where vectors may begin.

    @property
    def size(self) -> int:
        return np.dtype(self.bits).itemsize

    def kernel(self, name: str) -> str:
        return KERNELS[name].format(source=self.source, type=self.type)


BF16 = Weights(1, np.uint16, "unsigned short", 0, 7, 112)
WEIGHTS = {
    "bf16": BF16,
    "bf16 off 16 bytes": BF16._replace(lead=3),
    "a fused cast": BF16._replace(source=3),
    "a fused cast off 16 bytes": BF16._replace(source=3, lead=3),
    "rows of bf16": BF16._replace(source=1, row=1024),
    "fp8": Weights(5, np.uint8, "unsigned char", 0, 3, 4),
    "f32": Weights(3, np.uint32, "unsigned int", 0, 23, 112),
}


class WrongResult(Exception):
    """A kernel left something in memory that is not what it should be."""


def require(holds: Any, what: str) -> None:
    if not holds:
        raise WrongResult(what)


def layouts(compiler: str) -> dict[str, dict[str, int]]:
    """Returns where the fields of the kernels' structs are, as the C++ compiler places them."""
    with tempfile.TemporaryDirectory() as directory:
        program = f"{directory}/layouts"
        paths = [f"-I{ROOT / name}" for name in ("include", "src", ".")]
        source = str(ROOT / "scripts/sass/layouts.cpp")
        subprocess.run([compiler, "-std=c++20", *paths, source, "-o", program], check=True)
        text = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    result: dict[str, dict[str, int]] = json.loads(text)
    return result


def pack(layout: dict[str, int], **fields: int) -> bytes:
    """Returns the bytes of a struct. A number takes the bytes up to the next field that is known, 8 at most. Fields
    that are not given are zero."""
    result = bytearray(layout[""])
    starts = sorted(layout.values())
    for name, value in fields.items():
        begin = layout[name]
        size = min(8, next(start for start in starts if start > begin) - begin)
        result[begin : begin + size] = value.to_bytes(size, "little")
    return bytes(result)


def digest_of(indices: np.ndarray, bits: np.ndarray) -> int:
    """Returns the state digest (docs/wire-format.md §6) of elements of up to 32 bits."""
    total, low, width = 0, (1 << 64) - 1, 8 * bits.itemsize
    for index, word in zip(indices.tolist(), bits.tolist(), strict=True):
        x = (KEY[0] + (index + 1) * 0x9E3779B97F4A7C15) & low
        x ^= ((x & 0xFFFFFFFF) * 0xBB67AE86) ^ KEY[1]
        for multiplier in (0xA54FF53B, 0x9B05688D):
            x = ((x >> 32) * multiplier) ^ ((x & 0xFFFFFFFF) << 32)
        total += (x | 1) * (word * (word + 1) // 2 % (1 << width))
    return total % (1 << 128)


def random_changes(weights: Weights, percent: float, tiles: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns old and new bits: most changes are of one step, some of up to eight, in either direction."""
    random = np.random.default_rng(seed)
    n = tiles * TILE
    sign, mantissa = 8 * weights.size - 1, weights.mantissa
    exponents = weights.exponent + random.integers(0, 8 if weights.size > 1 else 4, n)
    old = random.integers(0, 2, n) << sign | exponents << mantissa | random.integers(0, 1 << mantissa, n)
    steps = np.where(random.random(n) < 0.9, 1, random.integers(2, 9, n)) * random.choice((-1, 1), n)
    new = old + np.where(random.random(n) < percent / 100, steps, 0)
    return old.astype(weights.bits), new.astype(weights.bits)


def masters_of(bf16: np.ndarray, seed: int) -> np.ndarray:
    """Returns bits of fp32 weights whose cast to bf16 is given."""
    noise = np.random.default_rng(seed).integers(-0x7FFE, 0x7FFF, len(bf16))
    return ((bf16.astype(np.int64) << 16) + noise).astype(np.uint32)


def view_of(layout: dict[str, int], row: int) -> bytes:
    """Returns a StridedView of rows that are one and a half times as long in memory."""
    # A division by 2^n is a multiplication by 2^63, of which the high word is shifted by n - 1.
    extent = np.array([row, 1 << 63, row.bit_length() - 2], np.uint64)
    extents = np.concatenate([extent, extent]).tobytes()
    strides = np.array([1, row * 3 // 2], np.int64).tobytes()
    result = bytearray(pack(layout, rank=2))
    result[layout["extents"] : layout["extents"] + len(extents)] = extents
    result[layout["strides"] : layout["strides"] + len(strides)] = strides
    return bytes(result)


Changes = Callable[[Weights, float, int, int], tuple[np.ndarray, np.ndarray]]


class Delta:
    """The tables of a delta of one tensor in the machine's memory, and the kernels that make and apply it."""

    def __init__(
        self,
        code: dict[str, list[Instruction]],
        at: dict[str, dict[str, int]],
        weights: Weights,
        percent: float,
        tiles: int,
        seed: int = 7,
        changes: Changes = random_changes,
    ) -> None:
        self.code, self.at, self.weights, self.tiles = code, at, weights, tiles
        self.shift = weights.size.bit_length() - 1
        self.old, self.new = changes(weights, percent, tiles, seed)
        self.current = masters_of(self.new, seed) if weights.source == 3 else self.spread(self.new)
        self.changed = (self.old != self.new).reshape(tiles, TILE)
        self.memory = Memory()
        self.costs: dict[str, dict[str, float]] = {}

    def spread(self, elements: np.ndarray) -> np.ndarray:
        """Returns the memory that holds the elements, by rows if there are any."""
        if self.weights.row == 0:
            return elements
        rows = elements.reshape(-1, self.weights.row)
        return np.pad(rows, ((0, 0), (0, self.weights.row // 2)), constant_values=0xA5).ravel()

    def elements_at(self, address: int) -> np.ndarray:
        """Returns the elements of memory like that of spread()."""
        n, row = self.tiles * TILE, self.weights.row
        if row == 0:
            return self.memory.get(address, self.weights.bits, n)
        return self.memory.get(address, self.weights.bits, n * 3 // 2).reshape(-1, row * 3 // 2)[:, :row].ravel()

    def launch(self, name: str, parameters: bytes, units: int) -> None:
        """Runs a kernel with one CTA, unless it has nothing to do, and adds what it took to `costs`."""
        if units == 0:
            return
        cta = Cta(
            self.code[self.weights.kernel(name)], self.memory, parameters, WARPS if name.endswith("warp") else CTA
        )
        cta.run()
        total = sum(cta.instructions.values())
        self.costs[name] = {
            "warp_instructions": round(total / units, 1),
            "barriers": round(cta.barriers / units, 2),
            "lanes": round(cta.lanes / total, 1),
        }

    def encode(self) -> None:
        """Runs detect, form_blocks and the encoders; keeps the records and the arena."""
        memory, at, n = self.memory, self.at, self.tiles * TILE
        size, lead = self.weights.size, self.weights.lead
        current = memory.put(self.current, lead * self.current.itemsize)
        self.snapshot = memory.put(self.old, lead * size)
        # The snapshot is contiguous.
        none, view = 0xFFFFFFFF, 0 if self.weights.row else 0xFFFFFFFF
        self.views = memory.put(view_of(at["StridedView"], self.weights.row or 2))
        tensor = pack(
            at["TensorEntry"], current=current, old=self.snapshot, refresh=self.snapshot, elements=n, key_lo=KEY[0],
            key_hi=KEY[1], digest_view=none, current_view=view, old_view=none, sections=1, element_shift=self.shift,
            order=1, vectors=1, lead=lead, dtype=self.weights.dtype,
        )  # fmt: skip
        step = TILE * self.current.itemsize * (self.weights.row == 0)
        tiles = b"".join(
            pack(
                at["TileEntry"], current=current + tile * step, old=self.snapshot + tile * TILE * size, number=tile,
                current_view=view, old_view=none, count=TILE, element_shift=self.shift, vectors=1, lead=lead,
            )
            for tile in range(self.tiles)
        )  # fmt: skip
        counts, firsts = memory.allocate(4 * self.tiles), memory.allocate(4 * self.tiles)
        positions, capacity = memory.allocate(n // 2), n // 4
        records = memory.allocate(at["BlockRecord"][""] * self.tiles)
        section_blocks, arena = memory.allocate(8), memory.allocate(2 * (size + 2) * n)
        control, self.sums = memory.put(bytes(at["Control"][""])), memory.put(bytes(16))
        chunk = control + at["Control"]["chunks"]
        memory.store(np.array([chunk + at["ChunkCounts"]["started"]]), 4, np.array([[1]]))
        pipeline = pack(
            at["Pipeline"], tensors=memory.put(tensor), sections=memory.put(np.array([0, 0, 0, self.tiles], np.uint32)),
            tiles=memory.put(tiles), views=self.views, tile_counts=counts,
            tile_offsets=memory.allocate(4 * self.tiles), tile_entries=firsts, entry_positions=positions,
            entry_words=memory.allocate(size * capacity), entry_word_bytes=size, entry_capacity=capacity, records=records,
            section_blocks=section_blocks, scratch=memory.allocate((2 * size + 12) * TILE), scratch_stride=(2 * size + 12) * TILE,
            arena=arena, arena_bytes=2 * (size + 2) * n, control=control, counts=chunk, stream_sums=self.sums, section_count=1, stream_count=1, values=2, refresh=1,
        )  # fmt: skip
        for lists in ("runs", "items"):
            begin = at["Pipeline"][lists]
            pipeline = (
                pipeline[:begin] + memory.allocate(8 * self.tiles).to_bytes(8, "little") * 4 + pipeline[begin + 32 :]
            )
        parameters = pipeline + pack(at["Chunk"], section_end=1, tile_end=self.tiles, worst_bytes=(size + 2) * n)
        self.launch("detect", parameters, self.tiles)
        self.check_tiles(
            *(memory.get(table, np.uint32, self.tiles) for table in (counts, firsts)),
            memory.get(positions, np.uint16, capacity),
        )
        self.launch("form", parameters, 1)
        count = int(memory.get(section_blocks, np.uint32, 1)[0])
        require(0 < count <= self.tiles, f"form_blocks made {count} blocks")
        fields = {name: where for name, where in at["BlockRecord"].items() if name}
        dtype = np.dtype({
            "names": list(fields), "offsets": list(fields.values()),
            "formats": ["<u8" if name == "payload" else "<u4" for name in fields], "itemsize": at["BlockRecord"][""],
        })  # fmt: skip
        self.arena = arena
        contexts, context_blocks = self.encode_contexts(parameters, dtype)
        runs, items = (
            int(memory.get(chunk + at["ChunkCounts"][lists], np.uint32, 4)[self.shift]) for lists in ("runs", "items")
        )
        require(runs + items == count, f"form_blocks listed {runs} and {items} of {count} blocks")
        self.launch("encode by a warp", parameters, runs)
        left = int(memory.get(chunk + at["ChunkCounts"]["items"], np.uint32, 4)[self.shift])
        require(left == items, f"encode_runs left {left - items} of {runs} blocks")
        self.launch("encode by a CTA", parameters, items)
        self.records = memory.get(records, dtype, count)
        self.check_payloads(self.records)
        self.check_snapshot()
        self.choose(parameters, contexts, context_blocks, dtype)

    def check_tiles(self, counts: np.ndarray, firsts: np.ndarray, positions: np.ndarray) -> None:
        require((counts == self.changed.sum(1)).all(), "detect counted changes wrongly")
        for tile in np.flatnonzero(counts):
            found = positions[firsts[tile] : firsts[tile] + counts[tile]]
            require((found == np.flatnonzero(self.changed[tile])).all(), f"positions of tile {tile} are wrong")

    def encode_contexts(self, parameters: bytes, dtype: np.dtype) -> tuple[bytes, np.ndarray]:
        """Runs the kernels of the blocks that may be `context`; returns their tables, and the records of these blocks."""
        memory, at, tiles = self.memory, self.at, self.tiles
        size, record = at["ContextBlock"][""], at["ContextBlock"]["record"]
        table, section_blocks = memory.allocate(size * tiles), memory.allocate(4)
        contexts = pack(
            at["ContextTables"], blocks=table, items=memory.allocate(8 * tiles), section_blocks=section_blocks,
            item_count=memory.put(bytes(4)), chosen=memory.allocate(dtype.itemsize * tiles),
            chosen_blocks=memory.allocate(4),
        )  # fmt: skip
        self.launch("form contexts", parameters + contexts, 1)
        self.launch("encode contexts", parameters + contexts, tiles)
        count = int(memory.get(section_blocks, np.uint32, 1)[0])
        raw = memory.get(table, np.uint8, size * count).reshape(count, size)[:, record : record + dtype.itemsize]
        found = np.ascontiguousarray(raw).view(dtype).ravel()
        self.check_payloads(found)
        return contexts, found

    def choose(self, parameters: bytes, contexts: bytes, context_blocks: np.ndarray, dtype: np.dtype) -> None:
        """Runs choose_blocks, and checks that it keeps what is smaller."""
        self.launch("choose", parameters + contexts, 1)
        chosen, blocks = (
            int.from_bytes(contexts[where : where + 8], "little")
            for where in (self.at["ContextTables"][name] for name in ("chosen", "chosen_blocks"))
        )
        found = self.memory.get(chosen, dtype, int(self.memory.get(blocks, np.uint32, 1)[0]))
        self.check_payloads(found)
        size = sum(int(record["payload_bytes"]) + 16 for record in found)
        for records in (self.records, context_blocks):
            require(
                size <= sum(int(record["payload_bytes"]) + 16 for record in records), "the larger blocks were chosen"
            )

    def check_payloads(self, records: np.ndarray) -> None:
        """Decodes the payloads by the second decoder, which knows nothing of kernels, and applies them."""
        weights = self.old.copy()
        tensor = blocks.Tensor("weight", self.weights.dtype, (len(weights),), None)
        for record in records:
            size = int(record["payload_bytes"])
            payload = self.memory.get(self.arena + int(record["payload"]), np.uint8, size).tobytes()
            entry = (int(record["first_tile"]), int(record["extent"]), size, int(record["coding"]))
            blocks.apply_block(blocks.read_block(entry, 0, payload, 0, tensor, blocks.ULP), tensor, weights, blocks.ULP)
        require((weights == self.new).all(), "the payloads do not give the new weights")

    def check_snapshot(self) -> None:
        snapshot = self.memory.get(self.snapshot, self.weights.bits, len(self.new))
        require((snapshot == self.new).all(), "the snapshot is not fresh")
        self.check_digest(self.sums, "the encoder")

    def check_digest(self, address: int, who: str) -> None:
        where = np.flatnonzero(self.changed)
        change = (digest_of(where, self.new[where]) - digest_of(where, self.old[where])) % (1 << 128)
        require(self.digest_at(address) == change, f"the digest of {who} is wrong")

    def digest_at(self, address: int) -> int:
        low, high = map(int, self.memory.get(address, np.uint64, 2))
        return high << 64 | low

    def decode(self) -> None:
        """Validates, and then applies, what encode() made, by the kernels of both sizes of blocks; the same with entries;
        digests the result."""
        memory, at, n = self.memory, self.at, self.tiles * TILE
        table = b""
        listed = []
        first_change = 0
        for number, record in enumerate(self.records):
            first, extent = int(record["first_tile"]), int(record["extent"])
            # As warp_decodes() in cuda/apply/decode_runs.cuh, for blocks of these changes.
            if extent & 0xFFFFFF > 992 or record["payload_bytes"] > 2048:
                listed.append(number)
            table += pack(
                at["ReceivedBlock"], payload=self.arena + int(record["payload"]), first_change=first_change,
                first_tile=first, payload_words=int(record["payload_bytes"]) // 4,
                span=min(((extent >> 24) + 1) * TILE, n - first * TILE), changed=extent & 0xFFFFFF,
                coding=int(record["coding"]), element_shift=self.shift, for_cta=int(number in listed),
            )  # fmt: skip
            first_change += extent & 0xFFFFFF
        where = at["ReceiveControl"]["cta_blocks"]
        fresh = b"\xff" * 24 + bytes(where - 24) + len(listed).to_bytes(4, "little")
        runs = len(self.records) - len(listed)
        for entries in (0, first_change):
            live = memory.put(self.spread(self.old), self.weights.lead * self.weights.size)
            sums = memory.put(bytes(16))
            tensor = pack(
                at["LiveTensor"], data=live, elements=n, key_lo=KEY[0], key_hi=KEY[1], element_shift=self.shift,
                order=1, view=0 if self.weights.row else 0xFFFFFFFF, digest_view=0xFFFFFFFF,
            )  # fmt: skip
            control = memory.put(fresh + bytes(at["ReceiveControl"][""] - len(fresh)))
            received = pack(
                at["Received"], tensors=memory.put(tensor), views=self.views, blocks=memory.put(table),
                cta_blocks=memory.put(np.array(listed + [0] * len(self.records), np.uint32)),
                frame_undo=memory.put(bytes(8)), digest_changes=sums, control=control, frame_count=1,
                entry_positions=memory.allocate(4 * entries) if entries else 0,
                entry_words=memory.allocate(self.weights.size * entries), block_count=len(self.records),
                entry_word_bytes=self.weights.size,
            )  # fmt: skip
            self.launch("keep entries by a warp" if entries else "stage by a warp", received + bytes(1), runs)
            left = int(memory.get(control + where, np.uint32, 1)[0]) - len(listed)
            require(left == 0, f"decode_runs left {left} of {runs} blocks")
            self.launch("stage by a CTA", received + bytes(1), len(listed))
            require((self.elements_at(live) == self.old).all(), "validation wrote to the weights")
            self.launch("write entries" if entries else "apply by a warp", received + bytes([1]), runs)
            self.launch("apply by a CTA", received + bytes([1]), len(listed))
            require((memory.get(control, np.uint64, 3) == 2**64 - 1).all(), "a block was refused")
            require((self.elements_at(live) == self.new).all(), "the applied weights are wrong")
            held = self.spread(self.new)
            require((memory.get(live, self.weights.bits, len(held)) == held).all(), "what is between the rows changed")
            self.check_digest(sums, "the applier")
        section, all_of_it = memory.put(np.array([0, 0, 0, self.tiles], np.uint32)), memory.put(bytes(16))
        parameters = received.ljust(-(-len(received) // 8) * 8, b"\0")
        parameters += section.to_bytes(8, "little") + (1).to_bytes(8, "little") + all_of_it.to_bytes(8, "little")
        self.launch("digest", parameters, self.tiles)
        require(self.digest_at(all_of_it) == digest_of(np.arange(n), self.new), "the digest of all elements is wrong")


def run(code: dict[str, list[Instruction]], compiler: str) -> dict[str, dict[str, float]]:
    """Returns {"kernel of weights, percent": what a unit took}: of detect and digest a tile, of form a section,
    of the others a block.
    `code` is by the kernels' short names; WrongResult or MachineError for code that is wrong."""
    at = layouts(compiler)
    missing = {weights.kernel(name) for weights in WEIGHTS.values() for name in KERNELS} - code.keys()
    require(not missing, f"the objects have no {sorted(missing)}")
    costs: dict[str, dict[str, float]] = {}
    for what, percent, tiles in (
        ("bf16", 1, 12), ("bf16", 5, 2), ("bf16", 20, 2), ("bf16 off 16 bytes", 1, 4), ("a fused cast", 1, 4),
        ("a fused cast off 16 bytes", 1, 4), ("rows of bf16", 1, 4), ("fp8", 1, 4), ("f32", 1, 4),
    ):  # fmt: skip
        delta = Delta(code, at, WEIGHTS[what], percent, tiles)
        delta.encode()
        delta.decode()
        costs |= {f"{name}, {what}, {percent} %": cost for name, cost in delta.costs.items()}
    return costs
