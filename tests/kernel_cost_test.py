# SPDX-License-Identifier: Apache-2.0
"""Tests of scripts/kernel_cost.py, over what cuobjdump prints and over programs that print it."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("kernel_cost", ROOT / "scripts/kernel_cost.py")
kernel_cost = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(kernel_cost)
sys.path.insert(0, str(ROOT / "scripts"))
from sass import listing  # noqa: E402

SASS = """
Fatbin elf code:
================
arch = sm_90

\tcode for sm_90
\t.target\tsm_90

\t\tFunction : _Z5firstPj
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                  /* 0x00000a00ff017b82 */
                                                                           /* 0x000ff00000000800 */
        /*0010*/               @!P0 BRA 0x40 ;                             /* 0x0000b000ff027b82 */
        /*0020*/              @UP1 UIADD3 UR4, UR4, 0x1, URZ ;             /* 0x0000b000ff027b82 */
        /*0030*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;           /* 0x0000000000007b1d */
        /*0040*/                   STL.64 [R1], R2 ;                       /* 0x0000000000007b1d */
        /*0050*/                   LDL R2, [R1] ;                          /* 0x0000000000007b1d */
        /*10060*/                  EXIT ;                                  /* 0x000000000000794d */
        /*10070*/                  BRA 0x10070;                            /* 0xfffffffc00fc7947 */
        /*10080*/                  NOP;                                    /* 0x0000000000007918 */
\t\t..........

\t\tFunction : _ZN10sparsecast4cuda6secondILNS0_6SourceE4EhEEvPKT_
        /*0000*/                   EXIT ;                                  /* 0x000000000000794d */
