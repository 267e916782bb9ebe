# SPDX-License-Identifier: Apache-2.0
"""vLLM's own LoRA manager and layers over a small model, in one rank, and adapters for it."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import torch
import vllm_models as models
from safetensors.torch import save_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.lora import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.v1.worker.lora_model_runner_mixin import LoRAModelRunnerMixin

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "adapters"))

from adapter_files import same

from sparsecast.adapters import Adapter

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


def with_adapters(config: VllmConfig, *, fully_sharded: bool = False) -> VllmConfig:
    """The configuration with --enable-lora; `fully_sharded` as --fully-sharded-loras."""
    config.lora_config = LoRAConfig(
        max_loras=2, max_cpu_loras=2, max_lora_rank=8, lora_dtype=torch.bfloat16, fully_sharded_loras=fully_sharded
    )
    return config


def save(adapter: Adapter, folder: pathlib.Path) -> pathlib.Path:
    """Writes the adapter as PEFT would."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(adapter.config))
    save_file(dict(adapter.tensors), folder / "adapter_model.safetensors")
    return folder


def fresh(config: VllmConfig, name: str, folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """What another worker of this rank holds of a saved adapter."""
    server = Server(config)
    server.add_lora(LoRARequest(name, 1, str(folder)))
    return server.of(1)


class AdapterRank:
    """Calls that tests make in one of several ranks; results are plain values."""

    def __init__(self, config: VllmConfig) -> None:
        self.server = Server(config)
        self.base = self.server.base()
        self.stacks = self.server.stacks()

    def add_lora(self, adapter: str, number: int, path: str, load_inplace: bool) -> None:
        self.server.add_lora(LoRARequest(adapter, number, path, load_inplace=load_inplace))

    def remove_lora(self, number: int) -> None:
        self.server.remove_lora(number)

    def is_that_of(self, number: int, saved: str) -> bool:
        """Whether this rank holds of the adapter what a fresh load of the saved one gives it."""
        held = self.server.of(number)
        return any(tensor.any() for tensor in held.values()) and same(
            held, fresh(self.server.config, "fresh", pathlib.Path(saved))
        )

    def shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.server.of(number).items()}

    def state(self) -> tuple[list[int], bool]:
        """Numbers of the adapters here, and whether base weights and addresses are as they were."""
        untouched = same(self.server.base(), self.base) and self.server.stacks() == self.stacks
        return sorted(self.server.list_loras()), untouched
