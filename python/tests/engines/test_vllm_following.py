# SPDX-License-Identifier: Apache-2.0
"""The API process of a vLLM server that follows a log: in which order it calls the engine, and what it does then."""

from __future__ import annotations

import asyncio
import pathlib
import tempfile
from argparse import Namespace
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi")

from fastapi import FastAPI
from fastapi.testclient import TestClient

from sparsecast.engines.follow_metrics import metrics_text
from sparsecast.engines.follow_routes import router
from sparsecast.engines.follow_settings import FollowSettings, When, write_news
from sparsecast.engines.log_following import LogFollowing
from sparsecast.engines.vllm.endpoints import SparsecastEndpoints
from sparsecast.engines.vllm.led_engine import VllmEngine
from sparsecast.errors import UsageError


class Engine:
    """An engine of one worker, and what was called. `others` are workers of other ranks and replicas."""

    def __init__(self, *others: dict[str, Any]) -> None:
        self.calls: list[str] = []
        self.asked = 0
        self._directory = tempfile.TemporaryDirectory()
        self.state = pathlib.Path(self._directory.name)
        self.worker = {"replica": 0, "rank": 0, "state": "ready", "version": 1, "is_whole": True, "error": ""}
        self.others = others
        self.after_apply: dict[str, Any] = {"state": "ready", "version": 2}
        self.paused = False
        self.goal: int | None = None
        """The version beyond which nothing is to be fetched."""

    def becomes(self, **changes: Any) -> None:
        """Changes what worker 0 answers, and has it say that there are news."""
        self.worker |= changes
        replica = self.state / "replica-0"
        replica.mkdir(exist_ok=True)
        write_news(str(replica), str(self.worker))

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[dict[str, Any]]:
        self.asked += 1
        if method in ("sparsecast_follow", "sparsecast_follow_status"):
            self.goal = args[-1]
        elif method == "sparsecast_follow_drop":
            assert args == ([0],)
            self.calls.append("drop")
            self.becomes(state="ready", staged=None)
        else:
            self.calls.append("apply" if args == ([0],) else f"apply {args}")
            self.becomes(**self.after_apply)
        return [dict(self.worker), *map(dict, self.others)]

    async def is_paused(self) -> bool:
        return self.paused

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        self.calls.append(f"pause {mode} {clear_cache}")
        self.paused = True

    async def resume_generation(self) -> None:
        self.calls.append("resume")
        self.paused = False

    async def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        self.calls.append(f"reset {reset_running_requests}")
        return True

    async def update_weight_version(self, version: str) -> None:
        self.calls.append(f"version {version}")


def run(work: Callable[[LogFollowing], Awaitable[None]], engine: Engine, **settings: Any) -> LogFollowing:
    async def scene() -> LogFollowing:
        chosen = FollowSettings("/log", str(engine.state), interval=0.01, **settings)
        following = LogFollowing(VllmEngine(engine, chosen), chosen)
        task = asyncio.create_task(following.run())
        try:
            await asyncio.wait_for(work(following), 20)
        finally:
            task.cancel()
        return following

    return asyncio.run(scene())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("pause", "calls"),
    [
        ("keep", ["pause keep False", "apply", "reset False", "version 2", "resume"]),
        ("retract", ["pause keep False", "apply", "reset True", "version 2", "resume"]),
        ("wait", ["pause wait True", "apply", "reset False", "version 2", "resume"]),
        ("abort", ["pause abort True", "apply", "reset False", "version 2", "resume"]),
    ],
)
def test_a_version_is_written_and_named_within_a_pause(pause: str, calls: list[str]) -> None:
    engine = Engine()

    async def work(following: LogFollowing) -> None:
        await until(lambda: following.status()["served"] == 1)
        assert engine.calls == ["version 1"]
        engine.becomes(state="staged")
        assert await following.reach(2, 10) == 2

    assert run(work, engine, pause=pause).status()["paused"] is False
    assert engine.calls[1:] == calls


