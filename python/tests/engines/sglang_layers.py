# SPDX-License-Identifier: Apache-2.0
"""SGLang's own layers in a rank's process: the map of what their loaders write, and which forms are refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

HIDDEN, HEAD, HEADS, KEY_HEADS, INNER, BLOCK = 256, 128, 4, 2, 512, 128


def fp8_config(**fields: Any) -> Any:
    from sglang.srt.layers.quantization.fp8 import Fp8Config

    return Fp8Config(is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", **fields)


class Block(torch.nn.Module):
    """A decoder layer's linears, loaded as SGLang's models do."""

    stacked = (("qkv", "q", "q"), ("qkv", "k", "k"), ("qkv", "v", "v"), ("gate_up", "gate", 0), ("gate_up", "up", 1))

    def __init__(self, quant_config: Any) -> None:
        from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear

        super().__init__()
        plain: dict[str, Any] = {"bias": False, "quant_config": quant_config}
        self.qkv = QKVParallelLinear(HIDDEN, HEAD, HEADS, KEY_HEADS, prefix="qkv", **plain)
        self.gate_up = MergedColumnParallelLinear(HIDDEN, [INNER, INNER], prefix="gate_up", **plain)
        self.down = RowParallelLinear(INNER, HIDDEN, prefix="down", **plain)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, weight in weights:
            layer, _, rest = name.partition(".")
            for fused, part, shard in self.stacked:
                if layer == part:
                    parameter: Any = parameters[f"{fused}.{rest}"]
                    parameter.weight_loader(parameter, weight, shard)
                    break
            else:
                parameter = parameters[name]
                parameter.weight_loader(parameter, weight)

    def finish(self) -> None:
        """What SGLang does with every layer after loading."""
        for layer in (self.qkv, self.gate_up, self.down):
            layer.quant_method.process_weights_after_loading(layer)


def canonical(seed: int) -> dict[str, torch.Tensor]:
    shapes = {
        "q": (HEADS * HEAD, HIDDEN),
        "k": (KEY_HEADS * HEAD, HIDDEN),
        "v": (KEY_HEADS * HEAD, HIDDEN),
        "gate": (INNER, HIDDEN),
        "up": (INNER, HIDDEN),
        "down": (HIDDEN, INNER),
    }
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, (rows, columns) in shapes.items():
        found[f"{name}.weight"] = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
        found[f"{name}.weight_scale_inv"] = torch.rand(rows // BLOCK, columns // BLOCK, generator=generator)
    return found


def loaded(quant_config: Any, seed: int) -> Block:
    block = Block(quant_config)
    block.load_weights(canonical(seed).items())
    block.finish()
    return block


def block_fp8_patched_like_a_fresh_load() -> dict[str, Any]:
    from sparsecast.engines.sglang.weights import reworked_layers
    from sparsecast.engines.trace.loader import trace_loader

    config = fp8_config(weight_block_size=[BLOCK, BLOCK])
    live, fresh = loaded(config, seed=1), loaded(config, seed=2)
    dtypes = {torch.float8_e4m3fn: "F8_E4M3", torch.float32: "F32"}
    table = [(name, dtypes[t.dtype], tuple(t.shape)) for name, t in canonical(1).items()]
    traced = trace_loader(live, table, live.load_weights)
    before = traced.differences(canonical(1).items())
    later = canonical(2)
    for shard in traced.shards:
        memory = traced.tensors[shard.local].memory
        box = tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.extent, strict=True))
        memory.as_strided(shard.extent, shard.strides, shard.first).copy_(later[traced.table[shard.tensor][0]][box])
    wanted = dict(fresh.named_parameters())
    wrong = [
        name
        for name, parameter in live.named_parameters()
        if not torch.equal(parameter.data.view(torch.uint8), wanted[name].data.view(torch.uint8))
    ]
    return {"reworked": reworked_layers(live), "before": before, "wrong": wrong, "shards": len(traced.shards)}


def forms_that_are_refused() -> dict[str, str]:
    """Reason by form, for one layer each."""
    from sglang.srt.layers.linear import RowParallelLinear
    from sglang.srt.layers.quantization.awq.awq import AWQConfig

    from sparsecast.engines.sglang.weights import reworked_layers

    found: dict[str, str] = {}
    block = loaded(fp8_config(weight_block_size=[BLOCK, BLOCK]), seed=1)
    block.down.weight_scale_inv.format_ue8m0 = True  # As DeepGEMM's requantisation leaves it.
    found["ue8m0"] = reworked_layers(block)["down"]
    found["fp8 by tensor"] = reworked_layers(Block(fp8_config()))["qkv"]
    awq = RowParallelLinear(INNER, HIDDEN, bias=False, quant_config=AWQConfig(4, 128, True), prefix="down")
    found["awq"] = reworked_layers(torch.nn.Sequential(awq))["0"]
    return found | experts_that_move()


def experts_that_move() -> dict[str, str]:
    """What a join says of a server with each of the options by which experts move or are copied."""
    from sglang.srt.runtime_context import get_exec

    from sparsecast.engines.sglang.weights import refuse_server_wide
    from sparsecast.errors import UnsupportedError

    found: dict[str, str] = {}
    for option, value in {"enable_eplb": True, "elastic_ep_backend": "mooncake", "ep_num_redundant_experts": 2}.items():
        with get_exec().moe.override(**{option: value}):
            try:
                refuse_server_wide(torch.nn.Module())
                found[option] = "taken"
            except UnsupportedError as error:
                found[option] = str(error)
    return found
