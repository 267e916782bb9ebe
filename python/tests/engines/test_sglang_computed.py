# SPDX-License-Identifier: Apache-2.0
"""Models of which SGLang computes tensors from the checkpoint's, updated through its control messages, against fresh
loads by SGLang.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest

if importlib.util.find_spec("sglang") is None:  # Only the ranks' processes import it.
    pytest.skip("needs sglang", allow_module_level=True)
import computed_models as computed
import sglang_engine
from sglang_ranks import Engine, Trainer
from test_sglang_updates import change, join, phase, update

CAST = [f"model.layers.{n}.self_attn.indexer.k_norm.{part}" for n in (0, 1) for part in ("bias", "weight")]
MODELS: dict[str, tuple[dict[str, Any], int, str, list[str]]] = {
    "deepseek-v3": (computed.DEEPSEEK_V3, 2, "model.layers.1.self_attn.w_kc", []),
    "deepseek-v3-fp8": (computed.DEEPSEEK_V3_FP8, 2, "model.layers.1.self_attn.w_vc", []),
    "glm-dsa": (computed.GLM_DSA, 1, "model.layers.1.self_attn.w_kc", CAST),
    "deepseek-v3.2-fp8": (computed.DEEPSEEK_V32_FP8, 1, "model.layers.1.self_attn.w_kc", CAST),
    "nemotron-h": (
        computed.NEMOTRON_H_EXPERTS,
        1,  # SGLang fails to load its convolutions on two ranks of a CPU.
        "model.layers.3.mixer.A",
        [f"backbone.layers.{layer}.mixer.A_log" for layer in (0, 3)],
    ),
}
"""Configuration, tensor-parallel ranks, one of the tensors that SGLang computes, and the shadows."""


@pytest.fixture(params=MODELS)
def served(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    config, ranks, computes, shadows = MODELS[request.param]
    experts = {"ep_size": 2} if request.param == "deepseek-v3" else {}
    tensors = sglang_engine.canonical_tensors(config, seed=7)
    sglang_engine.write_checkpoint(tmp_path / "v0", config, tensors)
    engine = Engine(tmp_path / "v0", ranks, **experts)
    yield config, computes, shadows, engine, tensors, tmp_path
    engine.close()


def test_computed_tensors_follow_every_update_keep_their_addresses_and_are_audited(served: Any) -> None:
    config, computes, shadows, engine, tensors, folder = served
    trainer = Trainer(tensors)
    addresses = engine.call("addresses")
    success, message = join(engine, trainer, may_miss=["*.attn_m?a.?_scale"])  # Scales of the KV cache.
    assert success, message
    assert engine.call("differences", folder / "v0") == [[]] * engine.size
    status = json.loads(phase(engine, "status")[1])
    assert computes in status["derived"] and status["shadows"] == shadows
    assert config["model_type"] == "nemotron_h" or set(shadows) <= set(status["derived"])  # Casts keep their names.
    for version in (1, 2):
        change(trainer, version)
        assert update(engine, trainer)["version"] == version
    sglang_engine.write_checkpoint(folder / "v2", config, trainer.tensors)
    assert engine.call("differences", folder / "v2") == [[]] * engine.size
    assert engine.call("addresses") == addresses
    assert phase(engine, "audit")[0]
    engine.call("flip_bit", computes)
    success, message = phase(engine, "audit")
    assert not success and f"{computes} is not what" in message
