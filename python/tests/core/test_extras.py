# SPDX-License-Identifier: Apache-2.0
"""The extras of the package and the versions that its code takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparsecast.engines.vllm.plugin import SUPPORTED
from sparsecast.integrations.trl import TRL_VERSION

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def _extra(name: str) -> str:
    lines = re.findall(rf"^{name} = \[(.*)\]$", PROJECT.read_text(), re.M)
    assert len(lines) == 1, f"extra {name}: {lines}"
    return str(lines[0])


def test_the_extra_torch_is_enough_for_the_package_of_that_name() -> None:
    program = "import sys; sys.modules['numpy'] = None; import sparsecast.torch"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_the_extra_vllm_asks_for_the_oldest_that_the_plugin_takes() -> None:
    major, minor = SUPPORTED[0]
    assert _extra("vllm") == f'"vllm>={major}.{minor}"'


def test_the_extra_trl_asks_for_the_release_that_the_integration_takes() -> None:
    major, minor = (int(number) for number in TRL_VERSION.split("."))
    assert f'"trl>={TRL_VERSION},<{major}.{minor + 1}"' in _extra("trl")


@pytest.mark.parametrize("part", ["torch", "control"])
def test_the_extra_trl_brings_what_the_integration_imports(part: str) -> None:
    assert re.search(rf"sparsecast\[[a-z,]*\b{part}\b", _extra("trl"))
