#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check.sh and the report it makes, with fakes of the programs that need a device: what fails, crashes,
hangs or is missing must show in the report, and must not hide the rest.

    tests/gpu_check_test.py [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from fake_programs import path_without, write_program

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PATIENCE = 400

MACHINE = """if [[ $* == *--machine* ]]; then echo '{"device": "Some GPU", "driver_version": 13000}'; exit 0; fi"""
NO_DEVICE = """echo "cuda_bench: no device: the driver is for CUDA 12.4" >&2; exit 4"""
# Writes rows of which the last has no ratio.
BENCH = (
    MACHINE
    + """
while (($#)); do [[ $1 != --json ]] || json=$2; shift; done
echo '{"complete": false, "rows": [
  {"phase": "detect+encode", "what": "BF16 1 GiB", "percent": 1, "device_ms": 2.5, "percent_of_copy": 91},
  {"phase": "scatter", "what": "BF16 1 GiB", "percent": 1, "device_ms": 0.4},
  {"phase": "apply", "what": "BF16 1 GiB", "percent": 1, "device_ms": 0.5}]}' >"$json"
"""
)
LIST = "if [[ $* == *--gtest_list_tests* ]]; then printf 'Running main()\\n%s\\n'; exit 0; fi\n"
SUITES = LIST % "A.\\n  One\\nRandom/B.\\n  Two/0  # 0\\n"
# What the stage "build" builds.
TARGETS = (
    "cuda_bench",
    "sparsecast_gpu_tests",
    "sparsecast_cli",
    "gpu_group_test",
    "sparsecast_perf",
    "sparsecast_tests",
    "sparsecast_nccl",
)
NVIDIA_SMI = """case "$*" in
  *name,driver*) printf 'name, driver_version, clocks\\nSome GPU, 580.1.2, 1980 MHz\\n' ;;
  -L) echo 'GPU 0: Some GPU' ;;
esac"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.bin = self.root / "build" / "bin"
        self.path = self.root / "path"
        self.out = self.root / "out"
        self.program("nvidia-smi", NVIDIA_SMI, self.path)
        self.program("cuda_bench", BENCH)
        self.program("sparsecast_gpu_tests", SUITES)
        for name in ("sparsecast_tests", "sparsecast", "gpu_group_test", "sparsecast_perf"):
            self.program(name, "exit 0")
        # The ranks of the drop-in need the torch of the device's machine.
        self.ranks("exit 0")
        (self.root / "build" / "lib").mkdir()
        (self.root / "build" / "lib" / "libsparsecast_nccl.so").touch()

    def ranks(self, body):
        """Sets what tests/nccl_dropin/gpu_ranks.py does; "$1" is who calls NCCL, "$2" the library."""
        fake = f'if [[ $1 == */gpu_ranks.py ]]; then shift; {body}; else exec {sys.executable} "$@"; fi'
        self.program("python", fake, self.path)

    def program(self, name, body, directory=None):
        write_program(directory or self.bin, name, body)

    def check(self, *arguments, path=None):
        environment = {
            **os.environ,
            "PATH": f"{self.path}:{path or os.environ['PATH']}",
            "PYTHON": str(self.path / "python"),
        }
        command = [REPOSITORY / "scripts" / "gpu_check.sh", "--build", self.root / "build", "--out", self.out]
        return subprocess.run(
            [*map(str, command), *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE
        )

    def results(self):
        return json.loads((self.out / "results.json").read_text(encoding="utf-8"))

    def outcomes(self):
        return {step["step"]: (step["outcome"], step["note"]) for step in self.results()["steps"]}

    def small_project(self, *targets):
        """Makes the real cmake build a project of these targets in place of the repository."""
        project = self.root / "project"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(small LANGUAGES NONE)\n"
            + "".join(f"add_custom_target({name} COMMAND touch built_{name})\n" for name in targets),
            encoding="utf-8",
        )
        self.program(
            "cmake",
            f"""arguments=()
for argument in "$@"; do
  [[ $argument != {REPOSITORY} ]] || argument={project}
  arguments+=("$argument")
done
exec {shutil.which("cmake")} "${{arguments[@]}}" """,
            self.path,
        )

    @unittest.skipUnless(shutil.which("make") and shutil.which("ninja"), "needs make and ninja")
    def test_every_generator_builds_every_target(self):
        self.small_project(*TARGETS)
        self.program("nvidia-smi", "[[ $* != *compute_cap* ]] || printf '9.0\\n7.5\\n8.0\\n'", self.path)
        without_ninja = path_without(self.root / "without_ninja", "ninja", "ninja-build")
        for path, file in ((None, "build.ninja"), (without_ninja, "Makefile")):
            build = self.root / "build"
            shutil.rmtree(build)
            run = self.check("--stage", "build", path=path)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            self.assertTrue((build / file).exists())
            self.assertEqual(sorted(path.name for path in build.glob("built_*")), sorted(f"built_{t}" for t in TARGETS))
            self.assertEqual({outcome for outcome, _ in self.outcomes().values()}, {"PASS"})
            self.assertIn("configure for sm_80;90", self.outcomes())

    def test_a_target_that_is_not_there_is_a_failure(self):
        self.small_project(*TARGETS[:-1])
        run = self.check("--stage", "build")
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        failed = {step for step, (outcome, _) in self.outcomes().items() if outcome != "PASS"}
        self.assertEqual(failed, {f"build {TARGETS[-1]}"})

    def test_an_old_cmake_is_told_in_one_sentence(self):
        self.program("cmake", "echo 'cmake version 3.22.1'", self.path)
        self.assertEqual(self.check("--stage", "build").returncode, 1)
        outcome, note = self.outcomes()["configure"]
        self.assertEqual(outcome, "FAIL")
        self.assertRegex(note, "^needs CMake 3.25 or newer, not 3.22.1; 'pip install cmake ninja' brings it")

    def test_the_report_says_what_ran_on_what(self):
        run = self.check("--stage", "test", "--stage", "nccl", "--commit", "abc")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        results = self.results()
        self.assertEqual(results["commit"], "abc")
        self.assertEqual(len(results["sources"]), 64)
        self.assertEqual(results["machine"]["device"], "Some GPU")
        self.assertEqual(results["driver"], "580.1.2")
        other = [(step["step"], step["note"]) for step in results["steps"] if step["outcome"] != "PASS"]
        self.assertEqual(other, [("perf, a GPU a rank", "one GPU")])
        table = (self.out / "table.txt").read_text(encoding="utf-8")
        for part in ("abc", results["sources"], "Some GPU, driver 580.1.2", "a rank is killed"):
            self.assertIn(part, table)

    def test_a_suite_that_fails_crashes_or_is_skipped_fails_the_step_and_hides_no_other(self):
        self.program(
            "sparsecast_gpu_tests",
            LIST % "A.\\n  a\\nB.\\n  b\\nC.\\n  c\\nD.\\n  d\\n"
            + """
case "$*" in
  *filter=A.*) echo '[  FAILED  ] A.a'; exit 1 ;;
  *filter=B.*) echo '[ RUN      ] B.b'; kill -SEGV $$ ;;
  *filter=C.*) echo '[  SKIPPED ] C.c' ;;
