#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pretended machine with GPUs: the tests that ctest runs where a device answers, and scripts/gpu_check.sh from end to
end, over the programs of tests/EmulatedMachine.cmake in the place of those that need a device, and over fakes of
NVIDIA's tools. Prints the tests that ctest would run on a real one.

    cd build/release/tests && SPARSECAST_EMULATED_PROGRAMS=../bin gpu_box_test.py [unittest arguments]
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from fake_programs import path_without, write_program

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path.cwd().parent  # The tests run in a folder of the build tree.
EMULATED = pathlib.Path(os.environ.get("SPARSECAST_EMULATED_PROGRAMS", BUILD / "bin"))
CTEST = shutil.which("ctest")
PYTHON = os.path.realpath(sys.executable)  # Not in a virtual environment of somebody's home.
NOBODY = 65534
# Suites that take a moment on the emulated device.
FEW = ("DeviceApplierShapes", "DeviceMaskedCopy", "DeviceQuickBlocks", "DeviceShardMemory")
NVIDIA_SMI = """for ((gpu = 0; gpu < ${SPARSECAST_EMULATED_DEVICES:-1}; ++gpu)); do
  case "$*" in
    *compute_cap*) echo 9.0 ;;
    *name,driver*) ((gpu)) || echo 'name, driver_version, clocks'; echo 'Some GPU, 580.1.2, 1980 MHz' ;;
    -L) echo "GPU $gpu: Some GPU" ;;
  esac
done"""


def registered(label):
    """What ctest knows of the tests with this label: {name: (command, {property: value})}."""
    # From a directory of its own: even a listing replaces the log of the ctest that runs this.
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory, "CTestTestfile.cmake").write_text(f"subdirs([=[{BUILD}]=])\n", encoding="utf-8")
        run = subprocess.run(
            [CTEST, "--test-dir", directory, "--show-only=json-v1", "-L", f"^{label}$"],
            capture_output=True,
            text=True,
            timeout=400,
        )
    tests = json.loads(run.stdout)["tests"]
    return {
        test["name"]: (test.get("command", []), {each["name"]: each["value"] for each in test["properties"]})
        for test in tests
    }


def nccl_library():
    """The library that the build has found; empty without one."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
    found = [line.partition("=")[2] for line in cache if line.startswith("NCCL_LIBRARY:")]
    return found[0] if found and not found[0].endswith("-NOTFOUND") else ""


def text_of(value):
    if isinstance(value, list):
        return ";".join(map(str, value))
    return {True: "ON", False: "OFF"}.get(value, str(value))


class Box(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.programs = self.root / "programs"

    def program(self, name, body, directory=None):
        write_program(directory or self.programs, name, body)


@unittest.skipUnless(CTEST, "needs ctest")
class Registration(Box):
    def ctest(self, tests, instead=lambda program: program):
        """Runs these tests as they are registered, with other programs. Returns {name: whether it ran and passed}, or
        None for a test that was skipped."""
        lines = []
        for name, (command, properties) in tests.items():
            words = [instead(command[0]), *command[1:]]
            lines.append(f"add_test([=[{name}]=] " + " ".join(f"[=[{word}]=]" for word in words) + ")")
            known = " ".join(f"{key} [=[{text_of(value)}]=]" for key, value in properties.items())
            lines.append(f"set_tests_properties([=[{name}]=] PROPERTIES {known})")
        box = self.root / "box"
        shutil.rmtree(box, ignore_errors=True)
        box.mkdir()
        (box / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n", encoding="utf-8")
        run = subprocess.run(
            [CTEST, "--test-dir", box, "--parallel", "4", "--output-on-failure"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=600,
        )
        self.said = run.stdout
        outcome = {"Passed": True, "***Skipped": None}
        found = {}
        for name in tests:
            line = next(line for line in run.stdout.splitlines() if f": {name} ." in line)
            found[name] = next((value for word, value in outcome.items() if word in line), False)
        return found

    def test_the_tests_of_a_device_are_apart_and_skipped_without_one(self):
        tests = registered("gpu")
        if not tests:
            self.skipTest("this build has neither device code nor NCCL")
        print("On a machine with a GPU ctest runs as well:", *tests, sep="\n  ")
        for name, (_, properties) in tests.items():
            alone = properties.get("RUN_SERIAL") or "gpu" in properties.get("RESOURCE_LOCK", "")
            self.assertTrue(alone, f"{name} may meet another test on the device")
        there = {name: test for name, test in tests.items() if test[0] and os.access(test[0][0], os.X_OK)}
        there.pop("python.gpu", None)  # Loading torch takes its time.
        outcomes = self.ctest(there)
        self.assertEqual([name for name, it in outcomes.items() if it is False], [], self.said)
        self.assertIn(None, outcomes.values())

    def test_tests_that_meet_over_nccl_get_the_library_of_the_build(self):
        library = nccl_library()
        group = {name: test for name, test in registered("gpu").items() if name.startswith("gpu_group.")}
        if not library or not group:
            self.skipTest("this build has no NCCL")
        for name, (_, properties) in group.items():
            self.assertIn(f"SPARSECAST_NCCL_LIBRARY={library}", properties.get("ENVIRONMENT", []), name)

    def test_tests_of_host_code_see_no_device(self):
        for name, (_, properties) in {**registered("package"), **registered("live")}.items():
            if name != "python.install":
                self.assertIn("CUDA_VISIBLE_DEVICES=", properties["ENVIRONMENT"], name)

    @unittest.skipUnless((EMULATED / "sparsecast_cuda_tests").exists(), "needs sparsecast_cuda_tests")
    def test_where_a_device_answers_they_run_and_a_fault_fails_one_alone(self):
        chosen = {
            name: (command + (["--width", "64"] if name.startswith("gpu_group") else []), properties)
            for name, (command, properties) in registered("gpu").items()
            if name.startswith("gpu_group.") or name.removeprefix("gpu.") in FEW
        }
        if len(chosen) != len(FEW) + 4:
            self.skipTest("this build has no device code or no NCCL")
        self.program(
            "device_tests",
            f'[[ $* != *{FEW[0]}* ]] || kill -SEGV $$\nexec {EMULATED}/sparsecast_cuda_tests "$@"',
        )
        programs = {
            "sparsecast_gpu_tests": self.programs / "device_tests",
            "gpu_group_test": EMULATED / "emulated_group_test",
        }
        passed = self.ctest(chosen, lambda program: programs[pathlib.Path(program).name])
        self.assertEqual({name for name, it in passed.items() if it is not True}, {f"gpu.{FEW[0]}"}, self.said)


@unittest.skipUnless((EMULATED / "emulated_bench").exists(), "needs the programs of tests/EmulatedMachine.cmake")
class Check(Box):
    """scripts/gpu_check.sh on a machine with make, but without ninja; libnccl.so is the first that the loader finds."""

    def setUp(self):
        super().setUp()
        self.build, self.out, self.path = self.root / "build", self.root / "out", self.root / "path"
        self.program("nvidia-smi", NVIDIA_SMI, self.path)
        # The options are those that the real program takes; its figures would take minutes.
        self.program(
            "cuda_bench",
            f"""[[ $* == *--machine* ]] || echo "cuda_bench $*" >>{self.root}/calls
