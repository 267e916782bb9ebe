# SPDX-License-Identifier: Apache-2.0
"""SGLang schedulers that follow a log, over models of SGLang's own classes, against fresh loads by SGLang."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("sglang") is None:  # Only the ranks' processes import it.
    pytest.skip("needs sglang", allow_module_level=True)
import computed_models as computed
import sglang_engine
from sglang_ranks import Engine, Trainer
from test_sglang_updates import change, group_body

from sparsecast.engines.worker_follower import lock_state
from sparsecast.torch import Log, Publisher


class Scene:
    """Schedulers of one engine that were started from a checkpoint, and a trainer that publishes to a log."""

    def __init__(self, folder: Path, config: dict[str, Any], ranks: int = 1, positions: str = "auto") -> None:
        self.folder, self.config = folder, config
        self.tensors = sglang_engine.canonical_tensors(config, seed=7)
        sglang_engine.write_checkpoint(folder / "v0", config, self.tensors)
        self.engine = Engine(folder / "v0", ranks)
        self.log = Log(folder / "log", mirror=folder / "mirror.safetensors")
        self.publisher = Publisher(list(self.tensors.items()), transport=self.log, positions=positions)
        self.variables = {
            "FOLLOW": str(folder / "log"),
            "FOLLOW_STATE": str(folder / "state"),
            "FOLLOW_INTERVAL": "0.02",
        }

    def do(self, name: str, *values: Any) -> Any:
        return self.engine.call("following", name, *values)[0]

    def publish(self) -> int:
        change(self, self.publisher.version)  # type: ignore[arg-type]
        return self.publisher.publish().version

    def differences(self) -> list[str]:
        """Names of tensors that are not what SGLang loads from a checkpoint of the trainer's weights, on any rank."""
        saved = self.folder / f"v{self.publisher.version}"
        sglang_engine.write_checkpoint(saved, self.config, self.tensors)
        return [name for names in self.engine.call("differences", saved) for name in names]

    def close(self) -> None:
        self.engine.call("following", "end")
        self.publisher.close()
        self.engine.close()


CONFIGS = {"qwen2": sglang_engine.QWEN2, "deepseek-v3-fp8": computed.DEEPSEEK_V3_FP8}


@pytest.fixture(params=CONFIGS, scope="module")
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("sglang"), CONFIGS[request.param])
    yield made
    made.close()


only_qwen2 = pytest.mark.parametrize("scene", ["qwen2"], indirect=True)

# The tests run in this order, on one engine: first what is refused, while its weights are those of the checkpoint.


def refusal(scene: Scene, *options: Any, **variables: str) -> str:
    status = scene.do("follow", scene.variables | variables, *options)
    assert status["state"] == "broken" and status["is_whole"] and status["version"] is None
    assert scene.do("step", "follow_apply")["error"] == status["error"]
    assert scene.engine.call("engine_paused") == [False]
    return str(status["error"])


@only_qwen2
def test_what_cannot_follow_is_refused_with_the_cure(scene: Scene) -> None:
    assert "--enable-memory-saver with --pp-size" in refusal(scene, True)
    lock = lock_state(Log("/log", state=scene.folder / "used" / "replica-0"))
    words = refusal(scene, FOLLOW_STATE=str(scene.folder / "used"))
    os.close(lock)
    assert "give each server a SPARSECAST_FOLLOW_STATE of its own" in words
    scene.engine.call("flip_bit", "model.norm.weight")
    words = refusal(scene, FOLLOW_STATE=str(scene.folder / "flipped"))
    scene.engine.call("flip_bit", "model.norm.weight")
    assert "'model.norm.weight' (1 elements)" in words
    assert "start SGLang with --tokenizer-worker-num 1" in scene.do("several_tokenizers")
    assert scene.do("follow", {}) == "this scheduler follows no log [usage]"


@only_qwen2
def test_a_log_of_another_model_ends_the_following_and_the_weights_stay(scene: Scene) -> None:
    other = dict(list(scene.tensors.items())[1:])
    log = Log(scene.folder / "other", mirror=scene.folder / "other.safetensors")
    publisher = Publisher(list(other.items()), transport=log)
    variables = {"FOLLOW": str(scene.folder / "other"), "FOLLOW_STATE": str(scene.folder / "other state")}
    scene.do("follow", scene.variables | variables)
    status = scene.do("until", "broken")
    publisher.close()
    assert next(iter(scene.tensors)) in status["error"] and status["is_whole"]
    assert scene.engine.call("differences", scene.folder / "v0") == [[]]


@only_qwen2
def test_a_server_that_follows_a_log_takes_no_trainer_and_is_led_by_nobody_else(scene: Scene) -> None:
    trainer = Trainer(scene.tensors)
    success, message = scene.engine.post("/init_weights_update_group", group_body(trainer, ranks=1))
    assert not success and "from a log or from a trainer, not from both" in message and message.endswith("[usage]")
    action = 'sparsecast:{"phase": "follow_apply"}'
    answer, asked = scene.engine.call("ask_tokenizer", action, ["applied"])[0]
    assert (answer[0], asked) == (False, 0) and "a step of the server itself" in answer[1]


