# SPDX-License-Identifier: Apache-2.0
"""Each file of Python tests is run by something."""

from __future__ import annotations

import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = TESTS.parent.parent


def test_every_file_of_tests_is_named_by_the_build_or_by_a_script() -> None:
    build = (REPOSITORY / "python" / "CMakeLists.txt").read_text(encoding="utf-8")
    scripts = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "scripts").rglob("*.sh"))
    patterns = {re.escape(name) for name in re.findall(r"\$\{tests\}/([\w./-]+)", build)}
    patterns |= {
        name.replace("${engine}", "(vllm|sglang)").replace("*", ".*")
        for name in re.findall(r"tests\}/(\S*\*\S*)\"", build)
    }
    missing = []
    for path in sorted(TESTS.rglob("test_*.py")):
        name = path.relative_to(TESTS).as_posix()
        named = any(re.fullmatch(f"{pattern}(/.*)?", name) for pattern in patterns)
        if not named and path.name not in scripts:
            missing.append(name)
    assert not missing
