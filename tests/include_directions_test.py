#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""scripts/include_directions.py on small trees of its own: what points the wrong way is found, with file and line.

tests/include_directions_test.py [unittest arguments]
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "include_directions.py"
TABLE = """
layer src/low
layer src/left src/right   # Neighbours.
layer src/high
public src/low low.hpp
public src/high high.hpp
python low
python low/inner low
python left low
python right low/inner
"""


class IncludeDirections(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.table = TABLE
        self.write("include/sparsecast/low.hpp", "#pragma once\n")
        self.write("include/sparsecast/high.hpp", '#include "sparsecast/low.hpp"\n')
        self.write("src/low/a.hpp", '#include <vector>\n#include "sparsecast/low.hpp"\n')
        self.write("src/left/a.hpp", '#include "low/a.hpp"\n')
        self.write("src/right/a.hpp", '#include "low/a.hpp"\n')
        self.write("src/high/a.cpp", '#include "left/a.hpp"\n#include "sparsecast/high.hpp"\n')
        self.write("python/sparsecast/__init__.py", "from .a import a\n")
        self.write("python/sparsecast/a.py", "a = 1\n")
        self.write("python/sparsecast/low/__init__.py", "from ..a import a\n")
        self.write("python/sparsecast/low/b.py", "b = 1\n")
        self.write("python/sparsecast/low/inner/c.py", "from sparsecast.low import b\n")
        self.write("python/sparsecast/left/d.py", "import sparsecast.low.b\n")
        self.write("python/sparsecast/right/e.py", "from ..low.inner.c import b\n")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run_script(self, *arguments):
        table = self.root / "table.txt"
        table.write_text(self.table, encoding="utf-8")
        command = [sys.executable, SCRIPT, "--repository", self.root, "--table", table, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def refused(self, *sentences):
        result = self.run_script()
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for sentence in sentences:
            self.assertIn(sentence, result.stdout)

    def accepted(self):
        result = self.run_script()
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_tree_that_points_one_way_is_accepted(self):
        self.accepted()

    def test_an_include_that_points_upwards_is_found(self):
        self.write("src/low/b.cpp", '\n#include "high/b.hpp"\n')
        self.write("src/high/b.hpp", "\n")
        self.refused("src/low/b.cpp:2: src/low must not depend on src/high (src/high/b.hpp)")

    def test_a_neighbour_is_not_below(self):
        self.write("src/left/b.cpp", '#include "right/a.hpp"\n')
        self.refused("src/left/b.cpp:1: src/left must not depend on src/right")

    def test_a_public_header_counts_to_the_folder_that_owns_it(self):
        self.write("src/left/b.cpp", '#include "sparsecast/high.hpp"\n')
        self.refused("src/left/b.cpp:1: src/left must not depend on src/high")

    def test_a_public_header_does_not_include_upwards_either(self):
        self.write("include/sparsecast/low.hpp", '#include "sparsecast/high.hpp"\n')
        self.refused("include/sparsecast/low.hpp:1: src/low must not depend on src/high", "a circle of files")

    def test_what_has_no_place_is_named(self):
        self.write("src/new/a.cpp", "\n")
        self.write("include/sparsecast/new.hpp", "\n")
        self.refused("src/new/: in no layer", "include/sparsecast/new.hpp: in no layer")

    def test_a_folder_speaks_for_those_inside_of_it(self):
        self.write("src/low/inner/a.hpp", '#include "low/a.hpp"\n')
        self.accepted()
        self.write("src/low/inner/b.hpp", '#include "left/a.hpp"\n')
        self.refused("src/low must not depend on src/left")

    def test_folders_of_one_layer_may_not_go_in_a_circle(self):
        self.write("src/low/one/a.hpp", '#include "low/two/a.hpp"\n')
        self.write("src/low/two/a.hpp", "\n")
        self.write("src/low/two/b.hpp", '#include "low/one/a.hpp"\n')
        self.refused(
            "a circle of folders: src/low/one -> src/low/two -> src/low/one", "src/low/two/b.hpp:1: src/low/one/a.hpp"
        )

    def test_an_exception_holds_as_long_as_it_is_needed(self):
        self.write("src/low/b.cpp", '#include "left/a.hpp"\n')
        self.table += "allow src/low/b.cpp src/left/a.hpp\n"
        self.assertNotIn("must not depend", self.run_script().stdout)
        self.write("src/low/b.cpp", "\n")
        self.refused("'allow src/low/b.cpp src/left/a.hpp' is not needed any more")

    def test_a_circle_of_python_modules_is_found(self):
        self.write(
            "python/sparsecast/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B\n"
        )
        self.write("python/sparsecast/b.py", "import sparsecast.a\nclass B: pass\n")
        self.refused("a circle of modules: sparsecast.a -> sparsecast.b -> sparsecast.a", "python/sparsecast/a.py:3:")

    def test_an_import_inside_of_a_function_makes_no_circle(self):
        self.write("python/sparsecast/a.py", "def a():\n    from .b import B\n")
        self.write("python/sparsecast/b.py", "from . import a\n")
        self.accepted()

    def test_a_package_imports_what_its_line_names_alone(self):
        self.write("python/sparsecast/left/f.py", "a = 1\nfrom sparsecast.right.e import b\n")
        self.write("python/sparsecast/low/g.py", "from ..left import d\n")
        self.refused(
            "python/sparsecast/left/f.py:2: left must not import right (python/sparsecast/right/e.py)",
            "python/sparsecast/low/g.py:1: low must not import left (python/sparsecast/left/d.py)",
        )

    def test_a_package_with_a_line_of_its_own_is_no_part_of_the_one_around_it(self):
        self.write("python/sparsecast/low/g.py", "from .inner import c\n")
        self.write("python/sparsecast/left/f.py", "from ..low.inner import c\n")
        self.write("python/sparsecast/low/inner/__init__.py", "")
        self.refused("low/g.py:1: low must not import low/inner", "left/f.py:1: left must not import low/inner")

    def test_a_package_speaks_for_those_inside_of_it(self):
        self.write("python/sparsecast/left/deep/f.py", "from sparsecast.low import b\nfrom ..d import sparsecast\n")
        self.accepted()
        self.write("python/sparsecast/left/deep/g.py", "from sparsecast.right import e\n")
        self.refused("python/sparsecast/left/deep/g.py:1: left must not import right")

    def test_imports_in_functions_and_for_type_checkers_count_for_packages(self):
        self.write("python/sparsecast/low/g.py", "def g():\n    from ..left import d\n")
        self.write(
            "python/sparsecast/low/h.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from ..right import e\n",
        )
        self.refused("low/g.py:2: low must not import left", "low/h.py:3: low must not import right")

    def test_modules_of_no_package_import_none_unless_it_is_allowed(self):
        self.write("python/sparsecast/a.py", "def a():\n    from .left.d import sparsecast\n")
        self.refused(
            "a.py:2: the modules of python/sparsecast itself must not import left (python/sparsecast/left/d.py)"
        )
        self.table += "allow python/sparsecast/a.py python/sparsecast/left/d.py\n"
        self.accepted()
        self.write("python/sparsecast/a.py", "a = 1\n")
        self.refused("'allow python/sparsecast/a.py python/sparsecast/left/d.py' is not needed any more")

    def test_a_package_without_a_line_is_named(self):
        self.write("python/sparsecast/new/f.py", "")
        self.refused("python/sparsecast/new/: has no 'python' line")

    def test_a_name_that_no_import_needs_is_found(self):
        self.write("python/sparsecast/left/d.py", "")
        self.refused("'python left' names low, which it does not import any more")

    def test_a_line_of_the_table_that_makes_no_sense_is_refused(self):
        for line, reason in (
            ("above src/low", "expected 'layer', 'public', 'python' or 'allow' and names"),
            ("python left", "left has a line already"),
            ("python new later", "later has no 'python' line above this one"),
        ):
            self.table = f"{TABLE}{line}\n"
            result = self.run_script()
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"line 11: {reason}", result.stderr)

    def test_the_graph_says_how_often(self):
        graph = self.run_script("--graph").stdout
        self.assertIn("src/high -> src/left (1)", graph)
        self.assertIn("right -> low/inner (1)", graph)


if __name__ == "__main__":
    unittest.main()
