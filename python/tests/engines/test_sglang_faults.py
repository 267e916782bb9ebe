# SPDX-License-Identifier: Apache-2.0
"""Wrong use and faults of a SGLang engine of two ranks: what is said, and that the weights stay a whole version."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("sglang") is None:  # Only the ranks' processes import it.
    pytest.skip("needs sglang", allow_module_level=True)
import sglang_engine
from sglang_ranks import DEADLINE, Engine, Trainer
from test_sglang_updates import change, group_body, join, phase, update, wait_staged

LEAVE = {"group_name": "sparsecast"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("sglang")
    weights = sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=7)
    sglang_engine.write_checkpoint(folder / "v0", sglang_engine.QWEN2, weights)
    served = Engine(folder / "v0", 2)
    yield served
    served.close()


@pytest.fixture
def trainer() -> Trainer:
    return Trainer(sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=7))


def tensors_of(trainer: Trainer) -> list[list[Any]]:
    return [[name, "BF16", list(tensor.shape)] for name, tensor in trainer.tensors.items()]


# The tests run in this order, on one engine: first what is refused before a group exists.


def test_a_step_before_any_group_is_refused(engine: Engine) -> None:
    for name in ("receive", "staged", "apply", "audit"):
        success, message = phase(engine, name)
        assert not success
        assert "init_weights_update_group" in message
        assert message.endswith("[usage]")


def test_messages_for_others_go_where_they_went_before(engine: Engine) -> None:
    success, message = engine.post("/destroy_weights_update_group", {"group_name": "weight_update_group"})
    assert (success, message) == (False, "The group to be destroyed does not exist.")
    assert engine.post("/weights_checker", {"action": "checksum"}) == (True, "Success.")
    success, message = engine.post("/weights_checker", {"action": "no such action"})
    assert not success
    assert "no such action" in message


def test_a_name_that_the_model_does_not_know_is_named_with_the_nearest(engine: Engine, trainer: Trainer) -> None:
    table = [["model.embed_token.weight", *rest] if name == "model.embed_tokens.weight" else [name, *rest]
             for name, *rest in tensors_of(trainer)]  # fmt: skip
    success, message = engine.post("/init_weights_update_group", group_body(trainer, tensors=table))
    assert not success
    assert "fills 'model.embed_tokens.weight'" in message
    assert "nearest: 'model.embed_token.weight'" in message


def test_a_dtype_that_the_loader_would_have_to_cast_is_refused_by_tensor(engine: Engine, trainer: Trainer) -> None:
    table = [
        [name, "F32" if name == "model.norm.weight" else dtype, shape] for name, dtype, shape in tensors_of(trainer)
    ]
    success, message = engine.post("/init_weights_update_group", group_body(trainer, tensors=table))
    assert not success
    assert "'model.norm.weight'" in message
    assert message.endswith("[unsupported]")


def test_weights_that_are_not_the_checkpoints_are_found_before_anything_is_patched(
    engine: Engine, trainer: Trainer
) -> None:
    engine.call("only_rank", 1, "flip_bit", "model.layers.1.mlp.down_proj.weight")
    success, message = engine.post("/init_weights_update_group", group_body(trainer))
    engine.call("only_rank", 1, "flip_bit", "model.layers.1.mlp.down_proj.weight")
    assert not success  # Although rank 0, which answers, found nothing wrong with its own.
    assert "rank 1" in message
    assert "'model.layers.1.mlp.down_proj.weight' (1 elements)" in message
    assert message.endswith("[peer_failed]")


def test_another_secret_is_not_let_in(engine: Engine, trainer: Trainer) -> None:
    regrouped = trainer.regroup(3, timeout=10)
    success, message = engine.post("/init_weights_update_group", group_body(trainer, secret="0" * 32, timeout=5))
    assert not success
    assert message.endswith(("[unauthenticated]", "[timeout]"))
    assert regrouped.exception(DEADLINE) is not None


def test_a_trainer_that_does_not_come_ends_in_an_error_at_the_deadline(engine: Engine, trainer: Trainer) -> None:
    success, message = engine.post("/init_weights_update_group", group_body(trainer, timeout=2))
    assert not success
    assert message.endswith("[timeout]")


def test_tokens_in_flight_say_under_which_version_they_were_generated(engine: Engine, trainer: Trainer) -> None:
    assert join(engine, trainer)[0]
    assert engine.call("weight_version") == ["0", "0"]
    engine.call("generate_in_flight", 5)
    change(trainer, 1)
    update(engine, trainer)
    engine.call("generate_in_flight", 3)
    assert engine.call("spans") == [[("0", 0, 5), ("1", 5, 8)]] * 2


def test_the_server_says_its_version_and_state(engine: Engine) -> None:
    for rank, state in enumerate(engine.call("internal_state")):
        assert state["tp_size"] == 2
        named = {"engine": "under test", "rank": rank, "version": 1, "state": "ready", "in_doubt": 0}
        assert state["sparsecast"].items() >= named.items()
        assert (state["sparsecast"]["derived"], state["sparsecast"]["shadows"]) == ([], [])


def test_an_apply_without_a_receive_is_refused(engine: Engine) -> None:
    success, message = phase(engine, "apply")
    assert not success
    assert message.endswith("[usage]")
    assert engine.call("weight_version") == ["1", "1"]


def test_an_update_from_another_version_is_refused(engine: Engine) -> None:
    success, message = phase(engine, "receive", base_version=7)
    assert not success
    assert "is on version 1, and the update starts from 7" in message
    assert message.endswith("[version_gap]")


def test_a_staged_update_that_is_cancelled_leaves_the_version_before(engine: Engine, tmp_path: Path) -> None:
    assert engine.post("/destroy_weights_update_group", LEAVE)[0]
    trainer = Trainer(sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=7))
    change(trainer, 1)
    behind = Trainer(trainer.tensors, version=1)
    success, message = join(engine, behind, generation=1)
    assert success, message
    sglang_engine.write_checkpoint(tmp_path / "v1", sglang_engine.QWEN2, behind.tensors)
    change(behind, 2)
    assert phase(engine, "receive", base_version=1) == (True, "receiving")
    synced = behind.sync()
    assert wait_staged(engine) == (True, "staged")
    success, message = phase(engine, "cancel")
    assert success
    assert '"state": "broken"' in message
    assert synced.exception(DEADLINE) is not None
    assert engine.call("differences", tmp_path / "v1") == [[], []]

    success, message = join(engine, behind, generation=2)
    assert success, message
    assert update(engine, behind)["base_version"] == 1
    sglang_engine.write_checkpoint(tmp_path / "v2", sglang_engine.QWEN2, behind.tensors)
    assert engine.call("differences", tmp_path / "v2") == [[], []]
    assert phase(engine, "audit")[0]


def test_a_flipped_bit_is_found_by_an_audit_that_names_the_tensor(engine: Engine) -> None:
    engine.call("only_rank", 1, "flip_bit", "model.norm.weight")
    success, message = phase(engine, "audit")
    assert not success
    assert "model.norm.weight" in message


def test_an_engine_whose_weights_are_lost_is_seeded_with_all_of_them(engine: Engine, tmp_path: Path) -> None:
    assert engine.post("/destroy_weights_update_group", LEAVE)[0]
    engine.call("forget_weights")
    trainer = Trainer(sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=8), version=40)
    success, message = join(engine, trainer, generation=3, needs_anchor=True)
    assert success, message
    assert "on version 40" in message
    sglang_engine.write_checkpoint(tmp_path / "v40", sglang_engine.QWEN2, trainer.tensors)
    assert engine.call("differences", tmp_path / "v40") == [[], []]


def test_a_trainer_does_not_take_the_engine_back_from_one_that_joined_after_it(engine: Engine, tmp_path: Path) -> None:
    trainer = Trainer(sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=8), version=40)
    assert join(engine, trainer, generation=4, trainer="first")[0]
    assert join(engine, trainer, generation=5, trainer="first")[0]
    assert join(engine, trainer, generation=6, trainer="second")[0]
    success, message = engine.post("/init_weights_update_group", group_body(trainer, generation=7, trainer="first"))
    assert not success
    assert "second has joined it after first" in message
    assert message.endswith("[fenced]")
    change(trainer, 1)
    assert update(engine, trainer)["version"] == 41, "the group of the second one was disturbed"


def test_the_http_server_asks_again_until_the_version_is_staged(engine: Engine) -> None:
    action = 'sparsecast:{"phase": "staged", "timeout": 30}'
    answer, asked = engine.call("ask_tokenizer", action, ["receiving", "receiving", "staged"])[0]
    assert (answer[:2], asked) == ((True, "staged"), 3)
    answer, asked = engine.call("ask_tokenizer", "checksum", ["Success."])[0]
    assert (answer[:2], asked) == ((True, "Success."), 1)


def test_the_http_server_gives_up_at_the_deadline(engine: Engine) -> None:
    action = 'sparsecast:{"phase": "staged", "timeout": 0.001}'
    answer, _ = engine.call("ask_tokenizer", action, ["receiving"] * 10)[0]
    assert answer[0] is False
    assert answer[1].endswith("[timeout]")


def test_nothing_is_generated_from_half_written_weights(engine: Engine) -> None:
    assert engine.call("engine_paused") == [False, False]
    engine.call("next_apply_leaves_half_written_weights")
    success, message = phase(engine, "apply")
    assert not success
    assert message.endswith("[dirty]")
    assert engine.call("engine_paused") == [True, True]
