# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/sass, each family of instructions against plain Python."""

import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))

import numpy as np  # noqa: E402

from sass.listing import instruction, parse  # noqa: E402
from sass.machine import Cta, MachineError  # noqa: E402
from sass.memory import Memory  # noqa: E402

LOW = (1 << 32) - 1


def machine(*lines, memory=None, threads=32, parameters=b""):
    """Returns a CTA over a program of one line for each 16 bytes, which ends with EXIT."""
    code = [instruction(16 * number, line) for number, line in enumerate((*lines, "EXIT"))]
    return Cta(code, memory or Memory(1 << 16), parameters, threads)


def run(*lines, seed=None, **registers):
    """Runs one warp with values, one for all lanes or a list, in registers; returns the warp's register files."""
    cta = machine(*lines)
    for name, values in registers.items():
        cta.warps[0].files["R"][int(name[1:])] = np.array(values, np.uint64).astype(np.uint32)
    warp = cta.warps[0]
    cta.run(seed)
    return warp.files


def numbers(seed):
    source = random.Random(seed)
    edges = [0, 1, LOW, 1 << 31, (1 << 31) - 1]
    return [source.choice(edges) if source.random() < 0.3 else source.randrange(1 << 32) for _ in range(32)]


def signed(value):
    return value - (1 << 32) if value >> 31 else value