esac""",
        )
        run = self.check("--stage", "test")
        self.assertEqual(run.returncode, 1)
        self.assertEqual(self.outcomes()["device tests"][0], "FAIL")
        self.assertEqual(self.outcomes()["CPU codec and golden tests"][0], "PASS")
        logs = (self.out / "logs.txt").read_text(encoding="utf-8")
        for line in (r"A\. +1 ", r"B\. +139 ", r"C\. +skipped ", r"D\. +ok "):
            self.assertRegex(logs, "suite " + line)
        self.assertIn("B.: exit code 139; [ RUN      ] B.b", logs)

    def test_what_hangs_is_ended_within_the_time_of_the_call(self):
        pid = self.root / "pid"
        self.program("sparsecast_gpu_tests", SUITES + f"echo $$ >{pid}; exec sleep 1000")
        start = time.monotonic()
        run = self.check("--within", "21", "--stage", "test")
        self.assertLess(time.monotonic() - start, 300)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(self.outcomes()["device tests"][1], "ran past")
        self.assertEqual(self.outcomes()["CPU codec and golden tests"], ("FAIL", "no time left of 21 s"))
        self.assertFalse(pathlib.Path(f"/proc/{pid.read_text().strip()}").exists())

    def test_the_drop_in_runs_as_torch_and_as_vllm_call_nccl(self):
        self.ranks(
            """[[ -f $2 && $NCCL_NET == Socket ]] || exit 1
case $1 in
  torch) echo started; echo 'torch 2 has no ProcessGroupNCCL'; exit 69 ;;
  ctypes) echo 'rank 1: no report'; exit 1 ;;
