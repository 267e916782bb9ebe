# SPDX-License-Identifier: Apache-2.0
"""Models of which vLLM computes tensors from the checkpoint's, patched and recomputed, against fresh loads by vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models
from test_vllm_trace import patch_by_map
from vllm.config import VllmConfig, set_current_vllm_config

from sparsecast.engines.refresh.recompute import Recomputation
from sparsecast.engines.trace.loader import TracedLoader
from sparsecast.engines.vllm.model import trace


class Live:
    """A loaded model, with its map and its recomputation."""

    def __init__(self, kind: str, config: VllmConfig) -> None:
        self.kind, self.config = kind, config
        self.tensors = models.checkpoint(kind, seed=1)
        self.model = models.build(config)
        models.load(self.model, config, self.tensors)
        self.traced: TracedLoader
        self.recomputation: Recomputation
        with set_current_vllm_config(config):
            self.traced, self.recomputation = trace(self.model, models.canonical(kind), config)

    def fresh(self) -> torch.nn.Module:
        model = models.build(self.config)
        models.load(model, self.config, self.tensors)
        return model

    def addresses(self) -> dict[str, int]:
        return {name: t.data_ptr() for name, t in [*self.model.named_parameters(), *self.model.named_buffers()]}


@pytest.fixture(params=sorted(models.COMPUTED))
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    config = models.config(request.param)
    models.start(config)
    try:
        yield Live(request.param, config)
    finally:
        models.stop()


def test_every_tensor_is_that_of_a_fresh_load_and_at_its_address_over_20_updates(live: Live) -> None:
    assert live.traced.differences(live.traced.filling(live.tensors.items())) == {}
    live.recomputation.prove(as_loaded=True)
    assert models.differing(live.model, live.fresh()) == [], "the proof changed something"
    addresses = live.addresses()
    for update in range(20):
        live.tensors = models.random_updates(live.tensors, seed=update)
        patch_by_map(live.traced, live.tensors)
        live.recomputation.run()
        if update in (0, 1, 19):
            assert models.differing(live.model, live.fresh()) == []
    live.recomputation.audit()
    assert live.addresses() == addresses


EXPECTED: dict[str, dict[str, Any]] = {
    "deepseek-v3": {"derived": [], "shadows": []},
    "deepseek-v3-fp8": {
        "derived": [f"model.layers.{n}.self_attn.mla_attn.mla_attn.{w}" for n in (0, 1) for w in ("W_UK_T", "W_UV")],
        "shadows": [],
    },
    "glm-dsa": {
        "derived": [f"model.layers.{n}.self_attn.indexer.k_norm.{w}" for n in (0, 1) for w in ("bias", "weight")],
        "shadows": [f"model.layers.{n}.self_attn.indexer.k_norm.{w}" for n in (0, 1) for w in ("bias", "weight")],
    },
    "deepseek-v3.2-fp8": {
        "derived": sorted(
            f"model.layers.{n}.self_attn.{w}"
            for n in (0, 1)
            for w in (
                "indexer.k_norm.bias",
                "indexer.k_norm.weight",
                "indexer.wk_weights_proj.weight",
                "mla_attn.mla_attn.W_UK_T",
                "mla_attn.mla_attn.W_UV",
            )
        ),
        "shadows": sorted(
            f"model.layers.{n}.self_attn.indexer.{w}"
            for n in (0, 1)
            for w in ("k_norm.bias", "k_norm.weight", "wk.weight", "wk.weight_scale_inv")
        ),
    },
    "nemotron-h": {
        "derived": [f"model.layers.{n}.mixer.A" for n in (0, 3)],
        "shadows": [f"backbone.layers.{n}.mixer.A_log" for n in (0, 3)],
    },
}


def test_only_what_is_computed_is_computed_again(live: Live) -> None:
    for _ in live.traced.filling(live.tensors.items()):
        pass
    live.recomputation.prove(as_loaded=True)
    derived = [name for name in live.recomputation.derived if "_scale" not in name]  # Constants of the KV cache.
    assert sorted(derived) == EXPECTED[live.kind]["derived"]
    assert sorted(live.recomputation.shadows) == EXPECTED[live.kind]["shadows"]
