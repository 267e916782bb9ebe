# SPDX-License-Identifier: Apache-2.0
"""bench/history.py on made-up traces: it finds what is in them, and nothing where there is nothing."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import numpy as np
import pytest

pytest.importorskip("safetensors")

from record_traces import write_safetensors

PROGRAM = pathlib.Path(__file__).parents[3] / "bench" / "history.py"
LINES, STEPS, SKIP = 192, 20, 12
RANDOM = np.random.default_rng(3)


@pytest.fixture(scope="module")
def history():
    spec = importlib.util.spec_from_file_location("history", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(directory, step):
    """Writes a trace of whole checkpoints; `step`(number) gives places and directions of one."""
    bits = RANDOM.integers(0x3D00, 0x3E80, LINES * LINES).astype("<u2")
    for number in range(STEPS + 1):
        if number > 0:
            places, up = step(number)
            bits[places] = np.where(up, bits[places] + 1, bits[places] - 1)
        write_safetensors(directory / f"step_{number:06d}.safetensors", {"w": ("BF16", [LINES, LINES], bits.tobytes())})


def measured(history, directory):
    changes, bits = history.measure(directory, [1, 4], 4, SKIP)
    return changes, {what: total / changes for what, total in bits.items()}


def anywhere():
    return RANDOM.permutation(LINES * LINES)[:2000]


def test_chance_has_no_history(history, tmp_path):
    record(tmp_path, lambda _: (anywhere(), RANDOM.random(2000) < 0.5))
    changes, bits = measured(history, tmp_path)
    assert changes == 2000 * (STEPS - SKIP)
    share = 2000 / LINES**2
    even = (-np.log2(share) * share - np.log2(1 - share) * (1 - share)) / share
    assert bits["position"] == pytest.approx(even, rel=0.01)
    assert bits["position", 4] == pytest.approx(even, rel=0.02)
    assert bits["size"] == 0
    for what in ("sign", ("sign", 1), ("sign", 4)):
        assert 0.95 < bits[what] <= 1


def test_signs_of_low_rank_are_learnt(history, tmp_path):
    rows, columns = RANDOM.random((2, LINES)) < 0.5

    def step(_):
        places = anywhere()
        return places, rows[places // LINES] ^ columns[places % LINES]

    record(tmp_path, step)
    _, bits = measured(history, tmp_path)
    assert bits["sign"] < 0.3
    assert bits["sign", "both"] < 0.3
    assert bits["position", 4] == pytest.approx(bits["position"], rel=0.02)


def test_elements_that_go_and_come_back_are_known(history, tmp_path):
    places = anywhere()
    record(tmp_path, lambda number: (places, np.full(2000, number % 2 == 0)))
    _, bits = measured(history, tmp_path)
    assert bits["position", 1] < 0.01
    assert bits["sign", 1] < 0.01


def test_the_program_prints_a_row_for_each_memory(history, tmp_path, capsys, monkeypatch):
    record(tmp_path, lambda _: (anywhere(), RANDOM.random(2000) < 0.5))
    monkeypatch.setattr(sys, "argv", ["history.py", str(tmp_path), "--last", "2,3", "--rank", "2", "--skip", str(SKIP)])
    history.main()
    out = capsys.readouterr().out
    for row in ("exponent", "last 2", "last 3", "rank 2", "last 3 and rank 2"):
        assert f"\n{row} " in out
    monkeypatch.setattr(sys, "argv", ["history.py", str(tmp_path), "--skip", str(STEPS)])
    with pytest.raises(SystemExit, match="nothing changes"):
        history.main()
