# SPDX-License-Identifier: Apache-2.0
"""Engines and trainers that fail in every way at every step: who is named, who goes on, who is where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from conftest import QUICK, endpoint_of
from stub_engines import StubEngine
from stub_source import StubReport, StubSource
from sync_checks import entry, failed_sync, of

from sparsecast.control import ControlPlane

Engines = list[StubEngine]


STEPS = ["health", "join", "receive", "staged", "pause", "apply", "finish", "flush", "resume"]


@pytest.mark.parametrize("which", [0, 1], ids=["sglang", "vllm"])
@pytest.mark.parametrize("step", STEPS)
def test_an_engine_that_fails_a_step_is_named_and_the_others_are_resumed(
    plane: ControlPlane, engines: Engines, which: int, step: str
) -> None:
    if (which, step) == (1, "staged"):
        pytest.skip("a vLLM server that cannot say whether it has staged is no failure")
    bad, good = engines[which], engines[1 - which]
    name, other = ("sg", "vl") if which == 0 else ("vl", "sg")
    bad.faults[step] = 500
    error = failed_sync(plane)
    assert [(each.endpoint, each.step) for each in error.failures] == [(name, step)]
    assert name in str(error) and "caught fire" in str(error)
    assert not good.paused, "an engine that did nothing wrong was left paused"
    assert entry(plane, name)["state"] == "unhealthy" and entry(plane, other)["state"] in ("ready", "joining")
    assert bad.paused == (step == "resume")


@pytest.mark.parametrize("step", STEPS)
def test_the_sync_after_a_failure_succeeds(plane: ControlPlane, engines: Engines, step: str) -> None:
    bad = engines[0 if step == "staged" else 1]
    bad.faults[step] = 500
    failed_sync(plane)
    bad.faults.clear()
    report = plane.sync_now()
    assert report.result == "ok" and {each.version for each in report.endpoints} == {report.version}
    assert not any(engine.paused for engine in engines)
    assert {engine.weight_version for engine in engines} == {str(report.version)}


def test_a_vllm_server_that_has_ended_the_update_itself_is_said_to_have(plane: ControlPlane, engines: Engines) -> None:
    engines[1].faults["apply"] = 500
    engines[1].fault_text = "start_weight_update must be called before update_weights."
    assert "the lease of its pause ran out, or another trainer has joined it" in str(failed_sync(plane))


@pytest.mark.parametrize("which", [0, 1], ids=["sglang", "vllm"])
def test_an_engine_that_another_trainer_has_taken_over_is_left_alone_from_then_on(
    plane: ControlPlane, engines: Engines, which: int
) -> None:
    lost, name = engines[which], ("sg", "vl")[which]
    lost.faults["join"] = 500
    lost.fault_text = "engine follows another trainer: b has joined it after a [fenced]"
    assert [each.code for each in failed_sync(plane).failures] == ["fenced"]
    assert entry(plane, name)["state"] == "fenced" and not lost.paused
    lost.faults.clear()
    lost.steps.clear()
    error = failed_sync(plane)
    assert [(each.endpoint, each.step, each.code) for each in error.failures] == [(name, "health", "fenced")]
    assert not lost.steps, "the other trainer's engine was called"
    assert plane.sync_now(replace(QUICK, allow_missing=True)).result == "partial"


def test_a_health_route_that_is_not_there_is_not_called_vllms(plane: ControlPlane, engines: Engines) -> None:
    engines[1].faults["health"] = 404
    said = str(failed_sync(plane))
    assert "something in front of it" in said and "VLLM_SERVER_DEV_MODE" not in said


def test_a_vllm_server_that_cannot_say_whether_it_has_staged_is_paused_for_what_is_missing(
    plane: ControlPlane, engines: Engines
) -> None:
    engines[1].faults["staged"] = 500
    assert plane.sync_now().result == "ok"
    assert plane.sync_now().result == "ok"
    assert engines[1].steps.count("staged") == 2, "it was asked more than once a sync"


def test_a_vllm_worker_whose_receive_broke_is_found_before_anything_is_paused(
    plane: ControlPlane, engines: Engines
) -> None:
    engines[1].state = "dirty"
    error = failed_sync(plane)
    assert [(each.endpoint, each.step) for each in error.failures] == [("vl", "staged")]
    assert not any("pause" in engine.steps for engine in engines)


@pytest.mark.parametrize(
    ("step", "fault", "deadline"),
    [
        ("health", "hang", "health_timeout"),
        ("receive", "hang", "sync_timeout"),
        ("pause", "hang", "call_timeout"),
        ("pause", "drip", "call_timeout"),
        ("apply", "hang", "sync_timeout"),
    ],
)
def test_an_engine_that_does_not_answer_ends_at_the_deadline(
    plane: ControlPlane, engines: Engines, step: str, fault: str, deadline: str
) -> None:
    engines[0].faults[step] = fault
    error = failed_sync(plane, **{deadline: 5})  # Time enough for the other engine, on busy cores.
    assert [(each.endpoint, each.step, each.code) for each in error.failures] == [("sg", step, "timeout")]
    assert not engines[1].paused


@pytest.mark.parametrize("step", ["health", "join", "receive", "pause", "apply"])
def test_an_engine_that_dies_is_named_and_a_sync_without_it_goes_on(
    plane: ControlPlane, engines: Engines, step: str
) -> None:
    engines[0].faults[step] = "die"
    error = failed_sync(plane)
    assert "sg" in {each.endpoint for each in error.failures} and entry(plane, "sg")["state"] == "unhealthy"
    assert not engines[1].paused
    report = plane.sync_now(replace(QUICK, allow_missing=True))
    assert report.result == "partial"
    assert of(report, "sg").code == "io" and of(report, "vl").version == report.version


def test_an_engine_that_is_gone_fails_a_sync_before_anything_moves_unless_it_may_be_missing(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    engines[0].stop()
    failed_sync(plane)
    assert source.worlds == [] and source.version == 0 and "pause" not in engines[1].steps


def test_a_wrong_token_is_named_as_such(
    plane: ControlPlane, engines: Engines, more_engines: Callable[..., StubEngine]
) -> None:
    guarded = more_engines(token="the-right-one")
    plane.add(endpoint_of(guarded, "guarded", token="another-one"))
    error = failed_sync(plane)
    assert [(each.endpoint, each.code) for each in error.failures] == [("guarded", "unauthenticated")]
    assert "another-one" not in str(error)
    plane.add(endpoint_of(guarded, "guarded"))
    assert plane.sync_now().result == "ok"


def test_a_trainer_that_fails_is_named_and_no_engine_is_blamed(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    plane.sync_now()
    source.fails = "sync"
    error = failed_sync(plane)
    assert "trainer: the trainer is out of memory" in str(error)
    assert not any(engine.paused for engine in engines)
    assert {each["state"] for each in plane.endpoints()} == {"ready"}
    source.fails = ""
    assert plane.sync_now().version == 2


def test_a_trainer_that_cannot_regroup_leaves_everybody_generating(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    source.fails = "regroup"
    error = failed_sync(plane)
    assert "out of memory" in str(error) and not any(engine.paused for engine in engines)


def test_the_trainer_is_told_when_an_engine_fails(plane: ControlPlane, engines: Engines, source: StubSource) -> None:
    engines[0].faults["receive"] = 500
    failed_sync(plane)
    assert len(source.aborted) == 1 and "endpoint sg: receive" in source.aborted[0]


def test_a_trainer_without_abort_ends_at_its_deadline_and_the_engines_do_not_wait_for_it(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    source.abort = None  # type: ignore[assignment,method-assign]
    engines[0].faults["pause"] = 500
    sync, steps_at_the_end = source.sync, []

    def noting(timeout: float) -> StubReport:
        try:
            return sync(timeout)
        finally:
            steps_at_the_end.extend(engines[1].steps)

    source.sync = noting  # type: ignore[method-assign]
    failed_sync(plane, sync_timeout=4)
    assert "resume" in steps_at_the_end


def test_an_engine_whose_apply_gets_no_answer_is_in_doubt_and_the_next_sync_settles_it(
    plane: ControlPlane, engines: Engines
) -> None:
    plane.sync_now()
    engines[0].faults["apply"] = "hang"
    error = failed_sync(plane, sync_timeout=4)
    assert error.report is not None
    assert of(error.report, "sg").in_doubt and of(error.report, "sg").version == 1
    assert "sg at 1, or the next (in doubt)" in str(error)
    engines[0].faults.clear()
    report = plane.sync_now()
    assert report.regrouped and not of(report, "sg").in_doubt


def test_a_dirty_engine_stays_paused_and_is_seeded_by_the_next_sync(
    plane: ControlPlane, engines: Engines, source: StubSource
) -> None:
    engines[1].faults["apply"] = 500
    engines[1].fault_text = "the weights are known to be wrong [dirty]"
    error = failed_sync(plane)
    assert error.failures[0].code == "dirty" and engines[1].paused and not engines[0].paused
    assert of(error.report, "vl").left_paused and entry(plane, "vl")["needs_anchor"]
    engines[1].faults.clear()
    plane.sync_now()
    assert source.worlds[-1].anchored == frozenset({"vl"}) and not engines[1].paused