class Arithmetic(unittest.TestCase):
    def check(self, line, function, register="R0"):
        for seed in range(8):
            a, b, c = (numbers(3 * seed + i) for i in range(3))
            got = run(line, R2=a, R4=b, R6=c)["R"][int(register[1:])].tolist()
            self.assertEqual(got, [function(*values) & LOW for values in zip(a, b, c, strict=True)], line)

    def test_additions_and_products(self):
        self.check("IADD3 R0, R2, R4, -R6", lambda a, b, c: a + b - c)
        self.check("IMAD R0, R2, R4, R6", lambda a, b, c: a * b + c)
        self.check("IMAD.HI.U32 R0, R2, R4, RZ", lambda a, b, c: a * b >> 32)
        self.check("IMAD.WIDE.U32 R0, R2, R4, RZ", lambda a, b, c: a * b >> 32, "R1")
        self.check("IMAD.WIDE R0, R2, R4, RZ", lambda a, b, c: signed(a) * signed(b) >> 32, "R1")
        self.check("LEA R0, R2, R4, 0x5", lambda a, b, c: (a << 5) + b)
        self.check("LEA.HI R0, R2, R4, R6, 0x5", lambda a, b, c: ((c << 32 | a) << 5 >> 32) + b)
        self.check("VIADDMNMX.U32 R0, R2, R4, R6, PT", lambda a, b, c: min((a + b) & LOW, c))
        self.check("VIMNMX R0, R2, R4, !PT", lambda a, b, c: max(signed(a), signed(b)))

    def test_the_smaller_sum_in_each_half(self):
        def half(a, b, c):
            total = (a + b) % (1 << 16)
            return max(0, min(total - (total >> 15 << 16), c - (c >> 15 << 16)))

        self.check(
            "VIADDMNMX.S16x2.RELU R0, R2, R4, R6, PT",
            lambda a, b, c: half(a >> 16, b >> 16, c >> 16) << 16 | half(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF),
        )

    def test_64_bits_are_added_and_taken_away_by_carries(self):
        for sign in ("", "-"):
            for seed in range(8):
                a, b, c, d = (numbers(40 + 4 * seed + i) for i in range(4))
                files = run(
                    f"IADD3 R0, P0, R2, {sign}R4, RZ", f"IADD3.X R1, R3, {'~' if sign else ''}R5, RZ, P0, !PT",
                    R2=a, R3=b, R4=c, R5=d,
                )["R"]  # fmt: skip
                for i in range(32):
                    left, right = b[i] << 32 | a[i], d[i] << 32 | c[i]
                    expected = (left - right if sign else left + right) % (1 << 64)
                    self.assertEqual(int(files[1][i]) << 32 | int(files[0][i]), expected)

    def test_logic_and_bits(self):
        self.check("LOP3.LUT R0, R2, R4, R6, 0xe8, !PT", lambda a, b, c: (a & b) | (a & c) | (b & c))
        self.check("LOP3.LUT R0, R2, R4, R6, 0x2d, !PT", lambda a, b, c: lut(0x2D, a, b, c))
        self.check("POPC R0, R2", lambda a, b, c: a.bit_count())
        self.check("BREV R0, R2", lambda a, b, c: int(f"{a:032b}"[::-1], 2))
        self.check("FLO.U32 R0, R2", lambda a, b, c: a.bit_length() - 1)
        self.check("SGXT R0, R2, 0x5", lambda a, b, c: (a & 31) - (32 if a & 16 else 0))
        self.check("BMSK R0, R2, R4", lambda a, b, c: ((1 << min(b, 32)) - 1) << min(a, 32))
        self.check("PRMT R0, R2, 0x5410, R4", lambda a, b, c: (a & 0xFFFF) | b << 16)
        self.check("PRMT R0, R2, 0x8880, R4", lambda a, b, c: (a & 255) | (LOW << 8 if a & 128 else 0))

    def test_shifts(self):
        self.check("SHF.L.U32 R0, R2, R4, RZ", lambda a, b, c: a << min(b, 32))
        self.check("SHF.R.U32.HI R0, RZ, R4, R2", lambda a, b, c: a >> min(b, 32))
        self.check("SHF.R.S32.HI R0, RZ, R4, R2", lambda a, b, c: signed(a) >> min(b, 32))
        self.check("SHF.L.U64.HI R0, R2, 0x7, R6", lambda a, b, c: (c << 32 | a) << 7 >> 32)
        self.check("SHF.R.U64 R0, R2, 0x7, R6", lambda a, b, c: (c << 32 | a) >> 7)
        self.check("SHF.L.W.U32.HI R0, R2, R4, R6", lambda a, b, c: (c << 32 | a) << (b & 31) >> 32)

    def test_comparisons(self):
        names = {
            "LT": int.__lt__,
            "LE": int.__le__,
            "GT": int.__gt__,
            "GE": int.__ge__,
            "EQ": int.__eq__,
            "NE": int.__ne__,
        }
        for name, function in names.items():
            self.check_predicate(f"ISETP.{name}.U32.AND P0, PT, R2, R4, PT", function)
            self.check_predicate(
                f"ISETP.{name}.AND P0, PT, R2, R4, PT", lambda a, b, f=function: f(signed(a), signed(b))
            )

    def check_predicate(self, line, function):
        a, b = numbers(1), numbers(2)
        b[::4] = a[::4]
        self.assertEqual(
            run(line, R2=a, R4=b)["P"][0].tolist(), [function(*both) for both in zip(a, b, strict=True)], line
        )


