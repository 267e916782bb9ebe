#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests of `sparsecast_perf` without an MPI launcher: the built program and its processes.

tests/perf_launcher_test.py PATH_TO_SPARSECAST_PERF [unittest arguments]
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

TESTDATA = pathlib.Path(__file__).resolve().parent.parent / "testdata"
TRACE = TESTDATA / "trace"
SMALL_LAYOUTS = [TESTDATA / "layouts" / name for name in ("small.fsdp2-dp2.json", "small.vllm-tp2.json")]
SMALL = ["--synthetic", "--layers", "1", "--width", "64", "--vocabulary", "512"]
PATIENCE = 120
PERF = ""
EMULATED = os.environ.get("SPARSECAST_EMULATED_PROGRAMS")
OVER_TCP = ("--transport", "tcp")
OVER_NCCL = ("--transport", "nccl", "--backend", "cuda", "--share-gpu")


def environment(**changes):
    """Nothing of an MPI launcher that may have started the tests."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "MV2_", "SPARSECAST_"))}
    return {**clean, **changes}


def perf(*arguments, **changes):
    return subprocess.run(
        [PERF, *map(str, arguments)], env=environment(**changes), capture_output=True, text=True, timeout=PATIENCE
    )


def children_of(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds):
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("waited in vain")
        time.sleep(0.02)


class EndlessRun:
    """Three ranks that go on until somebody ends them."""

    def __init__(self, program, wire):
        self.command = [program, "--ranks", "3", *wire, "--steps", "1000000000", *SMALL]

    def __enter__(self):
        self.directory = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            self.command,
            env=environment(TMPDIR=self.directory.name),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in self.process.stdout:
            if not line.startswith("#"):
                break  # The first row.
        self.ranks = children_of(self.process.pid)
        return self

    def finish(self):
        _, errors = self.process.communicate(timeout=PATIENCE)
        wait_until(lambda: not any(map(runs, self.ranks)))
        return self.process.returncode, errors

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        self.directory.cleanup()


class WholeRuns(unittest.TestCase):
    def test_the_table_and_the_record_name_what_ran(self):
        with tempfile.TemporaryDirectory() as directory:
            record = pathlib.Path(directory) / "record.json"
            run = perf("--ranks", 3, "--transport", "tcp", "--checkpoints", TRACE, "--steps", 2, "--json", record)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("backend cpu, transport tcp", run.stdout)
            self.assertIn("#wrong 0: OK", run.stdout)
            self.assertEqual(run.stdout.count("step_0000"), 2)
            written = json.loads(record.read_text())
        self.assertEqual((written["backend"], written["transport"], written["ranks"]), ("cpu", "tcp", 3))
        self.assertEqual(len(written["rows"]), 2)
        self.assertEqual(written["summary"]["wrong"], 0)
        self.assertEqual((written["schema"], written["benchmark"]), (1, "sparsecast_perf"))
        total = next(row for row in written["results"] if row["name"].endswith("/total"))
        self.assertEqual(len(total["samples"]), 2)
        self.assertTrue(total["baseline"].endswith("/dense"))

    def test_a_record_on_standard_output_is_alone_there(self):
        run = perf("--ranks", 2, "--steps", 2, "--json", "-", *SMALL)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(len(json.loads(run.stdout)["rows"]), 2)
        self.assertIn("#wrong 0: OK", run.stderr)

    def test_a_paced_run_says_so_and_is_narrow(self):
        with tempfile.TemporaryDirectory() as directory:
            record = pathlib.Path(directory) / "record.json"
            run = perf("--ranks", 3, "--checkpoints", TRACE, "--steps", 2, "--link-gbps", 0.5, "--json", record)
            self.assertEqual(run.returncode, 0, run.stderr)
            written = json.loads(record.read_text())
        self.assertIn("paced to 0.5 Gb/s", run.stdout)
        self.assertRegex(run.stdout.splitlines()[-1], "^# .* times fewer bytes than dense, .*#wrong 0: OK$")
        self.assertLessEqual(max(map(len, run.stdout.splitlines())), 100)
        self.assertEqual(written["link_gbps"], 0.5)

    def test_a_link_that_is_too_slow_for_the_timeout_ends_the_run(self):
        run = perf("--ranks", 2, "--steps", 2, "--link-gbps", 0.001, "--timeout", 0.2, *SMALL)
        self.assertEqual(run.returncode, 3, run)
        self.assertIn("--link-gbps", run.stderr)

    def test_the_fused_cast_runs(self):
        run = perf("--ranks", 2, "--steps", 2, "--detector", "fused", *SMALL)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("fused cast", run.stdout)

    def test_layouts_run_over_paced_links(self):
        run = perf("--ranks", 4, "--layout", *SMALL_LAYOUTS, "--steps", 2, "--link-gbps", 0.1)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("paced to 0.1 Gb/s", run.stdout)
        self.assertIn("#wrong 0: OK", run.stdout)
        self.assertLessEqual(max(map(len, run.stdout.splitlines())), 100 + len(str(TESTDATA)))

    def test_layouts_run_by_a_plan(self):
        with tempfile.TemporaryDirectory() as directory:
            record = pathlib.Path(directory) / "record.json"
            run = perf("--ranks", 6, "--layout", *SMALL_LAYOUTS, "--engines", 2, "--steps", 3, "--json", record)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("2 trainer ranks, 2 engines of 2 ranks", run.stdout)
            self.assertIn("#wrong 0: OK", run.stdout)
            written = json.loads(record.read_text())
        self.assertEqual(written["summary"]["wrong"], 0)
        for row in written["rows"]:
            self.assertEqual([len(row[k + "_bytes"]) for k in ("sent", "received", "foreign")], [2, 4, 6])
            self.assertEqual(sum(row["sent_bytes"]), row["wire_bytes"])
            self.assertGreater(row["changed"], 0)
            self.assertGreater(min(row["received_bytes"]), 0)

    def test_ranks_started_by_hand_meet(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [PERF, "--ranks", "2", "--steps", "2", "--rendezvous", place, *SMALL]
        ranks = [
            subprocess.Popen(
                [*command, "--rank", str(rank)],
                env=environment(SPARSECAST_SECRET="a secret that both ranks know"),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        outputs = [rank.communicate(timeout=PATIENCE) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        self.assertIn("#wrong 0: OK", outputs[0][0])
        self.assertEqual(outputs[1][0], "")


class Errors(unittest.TestCase):
    def refused(self, *arguments, **changes):
        run = perf(*arguments, **changes)
        self.assertEqual(run.returncode, 2, run)
        self.assertEqual(run.stdout, "")
        return run.stderr

    def test_without_a_device_the_device_backend_says_so(self):
        self.assertRegex(
            self.refused("--ranks", 2, "--backend", "cuda", *SMALL, CUDA_VISIBLE_DEVICES=""),
            "--backend cuda(: this build has no device backend| needs a CUDA device, and this machine shows none: .)",
        )

    def test_a_rank_by_hand_needs_the_secret(self):
        self.assertIn(
            "SPARSECAST_SECRET", self.refused("--ranks", 2, "--rank", 0, "--rendezvous", "127.0.0.1:1", *SMALL)
        )

    def test_layouts_need_a_process_for_each_rank(self):
        layouts = ["--layout", *SMALL_LAYOUTS, "--engines", 2]
        self.assertIn(
            "need 6 processes (4 are enough with --colocate); there are 5", self.refused("--ranks", 5, *layouts)
        )
        self.assertIn("down to 4; there are 3", self.refused("--ranks", 3, *layouts, "--colocate"))
        self.assertIn("there are 7", self.refused("--ranks", 7, *layouts))
        self.assertIn("nowhere.json", self.refused("--ranks", 4, "--layout", "nowhere.json", SMALL_LAYOUTS[1]))

    def test_under_an_mpi_launcher_ranks_are_not_started_again(self):
        self.assertIn("mpirun", self.refused("--ranks", 2, *SMALL, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0"))


class Deaths(unittest.TestCase):
    def endless(self):
        return EndlessRun(PERF, OVER_TCP)

    def test_a_killed_rank_ends_the_run_and_is_named(self):
        with self.endless() as run:
            os.kill(run.ranks[2], signal.SIGKILL)
            code, errors = run.finish()
        self.assertEqual(code, 3)
        self.assertIn("rank 2 ended by signal 9", errors)

    def test_a_killed_publisher_ends_the_receivers(self):
        with self.endless() as run:
            os.kill(run.ranks[0], signal.SIGKILL)
            code, errors = run.finish()
        self.assertEqual(code, 3)
        self.assertIn("rank 0 ended by signal 9", errors)

    def test_no_rank_outlives_the_launcher(self):
        with self.endless() as run:
            run.process.kill()
            code, _ = run.finish()
        self.assertEqual(code, -signal.SIGKILL)

    def test_an_interrupted_launcher_ends_even_a_stopped_rank(self):
        with self.endless() as run:
            os.kill(run.ranks[1], signal.SIGSTOP)
            run.process.terminate()
            code, _ = run.finish()
        self.assertEqual(code, 128 + signal.SIGTERM)


@unittest.skipUnless(EMULATED, "needs the programs of tests/EmulatedMachine.cmake")
class DeathsOverNccl(Deaths):
    def endless(self):
        return EndlessRun(pathlib.Path(EMULATED) / "emulated_perf", OVER_NCCL)


if __name__ == "__main__":
    PERF = sys.argv.pop(1)
    unittest.main()
