#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""scripts/spdx.py on a small tree of its own.

tests/spdx_test.py [unittest arguments]
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "spdx.py"
LINE = "SPDX-License-Identifier: Apache-2.0"


class Spdx(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        subprocess.run(["git", "init", "--quiet", self.root], check=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run_script(self, *arguments):
        command = [sys.executable, SCRIPT, "--repository", self.root, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def fixed(self, name, text):
        path = self.write(name, text)
        self.assertEqual(self.run_script("--check").returncode, 1)
        self.assertEqual(self.run_script("--fix").returncode, 0)
        self.assertEqual(self.run_script("--check").returncode, 0)
        once = path.read_text(encoding="utf-8")
        self.run_script("--fix")
        self.assertEqual(path.read_text(encoding="utf-8"), once, "a second --fix changes nothing")
        return once

    def test_a_header_begins_with_the_line_and_pragma_once_follows(self):
        self.assertEqual(self.fixed("a.hpp", "#pragma once\n"), f"// {LINE}\n#pragma once\n")

    def test_a_comment_about_the_file_stays_apart_from_it(self):
        self.assertEqual(self.fixed("a.cpp", "// Adds.\nint a;\n"), f"// {LINE}\n\n// Adds.\nint a;\n")

    def test_it_follows_a_shebang(self):
        script = self.fixed("run.sh", "#!/usr/bin/env bash\n# Runs.\necho\n")
        self.assertEqual(script, f"#!/usr/bin/env bash\n# {LINE}\n\n# Runs.\necho\n")

    def test_a_script_without_a_suffix_is_known_by_its_shebang(self):
        self.assertIn(LINE, self.fixed("run", "#!/usr/bin/env bash\necho\n"))

    def test_a_docstring_comes_after_it(self):
        self.assertEqual(self.fixed("a.py", '"""Adds."""\n'), f'# {LINE}\n"""Adds."""\n')

    def test_cmake_cuda_c_and_promela_have_their_own_comments(self):
        self.assertTrue(self.fixed("CMakeLists.txt", "project(a)\n").startswith(f"# {LINE}\n"))
        self.assertTrue(self.fixed("a.cuh", "int a;\n").startswith(f"// {LINE}\n"))
        self.assertTrue(self.fixed("a.h", "int a;\n").startswith(f"// {LINE}\n"))
        self.assertTrue(self.fixed("a.pml", "int a;\n").startswith(f"/* {LINE} */\n"))

    def test_an_empty_file_gets_the_line(self):
        self.assertEqual(self.fixed("__init__.py", ""), f"# {LINE}\n")

    def test_other_files_are_left_alone(self):
        for name in ("a.md", "a.json", "testdata/a.py", "LICENSE", "python/sparsecast/_core.pyi"):
            self.write(name, "text\n")
        self.assertEqual(self.run_script("--check").returncode, 0)

    def test_it_says_which_files_lack_it(self):
        self.write("src/a.cpp", "int a;\n")
        self.write("src/b.cpp", f"// {LINE}\nint b;\n")
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertIn("src/a.cpp", result.stdout)
        self.assertNotIn("src/b.cpp", result.stdout)

    def test_another_license_is_no_license_line(self):
        self.write("a.cpp", "// SPDX-License-Identifier: MIT\nint a;\n")
        self.assertEqual(self.run_script("--check").returncode, 1)


if __name__ == "__main__":
    unittest.main()
