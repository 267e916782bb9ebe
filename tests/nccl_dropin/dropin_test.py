#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the drop-in with processes that call NCCL by ctypes, as vLLM's PyNcclCommunicator does, over a fake NCCL.

dropin_test.py LIBSPARSECAST_NCCL FAKE_LIBNCCL
"""

import ctypes
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from unique_id import UniqueId, shared_id

DROP_IN, FAKE = "", os.environ.get("SPARSECAST_NCCL_REAL", "")
SIZE = 1 << 16
LINE = (
    r"sparsecast: (\d+) broadcasts, (\d+) of them sparse: (\d+) bytes sent for (\d+) dense ones, "
    r"ratio (\d\.\d+); seconds: (.*)"
)
ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "testdata" / "trace"


def versions(steps: int) -> list[list[bytes]]:
    """Returns buckets of every step: few bytes change, their order does, one grows, and one is added."""
    generator = random.Random(7)
    buckets = [bytearray(generator.randbytes(SIZE)) for _ in range(3)]
    result = []
    for step in range(steps):
        for bucket in buckets:
            for _ in range(len(bucket) // 200):
                bucket[generator.randrange(len(bucket))] ^= 1
        if step == 3:
            buckets[0] += generator.randbytes(4096)
        if step == 4:
            buckets.append(bytearray(generator.randbytes(SIZE)))
        generator.shuffle(buckets)
        result.append([bytes(bucket) for bucket in buckets])
    return result


def read_safetensors(path: Path) -> dict[str, bytes]:
    """Returns the bytes of each tensor of a file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    begin = 8 + size
    return {name: data[begin + one["data_offsets"][0] : begin + one["data_offsets"][1]] for name, one in header.items()}


def trace_buckets() -> tuple[list[list[bytes]], int]:
    """Returns the weights of each step of the recorded trace in four buckets, whose order changes, and the number of
    weights that change in all steps.
    """
    files = sorted(TRACE.glob("step_*.safetensors"))
    weights = {name: bytearray(data) for name, data in read_safetensors(files[0]).items()}
    generator, steps, changes = random.Random(3), [], 0
    for file in files:
        sparse = read_safetensors(file) if file != files[0] else {}
        for name in (name.removesuffix(".indices") for name in sparse if name.endswith(".indices")):
            values = sparse[name + ".values"]
            for i, (at,) in enumerate(struct.iter_unpack("<i", sparse[name + ".indices"])):
                weights[name][2 * at : 2 * at + 2] = values[2 * i : 2 * i + 2]
                changes += 1
        names = sorted(weights)
        buckets = [b"".join(bytes(weights[name]) for name in names[cut::4]) for cut in range(4)]
        generator.shuffle(buckets)
        steps.append(buckets)
    return steps, changes


def make_communicator(nccl: ctypes.CDLL, rank: int, size: int, id_file: Path) -> ctypes.c_void_p:
    unique, comm = shared_id(nccl, rank, id_file, 30), ctypes.c_void_p()
    assert nccl.ncclCommInitRank(ctypes.byref(comm), size, unique, rank) == 0
    count = ctypes.c_int()
    assert nccl.ncclCommCount(comm, ctypes.byref(count)) == 0 and count.value == size
    return comm


def rank_main(rank: int, size: int, folder: Path) -> int:
    nccl = ctypes.CDLL(os.environ["LIBRARY"] or None)
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    if "HANDLES" in os.environ:
        signal.signal(signal.SIGUSR1, lambda *_: print("HANDLED", flush=True))
    begin = int(os.environ.get("BEGIN_AT", "-1"))
    comm = make_communicator(nccl, rank, size, folder / ("id again" if begin >= 0 else "id"))
    if os.environ["LIBRARY"] != FAKE:
        assert nccl.ncclAllReduce() == 5, "the fake has no ncclAllReduce"
    grouped, traced = "GROUPED" in os.environ, "TRACED" in os.environ
    dtype, element = (9, 2) if traced else (1, 1)
    for step, buckets in enumerate(trace_buckets()[0] if traced else versions(8)):
        if os.environ.get("DIE_AT") == f"{rank}:{step}":
            os._exit(9)
        if str(step) in os.environ.get("SIGNAL_AT", "").split(","):
            os.kill(os.getpid(), signal.SIGUSR1)
        if step < begin:
            continue
        if os.environ.get("AGAIN_AT") == str(step) and step > begin:
            if os.environ.get("RESTARTED") == str(rank):  # This process goes on as a new one that knows nothing.
                os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"BEGIN_AT": str(step)})
            assert nccl.ncclCommDestroy(comm) == 0
            comm = make_communicator(nccl, rank, size, folder / "id again")
        buffers = []
        if grouped:
            assert nccl.ncclGroupStart() == nccl.ncclGroupStart() == nccl.ncclGroupEnd() == 0
        for data in buckets:
            buffer = ctypes.create_string_buffer(data if rank == 0 else bytes(len(data)), len(data))
            buffers.append(buffer)
            count = ctypes.c_size_t(len(data) // element)
            result = nccl.ncclBroadcast(buffer, buffer, count, dtype, 0, comm, None)
            if result != 0:
                state = ctypes.c_int()
                assert nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)) == 0
                assert state.value == (result if result != 5 else 0)
                print(f"RESULT {result} in step {step}")
                nccl.ncclCommAbort(comm)
                return 3
            assert grouped or buffer.raw == data, f"rank {rank}, step {step}"
        if grouped:
            assert nccl.ncclGroupEnd() == 0
        assert [buffer.raw for buffer in buffers] == buckets, f"rank {rank}, step {step}"
    assert nccl.ncclCommDestroy(comm) == 0
    return 0


