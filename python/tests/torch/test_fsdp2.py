# SPDX-License-Identifier: Apache-2.0
"""FSDP2 over four gloo ranks: examples/fsdp2/train.py, which compares every bit and counts collectives, as a test."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "examples" / "fsdp2" / "train.py"
STEPS = 20
PARAMETERS = 21689  #: Of the example's model.


@pytest.mark.parametrize("mesh", [pytest.param([], id="fsdp"), pytest.param(["--tp", "2"], id="fsdp_and_tp")])
def test_in_20_steps_the_engine_is_bit_identical_each_time_and_publish_gathers_nothing(mesh: list[str]) -> None:
    command = [sys.executable, str(SCRIPT), "--steps", str(STEPS), *mesh]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = re.findall(r"^ *(\d+) +[\d.]+ +([\d.]+)% +(\d+) +(\d+) +(\d+)$", run.stdout, re.MULTILINE)
    assert [int(step) for step, *_ in rows] == list(range(1, STEPS + 1))
    for step, density, wire, dense, collectives in rows:
        assert int(collectives) == 0, f"step {step}"
        assert int(dense) == 2 * PARAMETERS, "each element is sent by one rank, also where several hold a copy"
        assert 0 < float(density) < 100 and int(wire) < int(dense), (
            f"step {step}: the engine got nothing, or everything"
        )
    assert f"engine: bit-identical after each of {STEPS} steps" in run.stdout
