# SPDX-License-Identifier: Apache-2.0
"""The committed stub is that of the module."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import sparsecast


def comparable(text: str) -> str:
    """Without what depends on the build: which parts there are."""
    return re.sub(r"^(has_\w+: bool) = \w+$", r"\1", text, flags=re.MULTILINE)


def test_the_stub_is_what_stubgen_makes_of_the_module(tmp_path: pathlib.Path) -> None:
    if not sparsecast.has_log:
        import pytest

        pytest.skip("the stub is of a build with delta logs")
    made = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "sparsecast._core", "-o", str(made)]
    subprocess.run(command, check=True, timeout=120)
    committed = pathlib.Path(__file__).parents[2] / "sparsecast" / "_core.pyi"
    words = f"write it anew: {' '.join(command[:-1])} {committed}"
    assert comparable(made.read_text()) == comparable(committed.read_text()), words
