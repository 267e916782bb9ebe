# SPDX-License-Identifier: Apache-2.0
"""Adapters into vLLM's own LoRA manager and layers, against fresh loads of saved adapters by vLLM."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "adapters"))

import vllm_models as models
from adapter_files import same, step
from safetensors.torch import save_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.lora import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.v1.worker.lora_model_runner_mixin import LoRAModelRunnerMixin

from sparsecast import errors
from sparsecast.adapters import Adapter, AdapterReceiver, VllmEngine
from sparsecast.torch import Log, Publisher

RANKS = {"math": 4, "code": 8}
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")


def kind_of(config: VllmConfig) -> str:
    return "llama" if config.quant_config is None else "llama-fp8"


def make(kind: str, name: str, seed: int, rank: int, layers: int = models.LAYERS, **config: Any) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(layers):
        for module in MODULES:
            rows, columns = models.checkpoint_shapes(kind)[f"model.layers.0.{module}.weight"]
            for side, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                tensor = torch.randn(shape, generator=generator)
                tensors[f"base_model.model.model.layers.{layer}.{module}.lora_{side}.weight"] = tensor
    targets = [module.split(".")[1] for module in MODULES]
    return Adapter(
        name, {"peft_type": "LORA", "r": rank, "lora_alpha": 12, "target_modules": targets, **config}, tensors
    )


def _parts(layer: Any, side: str) -> tuple[torch.Tensor, ...]:
    """Tensors of a layer that hold A or B of all slots: several for fused layers, one without a tuple for logits."""
    stacked = getattr(layer, f"lora_{side}_stacked")
    return (stacked,) if isinstance(stacked, torch.Tensor) else stacked


class Server(LoRAModelRunnerMixin):
    """vLLM's own handling of adapters in a worker, with a model."""

    def __init__(self, config: VllmConfig) -> None:
        base = models.build(config)
        models.load(base, config, models.checkpoint(kind_of(config), seed=1))
        self.config = config
        with set_current_vllm_config(config):
            self.model = self.load_lora_model(base, config, torch.device("cpu"))

    def layers(self) -> dict[str, Any]:
        return {name: module for name, module in self.model.named_modules() if hasattr(module, "lora_a_stacked")}

    def of(self, number: int) -> dict[str, torch.Tensor]:
        """What the kernels of vLLM read for an adapter."""
        slot = self.lora_manager._adapter_manager.lora_index_to_id.index(number)
        return {
            f"{name}.{side}.{part}": stacked[slot].clone()
            for name, layer in self.layers().items()
            for side in ("a", "b")
            for part, stacked in enumerate(_parts(layer, side))
        }

    def stacks(self) -> list[int]:
        """Addresses that CUDA graphs would have captured."""
        return [t.data_ptr() for layer in self.layers().values() for side in ("a", "b") for t in _parts(layer, side)]

    def base(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}


@pytest.fixture(scope="module", params=["llama", "llama-fp8"])
def config(request: pytest.FixtureRequest) -> Iterator[VllmConfig]:
    chosen = models.config(request.param)
    chosen.lora_config = LoRAConfig(max_loras=2, max_cpu_loras=2, max_lora_rank=8, lora_dtype=torch.bfloat16)
    models.start(chosen)
    try:
        yield chosen
    finally:
        models.stop()


