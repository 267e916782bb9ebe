# SPDX-License-Identifier: Apache-2.0
"""Adapters of models that PEFT has wrapped, against what PEFT saves."""

from __future__ import annotations

import json
import pathlib

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from safetensors.torch import load_file
from torch import nn

from sparsecast import errors
from sparsecast.adapters import Adapter


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.v_proj = nn.Linear(16, 24), nn.Linear(16, 8)
        self.embed = nn.Embedding(10, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q_proj(x)


def test_names_config_and_tensors_are_those_of_a_saved_checkpoint(tmp_path: pathlib.Path) -> None:
    options = {"init_lora_weights": False, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3}}
    model = peft.get_peft_model(
        Block(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **options), adapter_name="math"
    )
    model.add_adapter("code", peft.LoraConfig(r=8, target_modules=["q_proj"], init_lora_weights=False))
    model.save_pretrained(tmp_path)
    for name, count in (("math", 4), ("code", 2)):
        adapter = Adapter.from_peft(model, name)
        saved = load_file(tmp_path / name / "adapter_model.safetensors")
        assert len(saved) == count and saved.keys() == adapter.tensors.keys()
        assert all(torch.equal(saved[key], adapter.tensors[key]) for key in saved)
        config = json.loads((tmp_path / name / "adapter_config.json").read_text())
        for key in ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "peft_type"):
            assert adapter.config[key] == config[key], key
        assert sorted(config["target_modules"]) == adapter.config["target_modules"]
        json.dumps(adapter.spec().to_json())
        for module in adapter.spec().pairs():
            layer = model.base_model.model.get_submodule(module)
            assert adapter.spec().scale(module) == layer.scaling[name] and adapter.spec().rank(module) == layer.r[name]
    # They are the parameters themselves.
    adapter = Adapter.from_peft(model, "math")
    with torch.no_grad():
        model.base_model.model.q_proj.lora_A["math"].weight.add_(1.0)
    assert torch.equal(
        adapter.tensors["base_model.model.q_proj.lora_A.weight"], model.base_model.model.q_proj.lora_A["math"].weight
    )


def test_what_is_more_than_a_and_b_is_refused() -> None:
    for options, words in (
        ({"use_dora": True}, "use_dora"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"modules_to_save": ["v_proj"]}, "modules_to_save"),
        ({"target_modules": ["embed"]}, "only tensors"),
    ):
        model = peft.get_peft_model(Block(), peft.LoraConfig(r=4, **{"target_modules": ["q_proj"], **options}))
        with pytest.raises(errors.UnsupportedError, match=words):
            Adapter.from_peft(model)
    with pytest.raises(errors.UsageError, match="no adapter 'other': it has default"):
        Adapter.from_peft(model, "other")
    with pytest.raises(errors.UsageError, match="PEFT has not wrapped it"):
        Adapter.from_peft(Block())
