# SPDX-License-Identifier: Apache-2.0
"""Leases on pauses: who takes, renews and ends them, and what a server does when nobody does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import QUICK, endpoint_of
from stub_engines import StubEngine

from sparsecast.control import ControlPlane, SyncError, SyncPolicy
from sparsecast.control.lease import LeaseKeeper
from sparsecast.engines.vllm import endpoints as vllm_endpoints
from sparsecast.engines.vllm.endpoints import VllmPause
from sparsecast.errors import UsageError

START = Callable[..., StubEngine]


def joined(plane: ControlPlane, start: START) -> StubEngine:
    server = start("vllm")
    server.has_leases = True
    plane.add(endpoint_of(server, "vl"))
    return server


def test_a_lease_is_taken_before_the_pause_and_ended_after_the_resume(plane: ControlPlane, more_engines: START) -> None:
    server = joined(plane, more_engines)
    report = plane.sync_now(replace(QUICK, pause_lease=60))
    assert report.endpoints[0].lease is True
    assert server.leases == [(60, False), (0, False)]
    assert server.steps.index("lease") < server.steps.index("pause")


def test_a_server_without_leases_is_synced_all_the_same_and_the_report_says_so(
    plane: ControlPlane, more_engines: START
) -> None:
    server = joined(plane, more_engines)
    server.has_leases = False
    assert [plane.sync_now().endpoints[0].lease for _ in range(2)] == [False, False]
    assert server.steps.count("lease") == 2  # It is asked once a sync.


def test_one_answer_of_404_does_not_end_leases_and_is_warned_of(
    plane: ControlPlane, more_engines: START, caplog: pytest.LogCaptureFixture
) -> None:
    server = joined(plane, more_engines)
    server.has_leases = False  # As an ingress answers while a server starts.
    assert plane.sync_now().endpoints[0].lease is False
    assert "vl: no lease on its pause" in caplog.text
    server.has_leases = True
    assert plane.sync_now().endpoints[0].lease is True
    assert server.leases[-1][0] == 0


def test_one_failed_question_for_states_does_not_end_the_wait_for_staging(
    plane: ControlPlane, more_engines: START
) -> None:
    server = joined(plane, more_engines)
    server.faults["staged"] = 404
    plane.sync_now()
    del server.faults["staged"]
    before = len(server.steps)
    plane.sync_now()
    assert "staged" in server.steps[before:]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_that_has_resumed_since_a_sync_that_could_not_resume_it_is_paused_again(
    plane: ControlPlane, more_engines: START, kind: str
) -> None:
    server = more_engines(kind)
    server.has_leases = True
    plane.add(endpoint_of(server, "e"))
    server.faults["resume"] = 500
    with pytest.raises(SyncError, match="resume"):
        plane.sync_now(replace(QUICK, pause_lease=60))
    del server.faults["resume"]
    server.paused = False  # By its lease, or because it was started again.
    before = len(server.steps)
    report = plane.sync_now(replace(QUICK, pause_lease=60))
    steps = server.steps[before:]
    assert report.endpoints[0].lease is True and not server.paused
    assert steps.index("lease") < steps.index("pause") < steps.index("apply") < steps.index("resume")
    assert steps.count("pause") == 1


def test_a_hold_ends_with_a_server_that_knows_nothing_of_it(plane: ControlPlane, more_engines: START) -> None:
    server = joined(plane, more_engines)
    plane.pause(names=["vl"])
    plane.sync_now()
    assert server.paused, "somebody holds it"
    server.paused = False  # It was started again.
    before = len(server.steps)
    plane.sync_now()
    steps = server.steps[before:]
    assert steps.index("pause") < steps.index("apply") < steps.index("resume") and not server.paused


def test_without_a_pause_or_with_none_wanted_there_is_no_lease(plane: ControlPlane, more_engines: START) -> None:
    server = joined(plane, more_engines)
    assert plane.sync_now(replace(QUICK, pause="none")).endpoints[0].lease is None
    assert plane.sync_now(replace(QUICK, pause_lease=0)).endpoints[0].lease is False
    assert server.leases == []


def test_a_server_that_does_not_resume_is_left_to_its_lease(plane: ControlPlane, more_engines: START) -> None:
    server = joined(plane, more_engines)
    server.faults["resume"] = 500
    with pytest.raises(SyncError, match="resume"):
        plane.sync_now(replace(QUICK, pause_lease=0.2))
    count = len(server.leases)
    time.sleep(0.5)
    assert len(server.leases) == count and (0, True) not in server.leases  # It is neither renewed nor ended.


def test_an_engine_that_is_to_stay_paused_loses_its_lease(plane: ControlPlane, more_engines: START) -> None:
    server = joined(plane, more_engines)
    server.faults["apply"] = 500
    server.fault_text = "half-written [dirty]"
    with pytest.raises(SyncError, match="dirty|half-written") as caught:
        plane.sync_now(replace(QUICK, pause_lease=60))
    assert caught.value.report is not None and caught.value.report.endpoints[0].left_paused
    assert server.paused and server.leases == [(60, False), (0, True)]


@pytest.mark.parametrize("wrong", [-1, float("nan"), 1e9, "30", True])
def test_a_lease_of_no_length_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="pause_lease"):
        SyncPolicy(pause_lease=wrong)


class Held:
    """A client that counts its renewals."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    async def hold(self, seconds: float, timeout: float) -> bool:
        self.calls.append(seconds)
        return True


