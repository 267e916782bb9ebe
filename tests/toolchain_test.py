#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a machine that is not ours has instead of what the build wants: old compilers, CMake and Highway, nvcc that is not
on the PATH, GPUs of other generations, no root. Each is told in one sentence, by CMake and by the scripts; the programs
are fakes.

    tests/toolchain_test.py [unittest arguments]
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from fake_programs import path_without, write_program

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
CMAKE = shutil.which("cmake")
COMPILER = shutil.which("g++")
SETTINGS = ("-DSPARSECAST_MPI=OFF", "-DSPARSECAST_S3=OFF", "-DSPARSECAST_NVTX=OFF", "-DSPARSECAST_TESTS=OFF")


class Machine(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        # None of this machine's own toolkit or GPU.
        cls.others = path_without(pathlib.Path(directory.name) / "others", "nvcc", "nvidia-smi")

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.path = self.root / "path"
        self.path.mkdir()
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA", "NVCC", "CMAKE", "SPARSECAST", "CXX", "CC"))
        }
        self.environment["PATH"] = f"{self.path}:{self.others}"

    def program(self, name, body, directory=None):
        write_program(directory or self.path, name, body)

    def toolkit(self, release, newest_gcc=99, architectures=("80", "90"), directory="toolkit"):
        """A fake CUDA toolkit. Returns its directory."""
        known = "\\n".join(f"compute_{architecture}" for architecture in architectures)
        self.program(
            "nvcc",
            f"""case "$*" in
  --version) echo "Cuda compilation tools, release {release}, V{release}.99" ;;
  --list-gpu-arch) printf '{known}\\n' ;;
  *) echo "nvcc was called: $*" >&2; exit 1 ;;
esac""",
            self.root / directory / "bin",
        )
        headers = self.root / directory / "include" / "crt"
        headers.mkdir(parents=True)
        (headers / "host_config.h").write_text(
            f"#error -- unsupported GNU version! gcc versions later than {newest_gcc} are not supported!\n",
            encoding="utf-8",
        )
        (headers.parent / "cuda_runtime.h").touch()
        libraries = self.root / directory / "lib64"
        libraries.mkdir()
        (libraries / "libcudart.so").touch()
        return self.root / directory

    def gpus(self, *capabilities, driver="13.0"):
        lines = "\\n".join(capabilities)
        self.program(
            "nvidia-smi",
            f"""case "$*" in
  *compute_cap*) printf '{lines}\\n' ;;
  '') echo '| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: {driver}     |' ;;
esac""",
        )

    def configure(self, *settings):
        """Returns what CMake says, in one line, and the cache."""
        build = self.root / "build"
        command = [CMAKE, "-S", REPOSITORY, "-B", build, *SETTINGS, *settings]
        run = subprocess.run(list(map(str, command)), env=self.environment, capture_output=True, text=True, timeout=400)
        cache = build / "CMakeCache.txt"
        text = cache.read_text(encoding="utf-8") if cache.exists() else ""
        return run.returncode, " ".join((run.stdout + run.stderr).split()), text

    def shell(self, text):
        """What a script would see that has sourced scripts/lib.sh."""
        return subprocess.run(
            ["bash", "-c", f"source scripts/lib.sh; {text}"],
            cwd=REPOSITORY,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=400,
        )

    def refused(self, sentence, *settings):
        code, said, _ = self.configure(*settings)
        self.assertEqual(code, 1, said)
        self.assertRegex(said, sentence)