def test_a_version_is_taken_by_a_replica_when_all_its_workers_have_staged_it() -> None:
    second = {"replica": 0, "rank": 1, "state": "ready", "version": None, "is_whole": True, "error": ""}
    behind = {"replica": 1, "rank": 0, "state": "ready", "version": 2, "is_whole": True, "error": ""}
    engine = Engine(second, behind)
    engine.becomes(state="staged")

    async def work(following: LogFollowing) -> None:
        await until(lambda: len(following.status()["workers"]) == 3)
        await asyncio.sleep(0.1)
        assert engine.calls == []
        second.update(state="broken", error="no room")
        await until(lambda: following.status()["error"] == "no room")
        second.update(state="staged", error="")
        await following.ask()
        await until(lambda: following.status()["served"] == 2)

    run(work, engine)
    assert engine.calls[:2] == ["pause keep False", "apply"]


def test_a_pause_of_somebody_else_is_left_as_it_is() -> None:
    engine = Engine()
    engine.paused = True
    engine.becomes(state="staged")
    run(lambda following: until(lambda: following.status()["served"] == 2), engine)
    assert engine.calls == ["apply", "reset False", "version 2"]


def test_weights_of_no_version_keep_the_server_paused_until_a_version_repairs_them() -> None:
    engine = Engine()
    engine.becomes(state="staged")
    engine.after_apply = {"state": "dirty", "version": 1, "is_whole": False, "error": "no memory left"}

    async def work(following: LogFollowing) -> None:
        await until(lambda: following.status()["error"] == "no memory left")
        await asyncio.sleep(0.1)
        assert engine.paused and following.status()["paused"] and "resume" not in engine.calls
        await engine.resume_generation()  # By somebody who does not know.
        await until(lambda: engine.paused)
        engine.after_apply = {"state": "ready", "version": 3, "is_whole": True, "error": ""}
        engine.becomes(state="staged")
        await until(lambda: following.status()["served"] == 3)

    status = run(work, engine).status()
    assert engine.calls[-1] == "resume" and not status["paused"] and status["error"] == ""


def test_a_server_that_is_told_takes_nothing_before() -> None:
    engine = Engine()
    engine.becomes(state="staged")

    async def work(following: LogFollowing) -> None:
        await asyncio.sleep(0.1)
        assert engine.calls == ["version 1"]
        assert await following.reach(1, 1) == 1
        assert await following.reach(2, 10) == 2

    run(work, engine, at="told")


def test_a_server_that_may_be_behind_takes_what_is_staged_when_it_would_be_further_behind() -> None:
    engine = Engine()
    engine.becomes(state="staged", staged=2, head=3)
    engine.after_apply = {"state": "staged", "version": 2, "staged": 3}

    async def work(following: LogFollowing) -> None:
        await until(lambda: following.status()["newest"] == 3)
        await asyncio.sleep(0.1)
        assert engine.calls == ["version 1"] and engine.goal is None
        engine.becomes(head=4)
        await until(lambda: following.status()["served"] == 2)
        await asyncio.sleep(0.1)
        status = following.status()
        assert (status["served"], status["staged"], status["newest"]) == (2, 3, 4)
        engine.after_apply = {"state": "ready", "version": 3, "staged": None}
        assert await following.reach(3, 10) == 3

    run(work, engine, at="behind:2")
    assert engine.calls.count("apply") == 2


def test_a_pinned_server_comes_to_its_version_and_drops_what_is_newer() -> None:
    engine = Engine()
    engine.becomes(state="staged", staged=5, head=5)

    async def work(following: LogFollowing) -> None:
        await until(lambda: "drop" in engine.calls)
        assert engine.goal == 2 and "apply" not in engine.calls
        engine.becomes(state="staged", staged=2)
        await until(lambda: following.status()["served"] == 2)
        with pytest.raises(UsageError, match="pinned at version 2: POST /sparsecast/at unpins it"):
            await following.reach(3, 10)
        following.take_at(When.parse("once"))
        engine.after_apply = {"state": "ready", "version": 5, "staged": None}
        engine.becomes(state="staged", staged=5)
        assert await following.reach(5, 10) == 5
        assert engine.goal is None

    run(work, engine, at="pinned:2")