def test_a_lease_is_renewed_until_it_is_released() -> None:
    client = Held()
    engine: Any = type("Engine", (), {"name": "vl", "client": client})()

    async def hold() -> None:
        keeper = LeaseKeeper(0.03, 5)
        assert await keeper.take(engine)
        while len(client.calls) < 4:
            await asyncio.sleep(0.001)
        await keeper.release(engine)
        count = len(client.calls)
        await asyncio.sleep(0.1)
        assert len(client.calls) == count and client.calls[-1] == 0

    asyncio.run(hold())


class FakeEngine:
    """vLLM's engine client as the lease uses it. `statuses` are those of the workers."""

    def __init__(self, *statuses: tuple[Any, ...], is_open: bool = False, without_extension: bool = False) -> None:
        self.statuses: list[dict[str, Any]] = [
            {"rank": rank, "state": state, "version": version, "in_doubt": doubt[0] if doubt else 0}
            for rank, (state, version, *doubt) in enumerate(statuses)
        ]
        self.is_open = is_open
        self.without_extension = without_extension
        self.whole = {"ready", "receiving", "staged", "broken"}  # States with whole weights.
        self.paused = True
        self.weight_version = "default"
        self.cache_resets = 0

    async def collective_rpc(self, method: str, args: tuple[bool, ...] = ()) -> list[dict[str, Any]]:
        if self.without_extension:
            raise AttributeError("the worker has no method sparsecast_status")
        if method == "sparsecast_settle":
            for status in self.statuses:
                if status["in_doubt"] and args[0]:
                    status["version"] = status["in_doubt"]
                status["in_doubt"] = 0
        else:
            assert method == "sparsecast_status"
        return [
            {**status, "is_whole": status["state"] in self.whole, "held_version": status["version"]}
            for status in self.statuses
        ]

    async def update_weight_version(self, new_version: str) -> None:
        self.weight_version = new_version

    async def is_paused(self) -> bool:
        return self.paused

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        if not self.is_open:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
        if any(status["state"] in ("receiving", "staged") for status in self.statuses):
            for status in self.statuses:
                status["state"] = "broken"
            raise UsageError("finish_weight_update without update_weights: the staged version was dropped")
        self.is_open = False
        if weight_version is not None:
            self.weight_version = weight_version

    async def reset_prefix_cache(self) -> bool:
        self.cache_resets += 1
        return True

    async def resume_generation(self) -> None:
        self.paused = False


