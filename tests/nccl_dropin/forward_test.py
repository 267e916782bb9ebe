#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests that every function of NCCL reaches the real library through the drop-in, with its arguments and its result.

forward_test.py LIBSPARSECAST_NCCL NCCL_H COMPILER

The real library is made here, in C: each of its functions notes its name and arguments, and returns a number of its
own. Every test runs in a process of its own, whose first call is thus the one that loads the real library.
"""

import ctypes
import os
import re
import subprocess
import sys
import tempfile
import traceback
import unittest
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from nccl_functions import OWN, functions

DROP_IN, HEADER, COMPILER = "", "", ""
FOLDER = tempfile.TemporaryDirectory()
LIST = Path(__file__).resolve().parents[2] / "src" / "nccl_dropin" / "functions.inc"

# More than any function of NCCL has; the seventh and all after it are passed on the stack of x86-64.
ARGUMENTS = 12
ARGUMENT_BASE, RESULT_BASE = 0x1122_0000_0000_0000, 0x3344_5500_0000_0000
VERSION = 23203
INVALID_USAGE = 5

# What the functions that the drop-in defines itself take.
POINTER, INT, SIZE, ID = "void*", "int", "size_t", "ncclUniqueId"
OWN_PARAMETERS = {
    "ncclBcast": [POINTER, SIZE, INT, INT, POINTER, POINTER],
    "ncclBroadcast": [POINTER, POINTER, SIZE, INT, INT, POINTER, POINTER],
    "ncclCommAbort": [POINTER],
    "ncclCommDestroy": [POINTER],
    "ncclCommGetAsyncError": [POINTER, POINTER],
    "ncclCommInitRank": [POINTER, INT, ID, INT],
    "ncclCommInitRankConfig": [POINTER, INT, ID, INT, POINTER],
    "ncclGetUniqueId": [POINTER],
    "ncclGroupEnd": [],
    "ncclGroupStart": [],
}
# The functions without which the drop-in does not take a library for NCCL.
REQUIRED = {"ncclGetVersion", "ncclCommSplit", "ncclCommFinalize", "ncclGetErrorString", "ncclGetLastError", *OWN}


class UniqueId(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 16)]


TYPES = {POINTER: ctypes.c_void_p, INT: ctypes.c_int, SIZE: ctypes.c_size_t, ID: UniqueId}

PROLOGUE = """
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef struct { uint64_t words[16]; } ncclUniqueId;
const char* noted_name;
int noted_calls;
uint64_t noted_arguments[24];
int result_of_own = -1; /* If not negative, what all functions return that the drop-in defines itself. */
static void* const kCommunicator = (void*)0x7788;
"""


def all_functions() -> list[str]:
    listed = set(re.findall(r"SPARSECAST_FORWARD\((\w+),", LIST.read_text("utf-8")))
    return sorted(listed | set(OWN) | functions(HEADER))


def source_of(number: int, name: str) -> str:
    """Returns a function of the real library in C."""
    note = f'noted_name = "{name}";\n  ++noted_calls;\n'
    if name not in OWN:
        parameters = ", ".join(f"uint64_t a{i}" for i in range(ARGUMENTS))
        note += "".join(f"  noted_arguments[{i}] = a{i};\n" for i in range(ARGUMENTS))
        if name == "ncclGetVersion":  # The drop-in asks for it, too.
            note += f"  *(int*)a0 = {VERSION};\n  return 0;\n"
        return f"uint64_t {name}({parameters}) {{\n  {note}  return {RESULT_BASE + number}u;\n}}\n"
    parameters, word = OWN_PARAMETERS[name], 0
    for i, parameter in enumerate(parameters):
        if parameter == ID:
            note += f"  memcpy(noted_arguments + {word}, &a{i}, sizeof a{i});\n"
        else:
            note += f"  noted_arguments[{word}] = (uint64_t)a{i};\n"
        word += 16 if parameter == ID else 1
    if name.startswith("ncclCommInitRank"):
        note += "  if (result_of_own == 0) *(void**)a0 = kCommunicator;\n"
    declared = ", ".join(f"{parameter} a{i}" for i, parameter in enumerate(parameters)) or "void"
    return f"int {name}({declared}) {{\n  {note}  return result_of_own < 0 ? {100 + number} : result_of_own;\n}}\n"


def make_library(stem: str, names: list[str]) -> str:
    """Returns the file of a real library that has these functions."""
    source, library = (Path(FOLDER.name) / f"{stem}{suffix}" for suffix in (".c", ".so"))
    source.write_text(PROLOGUE + "".join(source_of(number, name) for number, name in enumerate(names)), "utf-8")
    options = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libnccl.so.2", "-o", str(library), "-x", "c", str(source)]
    subprocess.run([COMPILER, *options], check=True)
    return str(library)


def in_a_process(real: str, run: Callable[[ctypes.CDLL], None]) -> tuple[bool, str]:
    """Calls run(drop-in) in a process whose real library is this file. Returns whether it ended well, and what it
    wrote to standard error.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(write, 2)
            os.environ |= {"SPARSECAST_NCCL_REAL": real, "SPARSECAST_NCCL_MIN_BYTES": "1024"}
            run(ctypes.CDLL(DROP_IN))
            code = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, encoding="utf-8", errors="replace") as file:
        text = file.read()
    return os.waitpid(child, 0)[1] == 0, text