esac"""
        )
        self.assertEqual(self.check("--stage", "nccl").returncode, 1)
        self.assertEqual(self.outcomes()["drop-in, two ranks, torch"], ("SKIPPED", "torch 2 has no ProcessGroupNCCL"))
        self.assertEqual(self.outcomes()["drop-in, two ranks, ctypes"], ("FAIL", "exit code 1"))
        self.assertIn("rank 1: no report", (self.out / "logs.txt").read_text(encoding="utf-8"))

    def test_a_drop_in_that_was_not_built_is_a_failure(self):
        (self.root / "build" / "lib" / "libsparsecast_nccl.so").unlink()
        self.assertEqual(self.check("--stage", "nccl").returncode, 1)
        for caller in ("torch", "ctypes"):
            outcome = self.outcomes()[f"drop-in, two ranks, {caller}"]
            self.assertEqual(outcome, ("FAIL", "sparsecast_nccl is not built; run --stage build"))
        self.assertEqual(self.outcomes()["two ranks, 10 versions"][0], "PASS")

    def test_rows_of_other_calls_are_kept(self):
        self.check("--stage", "nccl")
        self.check("--stage", "test")
        self.assertIn("a rank is killed, another comes late", self.outcomes())
        self.assertIn("device tests", self.outcomes())

    def test_a_finding_of_a_sanitizer_fails_and_the_others_run(self):
        self.program(
            "compute-sanitizer",
            """case "$*" in
  *racecheck*) exit 77 ;;
  *synccheck*) echo '========= Error: Device not supported. Please refer to the documentation.'; exit 1 ;;
  *initcheck*) echo '========= ERROR SUMMARY: 0 errors' ;;
  *) echo '[  PASSED  ] 12 tests.' ;;
esac""",
            self.path,
        )
        run = self.check("--stage", "sanitize")
        self.assertEqual(run.returncode, 1)
        self.assertEqual(
            self.outcomes(),
            {
                "memcheck": ("PASS", ""),
                "racecheck": ("FAIL", "exit code 77"),
                "synccheck": ("SKIPPED", "compute-sanitizer does not support this device"),
                "initcheck": ("FAIL", "exit code 1"),
            },
        )
        self.assertIn("no test ran", (self.out / "logs.txt").read_text(encoding="utf-8"))

    def test_the_hot_kernels_are_profiled(self):
        self.program(
            "ncu",
            """
while (($#)); do
  case $1 in
    --export) echo "${@: -1}" >"$2.ncu-rep"; exit 3 ;;
    --import) [[ $2 != *apply* ]] || exit 1
      printf '"ID","Kernel Name","gpu__time_duration.sum","smsp__average_warps_issue_stalled_%s","%s"\\n' \
        "barrier_per_issue_active.ratio" "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"
      printf '"","","ms","",""\\n"0","detect","1,234.5","0.5","2"\\n' ;;
  esac
  shift
done""",
            self.path,
        )
        run = self.check("--stage", "profile")
        self.assertEqual(run.returncode, 1)
        outcomes = {step: outcome for step, (outcome, _) in self.outcomes().items()}
        self.assertEqual(outcomes, {"ncu detect": "PASS", "ncu encode": "PASS", "ncu apply": "FAIL"})
        self.assertEqual(self.results()["profiles"]["detect"]["gpu__time_duration.sum"], "1,234.5")
        self.assertEqual(self.results()["profiles"]["apply"], {})
        table = (self.out / "table.txt").read_text(encoding="utf-8")
        self.assertRegex(table, "detect .*time 1234.*, read -.*; waits: wait 2, barrier 0.5")

    def test_counters_that_only_root_may_read_are_no_failure(self):
        self.program(
            "ncu",
            """echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters'
exit 1""",
            self.path,
        )
        self.assertEqual(self.check("--stage", "profile").returncode, 0)
        self.assertEqual(len(self.outcomes()), 3)
        for outcome, note in self.outcomes().values():
            self.assertEqual(outcome, "SKIPPED")
            self.assertRegex(note, "only root may read this GPU's counters")

    def test_goals_are_shown_from_whatever_was_measured(self):
        self.check("--quick", "--stage", "bench")
        goals = {goal["what"]: (goal["measured"], goal["met"]) for goal in self.results()["goals"]}
        self.assertEqual(goals["detect+encode, % of copy"], (91, True))
        self.assertEqual(goals["fused cast over plain cast"], (None, False))
        self.assertEqual(goals["apply over its sectors' floor"], (None, False))
        self.assertEqual(goals["apply over scatter"], (1.25, True))
        self.assertEqual(goals["detect+encode/detect over scan by 4"], (None, False))

    def test_without_a_device_the_reason_is_told_and_a_report_written(self):
        self.program("cuda_bench", NO_DEVICE)
        run = self.check("--stage", "nccl")
        self.assertEqual(run.returncode, 1)
        self.assertIn("the driver is for CUDA 12.4", run.stdout)
        self.assertIn("no device answers here", run.stderr)
        self.assertEqual(self.results()["machine"], {})

    def test_a_benchmark_that_was_not_built_does_not_keep_the_tests_from_running(self):
        (self.bin / "cuda_bench").unlink()
        run = self.check("--stage", "test")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("device   Some GPU", (self.out / "table.txt").read_text(encoding="utf-8"))

    def test_wrong_arguments_are_refused(self):
        for arguments in (["--stage", "nothing"], ["--within", "soon"], ["--within"], ["--what"]):
            run = self.check(*arguments)
            self.assertEqual(run.returncode, 1, arguments)
            self.assertIn("gpu_check.sh: ", run.stderr)


if __name__ == "__main__":
    unittest.main()