def lut(table, a, b, c):
    return sum((table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i for i in range(32))


class Lanes(unittest.TestCase):
    def test_shuffles_votes_and_reductions(self):
        a = numbers(5)
        files = run(
            "SHFL.UP PT, R0, R2, 0x1, RZ", "SHFL.BFLY PT, R1, R2, 0x10, 0x1f", "ISETP.GT.AND P0, PT, R2, RZ, PT",
            "VOTE.ANY R3, PT, P0", "REDUX.SUM.U32 UR4, R2", R2=a,
        )  # fmt: skip
        self.assertEqual(files["R"][0].tolist(), [a[0], *a[:31]])
        self.assertEqual(files["R"][1].tolist(), a[16:] + a[:16])
        self.assertEqual(int(files["R"][3][9]), sum((signed(v) > 0) << i for i, v in enumerate(a)))
        self.assertEqual(int(files["UR"][4][0]), sum(a) & LOW)

    def test_branches_diverge_and_meet_again(self):
        lanes = list(range(32))
        files = run(
            "ISETP.GE.U32.AND P0, PT, R2, 0x8, PT", "BSSY B0, 0x50", "@P0 BRA 0x50", "IADD3 R2, R2, 0x64, RZ", "NOP",
            "BSYNC B0", "VOTE.ALL R3, PT, PT", R2=lanes,
        )  # fmt: skip
        self.assertEqual(files["R"][2].tolist(), [v + 100 if v < 8 else v for v in lanes])
        self.assertEqual(files["R"][3].tolist(), [LOW] * 32)

    def test_a_warpsync_waits_for_its_lanes(self):
        files = run("ISETP.GE.U32.AND P0, PT, R2, 0x8, PT", "@P0 BRA 0x30", "NOP", "WARPSYNC.ALL", "VOTE.ALL R3, PT, PT",
                    R2=list(range(32)))  # fmt: skip
        self.assertEqual(files["R"][3].tolist(), [LOW] * 32)

    def test_a_shuffle_from_an_absent_lane_is_refused(self):
        with self.assertRaisesRegex(MachineError, "lane that is not there"):
            run("ISETP.EQ.U32.AND P0, PT, R2, RZ, PT", "@P0 EXIT", "SHFL.IDX PT, R0, R2, RZ, 0x1f", R2=list(range(32)))


class CtaAndMemory(unittest.TestCase):
    def test_barriers_and_shared_memory_pass_values_between_warps(self):
        for seed in (None, 1, 2):
            memory = Memory(1 << 16)
            out = memory.allocate(256)
            cta = machine(
                "S2R R0, SR_TID.X", "IMAD.SHL.U32 R1, R0, 0x4, RZ", "STS [R1], R0", "BAR.SYNC.DEFER_BLOCKING 0x0",
                "LOP3.LUT R1, R1, 0x80, RZ, 0x3c, !PT", "LDS R3, [R1]", "LDC.64 R4, c[0x0][0x210]",
                "IMAD.WIDE.U32 R4, R0, 0x4, R4", "STG.E desc[UR4][R4.64], R3",
                memory=memory, threads=64, parameters=out.to_bytes(8, "little"),
            )  # fmt: skip
            cta.run(seed)
            self.assertEqual(memory.get(out, np.uint32, 64).tolist(), [i ^ 32 for i in range(64)])
            self.assertEqual((cta.barriers, cta.instructions["STS"], cta.instructions["EXIT"]), (1, 2, 2))

    def test_atomics_lose_nothing(self):
        memory = Memory(1 << 16)
        out = memory.put(np.zeros(2, np.uint64))
        cta = machine("LDC.64 R4, c[0x0][0x210]", "S2R R2, SR_LANEID", "ATOMG.E.ADD.STRONG.GPU PT, R6, desc[UR4][R4.64], R2",
                      "REDG.E.MAX.STRONG.GPU desc[UR4][R4.64+0x8], R2", memory=memory,
                      parameters=out.to_bytes(8, "little"))  # fmt: skip
        cta.run()
        self.assertEqual(memory.get(out, np.uint64, 2).tolist(), [sum(range(32)), 31])

    def test_bad_addresses_and_unknown_instructions_are_refused(self):
        for line, said in (("LDS R0, [R2+0x2]", "not aligned"), ("LDS R0, [R2+0x100000]", "out of bounds"),
                           ("LDG.E R0, desc[UR4][R2.64]", "out of bounds"), ("FADD R0, R2, R3", "has no FADD")):  # fmt: skip
            with self.assertRaisesRegex(MachineError, said):
                run(line, R2=0)


class Listing(unittest.TestCase):
    def test_operands_are_read(self):
        text = "\t\tFunction : f\n        /*0010*/              @!UP1 LDG.E.64 R2, desc[UR4][R6.64+-0x8] ;     /* 0x00 */\n"
        (code,) = parse(text)["f"]
        self.assertEqual((code.address, code.opcode, code.modifiers), (16, "LDG", ("E", "64")))
        self.assertEqual((code.guard.kind, code.guard.value, code.guard.inverted), ("UP", 1, True))
        at = code.operands[1]
        self.assertEqual((at.kind, at.base, at.wide, at.value), ("M", 6, True, -8))


if __name__ == "__main__":
    unittest.main()
