# SPDX-License-Identifier: Apache-2.0
"""SGLang's own quantised layers, cut over two ranks: which can be patched in place, and why others cannot."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("sglang") is None:  # Only the ranks' processes import it.
    pytest.skip("needs sglang", allow_module_level=True)
import sglang_engine
from sglang_ranks import Engine, Trainer
from test_sglang_updates import join


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("sglang") / "v0"
    sglang_engine.write_checkpoint(
        folder, sglang_engine.QWEN2, sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=7)
    )
    served = Engine(folder, 2)
    yield served
    served.close()


def test_block_fp8_weights_and_scales_patched_through_the_map_are_bit_for_bit_a_fresh_load(engine: Engine) -> None:
    for report in engine.call("layers", "block_fp8_patched_like_a_fresh_load"):
        assert report["reworked"] == {}
        assert report["before"] == {}
        assert report["wrong"] == []
        assert report["shards"] == 12


def test_forms_that_post_processing_changes_are_refused_with_the_reason(engine: Engine) -> None:
    for reasons in engine.call("layers", "forms_that_are_refused"):
        assert "UE8M0" in reasons["ue8m0"]
        assert "one scale a tensor" in reasons["fp8 by tensor"]
        for option in ("enable_eplb", "elastic_ep_backend", "ep_num_redundant_experts"):
            assert "--" + option.replace("_", "-") in reasons[option]
        assert reasons["awq"] == "AWQLinearMethod repacks or quantises what was loaded"


def test_weights_that_are_not_those_of_the_files_and_that_no_post_processing_makes_are_refused(engine: Engine) -> None:
    trainer = Trainer(sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=7))
    engine.call("flip_bit", "model.layers.1.mlp.gate_up_proj.weight")
    success, message = join(engine, trainer)
    assert not success and "1 tensors in the rank's memory are not what its checkpoint has" in message
    assert "'model.layers.1.mlp.gate_proj.weight' (1 elements)" in message