class Noted:
    """What the real library noted of the last call."""

    def __init__(self, real: ctypes.CDLL):
        name = ctypes.c_char_p.in_dll(real, "noted_name").value
        self.name = "" if name is None else name.decode()
        self.calls = ctypes.c_int.in_dll(real, "noted_calls").value
        self.arguments = list((ctypes.c_uint64 * 24).in_dll(real, "noted_arguments"))

    @staticmethod
    def forget(real: ctypes.CDLL) -> None:
        ctypes.c_char_p.in_dll(real, "noted_name").value = None
        ctypes.c_int.in_dll(real, "noted_calls").value = 0
        ctypes.memset(ctypes.addressof((ctypes.c_uint64 * 24).in_dll(real, "noted_arguments")), 0xEE, 24 * 8)


def generic_call(library: ctypes.CDLL, name: str) -> int:
    """Calls a function with distinct numbers in all registers and on the stack."""
    function = library[name]
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_uint64] * ARGUMENTS
    arguments = [ARGUMENT_BASE + i for i in range(ARGUMENTS)]
    version = ctypes.c_int()
    if name == "ncclGetVersion":
        arguments[0] = ctypes.addressof(version)
    result: int = function(*arguments)
    assert name != "ncclGetVersion" or version.value == VERSION
    return result


def own_call(library: ctypes.CDLL, name: str, memory: ctypes.Array[ctypes.c_uint64], small: int) -> int:
    """Calls a function that the drop-in defines itself; pointers lead to `memory`, sizes are `small`."""
    function = library[name]
    function.restype, function.argtypes = ctypes.c_int, [TYPES[parameter] for parameter in OWN_PARAMETERS[name]]
    arguments = []
    for i, parameter in enumerate(OWN_PARAMETERS[name]):
        if parameter == POINTER:
            arguments.append(ctypes.addressof(memory) + 64 * i)
        elif parameter == ID:
            arguments.append(UniqueId((ctypes.c_uint64 * 16)(*(ARGUMENT_BASE + word for word in range(16)))))
        else:
            arguments.append(small if parameter == SIZE else 1 + i % 2)
    result: int = function(*arguments)
    return result


