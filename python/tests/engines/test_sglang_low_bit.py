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
import low_bit
import sglang_engine
from sglang_ranks import Engine, Trainer
from test_sglang_updates import join, phase, update

CELLS: dict[str, tuple[int, dict[str, Any], int]] = {
    "llama-3.1-405b fp8-channel": (2, {}, 0),  # Weights are transposed views of what was loaded.
    "qwen3-30b-a3b fp8-channel": (2, {"ep_size": 2}, 0),
    "llama-3.1-405b nvfp4": (1, {"capability": (10, 0)}, 8),  # Kernels of Blackwell, whose swizzle is torch.
}
"""Ranks, what the server is started with, and how many layers are repacked. INT4, MXFP4, ModelOpt's NVFP4 and NVFP4
experts do not load on a CPU: SGLang repacks them by kernels.
"""


@pytest.mark.parametrize("cell", CELLS)
def test_repacked_parameters_are_those_of_a_fresh_load_and_at_their_addresses(cell: str, tmp_path: Path) -> None:
    size, server_args, layers = CELLS[cell]
    config = low_bit.config_of(cell) | {"num_key_value_heads": 2}
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
        live = "model.layers.1.self_attn.o_proj.weight_scale"
        engine.call("flip_bit", live)
        success, message = phase(engine, "audit")
        assert not success and f"{live} is not what" in message
    finally:
        engine.close()