while (($#)); do [[ $1 != --json ]] || json=$2; all+=("$1"); shift; done
[[ -z $json ]] || echo '{{"complete": true, "rows": []}}' >"$json"
exec {EMULATED}/emulated_bench "${{all[@]}}" --machine""",
        )
        few = ":".join(f"{suite}.*" for suite in FEW)
        self.program(
            "sparsecast_gpu_tests",
            f"""[[ $* != *--gtest_list_tests* ]] || set -- "$@" '--gtest_filter={few}'
exec {EMULATED}/sparsecast_cuda_tests "$@" """,
        )
        self.program(
            "sparsecast_tests", f'exec {EMULATED}/sparsecast_tests "$@" "--gtest_filter=RiceParameter*:NcclLibrary.*"'
        )
        for name, emulated in (
            ("sparsecast_cli", "emulated_cli"),
            ("gpu_group_test", "emulated_group_test"),
            ("sparsecast_perf", "emulated_perf"),
        ):
            self.program(name, f'exec {EMULATED}/{emulated} "$@"')
        # A sanitizer that runs the program, on tests that take a moment.
        self.program(
            "compute-sanitizer",
            f"""printf '%s\\n' "$@" | sed -n 's/^--gtest_filter=//p' >>{self.root}/filters
exec {EMULATED}/sparsecast_cuda_tests --gtest_filter={FEW[0]}.*""",
            self.path,
        )
        self.program(
            "ncu",
            "echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access GPU Performance Counters'; exit 1",
            self.path,
        )
        # What only torch on a device can show.
        self.program(
            "python",
            f"""case "$*" in
  *pytest*) echo '30 passed' ;;
  examples/* | *gpu_ranks.py*) exit 0 ;;
  *'import nvidia.nccl'* | *'import torch'* | *'import vllm'* | *'import sglang'*) exit 1 ;;
  *) exec {PYTHON} "$@" ;;
esac""",
            self.path,
        )
        self.pretend_to_build()
        (self.root / "lib").mkdir()
        (self.root / "lib" / "libnccl.so").symlink_to(nccl_library() or "absent")

    def pretend_to_build(self):
        """The real cmake, on a project whose programs are there already."""
        project = self.root / "project"
        project.mkdir()
        targets = ("cuda_bench", "sparsecast_gpu_tests", "sparsecast_cli", "gpu_group_test", "sparsecast_perf")
        lines = ["cmake_minimum_required(VERSION 3.25)", "project(box LANGUAGES NONE)", "file(MAKE_DIRECTORY bin)"]
        lines.append("add_custom_target(sparsecast_python)")
        for target in (*targets, "sparsecast_tests"):
            program = target.removesuffix("_cli")
            lines.append(f"add_custom_target({target} COMMAND ln -sf {self.programs}/{target} bin/{program})")
        lines.append("add_custom_target(sparsecast_nccl COMMAND touch lib/libsparsecast_nccl.so)")
        lines[2] = 'file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/bin" "${CMAKE_BINARY_DIR}/lib")'
        (project / "CMakeLists.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.program(
            "cmake",
            f"""for argument; do
  [[ $argument != {REPOSITORY} ]] || argument={project}
  all+=("$argument")
done
exec {shutil.which("cmake")} "${{all[@]}}" """,
            self.path,
        )

    def check(self, devices, *stages, as_root):
        """Runs the script, and returns its results; `as_root` matters where the test itself is root."""
        (self.root / "machine").mkdir()  # That the emulated programs share.
        command = [REPOSITORY / "scripts/gpu_check.sh", "--build", self.build, "--out", self.out, "--quick"]
        command += [word for stage in stages for word in ("--stage", stage)]
        if os.geteuid() == 0 and not as_root:
            subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", self.root], check=True)
            self.root.chmod(0o755)
            nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            needed = (command[0], EMULATED / "emulated_cli", PYTHON)
            if all(subprocess.run([*nobody, "test", "-x", path], check=False).returncode == 0 for path in needed):
                command = [*nobody, *command]
        run = subprocess.run(
            list(map(str, command)),
            env={
                **os.environ,
                "PATH": f"{self.path}:{path_without(self.root / 'others', 'ninja', 'ninja-build', 'nvidia-smi', 'ncu')}",
                "PYTHON": "python",
                "HOME": str(self.root),
                "LD_LIBRARY_PATH": str(self.root / "lib"),
                "SPARSECAST_EMULATED_MACHINE": str(self.root / "machine"),
                "SPARSECAST_EMULATED_DEVICES": str(devices),
                "SPARSECAST_PATIENCE": "4",
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        return json.loads((self.out / "results.json").read_text(encoding="utf-8"))

    def test_with_one_device_and_as_root_it_asks_for_no_second(self):
        results = self.check(1, "build", "nccl", as_root=True)
        self.assertEqual({step["outcome"] for step in results["steps"] if step["outcome"] != "SKIPPED"}, {"PASS"})
        self.assertFalse((self.build / "raw" / "perf_gpus.json").exists())
        self.assertTrue((self.build / "raw" / "perf_snapshot.json").exists())

    def test_with_two_devices_it_runs_to_its_end(self):
        results = self.check(2, as_root=False)
        outcomes = {f"{step['stage']} {step['step']}": step["outcome"] for step in results["steps"]}
        skipped = {step for step, outcome in outcomes.items() if outcome == "SKIPPED"}
        self.assertEqual(
            skipped,
            {f"profile ncu {kernel}" for kernel in ("detect", "encode", "apply")}
            | {f"python kernels of {engine} on the device" for engine in ("vllm", "sglang")}
            | {"bench torch baseline"},
        )
        self.assertEqual(
            {step["stage"] for step in results["steps"]},
            {"build", "test", "python", "sanitize", "bench", "profile", "nccl"},
        )
        self.assertTrue((self.build / "Makefile").exists())
        self.assertEqual(results["machine"]["device"], "emulated")
        for run in ("snapshot", "pinned", "fused", "gpus"):
            rows = json.loads((self.build / "raw" / f"perf_{run}.json").read_text(encoding="utf-8"))["rows"]
            self.assertEqual([row["wrong"] for row in rows], [0] * 5)
        self.each_pattern_of_the_sanitizers_names_a_test()

    def each_pattern_of_the_sanitizers_names_a_test(self):
        patterns = set((self.root / "filters").read_text(encoding="utf-8").replace("\n", ":").split(":")) - {""}
        self.assertGreater(len(patterns), 10)
        listed = subprocess.run(
            [EMULATED / "sparsecast_cuda_tests", "--gtest_list_tests"], capture_output=True, text=True, check=True
        ).stdout
        names, suite = [], ""
        for line in listed.splitlines():
            word = line.split("#")[0].strip()
            if line.startswith(" "):
                names.append(suite + word)
            else:
                suite = word
        for pattern in patterns:
            self.assertTrue(any(pathlib.PurePath(name).match(pattern) for name in names), pattern)


if __name__ == "__main__":
    unittest.main()