@unittest.skipUnless(CMAKE and COMPILER, "needs cmake and g++")
class Configure(Machine):
    def test_an_old_gcc_is_named(self):
        self.program("g++-11", f'exec {COMPILER} -U__GNUC__ -D__GNUC__=11 "$@"')
        self.refused(
            r"needs GCC 12 or Clang 14, or newer, not GNU 11\.[0-9.]+: install g\+\+-12",
            f"-DCMAKE_CXX_COMPILER={self.path}/g++-11",
        )

    def test_an_old_highway_is_named(self):
        include = self.root / "old" / "hwy"
        include.mkdir(parents=True)
        (include / "base.h").write_text(
            "#define HWY_MAJOR 0\n#define HWY_MINOR 16\n#define HWY_PATCH 0\n", encoding="utf-8"
        )
        self.refused(
            r"needs Highway \(libhwy-dev\) 1\.0 or newer, not the 0\.16\.0 in \S+/old",
            "-DSPARSECAST_CUDA=OFF",
            f"-Dhwy_INCLUDE_DIR={include.parent}",
        )

    def test_nvcc_is_found_off_the_path_and_what_it_cannot_do_is_told(self):
        toolkit = self.toolkit("12.4", newest_gcc=11)
        self.environment["CUDA_HOME"] = str(toolkit)
        sentence = r"CUDA 12\.4 takes GCC 11 at most, and gcc is GCC [0-9.]+: install g\+\+-11"
        self.refused("SPARSECAST_CUDA is ON, but " + sentence, "-DSPARSECAST_CUDA=ON")
        code, said, _ = self.configure("-DSPARSECAST_CUDA=AUTO")
        self.assertEqual(code, 0, said)
        self.assertIn(f"nvcc is not on the PATH, and taken from {toolkit}/bin/nvcc", said)
        self.assertRegex(said, "device code is left out: " + sentence)

    def test_an_nvcc_that_cannot_compile_is_told(self):
        self.environment["CUDACXX"] = str(self.toolkit("12.4") / "bin/nvcc")
        code, said, _ = self.configure("-DSPARSECAST_CUDA=AUTO")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"device code is left out: \S+/toolkit/bin/nvcc does not compile here")

    def test_cudacxx_that_names_nothing_is_told(self):
        self.environment["CUDACXX"] = "/no/such/nvcc"
        self.refused("CUDACXX names '/no/such/nvcc', which is no program", "-DSPARSECAST_CUDA=ON")

    def test_headers_and_runtime_are_those_of_the_toolkit_that_cudacxx_names(self):
        on_the_path = self.toolkit("13.0", directory="newer")
        toolkit = self.toolkit("12.4")
        self.environment["PATH"] = f"{on_the_path}/bin:{self.environment['PATH']}"
        self.environment["CUDACXX"] = str(toolkit / "bin/nvcc")
        _, said, cache = self.configure("-DSPARSECAST_CUDA=AUTO")
        self.assertIn(f"CUDA_CUDART:FILEPATH={toolkit}/lib64/libcudart.so\n", cache, said)

    def test_headers_of_nvtx_are_not_mixed_with_the_older_ones_of_the_toolkit(self):
        toolkit = self.toolkit("12.4")
        self.environment["CUDACXX"] = str(toolkit / "bin/nvcc")
        newer = self.root / "nvtx/include/nvtx3"
        newer.mkdir(parents=True)
        (newer / "nvToolsExtPayload.h").touch()
        settings = ("-DSPARSECAST_CUDA=AUTO", "-DSPARSECAST_NVTX=AUTO", f"-DNVTX_ROOT={newer.parent.parent}")
        for older, found in ((False, "ON"), (True, "OFF")):
            if older:
                (toolkit / "include/nvtx3").mkdir()
            shutil.rmtree(self.root / "build", ignore_errors=True)
            code, said, _ = self.configure(*settings)
            self.assertEqual(code, 0, said)
            self.assertIn(f"NVTX {found},", said)

    def test_an_old_toolkit_is_named(self):
        self.environment["CUDA_HOME"] = str(self.toolkit("11.8"))
        self.refused(r"is of CUDA 11\.8, and its C\+\+20 needs CUDA 12", "-DSPARSECAST_CUDA=ON")

    def test_architectures_are_those_of_the_gpus_here(self):
        self.environment["CUDA_HOME"] = str(self.toolkit("12.4"))
        for capabilities, chosen in ((("9.0", "8.0", "9.0", "7.5"), "80;90"), (("7.0",), "80;90"), (("9.0",), "90")):
            self.gpus(*capabilities)
            shutil.rmtree(self.root / "build", ignore_errors=True)
            _, _, cache = self.configure("-DSPARSECAST_CUDA=ON")
            self.assertIn(f"CMAKE_CUDA_ARCHITECTURES:STRING={chosen}\n", cache, capabilities)

    def test_architectures_that_nobody_knows_are_refused(self):
        self.environment["CUDA_HOME"] = str(self.toolkit("12.4"))
        self.refused(
            r"has 100, which nvcc of CUDA 12\.4 does not know \(sm_100 and sm_120 need 12\.8",
            "-DCMAKE_CUDA_ARCHITECTURES=80-real;90-real;100",
        )
        self.refused("has 70, and device code needs sm_80 or newer", "-DCMAKE_CUDA_ARCHITECTURES=70")

    def test_spilled_registers_are_judged_with_the_compiler_of_the_record_alone(self):
        report = self.root / "kernels.cu.o.report"
        report.write_text(
            "ptxas info    : Compiling entry function 'kernel' for 'sm_90'\n"
            "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
            "ptxas info    : Used 255 registers\n",
            encoding="utf-8",
        )
        record = json.loads((REPOSITORY / "bench/results/kernel-cost-sm_90.json").read_text(encoding="utf-8"))["nvcc"]
        for version, code in ((record, 1), ("12.4.131", 0)):
            self.program("nvcc", f"[[ $1 == --version ]] && echo 'release, V{version}' || echo compute_90")
            settings = {
                "NVCC": self.path / "nvcc",
                "REPORT": report,
                "SOURCE": "kernels.cu",
                "SOURCE_DIR": REPOSITORY,
                "BINARY_DIR": self.root,
            }
            command = [CMAKE, *(f"-D{name}={value}" for name, value in settings.items())]
            command += ["-P", str(REPOSITORY / "cuda/CheckResources.cmake")]
            run = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=400)
            self.assertEqual(run.returncode, code, run.stdout + run.stderr)
            self.assertRegex(run.stderr, r"kernels that spill:\s+sm_90 kernel: stack 8")
            self.assertEqual("not judged" in run.stderr, code == 0)

    def test_an_old_cmake_can_read_the_presets_and_say_that_it_is_old(self):
        presets = json.loads((REPOSITORY / "CMakePresets.json").read_text(encoding="utf-8"))
        self.assertLessEqual(presets["version"], 3)  # What CMake 3.22 of Ubuntu 22.04 reads.