@only_qwen2
def test_a_server_that_is_told_to_follow_a_log_does_so_until_it_ends(scene: Scene) -> None:
    log, state = str(scene.folder / "log"), str(scene.folder / "told")
    wrong, begun, again, other = scene.do(
        "told",
        {"follow": log, "generation": 1},
        {"follow": log, "follow_state": state, "follow_at": "told"},
        {"follow": log},
        {"follow": str(scene.folder / "another")},
    )
    assert not wrong[0] and "generation: with 'follow' there can only be follow_state" in wrong[1]
    assert begun == again == (True, f"follows {log}")
    assert not other[0] and f"the server follows {log} until it ends" in other[1]
    assert scene.do("step", "follow_status")["state"] in ("unproven", "ready")


PAUSES = {
    "keep": ["in_place", "follow_apply", "flush", "name 7", "continue", "finished"],
    "retract": ["retract", "follow_apply", "flush", "name 7", "continue", "finished"],
    "wait": ["finished", "in_place", "follow_apply", "flush", "name 7", "continue"],
    "abort": ["abort", "finished", "follow_apply", "flush", "name 7", "continue"],
}


@only_qwen2
@pytest.mark.parametrize("pause", PAUSES)
def test_each_pause_does_what_it_says_with_requests_in_flight(scene: Scene, pause: str) -> None:
    assert scene.do("led", pause) == (PAUSES[pause], "7")


def test_every_version_of_a_log_is_that_of_a_fresh_load_and_stamped(scene: Scene) -> None:
    addresses = scene.engine.call("addresses")
    assert scene.do("follow", scene.variables)["state"] in ("unproven", "ready")
    scene.engine.call("generate_in_flight", 5)
    before = scene.engine.call("weight_version")[0]
    for _ in range(2):
        version = scene.publish()
        status = scene.do("apply")
        assert status["version"] == version and status["is_whole"] and status["reseeded"] == 0
        assert scene.differences() == []
        scene.engine.call("generate_in_flight", 3)
    assert scene.engine.call("addresses") == addresses
    spans = [(before, 0, 5), (str(version - 1), 5, 8), (str(version), 8, 11)]
    assert scene.engine.call("spans") == [spans]
    shown = scene.engine.call("internal_state")[0]["sparsecast"]
    assert (shown["version"], shown["state"], shown["lag"]) == (version, "ready", 0)
    assert ("model.layers.1.self_attn.w_vc" in shown["derived"]) == (scene.config is computed.DEEPSEEK_V3_FP8)


def test_nothing_is_generated_until_a_version_has_repaired_weights_of_none(scene: Scene) -> None:
    scene.do("fail_to_compute")
    stamped = scene.engine.call("weight_version")
    scene.publish()
    status = scene.do("apply")
    assert (status["state"], status["is_whole"], status["error"]) == ("dirty", False, "no memory left")
    assert scene.engine.call("engine_paused") == [True] and scene.engine.call("weight_version") == stamped
    version = scene.publish()
    status = scene.do("apply")
    assert (status["version"], status["is_whole"], status["error"]) == (version, True, "")
    assert scene.differences() == [] and scene.engine.call("weight_version") == [str(version)]


def sleep_and_wake(scene: Scene, ranks: int) -> None:
    """Releases the memory of the weights, which lose their content; a version is published meanwhile."""
    assert scene.engine.call("following", "release") == ["asleep"] * ranks
    version = scene.publish()
    woken = scene.engine.call("following", "resume", 60.0)
    assert all(status["is_whole"] for status in woken) and woken[0]["version"] >= version - 1
    assert scene.engine.call("engine_paused") == [False] * ranks
    if woken[0]["version"] < version:
        assert scene.do("apply")["version"] == version
    assert scene.differences() == []


def test_a_server_that_released_its_memory_comes_to_the_newest_version(scene: Scene) -> None:
    sleep_and_wake(scene, ranks=1)
    (scene.folder / "log").rename(scene.folder / "away")
    scene.do("release")
    assert not scene.do("resume", 0.2)["is_whole"] and scene.engine.call("engine_paused") == [True]
    (scene.folder / "away").rename(scene.folder / "log")
    while not (status := scene.do("apply"))["is_whole"] or status["version"] < scene.publisher.version:
        pass  # An anchor first, perhaps.
    assert scene.differences() == []


def test_two_ranks_hold_their_parts_of_every_version_or_none_of_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, sglang_engine.QWEN2, ranks=2, positions="packed")
    try:
        addresses = scene.engine.call("addresses")
        assert scene.do("follow", scene.variables)["state"] in ("unproven", "ready")
        for _ in range(2):
            version = scene.publish()
            status = scene.do("apply")
            assert status["version"] == version and status["is_whole"] and status["reseeded"] == 0
            assert scene.differences() == []
        assert scene.engine.call("addresses") == addresses
        assert scene.engine.call("weight_version") == [str(version)] * 2
        workers = scene.do("workers", "follow_status")
        assert [(each["rank"], each["state"], each["version"]) for each in workers] == [
            (0, "ready", version),
            (1, "ready", None),
        ]
        sleep_and_wake(scene, ranks=2)
        version = scene.publisher.version
        scene.engine.call("only_rank", 1, "following", "fail_to_compute")
        scene.publish()
        scene.do("apply")
        workers = scene.do("workers", "follow_status")
        assert [each["is_whole"] for each in workers] == [True, False] and workers[1]["error"] == "no memory left"
        assert scene.engine.call("engine_paused") == [True, True]
        assert scene.engine.call("weight_version") == [str(version)] * 2
        scene.publish()
        assert scene.do("apply")["is_whole"] and scene.differences() == []
    finally:
        scene.close()
