# SPDX-License-Identifier: Apache-2.0
"""Models in low-bit formats whose parameters SGLang changes after loading, updated through its control messages,
against fresh loads by SGLang.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("sglang") is None:  # Only the ranks' processes import it.
    pytest.skip("needs sglang", allow_module_level=True)
import layout_models as layouts
import low_bit
import sglang_engine
from sglang_ranks import Engine, Trainer
from test_sglang_updates import join, phase, update

BLACKWELL: dict[str, Any] = {"gpu_kernels": True, "capability": (10, 0)}
HOPPER: dict[str, Any] = {"gpu_kernels": True, "capability": (9, 0)}
AMPERE: dict[str, Any] = {"gpu_kernels": True, "capability": (8, 0)}
GPT_OSS = {"attention_backend": "triton"}  # SGLang wants one that knows attention sinks.
SCALE = "model.layers.1.self_attn.o_proj.weight_scale"
CELLS: dict[str, tuple[int, dict[str, Any], int, str]] = {
    "llama-3.1-405b fp8-channel": (2, {}, 0, SCALE),  # Weights are transposed views of what was loaded.
    "qwen3-30b-a3b fp8-channel": (2, {"ep_size": 2}, 0, SCALE),
    "llama-3.1-405b nvfp4": (1, BLACKWELL, 8, SCALE),
    "llama-3.1-405b modelopt-nvfp4": (1, BLACKWELL, 8, SCALE),
    "llama-3.1-405b int4": (2, HOPPER, 8, SCALE),
    "qwen3-30b-a3b nvfp4": (2, BLACKWELL, 6, "model.layers.1.mlp.experts.w2_weight_scale"),
    "qwen3-30b-a3b modelopt-nvfp4": (1, BLACKWELL, 6, "model.layers.1.mlp.experts.g1_alphas"),
    "qwen3-30b-a3b int4": (1, HOPPER, 6, "model.layers.1.mlp.experts.w2_weight_packed"),
    "kimi-k2 int4": (1, HOPPER, 1, "model.layers.1.mlp.experts.w13_weight_packed"),
    "deepseek-v3 fp8-channel": (2, {}, 0, "model.layers.1.self_attn.w_kc"),
    "deepseek-v3 fp8": (2, AMPERE, 12, "model.layers.1.self_attn.w_vc"),  # In blocks, of which Marlin wants groups.
    "gpt-oss-20b bf16": (2, GPT_OSS, 0, "model.layers.1.mlp.experts.w2_weight_bias"),
    "gpt-oss-20b mxfp4": (
        2,
        GPT_OSS | HOPPER | {"moe_runner_backend": "marlin"},
        2,
        "model.layers.1.mlp.experts.w13_weight",
    ),
}
"""Ranks, what the server is started with (kernels: `sglang_gpu_kernels`), how many layers are repacked, and a tensor
that is computed again. For MXFP4 of compressed-tensors SGLang has no scheme.
"""


@pytest.mark.parametrize("cell", CELLS)
def test_repacked_parameters_are_those_of_a_fresh_load_and_at_their_addresses(cell: str, tmp_path: Path) -> None:
    size, server_args, layers, live = CELLS[cell]
    if cell in layouts.CELLS:
        config = layouts.config_of(cell)
        trainer = Trainer(sglang_engine.canonical_tensors(config, seed=7))
    else:
        config = low_bit.config_of(cell)
        if "kv_lora_rank" not in config:
            config |= {"num_key_value_heads": 2}
        trainer = Trainer(low_bit.tensors_of(config, cell.split()[1], seed=7), pairs=True)
    sglang_engine.write_checkpoint(tmp_path / "v0", config, trainer.tensors)
    engine = Engine(tmp_path / "v0", size, **server_args)
    try:
        addresses = engine.call("addresses")
        success, message = join(
            engine, trainer, tensors=trainer.table, may_miss=["*.attn*.?_scale"]
        )  # Scales of the KV cache.
        assert success, message
        assert engine.call("differences", tmp_path / "v0") == [[]] * size
        for version in (1, 2):
            for name, tensor in low_bit.random_updates(trainer.tensors, seed=version).items():
                trainer.tensors[name].copy_(tensor)
            assert update(engine, trainer)["version"] == version
            sglang_engine.write_checkpoint(tmp_path / f"v{version}", config, trainer.tensors)
            assert engine.call("differences", tmp_path / f"v{version}") == [[]] * size
        assert engine.call("addresses") == addresses
        status = json.loads(phase(engine, "status")[1])
        assert len(status["repacked"]) == layers and status["in_place"] > 0
        assert phase(engine, "audit")[0]
        engine.call("flip_bit", live)
        success, message = phase(engine, "audit")
        assert not success and f"{live} is not what" in message
    finally:
        engine.close()