def test_a_version_to_be_staged_waits_to_be_told_and_what_is_below_it_is_taken() -> None:
    engine = Engine()
    engine.becomes(state="staged", staged=2, head=4)
    engine.after_apply = {"state": "staged", "version": 2, "staged": 3}

    async def work(following: LogFollowing) -> None:
        await until(lambda: following.status()["staged"] == 2)
        assert await following.stage(2, 10) == 2
        assert await following.stage(3, 10) == 3
        assert (following.status()["served"], engine.goal) == (2, 3)
        await asyncio.sleep(0.1)
        assert engine.calls.count("apply") == 1
        engine.after_apply = {"state": "ready", "version": 3, "staged": None}
        assert await following.reach(3, 10) == 3
        await following.ask()
        assert await following.stage(1, 10) == 3 and engine.goal is None
        engine.becomes(state="staged", staged=6)
        with pytest.raises(asyncio.TimeoutError):  # By a merged delta it would pass version 4.
            await following.stage(4, 0.3)
        assert "drop" in engine.calls and engine.goal == 4
        engine.becomes(state="broken", error="the log is of another run")
        with pytest.raises(UsageError, match="stays at version 3"):
            await following.stage(4, 10)

    run(work, engine, at="told")


def test_what_has_ended_is_said_to_those_who_wait() -> None:
    engine = Engine()
    engine.becomes(state="broken", error="the log is of another run")

    async def work(following: LogFollowing) -> None:
        await until(lambda: bool(following.status()["workers"]))
        with pytest.raises(UsageError, match="stays at version 1: the log is of another run"):
            await following.reach(2, 10)

    run(work, engine)


def test_workers_are_asked_when_they_have_news_and_when_somebody_wants_to_know() -> None:
    engine = Engine()
    engine.becomes(head=1)

    async def work(following: LogFollowing) -> None:
        await until(lambda: following.status()["served"] == 1)
        await asyncio.sleep(0.3)
        assert engine.asked == 1
        engine.worker["head"] = 2  # Which is no news to the server.
        assert (await following.ask())["workers"][0]["head"] == 2
        await asyncio.sleep(0.3)
        assert engine.asked == 2
        engine.becomes(version=3)
        await until(lambda: following.status()["served"] == 3)
        await asyncio.sleep(0.3)
        assert engine.asked == 3

    run(work, engine)


def test_workers_whose_news_are_not_seen_here_are_asked_all_the_time() -> None:
    elsewhere = {"replica": 1, "rank": 0, "state": "ready", "version": 1, "is_whole": True, "error": ""}
    engine = Engine(elsewhere)
    engine.becomes(head=1)

    async def work(following: LogFollowing) -> None:
        await until(lambda: engine.asked > 5)
        elsewhere["version"] = 2
        engine.worker["version"] = 2
        await until(lambda: following.status()["served"] == 2)

    run(work, engine)


def test_a_server_is_told_to_follow_a_log_by_the_init_info_of_a_weight_transfer(tmp_path: pathlib.Path) -> None:
    class Client(Engine):
        async def init_weight_transfer_engine(self, request: Any) -> None:
            self.calls.append(f"join {request.init_info['port']}")

    async def work() -> None:
        client, state = Client(), SimpleNamespace()
        await SparsecastEndpoints().init_state(client, state, Namespace(host=None, port=1))  # type: ignore[arg-type]

        async def told(**info: Any) -> None:
            await client.init_weight_transfer_engine(SimpleNamespace(init_info=info))

        await told(port=7)
        assert client.calls == ["join 7"] and not hasattr(state, "sparsecast_following")
        with pytest.raises(UsageError, match="port: with 'follow'"):
            await told(follow="/log", port=7)
        client.becomes(state="broken", error="the log is of another run")
        with pytest.raises(UsageError, match="the log is of another run"):
            await told(follow="/log", follow_state=str(client.state))
        assert not hasattr(state, "sparsecast_following")
        client.becomes(state="ready", error="")
        await told(follow="/log", follow_state=str(client.state), follow_at="told")
        following = state.sparsecast_following
        assert following.status()["at"] == "told" and following.status()["workers"]
        await told(follow="/log")
        with pytest.raises(UsageError, match="the server follows /log until it ends"):
            await told(follow="/other")
        client.becomes(state="staged", staged=2)
        assert await following.reach(2, 10) == 2

    asyncio.run(asyncio.wait_for(work(), 60))


