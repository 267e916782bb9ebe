# SPDX-License-Identifier: Apache-2.0
"""A live vLLM server that follows a delta log in place; every version is compared with vLLM's own loading of it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM for CPUs is not installed here", allow_module_level=True)

import httpx
from conftest import Start, by_hand
from live_follow import Follower, Scene
from live_load import Load, probe

IN_FLIGHT = 4


# First, while no other server takes processor time: vLLM binds each worker to one of two.


@pytest.mark.parametrize("cut", ["tensor", "pipeline"])
def test_two_workers_hold_their_parts_of_every_version(start: Start, model: Path, tmp_path: Path, cut: str) -> None:
    scene = Follower(start, model, tmp_path, positions="packed")
    scene.publish()
    if cut == "pipeline":
        scene.server = start(model, ranks=2, cut=cut).wait()
        scene.tell(str(tmp_path / "log"))
    else:
        scene.server = scene.follow(ranks=2, cut=cut, VLLM_SERVER_DEV_MODE="1").wait()
    try:
        scene.expect_two_workers_hold_their_parts()
    finally:
        scene.close()


@by_hand
def test_two_workers_that_were_killed_in_each_phase_come_back(start: Start, model: Path, tmp_path: Path) -> None:
    scene = Follower(start, model, tmp_path, positions="packed")
    options = {"ranks": 2, "VLLM_SERVER_DEV_MODE": "1", "SPARSECAST_FOLLOW_AT": "told"}
    scene.server = scene.follow(**options).wait()
    try:
        scene.expect_kills_survived(**options)
    finally:
        scene.close()


@pytest.fixture(scope="module")
def scene(start: Start, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(start, model, tmp_path_factory.mktemp("scene"))
    yield made
    made.close()


def test_a_server_that_is_told_stages_a_version_and_takes_it_when_it_is_asked_for(scene: Scene) -> None:
    first = scene.publisher.version
    status = scene.until(lambda now: now["served"] == first)
    assert not status["error"] and status["workers"][0]["state"] == "ready" and status["workers"][0]["lag"] == 0
    before = probe(scene.server)
    assert before == probe(scene.stock)
    assert httpx.post(scene.server.url + "/collective_rpc", json={"method": "x"}, timeout=60).status_code == 404
    version = scene.publish()
    status = scene.until(lambda now: now["workers"][0]["state"] == "staged")
    assert status["served"] == first and status["workers"][0]["lag"] == 1 and probe(scene.server) == before
    load = Load([scene.server], IN_FLIGHT)
    with load.running():
        assert scene.reach(version).json() == {"version": version}
    assert not load.failures and set(load.reasons) <= {"length"}
    assert scene.status()["prefix_cache_reset"]
    now = probe(scene.server)
    assert now != before and now == scene.expected()
    late = scene.reach(version + 1, 0.5)
    assert late.status_code == 504 and f"the server is at version {version}" in late.text


def test_a_server_is_pinned_lags_and_takes_a_version_together_with_others(scene: Scene) -> None:
    scene.expect_rules_hold()


def test_a_server_that_was_killed_catches_up_by_itself_and_then_follows_under_load(scene: Scene) -> None:
    scene.server.kill()
    for _ in range(3):
        version = scene.publish()
    scene.server = scene.follow(port=scene.server.port).wait()
    scene.until(lambda now: now["served"] == version)
    assert probe(scene.server) == scene.expected()
    load = Load([scene.server], IN_FLIGHT)
    delays, pauses = [], []
    with load.running():
        for _ in range(4):
            version = scene.publish()
            begin = time.monotonic()
            assert scene.reach(version).json() == {"version": version}
            delays.append(time.monotonic() - begin)
            pauses.append(scene.status()["pause_seconds"])
    assert not load.failures and set(load.reasons) <= {"length"} and load.requests >= IN_FLIGHT
    scene.expect_newest(version)
    print(
        f"seconds from commit to served: {delays}, paused: {pauses}, of these the last write: "
        f"{scene.status()['workers'][0]['pause_seconds']}"
    )
    assert probe(scene.server) == scene.expected()