class Forward(unittest.TestCase):
    names: list[str]
    real: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.names = all_functions()
        cls.real = make_library("all", cls.names)

    def check(self, run: Callable[[ctypes.CDLL], None], real: str | None = None) -> str:
        well, text = in_a_process(real or self.real, run)
        self.assertTrue(well, text)
        return text

    def test_the_list_has_all_that_the_header_declares(self) -> None:
        declared = functions(HEADER)
        self.assertGreater(len(declared), 50)
        self.assertEqual(declared - functions(DROP_IN), set())
        # The jumps keep all integer registers, and the drop-in counts on no function that takes another kind.
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", Path(HEADER).read_text("utf-8"), flags=re.DOTALL)
        prototypes = re.findall(r"\b(p?nccl[A-Z]\w*)\s*\(([^()]*)\)\s*;", text)
        self.assertEqual({name for name, _ in prototypes} & declared, declared)
        for name, parameters in prototypes:
            self.assertNotRegex(parameters, r"\b(float|double)\b(?!\s*\*)", name)
            self.assertLess(parameters.count(","), ARGUMENTS, name)

    def test_names_arguments_and_results_pass(self) -> None:
        def compare_all(drop_in: ctypes.CDLL) -> None:
            real = ctypes.CDLL(self.real)
            for again in (False, True):  # The first call loads the real library.
                for name in sorted(set(self.names) - set(OWN)):
                    Noted.forget(real)
                    direct_result, direct = generic_call(real, name), Noted(real)
                    Noted.forget(real)
                    result, noted = generic_call(drop_in, name), Noted(real)
                    assert direct.name == name and result == direct_result, name
                    assert name == "ncclGetVersion" or result == RESULT_BASE + self.names.index(name), name
                    assert noted.name == name and noted.calls in ((1,) if again else (1, 2)), name
                    begin = 1 if name == "ncclGetVersion" else 0
                    assert noted.arguments[begin:] == direct.arguments[begin:], name
                    assert noted.arguments[begin:ARGUMENTS] == [ARGUMENT_BASE + i for i in range(begin, ARGUMENTS)]

        self.check(compare_all)

    def test_the_first_call_of_a_process_passes_whatever_its_function(self) -> None:
        for name in sorted(set(self.names) - set(OWN)):

            def compare(drop_in: ctypes.CDLL, name: str = name) -> None:
                result = generic_call(drop_in, name)
                noted = Noted(ctypes.CDLL(self.real))
                assert noted.name == name and noted.calls == 2, "the call before it asked for the version"
                assert result == (0 if name == "ncclGetVersion" else RESULT_BASE + self.names.index(name))
                assert noted.arguments[1:ARGUMENTS] == [ARGUMENT_BASE + i for i in range(1, ARGUMENTS)]

            self.check(compare)

    def test_functions_of_the_drop_in_pass_what_is_not_sparse(self) -> None:
        self.assertEqual(set(OWN), set(OWN_PARAMETERS))

        def compare_all(drop_in: ctypes.CDLL) -> None:
            real = ctypes.CDLL(self.real)
            memory = (ctypes.c_uint64 * 128)()
            # Small broadcasts, and large ones of communicators that the drop-in does not know.
            for count in (3, 1 << 20):
                for name in ("ncclGetVersion", *OWN):
                    if name == "ncclGetVersion":  # Loads the real library.
                        generic_call(drop_in, name)
                        continue
                    Noted.forget(real)
                    direct_result, direct = own_call(real, name, memory, count), Noted(real)
                    Noted.forget(real)
                    result, noted = own_call(drop_in, name, memory, count), Noted(real)
                    assert result == direct_result == 100 + self.names.index(name), (name, result)
                    assert (noted.name, noted.calls, noted.arguments) == (name, 1, direct.arguments), name

        self.check(compare_all)

    def test_what_succeeds_passes_too(self) -> None:
        def compare_all(drop_in: ctypes.CDLL) -> None:
            real = ctypes.CDLL(self.real)
            ctypes.c_int.in_dll(real, "result_of_own").value = 0
            memory = (ctypes.c_uint64 * 128)()
            comm = ctypes.c_void_p()
            made = drop_in.ncclCommInitRank
            made.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
            assert made(ctypes.byref(comm), 1, UniqueId(), 0) == 0 and comm.value == 0x7788
            for count in (3, 1 << 20):  # A communicator of one rank sends nothing sparsely.
                assert drop_in.ncclBroadcast(memory, memory, ctypes.c_size_t(count), 0, 0, comm, None) == 0
                noted = Noted(real)
                assert noted.name == "ncclBroadcast" and noted.arguments[2] == count and noted.arguments[5] == 0x7788
            state = ctypes.c_int(4)
            for name, arguments in (
                ("ncclGroupStart", ()),
                ("ncclGroupEnd", ()),
                ("ncclCommGetAsyncError", (comm, ctypes.byref(state))),
                ("ncclCommDestroy", (comm,)),
            ):
                assert drop_in[name](*arguments) == 0 and Noted(real).name == name, name
            assert state.value == 4, "the real library's state"
            # The end of an id may be written: address, port and secret. Its beginning is NCCL's.
            unique = UniqueId((ctypes.c_uint64 * 16)(1, 2, 3, 4))
            assert drop_in.ncclGetUniqueId(ctypes.byref(unique)) == 0 and list(unique.words)[:4] == [1, 2, 3, 4]

        self.check(compare_all)

    def test_a_function_that_the_real_library_lacks_is_named(self) -> None:
        real = make_library("old", sorted(REQUIRED))
        absent = sorted(set(self.names) - REQUIRED)

        def call_all(drop_in: ctypes.CDLL) -> None:
            for name in absent:
                result = generic_call(drop_in, name)
                if name in ("pncclGetErrorString", "pncclGetLastError"):
                    assert b"standard error has the reason" in ctypes.string_at(result), name
                else:
                    assert result & 0xFFFFFFFF == INVALID_USAGE, name

        lines = self.check(call_all, real).splitlines()
        self.assertEqual(len(lines), len(absent))
        for line, name in zip(lines, absent, strict=True):
            self.assertTrue(line.startswith(f"sparsecast: the real NCCL has no {name}: "), line)

    def test_without_a_real_library_errors_can_be_read(self) -> None:
        def call_all(drop_in: ctypes.CDLL) -> None:
            memory = (ctypes.c_uint64 * 128)()
            for name in self.names:
                if name in OWN:
                    assert own_call(drop_in, name, memory, 3) == INVALID_USAGE, name
                    continue
                function = drop_in[name]
                if name.endswith(("GetErrorString", "GetLastError")):
                    function.restype = ctypes.c_char_p
                    assert b"standard error has the reason" in function(INVALID_USAGE), name
                else:
                    assert function(None) == INVALID_USAGE, name

        text = self.check(call_all, "/nonexistent/libnccl.so.2")
        self.assertIn("the real NCCL cannot be used", text)
        self.assertIn("/nonexistent/libnccl.so.2", text)


if __name__ == "__main__":
    DROP_IN, HEADER, COMPILER = sys.argv[1:4]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
