# SPDX-License-Identifier: Apache-2.0
"""The package's programs where what they need is not installed."""

from __future__ import annotations

import sys

import pytest

from sparsecast import _commands


@pytest.mark.parametrize(
    ("program", "part", "package", "extra"),
    [
        (_commands.record, "sparsecast.record", "safetensors", "torch,record"),
        (_commands.control, "sparsecast.control", "httpx", "control"),
    ],
)
def test_a_program_names_the_package_that_it_lacks_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: object,
    part: str,
    package: str,
    extra: str,
) -> None:
    for name in [name for name in sys.modules if name.startswith((part, package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert program() == 2  # type: ignore[operator]
    words = capsys.readouterr().err
    assert f"the package {package}" in words and f"sparsecast[{extra}]" in words