class Scripts(Machine):
    def test_nvcc_is_found_where_it_is_usually_installed(self):
        def found():
            return self.shell("command -v nvcc").stdout.strip()

        home, path, named = (self.toolkit("12.4", directory=name) for name in ("home", "path_of", "named"))
        self.environment["CUDA_PATH"] = str(path)
        self.assertEqual(found(), f"{path}/bin/nvcc")
        self.environment["CUDA_HOME"] = str(home)
        self.assertEqual(found(), f"{home}/bin/nvcc")
        self.program("nvcc", "exit 0")
        self.assertEqual(found(), f"{self.path}/nvcc")
        self.environment["CUDACXX"] = f"{named}/bin/nvcc"
        self.assertEqual(found(), f"{named}/bin/nvcc")

    def test_every_script_looks_for_it(self):
        for name in ("run.sh", "test.sh", "wheel.sh", "gpu_check.sh", "lint.sh"):
            text = (REPOSITORY / "scripts" / name).read_text(encoding="utf-8")
            self.assertRegex(text, r'(?m)^source "\$\(dirname "\$\{BASH_SOURCE\[0\]\}"\)/lib\.sh"$', name)

    def test_code_is_made_for_every_gpu_that_it_runs_on(self):
        for capabilities, expected in (
            (["9.0", "9.0"], "90"),
            (["9.0", "7.5", "8.0"], "80;90"),
            (["7.5"], ""),
            ([], ""),
        ):
            self.gpus(*capabilities)
            self.assertEqual(self.shell("device_architectures").stdout, expected)

    def test_nccl_is_that_of_the_toolkit_and_the_driver(self):
        for release, driver, cuda in (("13.0", "13.0", 13), ("12.8", "13.0", 12), ("13.0", "12.4", 12)):
            shutil.rmtree(self.root / "toolkit", ignore_errors=True)
            self.environment["CUDA_HOME"] = str(self.toolkit(release))
            self.gpus("9.0", driver=driver)
            names = self.shell("cat $(nccl_requirements); python_requirements").stdout
            self.assertIn(f"nvidia-nccl-cu{cuda}==", names, (release, driver))
            self.assertEqual("tests/requirements-nccl-cu12.txt" in names, cuda == 12)
        versions = {
            re.search(r"==(\S+)", (REPOSITORY / "tests" / name).read_text(encoding="utf-8")).group(1)
            for name in ("requirements-nccl.txt", "requirements-nccl-cu12.txt")
        }
        self.assertEqual(len(versions), 1)

    def test_an_old_cmake_is_named_before_anything_is_configured(self):
        for version, said in (("3.22.1", "not 3.22.1"), ("", "not none")):
            self.program("cmake", f"[[ -n '{version}' ]] || exit 127; echo 'cmake version {version}'")
            run = self.shell("require_cmake; echo went on")
            self.assertEqual(run.returncode, 1)
            self.assertRegex(run.stderr, rf"needs CMake 3\.25 or newer, {said}; 'pip install cmake ninja'")
        for version in ("3.25.0", "3.31.6", "4.1.0"):
            self.program("cmake", f"echo 'cmake version {version}'")
            self.assertEqual(self.shell("require_cmake; echo went on").stdout, "went on\n", version)

    def test_without_root_or_network_the_other_way_is_told(self):
        self.program("dpkg-query", "exit 1")
        self.program("apt-get", "echo 'Could not resolve deb.debian.org' >&2; exit 100")
        self.program("id", "[[ $* == -u ]] && echo 1000")
        for sudo in ("", "echo 'a password is required' >&2; exit 1"):
            if sudo:
                self.program("sudo", sudo)
            run = self.shell("logs=$(mktemp -d); install_packages")
            self.assertEqual(run.returncode, 1)
            self.assertRegex(
                run.stderr, r"cannot install ccache cmake .*: without root or network 'scripts/gpu_check\.sh'"
            )


if __name__ == "__main__":
    unittest.main()
