#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of independent_decoder.py with an encoder of its own, written from docs/wire-format.md alone.

    python3 tests/independent_decoder_test.py

SPARSECAST_SEED sets the seed of the random tests.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import random
import struct
import tempfile
import unittest

import numpy as np

import independent_blocks as blocks
import independent_decoder as decoder
from independent_blocks import BITMAP, CONTEXT, DENSE, GAP16, INDEX32, PACKED, RAW, TILE, ULP, XOR
from independent_encoder import (
    AUTO,
    Change,
    add_checksum,
    coded_word,
    cut_blocks,
    encode,
    encode_context,
    encode_positions,
    encode_ulp,
    pair_word,
    random_change,
    weights_change,
)

SEED = int(os.environ.get("SPARSECAST_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)


def decode(data: bytes, changes: list[Change]) -> decoder.Checkpoint:
    base = {c.name: (blocks.DTYPES[c.dtype][0], c.shape, c.old) for c in changes}
    return decoder.apply_delta(decoder.read_delta(data), base)


class DecoderCase(unittest.TestCase):
    def assert_round_trip(self, changes: list[Change], **options: int) -> None:
        result = decode(add_checksum(encode(changes, **options)), changes)
        for change in changes:
            self.assertTrue(
                np.array_equal(result[change.name][2], change.new), f"seed {SEED}, {change.name}, {options}"
            )


class RoundTrip(DecoderCase):
    def setUp(self) -> None:
        self.rng = random.Random(SEED)

    def test_every_position_and_value_codec_for_every_dtype(self) -> None:
        for dtype in blocks.DTYPES:
            for values in (RAW, XOR, ULP):
                for mode in (AUTO, INDEX32, GAP16, PACKED, BITMAP, DENSE):
                    count, density = self.rng.randrange(1, 700), self.rng.choice((0.01, 0.1, 0.5, 1))
                    change = random_change(self.rng, "t", dtype, count, density)
                    self.assert_round_trip([change], mode=mode, values=values)

    def test_context(self) -> None:
        changes = [weights_change(self.rng, f"t{dtype}", dtype, 40_000, 1) for dtype in range(1, 7)]
        changes.append(random_change(self.rng, "integers", 9, 40_000, 0.02))
        self.assert_round_trip(changes, mode=CONTEXT)
        delta = decoder.read_delta(add_checksum(encode(changes, mode=CONTEXT)))
        with_context = {b.tensor for frame in delta.frames for b in frame if b.codec == CONTEXT}
        self.assertEqual(with_context, set(range(6)), f"seed {SEED}")

    def test_context_where_a_writer_would_not_choose_it(self) -> None:
        for dtype in range(1, 7):
            for density in (0, 0.05, 0.5, 1):
                change = random_change(self.rng, "t", dtype, self.rng.randrange(1, 700), density)
                change.new[0] = change.old[0] ^ 1
                pairs = list(zip(change.old.tolist(), change.new.tolist()))
                p = [i for i, (old, new) in enumerate(pairs) if old != new]
                words = [coded_word(old, new, ULP, dtype, change.bits) for old, new in pairs]
                positions, values, ke = encode_context(change.old.tolist(), p, words, dtype, change.bits)
                tensor, payload = blocks.Tensor("t", dtype, change.shape, None), positions + values
                entry = (0, len(p), len(payload), CONTEXT | ULP << 3 | ke << 16)
                elements = change.old.copy()
                blocks.apply_block(blocks.read_block(entry, 0, payload, 0, tensor, ULP), tensor, elements, ULP)
                self.assertTrue(np.array_equal(elements, change.new), f"seed {SEED}, dtype {dtype}, {density}")

    def test_the_code_of_two_steps_is_a_bijection_and_small_for_small_steps(self) -> None:
        steps = [(low, high) for low in range(-8, 8) for high in range(-8, 8)]
        codes = [pair_word(*both) for both in steps]
        self.assertEqual(sorted(codes), list(range(256)))
        self.assertEqual([blocks.pair_steps(c) for c in codes], steps)
        for both, c in zip(steps, codes):
            k, m = max(map(abs, both)), min(c - 1, 255 - c) if c else 0
            self.assertTrue(c == 0 if k == 0 else 2 * k * (k - 1) <= m, both)
            self.assertTrue(k == 8 or m < max(1, 2 * k * (k + 1)), both)
        self.assertEqual([pair_word(*both) for both in ((1, 0), (0, 1), (1, 1), (1, -1))], [1, 2, 3, 4])
        self.assertEqual([pair_word(*both) for both in ((-1, 0), (0, -1), (-1, -1), (-1, 1))], [255, 254, 253, 252])

    def test_several_tensors_in_several_frames(self) -> None:
        changes = [
            random_change(self.rng, "a", 1, 50_000, 0.05),
            random_change(self.rng, "scalar", 4, 1, 1),
            Change("empty", 3, (2, 0), np.zeros(0, "<u4"), np.zeros(0, "<u4")),
            random_change(self.rng, "größe", 10, 40_000, 0.02),
        ]
        changes[1].shape = ()
        for blocks_a_frame in (1, 2, 100):
            self.assert_round_trip(changes, blocks_a_frame=blocks_a_frame)

    def test_tensors_of_more_than_a_section_with_gaps_over_16_bits(self) -> None:
        old = np.zeros((1 << 22) + 20_000, "u1")
        new = old.copy()
        new[[5, 70_000, 70_001, 3_000_000, (1 << 22) - 1, 1 << 22, -1]] = 9
        changes = [Change("t", 8, old.shape, old, new)]
        for mode in (INDEX32, GAP16, PACKED):
            self.assert_round_trip(changes, mode=mode)

    def test_a_delta_without_changes(self) -> None:
        self.assert_round_trip([random_change(self.rng, "t", 1, 100, 0)])
        self.assert_round_trip([])

    def test_every_parameter_of_the_codes(self) -> None:
        for width in (8, 16, 32, 64):
            for kv in range(width):
                words = [self.rng.randrange(1, 1 << self.rng.randrange(1, width + 1)) for _ in range(20)]
                words += [1, (1 << width) - 1, 1 << width - 1, (1 << width - 1) - 1]
                part, kv, ke = encode_ulp(words, width, kv)
                bits = blocks.Bits(part)
                self.assertEqual(blocks.read_ulp_words(bits, kv, ke, len(words), width).tolist(), words, f"seed {SEED}")
                bits.end_part()
                self.assertEqual(bits.at, 8 * len(part))
        for kp in range(23):
            p = sorted(self.rng.sample(range(2000), 50))
            part, _ = encode_positions(PACKED, p, 2000, kp)
            self.assertEqual(blocks.read_positions(blocks.Bits(part), PACKED, kp, 50, 2000).tolist(), p, f"seed {SEED}")

    @unittest.skipUnless(decoder.zstandard, "needs zstandard")
    def test_compressed_table_and_frames(self) -> None:
        changes = [
            Change(f"layer.{i}.weight", 3, (4096,), np.zeros(4096, "<u4"), np.arange(4096, dtype="<u4"))
            for i in range(20)
        ]
        records = encode(changes, values=RAW, zstd=True)
        self.assertEqual([records[1][24], records[2][28]], [1, 1])
        self.assert_round_trip(changes, values=RAW, zstd=True)


class ByHand(unittest.TestCase):
    def test_packed_positions(self) -> None:
        # Gaps 5, 0, 2 with kp = 1: remainders 1, 0, 0; quotients 2, 0, 1: the bits 100 001 1 01.
        self.assertEqual(blocks.read_positions(blocks.Bits(b"\x61\x01\0\0"), PACKED, 1, 3, 10).tolist(), [5, 6, 9])

    def test_ulp_words(self) -> None:
        # c = +1, -1, +6 with kv = 1: signs 010; m = 0, 0, 5, low bits 001; E = 1 is 01 0; x = 2 with ke = 0 is 001;
        # (5 >> 1) - 1 = 1 is 010.
        bits = blocks.Bits(struct.pack("<I", int("010001010001010"[::-1], 2)))
        self.assertEqual(blocks.read_ulp_words(bits, 1, 0, 3, 16).tolist(), [1, 0xFFFF, 6])

    def test_cutting_into_blocks(self) -> None:
        old = np.zeros(5 * TILE, "u1")
        new = old.copy()
        for tile, count in enumerate((100, 600, 10, 0, 20)):
            new[tile * TILE : tile * TILE + count] = 1
        change = Change("t", 8, old.shape, old, new)
        self.assertEqual(cut_blocks(change), [(0, 1), (1, 1), (2, 3)])
        self.assertEqual(cut_blocks(change, 4096), [(0, 5)])

    def test_zeros_of_both_signs_are_neighbours(self) -> None:
        tensor = blocks.Tensor("t", 1, (3,), None)
        block = blocks.Block(0, 0, 3, 3, PACKED, np.arange(3), np.array([0xFFFF, 1, 1], "<u2"))
        elements = np.array([0x0000, 0x8000, 0x7FFF], "<u2")
        blocks.apply_block(block, tensor, elements, ULP)
        self.assertEqual(elements.tolist(), [0x8000, 0x0000, 0xFFFF])


class Context(unittest.TestCase):
    """A context block by hand, and then with one part after another put wrong: 4.3"""

    old = np.array([8 << 3, 7 << 3, 1 << 7 | 7 << 3, 3 << 3], "u1")  # fp8 e4m3 with the keys 8, 7, 7 and 3
    check = int.from_bytes(old.tobytes(), "little") + 0x9E3779B1 * (1 + 2) & 0xFFFFFFFF
    position_part = {
        "hi": "00010000",  # 8, so key 8 is in class 0, key 7 in class 1 and all others in class 2
        "classes": "0100",
        "width": "0",
        "check": f"{check:032b}"[::-1],
        "counts": "00" + "01",  # 0 of class 0, 2 of class 1
        "k": "00000",
        "gaps": "1" + "1",
    }
    value_part = {
        "rice": "000100000",  # 8: both changes
        "scale": "000100000",  # 8, so v = 1
        "signs": "01",  # c = +1 and -2, so m = 0 and 1
        "low": "01",
        "exceptions": "1",
        "quotients": "1" + "1",
    }

    def decode(self, codec: int = CONTEXT, dtype: int = 5, values: int = ULP, old=old, more=b"", **parts) -> list[int]:
        payload = b""
        for part in (self.position_part, self.value_part):
            text = "".join(parts.get(name, bits) for name, bits in part.items())
            text += "0" * (-len(text) % 32)
            payload += int("0" + text[::-1], 2).to_bytes(len(text) // 8, "little")
        tensor, elements = blocks.Tensor("t", dtype, (4,), None), old.copy()
        entry = (0, 2, len(payload + more), codec | values << 3)
        blocks.apply_block(blocks.read_block(entry, 0, payload + more, 0, tensor, values), tensor, elements, values)
        return elements.tolist()

    def test_by_hand(self) -> None:
        self.assertEqual(self.decode(), [8 << 3, (7 << 3) + 1, (1 << 7 | 7 << 3) + 2, 3 << 3])

    def test_refuses(self) -> None:
        no_rice = {"rice": "0" * 9, "scale": "0" * 9, "low": "", "quotients": ""}
        self.assertEqual(self.decode(**no_rice, exceptions="010" + "01" + "1"), self.decode())
        for why, message, wrong in (
            ("three changes in the classes", "classes than n", {"counts": "01" + "10"}),
            ("k = 23", "k of a class", {"k": "11101"}),
            ("rank 2 of 2", "a rank", {"gaps": "1" + "01"}),
            ("rank 0 of an empty class", "a rank", {"hi": "11111111", "counts": "10" + "10", "k": "0" * 10}),
            ("30 zeros", "29 zeros", {"gaps": "1" + "0" * 30 + "1"}),
            ("no second gap", "runs past", {"gaps": "1", **dict.fromkeys(self.value_part, "")}),
            ("padding of positions", "padding", {"gaps": "111"}),
            ("check", "not those of the base", {"check": "0" * 32}),
            ("rice = 257", "rice", {"rice": "100000001"}),
            ("a key below rice", "a key below rice", {"exceptions": "010" + "1" + "1"}),
            ("E = 3 of n = 2", "more exceptions", {**no_rice, "exceptions": "00100"}),
            ("exception 2 of n = 2", "out of range", {**no_rice, "exceptions": "010" + "001" + "1"}),
            ("m = 2^7", "out of range", {**no_rice, "exceptions": "010" + "01" + "0000000" + "1" + "0000000"}),
            ("m = 2^7 - 1 with sign 0", "out of range", {**no_rice, "exceptions": "010" + "1" + "0000001" + "111111"}),
            ("t = w - 1", "14 zeros", {"quotients": "1" + "0" * 15 + "1" + "0" * 7}),
            ("m = 71 << 1", "out of range", {"quotients": "1" + "0" * 14 + "1" + "0" * 6}),
            ("no second quotient", "runs past", {"quotients": "1"}),
            ("padding of values", "padding", {"quotients": "111"}),
            ("a longer payload", "longer", {"more": bytes(4)}),
            ("another word", "not those of the base", {"old": self.old ^ np.array([0, 0, 0, 1], "u1")}),
            ("kp", "no meaning", {"codec": CONTEXT | 1 << 5}),
            ("kv", "no meaning", {"codec": CONTEXT | 1 << 10}),
            ("lengths", "no meaning", {"codec": CONTEXT | 1 << 21}),
            ("ke without exceptions", "ke", {"codec": CONTEXT | 1 << 16}),
            ("ke = 23", "ke", {"codec": CONTEXT | 23 << 16}),
            ("integers", "cannot have one", {"dtype": 8}),
            ("raw", "cannot have one", {"values": RAW}),
            ("xor", "cannot have one", {"values": XOR}),
            ("no such codec", "coding", {"codec": 6}),
        ):
            with self.assertRaisesRegex(blocks.FormatError, message, msg=why):
                self.decode(**wrong)

    def test_keys_of_every_dtype(self) -> None:
        for dtype, kind, word, key in (
            (1, "<u2", 0x8F80, 0x1F),
            (2, "<u2", 0xFC00, 31),
            (3, "<u4", 0xFF800000, 255),
            (4, "<u8", 0x33F << 52, 0),
            (4, "<u8", 0xB41 << 52, 1),
            (4, "<u8", 0x440 << 52, 255),
            (5, "u1", 0xFF, 15),
            (6, "u1", 0xFF, 31),
        ):
            self.assertEqual(blocks.context_keys(np.array([word], kind), dtype).tolist(), [key], f"{word:x}")


class RefusesCodes(unittest.TestCase):
    """Bit strings that break one rule of section 4."""

    def test_positions(self) -> None:
        for data, codec, kp, n, span, why in (
            (b"\x05\0\0\0", INDEX32, 0, 1, 5, "a position outside the span"),
            (b"\x02\0\0\0\x02\0\0\0", INDEX32, 0, 2, 9, "a position twice"),
            (b"\x01\0\x07\0", GAP16, 0, 2, 9, "gaps beyond the span"),
            (b"\x01\0\x01\0", GAP16, 0, 1, 9, "padding of gap16"),
            (b"\x01\0\0\0", GAP16, 2, 1, 9, "kp of gap16"),
            (b"\x0b\0\0\0", PACKED, 0, 2, 9, "padding of packed"),
            (b"\x03\0\0\0", PACKED, 0, 3, 9, "no third 1"),
            (b"\x00\x03\0\0", PACKED, 0, 2, 9, "position 9 of 9"),
            (b"\x07\0\0\0", BITMAP, 0, 2, 9, "a bit too many"),
            (b"\x03\x02\0\0", BITMAP, 0, 3, 9, "a bit beyond the span"),
            (b"\x03\0\0\0", BITMAP, 1, 2, 9, "kp of bitmap"),
            (b"\xff\xff", BITMAP, 0, 16, 16, "no padding"),
        ):
            with self.assertRaises(blocks.FormatError, msg=why):
                blocks.read_positions(blocks.Bits(data), codec, kp, n, span)

    def test_blocks(self) -> None:
        def read(first_tile: int, extent: int, coding: int = PACKED) -> blocks.Block:
            tensor = blocks.Tensor("t", 8, (1 << 23,), None)
            return blocks.read_block((first_tile, extent, 8, coding), 0, b"\1\0\0\0\7\0\0\0", 0, tensor, RAW)

        self.assertEqual(read(255, 1).first, 255 * TILE)
        for first_tile, extent, coding, why in (
            (255, 1 | 1 << 24, PACKED, "beyond the section"),
            (511, 1 | 1 << 24, PACKED, "beyond the tensor"),
            (512, 1, PACKED, "outside the tensor"),
            (0, 0, PACKED, "n = 0"),
            (0, TILE + 1, PACKED, "n > span"),
            (0, 1, DENSE, "too short for dense"),
            (0, 1, CONTEXT, "context of integers"),
            (0, 1, 6, "no such codec"),
            (0, 1, PACKED | 1 << 3, "xor"),
        ):
            with self.assertRaises(blocks.FormatError, msg=why):
                read(first_tile, extent, coding)

    def test_ulp_words(self) -> None:
        def refuse(text: str, kv: int, ke: int, n: int, why: str) -> None:
            bits = blocks.Bits(struct.pack("<Q", int(text[::-1], 2)))
            with self.assertRaises(blocks.FormatError, msg=why):
                blocks.read_ulp_words(bits, kv, ke, n, 8)
                bits.end_part()

        refuse("0" + "1111111" + "1", 7, 0, 1, "m = 2^7 - 1 with sign 0")
        refuse("0" + "1", 8, 0, 1, "kv = w")
        refuse("0" + "1", 0, 1, 1, "ke without exceptions")
        refuse("0" + "1" + "1", 0, 0, 1, "padding")
        refuse("0" + "011" + "1" + "1" + "1" + "1", 0, 0, 1, "E = 2 of n = 1")
        refuse("0" + "010" + "01" + "1", 0, 0, 1, "exception 1 of n = 1")
        refuse("1" + "010" + "1" + "000000010000000", 0, 0, 1, "m = 2^7 with sign 1")
        refuse("0" + "0" * 60, 0, 0, 1, "an endless code")

    def test_tables(self) -> None:
        entry = struct.pack("<HBBQ", 1, 1, 1, 5) + b"a"
        self.assertEqual(decoder.read_tensors(b"\1\0\0\0" + entry)[0].shape, (5,))
        for table, why in (
            (b"\1\0\0\0" + entry + b"\0", "trailing byte"),
            (b"\2\0\0\0" + entry * 2, "repeated name"),
            (b"\2\0\0\0" + entry, "cut short"),
            (b"\1\0\0\0\0\0\1\0", "no name"),
            (b"\1\0\0\0\1\0\1\0\xff", "not UTF-8"),
            (b"\1\0\0\0\1\0\x18\0a", "dtype 24"),
            (b"\1\0\0\0\1\0\0\0a", "dtype 0"),
            (b"\1\0\0\0\1\0\1\x21" + bytes(8 * 33) + b"a", "rank 33"),
            (b"\1\0\0\0" + struct.pack("<HBBQ", 1, 1, 1, (1 << 46) + 1) + b"a", "too many elements"),
            (struct.pack("<I", (1 << 20) + 1), "too many tensors"),
        ):
            with self.assertRaises(blocks.FormatError, msg=why):
                decoder.read_tensors(table)


class GoldenVectors(unittest.TestCase):
    def run_on(self, root: pathlib.Path, good: list[dict], bad: list[dict]) -> tuple[int, str]:
        (root / "manifest.json").write_text(json.dumps({"good": good, "bad": bad}))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = decoder.run_golden(root)
        return code, out.getvalue()

    def test_passes_what_is_right_and_fails_what_is_not(self) -> None:
        change = random_change(random.Random(SEED), "t", 1, 500, 0.1)
        data = add_checksum(encode([change]))
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, bits in (("base", change.old), ("result", change.new)):
                entry = {"t": {"dtype": "BF16", "shape": [500], "data_offsets": [0, 1000]}, "__metadata__": {"a": "b"}}
                text = json.dumps(entry).encode()
                (root / name).write_bytes(struct.pack("<Q", len(text)) + text + bits.tobytes())
            (root / "good.scd").write_bytes(data)
            (root / "bad.scd").write_bytes(data[:-8])
            delta = decoder.read_delta(data)
            good = {
                "name": "good",
                "delta": "good.scd",
                "base": "base",
                "result": "result",
                "changed": delta.changed,
                "base_digest": f"{delta.base_digest:032x}",
                "result_digest": f"{delta.result_digest:032x}",
            }
            bad = {"name": "bad", "delta": "bad.scd", "base": "base", "why": "cut short"}
            code, text = self.run_on(root, [good], [bad])
            self.assertEqual((code, text.splitlines()[-1]), (0, "2 passed, 0 failed"), text)
            for wrong_good, wrong_bad in (
                ([dict(good, changed=1)], []),
                ([dict(good, result="base")], []),
                ([dict(good, result_digest="0" * 31 + "1")], []),
                ([dict(good, delta="bad.scd")], []),
                ([dict(good, delta="none")], []),
            ):
                code, text = self.run_on(root, wrong_good, wrong_bad)
                self.assertEqual((code, text.splitlines()[-1]), (1, "0 passed, 1 failed"), text)
            code, text = self.run_on(root, [good], [dict(bad, delta="good.scd")])
            wanted = (1, "1 passed, 1 failed") if decoder.xxhash else (0, "1 passed, 0 failed, 1 skipped")
            self.assertEqual((code, text.splitlines()[-1]), wanted, text)


def patch(record: bytes, offset: int, form: str, value: int) -> bytes:
    data = bytearray(record)
    struct.pack_into(form, data, offset, value)
    return bytes(data)


@unittest.skipUnless(decoder.xxhash, "needs xxhash")
class Refuses(unittest.TestCase):
    def setUp(self) -> None:
        rng = random.Random(SEED)
        self.changes = [random_change(rng, "a", 1, 300, 0.2), random_change(rng, "b", 4, 40, 0.4)]
        self.records = encode(self.changes, mode=PACKED)
        decode(add_checksum(self.records), self.changes)

    def assert_refused(self, data: bytes, why: str) -> None:
        try:
            decode(data, self.changes)
        except decoder.FormatError:
            return
        self.fail(f"accepted: {why}, seed {SEED}")

    def test_every_changed_byte(self) -> None:
        data = add_checksum(self.records)
        for at in range(len(data)):
            for flip in (1, 0x80, 0xFF):
                self.assert_refused(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :], f"byte {at} ^ {flip}")

    def test_every_truncation_and_trailing_bytes(self) -> None:
        data = add_checksum(self.records)
        for size in range(len(data)):
            self.assert_refused(data[:size], f"{size} bytes")
        self.assert_refused(data + bytes(8), "trailing bytes")

    def test_every_changed_byte_of_frame_and_table_under_right_checksums(self) -> None:
        # An accepted file must have the right digests: `packed` with kp = 0 and `bitmap` may be the same bits.
        for which in (1, 2):
            for at in range(8, len(self.records[which])):
                if at not in range(8, 16) and at not in (range(40, 48) if which == 1 else range(56, 64)):
                    for flip in (1, 2, 0x10, 0x80, 0xFF):
                        record = patch(self.records[which], at, "B", self.records[which][at] ^ flip)
                        records = self.records[:which] + [record] + self.records[which + 1 :]
                        try:
                            result = decode(add_checksum(records), self.changes)
                        except decoder.FormatError:
                            continue
                        self.assertTrue(
                            all(np.array_equal(result[c.name][2], c.new) for c in self.changes),
                            f"record {which}, byte {at} ^ {flip}, seed {SEED}",
                        )

    def test_fields_that_break_a_rule_under_right_checksums(self) -> None:
        entry = 64 + 2 * 8  # the first block entry
        coding = struct.unpack_from("<I", self.records[2], entry + 12)[0]
        for which, offset, form, value, why in (
            (0, 8, "<H", 2, "format_major"),
            (0, 10, "<H", 1, "format_minor"),
            (0, 12, "<I", 1, "flags"),
            (0, 32, "<Q", 7, "version = base_version"),
            (0, 80, "<Q", 341, "elements"),
            (0, 88, "<I", 1, "tensors"),
            (0, 92, "<I", (1 << 20) - 1, "capacity"),
            (0, 92, "<I", (1 << 30) + 1, "capacity"),
            (0, 96, "B", 6, "mode"),
            (0, 97, "B", 3, "value codec"),
            (0, 97, "B", XOR, "another value codec than the blocks'"),
            (0, 98, "B", 1, "reserved"),
            (2, 16, "<I", 1, "sequence"),
            (2, 20, "<I", 0, "groups"),
            (2, 28, "<I", 2, "flags"),
            (2, 40, "<Q", 1, "changed"),
            (2, 48, "<Q", 9, "version"),
            (2, 72, "<I", 0, "group order"),
            (2, 72, "<I", 2, "group out of range"),
            (2, entry, "<I", 1, "first_tile"),
            (2, entry + 3, "B", 1, "first_tile"),
            (2, entry + 4, "<I", 0, "n = 0"),
            (2, entry + 7, "B", 1, "tiles"),
            (2, entry + 8, "<I", 2, "payload_end"),
            (2, entry + 8, "<I", 0xFFFFFFFC, "payload_end"),
            (2, entry + 12, "<I", coding | 7, "codec"),
            (2, entry + 12, "<I", coding | 31 << 5, "kp"),
            (2, entry + 12, "<I", coding | 63 << 10, "kv"),
            (2, entry + 12, "<I", coding | 31 << 16, "ke"),
            (2, entry + 12, "<I", coding | 1 << 22, "reserved bit"),
            (3, 24, "<I", 2, "frames"),
            (3, 28, "<I", 1, "flags"),
            (3, 32, "<Q", 1, "changed"),
            (3, 40, "<Q", 8, "frame_bytes"),
            (3, 72, "B", 1, "reserved"),
        ):
            records = list(self.records)
            records[which] = patch(records[which], offset, form, value)
            with self.assertRaises(decoder.FormatError, msg=why):
                decoder.read_delta(add_checksum(records))

    def test_blocks_that_overlap_in_one_frame_or_two(self) -> None:
        change = Change("t", 8, (2 * TILE,), np.zeros(2 * TILE, "u1"), np.ones(2 * TILE, "u1"))
        for blocks_a_frame, which, entry in ((2, 2, 64 + 8 + 16), (1, 3, 64 + 8)):
            records = encode([change], blocks_a_frame=blocks_a_frame)
            decode(add_checksum(records), [change])
            records[which] = patch(records[which], entry, "<I", 0)
            with self.assertRaisesRegex(decoder.FormatError, "overlap"):
                decoder.read_delta(add_checksum(records))

    def test_a_minor_version_is_refused(self) -> None:
        self.records[0] = patch(self.records[0], 10, "<H", 1)
        with self.assertRaisesRegex(decoder.FormatError, "unsupported: .* 1.1"):
            decoder.read_delta(self.records[0] + self.records[1] + self.records[3])  # Before any checksum.

    def test_context_where_it_must_not_be(self) -> None:
        self.changes = [weights_change(random.Random(SEED), "t", 1, 40_000, 1)]
        header, *others = encode(self.changes, mode=CONTEXT)
        decode(add_checksum([header, *others]), self.changes)
        for wrong, why in (
            (patch(header, 96, "B", 6), "out of range"),
            (patch(header, 97, "B", XOR), "other than ulp"),
            (patch(header, 96, "B", 0), "another position mode"),
        ):
            with self.assertRaisesRegex(decoder.FormatError, why):
                decoder.read_delta(add_checksum([wrong, *others]))

    def test_records_out_of_order_repeated_or_missing(self) -> None:
        header, table, first, second, commit = encode(self.changes, blocks_a_frame=1)
        for order in (
            [header, table, second, first, commit],
            [header, table, first, first, second, commit],
            [header, table, second, commit],
            [header, table, first, second],
            [table, first, second, commit],
            [header, first, second, commit],
            [header, table, first, second, commit, commit],
        ):
            self.assert_refused(add_checksum(order), "records")

    def test_another_base(self) -> None:
        self.changes[0].old[0] ^= 1
        self.assert_refused(add_checksum(self.records), "the base")

    @unittest.skipUnless(decoder.zstandard, "needs zstandard")
    def test_a_compressed_body_of_another_size(self) -> None:
        def frame(size: int, tail: bytes) -> bytes:
            body = self.records[2][64 : 64 + struct.unpack_from("<I", self.records[2], 32)[0]]
            stored = decoder.zstandard.ZstdCompressor().compress(body) + tail
            record = patch(patch(self.records[2], 28, "<I", 1), 32, "<I", len(stored))
            record = patch(record, 36, "<I", size or len(body))
            record = record[:64] + stored + bytes(-len(stored) % 8)
            return patch(record, 4, "<I", len(record))

        def delta(record: bytes) -> bytes:
            commit = patch(self.records[3], 40, "<Q", len(record))
            return add_checksum([self.records[0], self.records[1], record, commit])

        decode(delta(frame(0, b"")), self.changes)
        for size, tail in ((8, b""), (1 << 19, b""), (0, b"\0"), (0, b"\x28\xb5\x2f\xfd")):
            self.assert_refused(delta(frame(size, tail)), f"size {size}, tail {tail!r}")


if __name__ == "__main__":
    print(f"seed {SEED}")
    unittest.main()
