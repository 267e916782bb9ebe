#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every source with a part that needs an optional library compiles without that library, also where its headers are not
installed: none of them is included outside of that part."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path.cwd().parent  # The tests run in a folder of the build tree.
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
HEADERS = ("mpi.h", "nccl.h", "sodium.h", "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "nvtx3/nvtx3.hpp")
OPTIONAL = re.compile(r"ifdef SPARSECAST_HAVE_|defined\(SPARSECAST_HAVE_")


@unittest.skipUnless(COMPILER, "there is no C++ compiler")
class OptionalParts(unittest.TestCase):
    def test_sources_compile_without_the_libraries(self):
        sources = [
            path
            for path in REPOSITORY.glob("src/**/*.cpp")
            # The drop-in for NCCL is not built without NCCL.
            if path.parent.name != "nccl_dropin" and OPTIONAL.search(path.read_text(encoding="utf-8"))
        ]
        self.assertGreater(len(sources), 10)
        with tempfile.TemporaryDirectory() as absent:
            for header in HEADERS:
                file = pathlib.Path(absent, header)
                file.parent.mkdir(exist_ok=True)
                file.write_text(
                    f'#error "{header} is included although its library is not built with"\n', encoding="utf-8"
                )
            folders = [absent, *(REPOSITORY / name for name in ("include", "src", ".")), BUILD / "include"]
            command = [COMPILER, "-std=c++20", "-fsyntax-only", "-DSPARSECAST_BUILDING"]
            command += [f"-I{folder}" for folder in folders]

            def compiled(source):
                return source, subprocess.run([*command, source], capture_output=True, text=True)

            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                for source, run in pool.map(compiled, sources):
                    with self.subTest(source=str(source.relative_to(REPOSITORY))):
                        self.assertEqual(run.returncode, 0, run.stderr[:2000])


if __name__ == "__main__":
    unittest.main(verbosity=2)