def test_several_api_processes_are_refused_with_the_cure() -> None:
    with pytest.raises(UsageError, match="--api-server-count 1"):
        VllmEngine(Engine(), FollowSettings("/log", "/state"), 2)


def test_the_routes_answer_with_the_reason() -> None:
    app = FastAPI()
    app.include_router(router())
    with TestClient(app) as client:  # One event loop for all requests.
        assert client.get("/sparsecast/follow").status_code == 404
        settings = FollowSettings("/log", "/state")
        app.state.sparsecast_following = LogFollowing(VllmEngine(Engine(), settings), settings)
        assert client.get("/sparsecast/follow").json()["location"] == "/log"
        assert client.get("/sparsecast/ready").status_code == 503
        assert "sparsecast_follow_paused 0.0" in client.get("/sparsecast/metrics").text
        late = client.post("/sparsecast/version", json={"at_least": 1, "timeout": 0.05})
        assert late.status_code == 504 and "version 1 has not come within 0.05 s" in late.json()["detail"]
        assert client.post("/sparsecast/version", json={"at_least": -1}).status_code == 422
        refused = client.post("/sparsecast/stage", json={"version": 1})
        assert refused.status_code == 409 and "SPARSECAST_FOLLOW_AT be told" in refused.json()["detail"]
        assert "none of once, told" in client.post("/sparsecast/at", json={"at": "noon"}).json()["detail"]
        assert client.post("/sparsecast/at", json={"at": "told"}).json()["at"] == "told"
        late = client.post("/sparsecast/stage", json={"version": 1, "timeout": 0.05})
        assert late.status_code == 504 and "version 1 is not staged within 0.05 s" in late.json()["detail"]


def test_a_server_is_ready_when_it_serves_a_version_and_with_a_bound_when_it_is_near_the_newest() -> None:
    engine = Engine()
    engine.becomes(version=None)

    async def work(following: LogFollowing) -> None:
        assert await following.why_not_ready(None) == "no version is served yet"
        engine.becomes(version=3, lag=None)
        await until(lambda: following.status()["served"] == 3)
        assert await following.why_not_ready(None) == ""
        assert await following.why_not_ready(5) == "the newest version is not known yet"
        engine.becomes(lag=2)
        assert await following.why_not_ready(2) == ""
        assert await following.why_not_ready(1) == "version 3 is 2 versions behind"
        engine.becomes(state="broken", error="the log was rolled back")
        assert await following.why_not_ready(5) == "the log was rolled back"
        assert await following.why_not_ready(None) == ""  # It goes on with what it has.
        engine.becomes(state="dirty", is_whole=False, error="half-written")
        assert await following.why_not_ready(None) == "half-written"

    run(work, engine)


def test_metrics_are_those_of_the_status() -> None:
    worker = {"replica": 1, "rank": 0, "state": "staged", "version": 4, "head": 6, "lag": 2, "lag_seconds": 1.5}
    worker |= {"head_age": None, "pause_seconds": 0.25, "bytes_read": 10, "reseeded": 0, "is_whole": True, "error": ""}
    other = {"replica": 1, "rank": 1, "state": "ready", "version": None, "is_whole": True, "error": ""}
    status = {"served": 4, "paused": False, "pause_seconds": 0.5, "workers": [worker, other]}
    lines = metrics_text(status).decode().splitlines()
    for line in (
        "sparsecast_follow_served_version 4.0",
        'sparsecast_follow_lag_versions{replica="1"} 2.0',
        'sparsecast_follow_lag_seconds{replica="1"} 1.5',
        'sparsecast_follow_bytes_read_total{replica="1"} 10.0',
        'sparsecast_follow_state{rank="0",replica="1",state="staged"} 1.0',
        'sparsecast_follow_state{rank="1",replica="1",state="staged"} 0.0',
    ):
        assert line in lines, lines
    assert not any("head_age" in line for line in lines if not line.startswith("#"))
