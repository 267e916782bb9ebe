# SPDX-License-Identifier: Apache-2.0
"""examples/grpo_cpu, from the first demonstration to the last comparison, without most of its supervised phase."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

import sparsecast

pytest.importorskip("torch")

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "examples" / "grpo_cpu" / "train.py"
STEPS = 4
ROW = re.compile(r"^ *(\d+) +([\d.]+) +([\d.]+)% +(\d+) +(\d+) +([\d.]+) +([\d.]+)  ([0-9a-f]{8})$", re.MULTILINE)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--quick", "--steps", str(STEPS), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("transport", ["tcp", "log"])
def test_each_step_brings_both_rollout_processes_to_the_trainers_weights_bit_for_bit(transport: str) -> None:
    if transport == "log" and not sparsecast.has_log:
        pytest.skip("this build has no delta logs")
    done = run("--transport", transport)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = ROW.findall(done.stdout)
    assert [int(row[0]) for row in rows] == list(range(1, STEPS + 1)), done.stdout
    assert all(0 < int(row[3]) < int(row[4]) for row in rows), "a sync sent nothing, or more than all weights"
    assert len({row[7] for row in rows}) > 1, "the weights have never changed"
    assert "bit-identical: 2 rollout processes hold the trainer's weights" in done.stdout


def test_a_group_of_one_answer_is_refused_before_anything_starts() -> None:
    done = run("--group", "1")
    assert done.returncode == 2
    assert "--group must be at least 2" in done.stderr