class Group:
    """Ranks as processes; `without` names ranks that load the fake itself."""

    def __init__(self, size: int = 3, without: tuple[int, ...] = (), extra: dict[int, dict[str, str]] | None = None):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ranks = []
            for rank in range(size):
                env = os.environ | {
                    "FAKE_NCCL_DIRECTORY": name,
                    "SPARSECAST_NCCL_REAL": FAKE,
                    "SPARSECAST_NCCL_MIN_BYTES": "1024",
                    "SPARSECAST_NCCL_INTERFACE": "lo",
                    "SPARSECAST_NCCL_MEET_TIMEOUT": "3" if without else "30",
                    "SPARSECAST_NCCL_TIMEOUT": "30",
                    "SPARSECAST_NCCL_REPORT": str(folder / f"report.{rank}"),
                    "LIBRARY": FAKE if rank in without else DROP_IN,
                }
                env |= (extra or {}).get(rank, {}) | (extra or {}).get(-1, {})
                command = [sys.executable, __file__, "rank", str(rank), str(size), name]
                ranks.append(subprocess.Popen(command, env=env, text=True, stdout=-1, stderr=subprocess.STDOUT))
            self.output = [rank.communicate(timeout=150)[0] for rank in ranks]
            self.codes = [rank.returncode for rank in ranks]
            files = [folder / f"report.{rank}" for rank in range(size)]
            self.reports = [json.loads(file.read_text()) if file.exists() else None for file in files]