def expire(engine: FakeEngine) -> str:
    async def wait() -> str:
        pause = VllmPause(engine)
        await pause.renew(0.01)
        until = time.monotonic() + 30
        while not pause.lease.last_expiry and time.monotonic() < until:
            await asyncio.sleep(0.002)
        return pause.lease.last_expiry

    return asyncio.run(wait())


def test_a_server_whose_update_was_only_staged_resumes_at_the_version_before() -> None:
    engine = FakeEngine(("staged", 3), ("staged", 3), is_open=True)
    assert expire(engine) == "resumed at version 3"
    assert not engine.paused and not engine.is_open and engine.weight_version == "default"


def test_a_server_whose_update_has_landed_names_it_and_resumes() -> None:
    engine = FakeEngine(("ready", 4), ("ready", 4), is_open=True)
    assert expire(engine) == "resumed at version 4"
    assert not engine.paused and not engine.is_open and engine.weight_version == "4" and engine.cache_resets == 1


@pytest.mark.parametrize(
    ("statuses", "version"),
    [
        ([("broken", 3, 4), ("broken", 3, 4)], 3),
        ([("broken", 3, 4), ("broken", 3)], 3),
        ([("ready", 4), ("broken", 3, 4)], 4),
    ],
    ids=["nobody has heard", "one was rolled back", "one has heard the commit"],
)
def test_a_doubt_ends_as_the_workers_together_know_it(statuses: list[tuple[Any, ...]], version: int) -> None:
    engine = FakeEngine(*statuses)
    assert expire(engine) == f"resumed at version {version}"
    assert engine.weight_version == ("4" if version == 4 else "default")
    assert {status["version"] for status in engine.statuses} == {version}


@pytest.mark.parametrize(
    "statuses",
    [[("dirty", 4)], [("ready", 4), ("broken", 3)], [("broken", 3), ("unproven", 3)]],
    ids=["half-written", "two versions", "seeded in part"],
)
def test_a_server_that_holds_no_version_stays_paused_and_says_why(statuses: list[tuple[str, int]]) -> None:
    engine = FakeEngine(*statuses)
    assert "stays paused until a trainer seeds it: rank 0 is" in expire(engine)
    assert engine.paused


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ([("closed", 6), ("closed", 6)], "resumed at version 6"),
        ([("unproven", 6), ("unproven", 6)], "resumed at version 6"),
        ([("ready", 6), ("unproven", 6)], "resumed at version 6"),
        ([("not initialised", None)], "resumed with the weights that it had"),
    ],
)
def test_a_server_whose_trainer_died_before_the_first_byte_serves_what_it_had(
    statuses: list[tuple[Any, ...]], words: str
) -> None:
    engine = FakeEngine(*statuses)
    engine.whole |= {"closed", "unproven", "not initialised"}
    assert expire(engine) == words
    assert not engine.paused and engine.cache_resets == 1


def test_a_lease_that_runs_out_after_the_resume_does_nothing() -> None:
    engine = FakeEngine(("receiving", 4), is_open=True)
    engine.paused = False
    assert expire(engine) == "the engine was not paused"
    assert engine.is_open


def test_a_vllm_server_shows_what_a_lease_did(caplog: pytest.LogCaptureFixture) -> None:
    fastapi = pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    app = fastapi.FastAPI()
    app.include_router(vllm_endpoints._router())
    app.state.sparsecast_pause = VllmPause(FakeEngine(("ready", 4)))
    with TestClient(app) as client:
        assert client.get("/sparsecast/lease").json() == {"held": False, "last_expiry": ""}
        client.post("/sparsecast/lease", json={"seconds": 60})
        assert client.get("/sparsecast/lease").json()["held"]
        client.post("/sparsecast/lease", json={"seconds": 0.05})
        until = time.monotonic() + 30
        while not client.get("/sparsecast/lease").json()["last_expiry"] and time.monotonic() < until:
            time.sleep(0.01)
        assert client.get("/sparsecast/lease").json()["last_expiry"] == "resumed at version 4"
    said = [record.name for record in caplog.records if "nobody renewed the lease" in record.message]
    assert said == ["vllm.sparsecast"]