def fresh(config: VllmConfig, adapter: Adapter, folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """What another worker holds of the adapter as PEFT would have saved it."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(adapter.config))
    save_file(dict(adapter.tensors), folder / "adapter_model.safetensors")
    server = Server(config)
    server.add_lora(LoRARequest(adapter.name, 1, str(folder)))
    return server.of(1)


@pytest.mark.parametrize("wire_dtype", [torch.bfloat16, None])
def test_every_version_is_that_of_a_fresh_load_and_the_base_is_untouched(
    config: VllmConfig, tmp_path: pathlib.Path, wire_dtype: torch.dtype | None
) -> None:
    server = Server(config)
    base, stacks = server.base(), server.stacks()
    engine = VllmEngine(server)
    receiver = AdapterReceiver(engine, tmp_path / "served")
    adapters = {name: make(kind_of(config), name, seed, rank) for seed, (name, rank) in enumerate(RANKS.items())}
    ends: dict[str, Publisher] = {}
    logs: dict[str, Log] = {}
    for name, adapter in adapters.items():
        logs[name] = Log(str(tmp_path / f"{name}.log"), mirror=str(tmp_path / f"{name}.safetensors"))
        ends[name] = Publisher(adapter.tensors.items(), transport=logs[name], wire_dtype=wire_dtype)
        receiver.add(adapter.spec(wire_dtype), logs[name])
    for update in range(4):
        name = ("math", "code")[update % 2]
        other = ("code", "math")[update % 2]
        untouched = server.of(engine.request(other).lora_int_id)
        step(adapters[name], update)
        ends[name].publish()
        path = engine.request(name).lora_path
        receiver.update(name)
        assert engine.request(name).lora_path != path, "vLLM's prefix cache knows versions by their path"
        expected = fresh(config, adapters[name], tmp_path / f"saved{update}")
        assert same(server.of(engine.request(name).lora_int_id), expected)
        assert same(server.of(engine.request(other).lora_int_id), untouched)
    assert any(tensor.any() for tensor in expected.values())
    number = engine.request("math").lora_int_id
    receiver.remove("math")
    assert server.list_loras() == {engine.request("code").lora_int_id} and number not in server.list_loras()
    step(adapters["code"], 9)
    ends["code"].publish()
    receiver.update("code")
    assert same(server.of(engine.request("code").lora_int_id), fresh(config, adapters["code"], tmp_path / "saved-last"))
    receiver.add(adapters["math"].spec(wire_dtype), logs["math"])
    assert len(server.list_loras()) == 2
    assert same(server.base(), base) and server.stacks() == stacks
    for end in ends.values():
        end.close()


@pytest.mark.parametrize(
    ("rank", "config_of", "words"),
    [
        (16, {}, "LoRA rank 16 is greater than max_lora_rank 8"),
        (4, {"alora_invocation_tokens": [1, 2]}, "Activated LoRA"),
        (4, {"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
    ],
)
def test_what_vllm_refuses_changes_nothing(
    config: VllmConfig, tmp_path: pathlib.Path, rank: int, config_of: dict[str, Any], words: str
) -> None:
    server = Server(config)
    engine = VllmEngine(server)
    receiver = AdapterReceiver(engine, tmp_path / "served")
    kind = kind_of(config)
    good, bad = make(kind, "good", 1, 4), make(kind, "bad", 2, rank, **config_of)
    logs = {a.name: Log(str(tmp_path / f"{a.name}.log"), mirror=str(tmp_path / f"{a.name}.st")) for a in (good, bad)}
    with Publisher(good.tensors.items(), transport=logs["good"]), Publisher(bad.tensors.items(), transport=logs["bad"]):
        receiver.add(good.spec(), logs["good"])
        before = server.of(1)
        with pytest.raises(errors.UnsupportedError, match=f"adapter 'bad': vLLM refuses it: .*{words}"):
            receiver.add(bad.spec(), logs["bad"])
    assert receiver.versions.keys() == {"good"} and server.list_loras() == {1} and same(server.of(1), before)
    with pytest.raises(errors.UsageError, match="no such adapter"):
        engine.request("bad")


def test_layers_that_vllm_would_pass_over_are_refused_by_the_shapes_of_the_checkpoint(
    config: VllmConfig, tmp_path: pathlib.Path
) -> None:
    server = Server(config)
    receiver = AdapterReceiver(VllmEngine(server), tmp_path / "served", base=models.checkpoint_shapes(kind_of(config)))
    adapter = make(kind_of(config), "deep", 1, 4, layers=models.LAYERS + 1)
    with pytest.raises(
        errors.UsageError, match=r"'model.layers.2.self_attn.q_proj': the base model has no such module"
    ):
        receiver.add(adapter.spec(), Log(str(tmp_path / "deep.log")))
    assert server.list_loras() == set()
