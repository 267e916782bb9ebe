# SPDX-License-Identifier: Apache-2.0
"""bench/low_bits.py on a made-up trace: it counts the changes that are in it."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import save_file

PROGRAM = pathlib.Path(__file__).parents[3] / "bench" / "low_bits.py"
STEPS = 4


@pytest.fixture(scope="module")
def low_bits() -> Any:
    spec = importlib.util.spec_from_file_location("low_bits", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["low_bits"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trace(tmp_path: pathlib.Path) -> pathlib.Path:
    """64 x 128 ones. Each step halves, then restores, the 13th weight of 10 rows: codes move, and no amax does."""
    weight = torch.ones(64, 128, dtype=torch.bfloat16)
    for number in range(STEPS + 1):
        weight[:10, 13] = 0.5 if number % 2 else 1.0
        save_file({"w": weight, "norm": weight[0].clone()}, tmp_path / f"step_{number:06d}.safetensors")
    return tmp_path


def test_it_counts_codes_bytes_and_scales(low_bits: Any, trace: pathlib.Path) -> None:
    measured = low_bits.measure(str(trace), [])
    assert measured.keys() == low_bits.CASES.keys()
    for title, figures in measured.items():
        if "greatest moves" in title:
            continue
        assert figures.steps == STEPS
        assert (figures.changed["elements"], figures.total["elements"]) == (10 * STEPS, 64 * 128 * STEPS), title
        # The bf16 values 1.0 and 0.5 differ in one of their two bytes.
        assert figures.changed["bytes"] == 10 * STEPS, title
        assert figures.changed["scales"] == 0, title
        share = 10 / (64 * 128)
        bits = -64 * 128 * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
        # Half of the moves go down, half up: one bit each.
        assert figures.entropy_bytes() == pytest.approx((bits + 10) / 8)
        for positions in ("packed", "auto"):
            assert figures.empty < figures.least(positions)[0] < figures.empty + 200


def test_a_global_scale_that_follows_the_greatest_weight_changes_scales(low_bits: Any, trace: pathlib.Path) -> None:
    measured = low_bits.measure(str(trace), [])
    assert measured["NVFP4, kept, greatest moves"].changed["scales"] == 0
    assert measured["NVFP4, anew, greatest moves"].changed["scales"] >= STEPS, "the global scale at least"


def test_the_program_prints_a_row_for_each_case(
    low_bits: Any, trace: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["low_bits.py", str(trace)])
    low_bits.main()
    out = capsys.readouterr().out
    for title in low_bits.CASES:
        assert f"\n| {title} | " in out
    monkeypatch.setattr(sys, "argv", ["low_bits.py", str(trace), "--skip", "*"])
    with pytest.raises(SystemExit, match="no matrix"):
        low_bits.main()
