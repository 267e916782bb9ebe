# SPDX-License-Identifier: Apache-2.0
"""A live SGLang server that follows a delta log in place; every version is compared with SGLang's own loading of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed here", allow_module_level=True)

import httpx
from conftest import Start
from live_follow import Follower, Scene
from live_load import Load, probe

IN_FLIGHT = 4


# First, while no other server takes processor time: each rank is bound to one of two.


def test_two_stages_hold_their_parts_of_every_version(start: Start, model: Path, tmp_path: Path) -> None:
    scene = Follower(start, model, tmp_path, "sglang", positions="packed")
    scene.publish()
    scene.server = scene.follow("--pp-size", "2", ranks=2).wait()
    try:
        scene.expect_two_workers_hold_their_parts()
    finally:
        scene.close()


@pytest.fixture(scope="module")
def scene(start: Start, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(start, model, tmp_path_factory.mktemp("scene"), "sglang")
    yield made
    made.close()


def answers(scene: Scene) -> str:
    """What the server answers to the fixed prompts, with nothing from its caches."""
    scene.forget_caches()
    return probe(scene.server)


def test_a_server_that_is_told_stages_a_version_and_takes_it_when_it_is_asked_for(scene: Scene) -> None:
    first = scene.publisher.version
    status = scene.until(lambda now: now["served"] == first)
    assert not status["error"] and status["workers"][0]["state"] == "ready" and status["workers"][0]["lag"] == 0
    before = answers(scene)
    assert before == probe(scene.stock)
    version = scene.publish()
    status = scene.until(lambda now: now["workers"][0]["state"] == "staged")
    assert status["served"] == first and status["workers"][0]["lag"] == 1 and answers(scene) == before
    load = Load([scene.server], IN_FLIGHT)
    with load.running():
        assert scene.reach(version).json() == {"version": version}
    assert not load.failures and set(load.reasons) <= {"length"}
    assert scene.status()["prefix_cache_reset"] and scene.server.version() == str(version)
    now = answers(scene)
    assert now != before and now == scene.expected()
    state = httpx.get(scene.server.url + "/server_info", timeout=60).json()["internal_states"][0]["sparsecast"]
    assert (state["state"], state["version"], state["is_whole"]) == ("ready", version, True)
    late = scene.reach(version + 1, 0.5)
    assert late.status_code == 504 and f"the server is at version {version}" in late.text


def test_a_server_is_pinned_lags_and_takes_a_version_together_with_others(scene: Scene) -> None:
    scene.expect_rules_hold()


def test_a_server_that_was_killed_catches_up_by_itself_and_then_follows_under_load(scene: Scene) -> None:
    scene.server.kill()
    for _ in range(3):
        version = scene.publish()
    scene.server = scene.follow(port=scene.server.port).wait()
    assert scene.reach(version).json() == {"version": version}
    assert answers(scene) == scene.expected()
    load = Load([scene.server], IN_FLIGHT)
    with load.running():
        for _ in range(3):
            version = scene.publish()
            assert scene.reach(version).json() == {"version": version}
        body = {"input_ids": [3, 4, 5], "sampling_params": {"max_new_tokens": 4}}
        spans = scene.server.post("/generate", body)["meta_info"]["weight_versions"]
    assert not load.failures and set(load.reasons) <= {"length"} and load.requests >= IN_FLIGHT
    assert [span["version"] for span in spans] == [str(version)]
    scene.expect_newest(version)
    assert answers(scene) == scene.expected()