"""

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function _Z5firstPj:
  REG:40 STACK:8 SHARED:1040 LOCAL:0 CONSTANT[0]:536 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function _ZN10sparsecast4cuda6secondILNS0_6SourceE4EhEEvPKT_:
  REG:16 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:528 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

FIRST = {
    "registers": 40,
    "shared_bytes": 1040,
    "local_bytes": 8,
    "instructions": 8,
    "barriers": 1,
    "spills": 2,
}


class Parsing(unittest.TestCase):
    def test_instructions_barriers_and_spills_are_counted_without_the_filling(self):
        kernels = kernel_cost.parse_sass(SASS)
        self.assertEqual(kernels["_Z5firstPj"], {"instructions": 8, "barriers": 1, "spills": 2})
        self.assertEqual(len(kernels), 2)

    def test_resources_of_every_kernel_are_read(self):
        kernels = kernel_cost.parse_usage(USAGE)
        self.assertEqual(kernels["_Z5firstPj"], {"registers": 40, "shared_bytes": 1040, "local_bytes": 8})
        self.assertEqual(len(kernels), 2)

    def test_names_lose_namespaces_and_parameters_alone(self):
        long = "void sparsecast::cuda::encode<(sparsecast::cuda::Source)4, unsigned char>(sparsecast::cuda::Chunk, int)"
        self.assertEqual(kernel_cost.shorten(long), "encode<(Source)4, unsigned char>")
        self.assertEqual(kernel_cost.shorten("(anonymous namespace)::fill(int*)"), "fill")


class Comparing(unittest.TestCase):
    def said(self, **changes):
        return kernel_cost.differences({"k": FIRST}, {"k": {**FIRST, **changes}}, 5)

    def test_what_is_equal_smaller_or_within_the_bound_is_not_said(self):
        self.assertEqual(self.said(), [])
        self.assertEqual(self.said(registers=42, instructions=1), [])

    def test_growth_of_anything_is_said_with_both_figures(self):
        self.assertEqual(self.said(registers=43), ["k: 43 registers, 40 in the record"])
        self.assertEqual(self.said(barriers=2), ["k: 2 barriers, 1 in the record"])
        self.assertEqual(self.said(shared_bytes=2000), ["k: 2000 shared bytes, 1040 in the record"])

    def test_kernels_that_came_or_went_are_said(self):
        self.assertEqual(
            kernel_cost.differences({"old": FIRST}, {"new": FIRST}, 5),
            ["old: it is in the record alone", "new: it is not in the record"],
        )


class Executed(unittest.TestCase):
    def test_growth_of_what_ran_is_said(self):
        before = {"apply, 1 %": {"warp_instructions": 100.0, "barriers": 2.0, "lanes": 20.0}}
        self.assertEqual(kernel_cost.differences_executed(before, before, 5), [])
        grown = {"apply, 1 %": {"warp_instructions": 106.0, "barriers": 2.0, "lanes": 32.0}, "new": {}}
        self.assertEqual(
            kernel_cost.differences_executed(before, grown, 5),
            ["new: it is not in the record", "apply, 1 %: 106.0 warp instructions a unit, 100.0 in the record"],
        )

    def test_the_fingerprint_is_that_of_code_and_its_order_not_of_the_order_of_files(self):
        add, store = (listing.instruction(16 * i, text) for i, text in enumerate(("IADD3 R0, R1, 0x1, RZ", "EXIT")))
        known = kernel_cost.fingerprint({"detect": [add, store], "apply": [store]})
        self.assertEqual(kernel_cost.fingerprint({"apply": [store], "detect": [add, store]}), known)
        other = listing.instruction(0, "IADD3 R0, R1, 0x2, RZ")
        for changed in (
            {"detect": [other, store], "apply": [store]},
            {"detect": [add], "apply": [store]},
            {"detected": [add, store], "apply": [store]},
        ):
            self.assertNotEqual(kernel_cost.fingerprint(changed), known)


class Command(unittest.TestCase):
    """The command over programs that print what is above."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = pathlib.Path(self.directory.name)
        for name, text in (("sass", SASS), ("usage", USAGE)):
            (self.path / name).write_text(text, encoding="utf-8")
        self.program("cuobjdump", f'[ "$3" = -sass ] && exec cat {self.path}/sass\nexec cat {self.path}/usage')
        self.program("nvdisasm", "exit 1")
        self.program("nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")

    def program(self, name, body):
        path = self.path / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def run_with(self, *arguments, programs=True):
        """Returns the exit code and what was printed."""
        before = os.environ["PATH"], sys.argv, kernel_cost.sysconfig
        os.environ["PATH"] = f"{self.path}:/usr/bin:/bin" if programs else str(self.path / "nothing")
        sys.argv = ["kernel_cost.py", *arguments]

        class NoWheels:
            @staticmethod
            def get_paths():
                return {"purelib": "/nonexistent"}

        kernel_cost.sysconfig = NoWheels
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                return kernel_cost.main(), out.getvalue()
        finally:
            os.environ["PATH"], sys.argv, kernel_cost.sysconfig = before

    def test_a_record_is_equal_to_itself_and_growth_fails(self):
        record = self.path / "record.json"
        code, text = self.run_with("x.cu.o", "y.cpp.o", "--record", str(record))
        self.assertEqual(code, 0, text)
        self.assertIn("second<(Source)4, unsigned char>", text)
        self.assertEqual(self.run_with("x.cu.o", "--compare", str(record))[0], 0)
        kept = json.loads(record.read_text(encoding="utf-8"))
        self.assertEqual((kept["arch"], kept["nvcc"]), ("sm_90", "13.0.88"))
        kept["kernels"]["first"]["instructions"] = 5
        record.write_text(json.dumps(kept), encoding="utf-8")
        code, text = self.run_with("x.cu.o", "--compare", str(record))
        self.assertEqual(code, 1)
        self.assertIn("first: 8 instructions, 5 in the record", text)

    def test_a_record_of_another_compiler_is_not_compared(self):
        record = self.path / "record.json"
        self.run_with("x.cu.o", "--record", str(record))
        self.program("nvcc", "echo 'Cuda compilation tools, release 13.1, V13.1.1'")
        code, text = self.run_with("x.cu.o", "--compare", str(record))
        self.assertEqual(code, kernel_cost.SKIPPED)
        self.assertIn("not compared", text)

    def test_without_the_tools_it_is_skipped(self):
        code, text = self.run_with("x.cu.o", programs=False)
        self.assertEqual(code, kernel_cost.SKIPPED)
        self.assertIn("skipped", text)

    def test_objects_without_kernels_are_a_mistake(self):
        code, text = self.run_with("x.cpp.o")
        self.assertEqual(code, 2)
        self.assertIn("no object is of a .cu file", text)


if __name__ == "__main__":
    unittest.main()
