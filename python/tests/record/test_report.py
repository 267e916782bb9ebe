# SPDX-License-Identifier: Apache-2.0
"""The report's figures against values computed by hand."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest

pytest.importorskip("safetensors")

from record_traces import REAL_TRACE, sparse_step, write_safetensors

from sparsecast.errors import UsageError
from sparsecast.record import statistics
from sparsecast.record.bits import ulp_steps
from sparsecast.record.cli import main
from sparsecast.record.report import analyse

ONE, TWO, HALF = 0x3F80, 0x4000, 0x3F00  # As BF16.


@pytest.fixture
def hand_made(tmp_path):
    """A matrix of 4 x 4 ones and a bias of 4 halves, and three steps."""
    write_safetensors(
        tmp_path / "step_000005.safetensors",
        {
            "mlp.up.weight": ("BF16", [4, 4], struct.pack("<16H", *[ONE] * 16)),
            "mlp.up.bias": ("BF16", [4], struct.pack("<4H", *[HALF] * 4)),
        },
    )
    sparse_step(tmp_path / "step_000006.safetensors", {"mlp.up.weight": ([0, 1, 2, 3], [ONE + 1] * 3 + [ONE - 1])})
    sparse_step(
        tmp_path / "step_000007.safetensors",
        {"mlp.up.weight": ([0, 3], [ONE + 3, ONE]), "mlp.up.bias": ([3], [0xBF00])},
    )
    sparse_step(tmp_path / "step_000008.safetensors", {"mlp.up.weight": ([0], [TWO])})
    return tmp_path


def test_density_classes_and_ulps_are_those_counted_by_hand(hand_made):
    report = analyse(hand_made, encode=False)
    assert (report["elements"], report["steps"], report["changed"]) == (20, 3, 8)
    assert [row["density"] for row in report["step_rows"]] == [4 / 20, 3 / 20, 1 / 20]
    assert report["density"] == 8 / 60
    classes = {row["class"]: row for row in report["class_rows"]}
    assert (classes["mlp"]["elements"], classes["mlp"]["changed"], classes["mlp"]["density"]) == (16, 7, 7 / 48)
    assert (classes["bias"]["elements"], classes["bias"]["changed"]) == (4, 1)
    # +1 three times, -1, +2, +1, to TWO from ONE + 3: 125; the change of sign of a half: far.
    assert [row["count"] for row in report["ulp_rows"]] == [5, 1, 0, 0, 0, 0, 2]
    assert report["ulp_up_share"] == 6 / 8


def test_changes_are_counted_by_the_exponent_that_the_weight_had(hand_made):
    rows = {row["exponent"]: row for row in analyse(hand_made, encode=False)["exponent_rows"]}
    # After the first step element 3 is below one; it comes back in the second, and element 0 reaches two in the last.
    assert (rows[0]["seen"], rows[0]["changed"]) == (16 + 15 + 16, 4 + 1 + 1)
    assert (rows[-1]["seen"], rows[-1]["changed"]) == (4 + 5 + 4, 0 + 2 + 0)
    assert 1 not in rows


def test_recurrence_counts_changes_that_come_again(hand_made):
    rows = {row["lag"]: row for row in analyse(hand_made, encode=False)["recurrence_rows"]}
    # One step later: of 4 came 2, of 3 came 1. Two later: of 4 came 1.
    assert rows[1]["p_change"] == pytest.approx(3 / 7)
    assert rows[1]["density"] == pytest.approx((4 * 3 / 20 + 3 * 1 / 20) / 7)
    assert rows[2]["p_change"] == pytest.approx(1 / 4)
    assert set(rows) == {1, 2}


def test_bits_a_change_are_the_entropies_of_positions_and_ulps(hand_made):
    def nh(n, k):
        return sum(-c * math.log2(c / n) for c in (k, n - k) if c)

    bits = analyse(hand_made, encode=False)["bits_per_change"]
    assert bits["positions"] == pytest.approx((nh(20, 4) + nh(20, 3) + nh(20, 1)) / 8)
    assert bits["positions_by_tensor"] == pytest.approx((nh(16, 4) + nh(16, 2) + nh(4, 1) + nh(16, 1)) / 8)
    assert bits["positions_by_exponent"] == pytest.approx((nh(16, 4) + nh(15, 1) + nh(5, 2) + nh(16, 1)) / 8)
    # Five kinds of steps: +1 four times (one of them from below one up to it), and -1, +2, +125 and the sign once each.
    assert bits["ulp"] == pytest.approx(4 / 8 * 1 + 4 * (1 / 8) * 3)


def test_dispersion_is_one_for_scattered_changes_and_counts_up_in_clusters():
    assert statistics.dispersion(np.array([4, 0, 0, 0]), 4) == pytest.approx(4 / (4 * 0.25 * 0.75 * 16 / 15))
    assert statistics.dispersion(np.array([1, 1, 1, 1]), 4) == 0
    assert statistics.dispersion(np.array([4, 4]), 4) is None
    random = np.random.default_rng(7)
    rows, columns = 300, 200
    values = []
    for _ in range(40):
        chosen = random.choice(rows * columns, 600, replace=False)
        values.append(statistics.dispersion(np.bincount(chosen // columns, minlength=rows), columns))
    assert abs(np.mean(values) - 1) < 0.05  # The standard error is 0.013.


def test_ulp_steps_order_all_floats_and_cross_zero_and_integers_are_numbers():
    old = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x3F80, 0x7F7F], np.uint16)
    new = np.array([0x8000, 0x0001, 0x8001, 0x8002, 0x3F82, 0x7F80], np.uint16)
    assert ulp_steps(old, new, "BF16").tolist() == [-1, 2, -3, -1, 2, 1]
    assert ulp_steps(np.array([255], np.uint8), np.array([1], np.uint8), "I8").tolist() == [2]
    assert ulp_steps(np.array([255], np.uint8), np.array([1], np.uint8), "U8").tolist() == [-254]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.0.self_attn.q_proj.weight", "attention"),
        ("model.layers.0.mlp.down_proj.weight", "mlp"),
        ("model.layers.0.mlp.experts.7.up_proj.weight", "expert"),
        ("model.layers.0.input_layernorm.weight", "norm"),
        ("model.embed_tokens.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("b.0.n1.bias", "norm"),
        ("b.0.dn.weight", "mlp"),
        ("fc.bias", "bias"),
        ("blocks.0.qkv.weight", "attention"),
        ("something", "other"),
    ],
)
def test_tensors_are_classed_by_their_names(name, kind):
    assert statistics.tensor_class(name) == kind


def test_the_report_of_a_real_trace_agrees_with_the_command_sparsecast(tmp_path, capsys):
    command = shutil.which("sparsecast")
    if command is None:
        pytest.skip("the command sparsecast is not on the path")
    assert main(["report", "--json", str(REAL_TRACE)]) == 0
    report = json.loads(capsys.readouterr().out)
    anchor = str(REAL_TRACE / "step_000012.safetensors")
    result = subprocess.run(
        [command, "convert", str(REAL_TRACE), "--from", "trl", "--to", "scd", "--base", anchor, "--base-version", "12",
         "--positions", "packed", "--values", "ulp", "-o", str(tmp_path / "out"), "--json"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    steps = json.loads(result.stdout)["steps"]
    assert [row["changed"] for row in report["step_rows"]] == [row["changed"] for row in steps]
    # A file has the same framing around every delta.
    (framing,) = {row["bytes"] - sent for row, sent in zip(steps, report["encoded"]["step_bytes"], strict=True)}
    assert 0 <= framing < 256


def test_the_text_has_a_line_of_costs_and_a_plot_is_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "report.png"
    assert main(["report", str(REAL_TRACE), "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "density 0.949 % a step" in text
    assert "bytes a change, encoded (packed, ulp):" in text
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_errors_have_the_exit_codes_of_the_command_sparsecast(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "there is no step_*.safetensors [usage]" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent")]) == 4
    write_safetensors(tmp_path / "step_000000.safetensors", {"w": ("BF16", [1], b"\0\0")})
    sparse_step(tmp_path / "step_000001.safetensors", {"w": ([9], [1])})
    assert main(["report", str(tmp_path)]) == 3
    assert os.fspath(tmp_path) in capsys.readouterr().err


def test_train_records_a_trace_for_each_rate_from_the_same_weights(tmp_path, capsys):
    pytest.importorskip("torch")
    command = ["train", "-o", str(tmp_path), "--width", "16", "--layers", "1", "--batch", "2", "--steps", "2"]
    assert main([*command, "--skip", "1", "--pretrain-steps", "2", "--learning-rate", "1e-6", "1e-3"]) == 0
    rows = [analyse(tmp_path / name) for name in ("lr1e-06", "lr0.001")]
    assert [row["optimizer"]["lr"] for row in rows] == ["1e-06", "0.001"]
    assert rows[0]["density"] < rows[1]["density"]
    assert [row["version"] for row in rows[0]["step_rows"]] == [2, 3]
    assert main([*command, "--pretrain-steps", "0"]) == 2  # The directories are there already.
    assert "must be empty" in capsys.readouterr().err


@pytest.mark.parametrize(("optimizer", "named"), [("muon", "Muon"), ("sgd", "SGD")])
def test_train_takes_another_optimizer_and_records_what_all_of_its_parts_change(tmp_path, optimizer, named):
    torch = pytest.importorskip("torch")
    from sparsecast.record.training import ByteModel, FineTuning, Size, fine_tune, optimizers

    size, run = Size(width=16, layers=2, context=16), FineTuning(1e-2, steps=2, skip=1, batch=2, optimizer=optimizer)
    model = ByteModel(size)
    masters = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    parts = [group["params"] for each in optimizers(run, masters) for group in each.param_groups]
    assert sorted(id(weight) for part in parts for weight in part) == sorted(map(id, masters.values()))
    assert all(weight.dim() == 2 for weight in parts[-1]) == (optimizer == "muon")
    fine_tune(model, size, run, tmp_path / "trace", say=lambda _: None)
    report = analyse(tmp_path / "trace", encode=False)
    assert report["optimizer"]["optimizer"] == named
    assert {row["class"] for row in report["class_rows"] if row["changed"]} >= {"attention", "mlp", "embedding", "norm"}
    with pytest.raises(UsageError, match="adamw, muon or sgd"):
        optimizers(FineTuning(1e-2, optimizer="lion"), masters)
    assert torch.equal(masters["head.weight"], dict(model.named_parameters())["head.weight"])
