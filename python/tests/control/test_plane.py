# SPDX-License-Identifier: Apache-2.0
"""Syncs, pauses and sleep over real HTTP, with engines that do what they are asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from conftest import QUICK, endpoint_of
from stub_engines import StubEngine
from stub_source import StubSource
from sync_checks import failed_sync, of

from sparsecast.control import BusyError, ControlPlane, SyncError, SyncReport
from sparsecast.errors import UsageError

Engines = list[StubEngine]


def test_a_sync_brings_every_engine_to_the_trainers_version_and_leaves_it_generating(
    plane: ControlPlane, engines: Engines
) -> None:
    report = plane.sync_now()
    assert report.result == "ok" and report.version == 1 and report.regrouped
    assert [each.version for each in report.endpoints] == [1, 1]
    for engine in engines:
        assert engine.weight_version == "1" and engine.flushed == 1 and not engine.paused
        assert engine.versions_seen[-1] == "1", "it was resumed before it named the new version"


def test_generation_goes_on_until_the_apply(plane: ControlPlane, engines: Engines) -> None:
    plane.sync_now()
    for engine in engines:
        order = [step for step in engine.steps if step in ("receive", "staged", "pause", "apply", "flush", "resume")]
        assert order == ["receive", "staged", "pause", "apply", "flush", "resume"]


def test_the_trainers_calls_run_on_the_callers_thread(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    plane.sync_now()
    assert source.threads == [threading.current_thread().name]


def test_ranks_are_the_trainers_first_and_then_the_engines_in_order_of_their_address(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    plane.sync_now()
    world = source.worlds[0]
    assert world.size == 2 + 2 + 1
    ports = [placement.endpoint.port for placement in world.placements]
    assert ports == sorted(ports)
    offsets = {placement.endpoint.name: placement.rank_offset for placement in world.placements}
    assert offsets == ({"sg": 2, "vl": 4} if world.placements[0].endpoint.name == "sg" else {"vl": 2, "sg": 3})


def test_a_second_sync_keeps_the_group(plane: ControlPlane, engines: Engines, source: StubSource) -> None:
    first, second = plane.sync_now(), plane.sync_now()
    assert second.version == 2 and not second.regrouped and second.generation == first.generation
    assert len(source.worlds) == 1


def test_a_sync_that_differs_much_from_those_before_it_is_warned_of(
    plane: ControlPlane, engines: Engines, source: StubSource, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        assert plane.sync_now().warnings == []
    source.density = 0.5
    report = plane.sync_now()
    assert "50.000% of the weights changed" in report.warnings[0] and report.warnings[0] in caplog.text
    assert report.to_dict()["warnings"] == report.warnings


def test_a_new_member_makes_a_new_group_with_a_new_secret(
    plane: ControlPlane, engines: Engines, source: StubSource, more_engines: Callable[..., StubEngine]
) -> None:
    plane.sync_now()
    plane.add(endpoint_of(more_engines("vllm"), "late"))
    report = plane.sync_now()
    old, new = source.worlds
    assert report.regrouped and new.generation > old.generation and new.secret != old.secret
    assert of(report, "late").version == 2


def test_a_late_joiner_is_paused_while_it_is_seeded(
    plane: ControlPlane, engines: Engines, more_engines: Callable[..., StubEngine]
) -> None:
    plane.sync_now()
    late = more_engines("vllm")
    plane.add(endpoint_of(late, "late"))
    plane.sync_now()
    assert late.steps.index("pause") < late.steps.index("join")
    assert not late.paused


def test_a_removed_engine_is_told_to_leave_and_the_rest_make_a_new_group(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    plane.sync_now()
    plane.remove("127.0.0.1", engines[0].port)
    report = plane.sync_now()
    assert engines[0].steps[-1] == "leave" and engines[0].weight_version == "1"
    assert report.regrouped and [each.name for each in report.endpoints] == ["vl"]


def test_a_vllm_without_the_route_leaves_by_the_worker_extension(plane: ControlPlane, engines: Engines) -> None:
    plane.sync_now()
    engines[1].lacks = {"/shutdown_weight_transfer_engine"}
    engines[1].in_update = True  # Of a trainer that is gone.
    plane.remove("127.0.0.1", engines[1].port)
    methods = [body["method"] for _, path, _, body in engines[1].calls if path == "/collective_rpc"]
    assert methods[-2:] == ["sparsecast_leave"] * 2 and not engines[1].in_update


def test_a_vllm_that_can_leave_in_no_way_is_told_the_cure(plane: ControlPlane, engines: Engines) -> None:
    plane.sync_now()
    plane.sleep(names=["vl"])
    plane.wake(names=["vl"])
    engines[1].lacks = {"/shutdown_weight_transfer_engine", "sparsecast_leave"}
    assert "--worker-extension-cls sparsecast.engines.vllm.WorkerExtension" in str(failed_sync(plane))
    engines[1].lacks = {"/shutdown_weight_transfer_engine"}
    assert plane.sync_now().result == "ok"


@pytest.mark.parametrize(
    ("pause", "sglang", "vllm"),
    [
        ("abort", ["abort"], ["abort"]),
        ("keep", ["in_place"], ["keep"]),
        ("retract", ["retract"], ["keep"]),
        ("none", [], []),
    ],
)
def test_the_caller_chooses_what_becomes_of_requests_in_flight(
    plane: ControlPlane, engines: Engines, pause: str, sglang: list[str], vllm: list[str]
) -> None:
    plane.sync_now(replace(QUICK, pause=pause))
    assert engines[0].pause_modes == sglang and engines[1].pause_modes == vllm


def test_a_pause_that_an_engine_does_not_know_is_refused_before_anything_moves(
    plane: ControlPlane, engines: Engines
) -> None:
    for operation in (lambda: plane.sync_now(replace(QUICK, pause="wait")), lambda: plane.pause("wait")):
        with pytest.raises(UsageError, match=r"sg \(sglang\) cannot pause with 'wait', only with abort, keep, retract"):
            operation()
    assert engines[0].steps == engines[1].steps == []
    plane.pause("wait", ["vl"])
    assert engines[1].pause_modes == ["wait"]


def test_the_ranks_of_an_sglang_server_are_those_of_all_replicas_and_stages(
    plane: ControlPlane, engines: Engines
) -> None:
    engines[0].replicas = 2
    assert plane.sync_now().result == "ok"
    engines[0].stages = 2
    with pytest.raises(SyncError, match="registered with world_size 2, and the server says 0"):
        plane.sync_now()


def test_an_sglang_server_without_the_plug_in_is_refused_before_it_is_asked_to_join(
    plane: ControlPlane, engines: Engines
) -> None:
    engines[0].internal_states = [{"memory_usage": {}}]
    with pytest.raises(SyncError, match="without the plug-in: pip install sparsecast"):
        plane.sync_now()
    assert all("join" not in engine.steps for engine in engines)
    engines[0].internal_states = [{"sparsecast": {"state": "not joined"}}]
    assert plane.sync_now().result == "ok"


def test_requests_are_not_retracted_from_pipeline_stages(plane: ControlPlane, engines: Engines) -> None:
    engines[0].stages = 2
    with pytest.raises(SyncError, match=r"--pp-size.*: pause with keep or abort"):
        plane.sync_now(replace(QUICK, pause="retract"))
    assert engines[0].pause_modes == []
    assert plane.sync_now(replace(QUICK, pause="keep")).result == "ok"


def test_naming_the_version_never_aborts_requests(plane: ControlPlane, engines: Engines) -> None:
    plane.sync_now()
    bodies = [body for _, path, _, body in engines[0].calls if path == "/update_weight_version"]
    assert bodies == [{"new_version": "1", "abort_all_requests": False}]


def test_a_cache_that_requests_hold_is_reported_and_no_failure_when_they_were_kept(
    plane: ControlPlane, engines: Engines
) -> None:
    engines[1].flush_works = False
    report = plane.sync_now(replace(QUICK, pause="keep"))
    assert report.result == "ok"
    assert of(report, "sg").cache_flushed is True
    assert of(report, "vl").cache_flushed is False


def test_a_cache_that_keeps_old_prefixes_after_an_abort_is_a_failure_of_that_engine_at_the_new_version(
    plane: ControlPlane, engines: Engines
) -> None:
    engines[1].flush_works = False
    error = failed_sync(plane)
    assert [(each.endpoint, each.step) for each in error.failures] == [("vl", "flush")]
    assert "vl at 1" in str(error) and "sg at 1" in str(error)
    assert not engines[0].paused and not engines[1].paused


def test_an_engine_that_was_restarted_is_noticed_and_joins_again(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    plane.sync_now()
    engines[1].weight_version = "default"
    report = plane.sync_now()
    assert report.regrouped and len(source.worlds) == 2 and report.result == "ok"


def test_a_world_size_that_the_server_denies_fails_before_anything_moves(
    plane: ControlPlane, engines: Engines, more_engines: Callable[..., StubEngine], source: StubSource
) -> None:
    plane.add(endpoint_of(more_engines("vllm", world_size=8), "big", world_size=4))
    error = failed_sync(plane)
    assert "registered with world_size 4, and the server says 8" in str(error) and source.worlds == []


def test_a_sync_without_endpoints_is_refused(plane: ControlPlane) -> None:
    with pytest.raises(UsageError, match="no endpoint is registered"):
        plane.sync_now()


def test_a_second_operation_is_refused_and_told_who_holds_the_plane(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    source.before_commit = threading.Event()
    result: list[SyncReport] = []
    thread = threading.Thread(target=lambda: result.append(plane.sync_now(by="step 7")))
    thread.start()
    while not plane.status()["busy"]:
        time.sleep(0.005)
    try:
        for operation in (plane.sync_now, plane.pause, plane.resume, plane.sleep, plane.wake):
            with pytest.raises(BusyError, match="sync for step 7"):
                operation()
    finally:
        source.before_commit.set()
        thread.join(10)
    assert result[0].result == "ok" and plane.status()["busy"] == ""


def test_an_engine_that_somebody_paused_is_updated_and_stays_paused(plane: ControlPlane, engines: Engines) -> None:
    plane.pause("retract", ["sg"])
    plane.sync_now()
    assert engines[0].paused and engines[0].weight_version == "1" and not engines[1].paused
    plane.resume(["sg"])
    assert not engines[0].paused


def test_a_pause_that_fails_somewhere_says_where_it_is_done(plane: ControlPlane, engines: Engines) -> None:
    engines[1].faults["pause"] = 500
    with pytest.raises(SyncError, match="endpoint vl: pause.*Done: sg"):
        plane.pause()


def test_a_sleeping_engine_cannot_be_synced_and_is_seeded_after_it_woke(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    plane.sync_now()
    plane.sleep()
    assert all(engine.asleep == {"weights", "kv_cache"} for engine in engines)
    assert "wake it" in str(failed_sync(plane))
    plane.wake()
    assert all(engine.paused and not engine.asleep for engine in engines), "it serves weights without content"
    with pytest.raises(SyncError, match="the next sync seeds"):
        plane.resume()
    report = plane.sync_now()
    assert source.worlds[-1].anchored == frozenset({"sg", "vl"}) and report.regrouped
    assert not any(engine.paused for engine in engines)


def test_waking_the_weights_first_leaves_the_cache_without_memory_until_after_the_sync(
    plane: ControlPlane, engines: Engines
) -> None:
    plane.sleep()
    plane.wake(["weights"])
    plane.sync_now()
    assert all(engine.asleep == {"kv_cache"} and engine.flushed == 0 and engine.paused for engine in engines)
    plane.wake(["kv_cache"])
    assert not any(engine.asleep or engine.paused for engine in engines)


def test_releasing_the_cache_alone_keeps_the_weights(plane: ControlPlane, engines: Engines, source: StubSource) -> None:
    plane.sync_now()
    plane.sleep(["kv_cache"])
    plane.wake(["kv_cache"])
    assert not any(engine.paused for engine in engines)
    assert not plane.sync_now().regrouped


def test_a_vllm_that_does_not_release_its_cache_alone_says_so_and_can_be_resumed(
    plane: ControlPlane, engines: Engines
) -> None:
    plane.sync_now()
    engines[1].lacks = {"/release_kv_cache_memory"}
    with pytest.raises(SyncError, match="vLLM before 0.31 does not release its KV cache alone: resume it"):
        plane.sleep(["kv_cache"], ["vl"])
    assert engines[1].paused and not engines[1].asleep
    plane.resume(["vl"])
    assert not engines[1].paused and plane.sync_now().result == "ok"


def test_an_interrupt_of_the_trainer_resumes_the_engines_and_goes_on_up(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    def interrupted(timeout: float) -> None:
        source.collective.put(failure="interrupted")
        raise KeyboardInterrupt

    source.sync = interrupted  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        plane.sync_now()
    assert not any(engine.paused for engine in engines)


def test_status_tells_versions_lag_and_the_last_sync(plane: ControlPlane, engines: Engines, source: StubSource) -> None:
    plane.sync_now()
    source.version = 4
    status = plane.status()
    assert status["version"] == 4 and status["group"] == "stands" and status["last_sync"]["result"] == "ok"
    assert [each["lag"] for each in status["endpoints"]] == [3, 3]


def test_a_probe_asks_the_servers(plane: ControlPlane, engines: Engines) -> None:
    engines[0].stop()
    entries = {each["name"]: each for each in plane.status(probe=True)["endpoints"]}
    assert entries["vl"]["answers"] and not entries["sg"]["answers"] and "/server_info" in entries["sg"]["problem"]