def test_without_the_worker_extension_there_is_no_lease() -> None:
    with pytest.raises(UsageError, match="--worker-extension-cls"):
        asyncio.run(VllmPause(FakeEngine(without_extension=True)).renew(1))


def test_a_server_of_several_api_processes_gives_no_lease_and_names_the_cure() -> None:
    with pytest.raises(UsageError, match="--api-server-count 1"):
        asyncio.run(VllmPause(FakeEngine(("ready", 3)), processes=2).renew(1))


class FakeReplicas(FakeEngine):
    """vLLM's engine client of two replicas of one worker: collective_rpc tells of the first one alone."""

    def __init__(self, *statuses: tuple[Any, ...], is_open: bool = False) -> None:
        super().__init__(*statuses, is_open=is_open)
        self.engine_core = self

    async def collective_rpc(self, method: str, args: tuple[bool, ...] = ()) -> list[dict[str, Any]]:
        return (await super().collective_rpc(method, args))[:1]

    async def call_utility_all_async(self, name: str, method: str, timeout: None, args: Any, kwargs: None) -> list[Any]:
        assert name == "collective_rpc" and timeout is None and kwargs is None
        return [[status] for status in await super().collective_rpc(method, args)]


class OlderReplicas(FakeReplicas):
    """The same before vLLM 0.32, whose client of the engine processes has no such call to all of them."""

    call_utility_all_async = None  # type: ignore[assignment]

    @property
    def core_engines(self) -> list[int]:
        return list(range(len(self.statuses)))

    async def _call_utility_async(
        self, name: str, method: str, timeout: None, args: Any, kwargs: None, engine: int
    ) -> list[Any]:
        assert name == "collective_rpc" and timeout is None and kwargs is None
        return (await FakeEngine.collective_rpc(self, method, args))[engine : engine + 1]


@pytest.mark.parametrize("replicas", [FakeReplicas, OlderReplicas])
def test_a_lease_asks_the_workers_of_every_replica(replicas: type[FakeReplicas]) -> None:
    engine = replicas(("ready", 4), ("broken", 3), is_open=True)
    assert "stays paused until a trainer seeds it: rank 0 is" in expire(engine)
    assert engine.paused
    engine = replicas(("ready", 4), ("broken", 3, 4))
    assert expire(engine) == "resumed at version 4"
    assert not engine.paused


def test_the_next_trainer_waits_for_the_expiry_of_the_lease_before_its_own() -> None:
    class Slow(FakeEngine):
        async def is_paused(self) -> bool:
            await asyncio.sleep(0.1)  # Each call waits for a step of the engine.
            return await super().is_paused()

    async def next_trainer() -> tuple[Slow, VllmPause]:
        engine = Slow(("ready", 4))
        pause = VllmPause(engine)
        await pause.renew(0.02)
        await asyncio.sleep(0.05)  # The expiry has begun.
        await pause.renew(30)
        assert pause.lease.last_expiry == "resumed at version 4" and pause.lease.is_held
        engine.paused = True  # The pause of the next trainer.
        await asyncio.sleep(0.2)
        return engine, pause

    engine, pause = asyncio.run(next_trainer())
    assert engine.paused, "the lease before has ended the pause of the next trainer"
    assert pause.lease.last_expiry == "resumed at version 4"


def test_a_lease_that_is_renewed_at_its_last_moment_does_not_expire() -> None:
    async def renew() -> VllmPause:
        pause = VllmPause(FakeEngine(("ready", 4)))
        await pause.renew(0.03)
        await pause.renew(60)
        await asyncio.sleep(0.1)  # The watch has woken at the end of the first one.
        assert pause.lease.is_held
        await pause.lease.end()
        return pause

    pause = asyncio.run(renew())
    assert pause.lease.last_expiry == "" and not pause.lease.is_held
