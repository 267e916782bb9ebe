# SPDX-License-Identifier: Apache-2.0
"""What a merge loses, against sums that are done element by element."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from adapter_files import SHAPES, make, step
from safetensors.torch import save_file

from sparsecast import errors
from sparsecast.adapters import Adapter, merge_loss
from sparsecast.adapters.merge_loss import main


def scaled(adapter: Adapter, factor: float) -> Adapter:
    tensors = {n: t * factor if ".lora_B." in n else t.clone() for n, t in adapter.tensors.items()}
    return Adapter(adapter.name, adapter.config, tensors)


def test_a_change_below_half_a_step_of_the_grid_is_lost() -> None:
    config = {"r": 1, "lora_alpha": 1}
    delta = [2.0**-10, 2.0**-6, 0.0, -(2.0**-9)]  # At 1.0, steps are 2^-7 upwards and 2^-8 downwards.
    tensors = {
        "base_model.model.q.lora_A.weight": torch.tensor([delta]),
        "base_model.model.q.lora_B.weight": torch.tensor([[1.0]]),
    }
    module, total = merge_loss(
        Adapter("tiny", config, tensors), [("q.weight", torch.ones(1, 4).bfloat16()), ("x", torch.ones(1))]
    )
    # Down by 2^-9 is half a step: it rounds to the even 1.0.
    assert (module.elements, module.moving, module.lost) == (4, 3, 2) and module.lost_share == 2 / 3
    wrong = 2.0**-20 + 2.0**-18
    assert module.relative_error == pytest.approx((wrong / (wrong + 2.0**-12)) ** 0.5)
    assert (total.module, total.lost, total.relative_error) == ("", 2, module.relative_error)


def test_large_changes_pass_and_a_step_is_measured_against_the_merge_before() -> None:
    generator = torch.Generator().manual_seed(7)
    base = [(f"{m}.weight", torch.randn(s, generator=generator).bfloat16()) for m, s in SHAPES.items()]
    adapter = make("math", 1)
    assert merge_loss(scaled(adapter, 100), base)[-1].lost_share < 0.02
    assert merge_loss(scaled(adapter, 1e-5), base)[-1].lost_share > 0.9
    same = merge_loss(adapter, base, since=adapter)[-1]
    assert (same.moving, same.lost, same.relative_error) == (0, 0, 0.0)
    small = make("math", 1, dtype=torch.float32)
    step_figures = merge_loss(scaled(small, 1.0001), base, since=small)[-1]
    assert step_figures.lost_share > 0.9 and step_figures.relative_error > 0.5


def test_what_does_not_fit_is_named() -> None:
    adapter = make("math", 1)
    with pytest.raises(errors.UsageError, match="'model.layers.0.mlp.down_proj': the base has no weight of it"):
        merge_loss(adapter, [("model.layers.0.self_attn.q_proj.weight", torch.ones(24, 16))])
    with pytest.raises(errors.UsageError, match=r"the base has torch.uint8 \[24, 16\]"):
        merge_loss(adapter, [("model.layers.0.self_attn.q_proj.weight", torch.ones(24, 16).byte())])


def test_the_command_reads_checkpoints(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = make("math", 1)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(adapter.config))
        save_file(dict(adapter.tensors), tmp_path / name / "adapter_model.safetensors")
        step(adapter, 1)
    (tmp_path / "base").mkdir()
    save_file({f"{m}.weight": torch.ones(s).bfloat16() for m, s in SHAPES.items()}, tmp_path / "base/model.safetensors")
    assert main([str(tmp_path / "base"), str(tmp_path / "two"), "--since", str(tmp_path / "one"), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["module"] for line in lines] == [*sorted(SHAPES), ""] and 0 < lines[-1]["moving"] < 24 * 16 + 16 * 40
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "two")]) == 2
    assert "there are no safetensors files" in capsys.readouterr().err