class DropIn(unittest.TestCase):
    def test_repeated_buckets_are_exact_and_small(self) -> None:
        group = Group()
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        for report in group.reports:
            self.assertEqual(report["broadcasts"], 3 * 4 + 4 * 4)
            # Dense: three in the first step, one that grew, one that was added.
            self.assertEqual(report["sparse"], report["broadcasts"] - 5)
            self.assertLess(report["sent_bytes"] * 3, report["dense_bytes"])
        self.assertEqual(group.reports[0]["sent_bytes"], group.reports[2]["sent_bytes"])

    def test_a_recorded_trace_takes_the_bytes_of_packed_deltas(self) -> None:
        group = Group(extra={-1: {"TRACED": "1"}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        steps, changes = trace_buckets()
        dense = sum(map(len, steps[0]))
        for report in group.reports:
            self.assertEqual((report["broadcasts"], report["sparse"]), (4 * len(steps), 4 * (len(steps) - 1)))
            self.assertLess((report["sent_bytes"] - dense) / changes, 1.5)
        print((group.reports[0]["sent_bytes"] - dense) / changes, "bytes a change")

    def test_a_new_communicator_begins_dense(self) -> None:
        group = Group(extra={-1: {"AGAIN_AT": "5"}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        self.assertEqual([report["sparse"] for report in group.reports], [28 - 5 - 4] * 3)

    def test_a_rank_that_was_restarted_meets_the_others_in_a_new_communicator(self) -> None:
        group = Group(extra={-1: {"AGAIN_AT": "5", "RESTARTED": "2"}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        # Of the restarted rank the report has the three steps since, of which the first is dense.
        self.assertEqual([report["sparse"] for report in group.reports], [28 - 5 - 4, 28 - 5 - 4, 8])

    def test_broadcasts_of_a_group_are_sparse_at_its_end(self) -> None:
        group = Group(extra={-1: {"GROUPED": "1"}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        self.assertEqual([report["sparse"] for report in group.reports], [23, 23, 23])
        # One rank alone calls them in a group.
        group = Group(extra={1: {"GROUPED": "1"}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)

    def test_a_rank_without_the_library_makes_all_dense(self) -> None:
        for rank in (0, 1):
            group = Group(without=(rank,))
            self.assertEqual(group.codes, [0, 0, 0], group.output)
            self.assertEqual(group.reports, [None] * 3)
            self.assertIn("left to NCCL", group.output[2])

    def test_strict_refuses(self) -> None:
        group = Group(size=2, without=(0,), extra={1: {"SPARSECAST_NCCL_STRICT": "1", "DIE_AT": "0:0"}})
        self.assertIn("RESULT 5", group.output[1])

    def test_other_settings_make_all_dense(self) -> None:
        group = Group(extra={1: {"SPARSECAST_NCCL_MIN_BYTES": "2048"}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        self.assertEqual(group.reports, [None] * 3)

    def test_another_version_makes_all_dense(self) -> None:
        found = re.search(r"VERSION (\d+\.\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text("utf-8"))
        own, library = f"\0{found[1]}\0".encode(), Path(DROP_IN).read_bytes()
        self.assertEqual(library.count(own), 1)
        with tempfile.NamedTemporaryFile(suffix=".so") as other:
            other.write(library.replace(own, own[:-2] + b"x\0"))
            other.flush()
            group = Group(extra={1: {"LIBRARY": other.name}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        self.assertEqual(group.reports, [None] * 3)
        for rank in (0, 1, 2):
            self.assertIn("has another version of the drop-in", group.output[rank])

    def test_the_least_budget_holds(self) -> None:
        # Room for one of three, then four, buckets, until that has grown.
        group = Group(extra={2: {"SPARSECAST_NCCL_CACHE_BYTES": str(2 * SIZE + 100)}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        self.assertEqual({report["broadcasts"] for report in group.reports}, {28})
        self.assertIn({report["sparse"] for report in group.reports}, ({2}, {7}))
        group = Group(extra={2: {"SPARSECAST_NCCL_CACHE_BYTES": "0"}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        self.assertEqual([report["sparse"] for report in group.reports], [0, 0, 0])

    def test_a_killed_rank_is_an_error_on_the_others(self) -> None:
        for step in (0, 1, 4):
            for victim in (0, 1):
                group = Group(extra={victim: {"DIE_AT": f"{victim}:{step}"}})
                for rank in {0, 1, 2} - {victim}:
                    self.assertIn(f"RESULT 6 in step {step}", group.output[rank])

    def test_a_flipped_bit_is_an_error_on_all(self) -> None:
        group = Group(extra={1: {"FAKE_NCCL_FLIP": str(SIZE // 2)}})
        self.assertIn("RESULT 3", group.output[1])
        self.assertIn("RESULT 6", group.output[2])
        self.assertEqual(group.codes, [3, 3, 3], group.output)

    def test_the_report_has_the_ratio_and_the_seconds_of_each_part(self) -> None:
        group = Group(size=2)
        self.assertEqual(group.codes, [0, 0], group.output)
        for rank, (report, output) in enumerate(zip(group.reports, group.output, strict=True)):
            self.assertAlmostEqual(report["ratio"], report["sent_bytes"] / report["dense_bytes"], places=5)
            seconds = report["seconds"]
            self.assertEqual(list(seconds), ["total", "sample", "encode", "exchange", "apply"])
            self.assertGreaterEqual(seconds["total"] + 1e-3, sum(seconds.values()) - seconds["total"])
            for part in ("apply",) if rank == 0 else ("sample", "encode"):
                self.assertEqual(seconds[part], 0, part)
            line = re.search(LINE, output)
            self.assertIsNotNone(line, output)
            figures = ("broadcasts", "sparse", "sent_bytes", "dense_bytes")
            self.assertEqual([int(line[i]) for i in range(1, 5)], [report[figure] for figure in figures])
            self.assertAlmostEqual(float(line[5]), report["ratio"], places=5)
            printed = {name: float(value) for name, value in (one.split() for one in line[6].split(", "))}
            self.assertEqual(list(printed), list(seconds))
            for name, value in seconds.items():
                self.assertAlmostEqual(printed[name], value, delta=0.0011)

    def test_a_signal_prints_the_statistics(self) -> None:
        group = Group(size=2, extra={-1: {"SIGNAL_AT": "0,4"}})
        self.assertEqual(group.codes, [0, 0], group.output)
        for output in group.output:
            lines = re.findall(LINE, output)
            self.assertEqual([line[0] for line in lines], ["0", str(3 * 4), str(3 * 4 + 4 * 4)], output)
        group = Group(size=2, extra={-1: {"SIGNAL_AT": "0,4", "HANDLES": "1"}})
        self.assertEqual(group.codes, [0, 0], group.output)
        for output in group.output:
            self.assertEqual((output.count("HANDLED"), len(re.findall(LINE, output))), (2, 1), output)

    def test_itself_is_not_the_real_library(self) -> None:
        group = Group(size=1, extra={0: {"SPARSECAST_NCCL_REAL": DROP_IN}})
        self.assertIn("is the drop-in itself", group.output[0])

    def test_preloaded(self) -> None:
        group = Group(extra={-1: {"LD_PRELOAD": DROP_IN, "LIBRARY": ""}})
        self.assertEqual(group.codes, [0, 0, 0], group.output)
        self.assertGreater(group.reports[1]["sparse"], 0)


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        sys.exit(rank_main(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
    DROP_IN, FAKE = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
