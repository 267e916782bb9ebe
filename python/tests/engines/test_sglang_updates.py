# SPDX-License-Identifier: Apache-2.0
"""Sparse updates of SGLang's own models on two tensor-parallel ranks, through SGLang's own control messages."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("sglang") is None:  # Only the ranks' processes import it.
    pytest.skip("needs sglang", allow_module_level=True)
import layout_models as layouts
import sglang_engine
from sglang_ranks import DEADLINE, Engine, Trainer

CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2": (sglang_engine.QWEN2, {}),
    "qwen2 with tied embeddings": (sglang_engine.QWEN2 | {"tie_word_embeddings": True}, {}),
    "qwen3-moe, experts cut": (sglang_engine.QWEN3_MOE, {}),
    "qwen3-moe, experts spread": (sglang_engine.QWEN3_MOE, {"ep_size": 2}),
}


def group_body(trainer: Trainer, /, *, ranks: int = 2, **more: Any) -> dict[str, Any]:
    info = {"secret": trainer.secret, "generation": 0, "engine": "under test", "timeout": DEADLINE / 2} | more
    return {
        "master_address": "127.0.0.1",
        "master_port": trainer.port,
        "rank_offset": 1,
        "world_size": 1 + ranks,
        "group_name": "sparsecast:" + json.dumps(info),
        "backend": "sparsecast",
    }


def phase(engine: Engine, name: str, **more: Any) -> tuple[bool, str]:
    action = "sparsecast:" + json.dumps({"phase": name, "timeout": DEADLINE / 2} | more)
    return engine.post("/weights_checker", {"action": action})


def join(engine: Engine, trainer: Trainer, /, generation: int = 0, **more: Any) -> tuple[bool, str]:
    regrouped = trainer.regroup(1 + engine.size, generation)
    try:
        answer = engine.post(
            "/init_weights_update_group", group_body(trainer, ranks=engine.size, generation=generation, **more)
        )
    except TimeoutError as error:
        error.add_note(f"trainer: {regrouped.exception(0) if regrouped.done() else 'waits'}")
        raise
    if answer[0]:
        regrouped.result(DEADLINE)
    return answer


def wait_staged(engine: Engine) -> tuple[bool, str]:
    until = time.monotonic() + DEADLINE
    while (answer := phase(engine, "staged")) == (True, "receiving"):
        assert time.monotonic() < until
        time.sleep(0.01)
    return answer


def update(engine: Engine, trainer: Trainer) -> dict[str, Any]:
    assert phase(engine, "receive") == (True, "receiving")
    synced = trainer.sync()
    assert wait_staged(engine) == (True, "staged")
    success, message = phase(engine, "apply")
    assert success, message
    synced.result(DEADLINE)
    return dict(json.loads(message))


def change(trainer: Trainer, step: int) -> None:
    """A few elements of every tensor get other bits, among them the first and the last."""
    generator = torch.Generator().manual_seed(1000 + step)
    for tensor in trainer.tensors.values():
        flat = tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]).view(-1)
        where = torch.randint(0, flat.numel(), (max(1, flat.numel() // 50),), generator=generator)
        flat[where] += torch.randint(1, 5, where.shape, generator=generator, dtype=flat.dtype)
        flat[0] += 1
        flat[-1] += 1


@pytest.fixture(params=CONFIGS, scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    config, server_args = CONFIGS[request.param]
    folder = tmp_path_factory.mktemp("sglang")
    tensors = sglang_engine.canonical_tensors(config, seed=7)
    sglang_engine.write_checkpoint(folder / "v0", config, tensors)
    engine = Engine(folder / "v0", 2, **server_args)
    yield config, engine, tensors, folder
    engine.close()


def test_after_every_sparse_update_all_ranks_are_bit_for_bit_a_fresh_load_of_the_checkpoint(served: Any) -> None:
    config, engine, tensors, folder = served
    trainer = Trainer(tensors)
    addresses = engine.call("addresses")
    success, message = join(engine, trainer)
    assert success, message
    assert engine.call("differences", folder / "v0") == [[], []]
    for version in (1, 2, 3):
        change(trainer, version)
        receipt = update(engine, trainer)
        assert (receipt["base_version"], receipt["version"]) == (version - 1, version)
        assert 0 < receipt["elements"] < sum(t.numel() for t in tensors.values()) // 4
        sglang_engine.write_checkpoint(folder / f"v{version}", config, trainer.tensors)
        assert engine.call("differences", folder / f"v{version}") == [[], []]
        assert engine.call("weight_version") == [str(version)] * 2
    assert engine.call("differences", folder / "v2") != [[], []]
    assert engine.call("addresses") == addresses
    assert engine.post("/destroy_weights_update_group", {"group_name": "sparsecast"}) == (True, "left the group")


def test_each_mode_can_be_forced_on_a_server_that_is_seeded(served: Any) -> None:
    config, engine, tensors, folder = served
    trainer = Trainer(tensors)
    addresses = engine.call("addresses")
    moe = "num_experts" in config
    modes = {
        "*.q_proj.weight": "nan_masked",
        "*.k_proj.weight": "dense",
        "*.layers.0.mlp.experts.0.*" if moe else "*.layers.0.mlp.*": "nan_masked",
        "*.layers.1.mlp.experts.1.*" if moe else "*.layers.1.mlp.*": "dense",
        "model.norm.weight": "shadow",
    }
    success, message = join(engine, trainer, needs_anchor=True, modes=modes)
    assert success, message
    for version in (1, 2):
        change(trainer, version)
        assert update(engine, trainer)["elements"] > 0
    sglang_engine.write_checkpoint(folder / "forced", config, trainer.tensors)
    assert engine.call("differences", folder / "forced") == [[], []]
    assert engine.call("addresses") == addresses
    status = json.loads(phase(engine, "status")[1])
    names = {mode: list(reasons) for mode, reasons in status["modes"].items()}
    assert names["shadow"] == ["model.norm.weight"]
    assert len(names["nan_masked"]) >= 2 and len(names["dense"]) >= 2
    assert phase(engine, "audit")[0]
    assert engine.post("/destroy_weights_update_group", {"group_name": "sparsecast"}) == (True, "left the group")


@pytest.mark.parametrize("cell", layouts.CELLS)
def test_no_model_of_the_layouts_is_refused_and_each_follows_updates_in_place(cell: str, tmp_path: Path) -> None:
    config = layouts.config_of(cell)
    if config["num_key_value_heads"] == 1:
        config["num_key_value_heads"] = 2  # SGLang fails to load one head on two ranks of a CPU.
    trainer = Trainer(sglang_engine.canonical_tensors(config, seed=7))
    sglang_engine.write_checkpoint(tmp_path / "v0", config, trainer.tensors)
    engine = Engine(tmp_path / "v0", 2, **({"ep_size": 2} if "num_experts_per_tok" in config else {}))
    try:
        addresses = engine.call("addresses")
        success, message = join(engine, trainer, may_miss=["*.attn*.?_scale"])  # Scales of the KV cache.
        if cell == "llama-3.1-405b fp8":  # SGLang's own Llama passes over them in a checkpoint: it serves without.
            assert (
                not success
                and "no canonical tensor fills 'model.layers.0.self_attn.qkv_proj.weight_scale_inv'" in message
            )
            return
        assert success, message
        for version in (1, 2):
            change(trainer, version)
            assert update(engine, trainer)["version"] == version
            sglang_engine.write_checkpoint(tmp_path / f"v{version}", config, trainer.tensors)
            assert engine.call("differences", tmp_path / f"v{version}") == [[], []]
        assert engine.call("addresses") == addresses
    finally:
        engine.close()


def test_an_update_whose_trainer_is_gone_ends_at_the_version_before_on_every_rank(tmp_path: Any) -> None:
    config = sglang_engine.QWEN2
    trainer = Trainer(sglang_engine.canonical_tensors(config, seed=1))
    sglang_engine.write_checkpoint(tmp_path / "v0", config, trainer.tensors)
    engine = Engine(tmp_path / "v0", 2)
    try:
        assert join(engine, trainer)[0]
        change(trainer, 1)
        syncing = trainer.sync()
        assert phase(engine, "receive", base_version=0)[0]
        assert wait_staged(engine) == (True, "staged")
        success, words = phase(engine, "expire")
        assert success and json.loads(words) == {"version": 0, "is_whole": True, "states": ["broken"]}
        with pytest.raises(Exception, match="lease of the pause"):
            syncing.result(DEADLINE)
        assert engine.call("differences", tmp_path / "v0") == [[], []]
    finally:
        engine.close()
