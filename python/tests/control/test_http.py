# SPDX-License-Identifier: Apache-2.0
"""Calls to one server: deadlines, bounds, redirects, and secrets that stay where they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import endpoint_of
from stub_engines import StubEngine

from sparsecast.control.errors import EndpointError
from sparsecast.control.http import Answer, HttpCaller, engine_error


def call(engine: StubEngine, *, timeout: float = 5.0, token: str = "", **more: Any) -> Answer:
    async def once() -> Answer:
        caller = HttpCaller(endpoint_of(engine, "e", token=token or engine.token))
        try:
            return await caller.call("POST", "/pause_generation", step="pause", timeout=timeout, **more)
        finally:
            await caller.close()

    return asyncio.run(once())


@pytest.fixture
def engine(more_engines: Callable[..., StubEngine]) -> StubEngine:
    return more_engines("sglang")


def error_of(engine: StubEngine, **more: Any) -> EndpointError:
    with pytest.raises(EndpointError) as caught:
        call(engine, json={"mode": "abort"}, **more)
    assert caught.value.endpoint == "e" and caught.value.step == "pause"
    return caught.value


def test_an_answer_is_a_json_object(engine: StubEngine) -> None:
    assert call(engine, json={"mode": "abort"}).json() == {"status": "paused"}


@pytest.mark.parametrize("fault", ["hang", "drip"])
def test_the_deadline_is_for_the_whole_call_however_the_answer_trickles_in(engine: StubEngine, fault: str) -> None:
    engine.faults["pause"] = fault
    started = time.monotonic()
    error = error_of(engine, timeout=0.4)
    assert error.code == "timeout" and "/pause_generation was not answered within 0.4 s" in str(error)
    assert "SyncPolicy" in str(error)  # Where a longer deadline for a busy engine is chosen.
    assert time.monotonic() - started < 10


def test_a_call_without_time_left_is_not_made(engine: StubEngine) -> None:
    assert error_of(engine, timeout=0.0).code == "timeout"
    assert engine.steps == []


def test_a_redirect_is_not_followed_and_no_other_host_sees_the_token(
    engine: StubEngine, more_engines: Callable[..., StubEngine]
) -> None:
    other = more_engines("sglang")
    engine.faults["pause"] = "redirect"
    engine.redirect_to = f"http://127.0.0.1:{other.port}/pause_generation"
    assert "a redirect, which is not followed" in str(error_of(engine, token="hush-hush"))
    assert other.steps == []


def test_the_environments_proxies_are_not_used(engine: StubEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert call(engine, json={"mode": "abort"}).status == 200


def test_an_answer_without_end_is_given_up(engine: StubEngine) -> None:
    engine.faults["pause"] = "huge"
    error = error_of(engine)
    assert error.code == "corrupt" and "longer than" in str(error)


def test_an_answer_that_is_no_json_is_corrupt(engine: StubEngine) -> None:
    engine.faults["pause"] = "garbage"
    with pytest.raises(EndpointError, match="no JSON object.*It works") as caught:
        call(engine, json={"mode": "abort"}).json()
    assert caught.value.code == "corrupt"


def test_a_wrong_token_is_named_and_never_repeated(more_engines: Callable[..., StubEngine]) -> None:
    guarded = more_engines("sglang", token="the-right-one")
    error = error_of(guarded, token="the-wrong-one")
    assert error.code == "unauthenticated" and "its token is not accepted" in str(error)
    assert "the-wrong-one" not in str(error)


def test_secrets_that_a_server_sends_back_in_its_error_are_not_shown(engine: StubEngine) -> None:
    engine.faults["pause"] = 422
    with pytest.raises(EndpointError) as caught:
        call(engine, json={"secret": "abcdef"}, hide=["abcdef"], token="hush-hush")
    assert "abcdef" not in str(caught.value) and "***" in str(caught.value)


def test_a_server_that_is_gone_is_an_io_error(engine: StubEngine) -> None:
    engine.stop()
    assert error_of(engine).code == "io"


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_a_missing_route_says_what_the_server_lacks(more_engines: Callable[..., StubEngine], kind: str) -> None:
    async def once() -> None:
        caller = HttpCaller(endpoint_of(more_engines(kind), "e"))
        await caller.call("POST", "/no_such_route", step="pause", timeout=5)

    with pytest.raises(EndpointError, match="VLLM_SERVER_DEV_MODE" if kind == "vllm" else "SGLang") as caught:
        asyncio.run(once())
    assert caught.value.code == "unsupported"


@pytest.mark.parametrize(
    ("text", "code", "echo"),
    [
        ("live bytes had changed [digest_mismatch]", "digest_mismatch", False),
        ("sg rank 2 failed [peer_failed]", "peer_failed", True),
        ("others did not come [timeout]", "timeout", True),
        ("see [1] and [some_word]", "peer_failed", False),
        ("CUDA error", "peer_failed", False),
        ("x [usage] then [dirty]", "dirty", False),
    ],
)
def test_an_engines_own_code_is_read_from_its_words(text: str, code: str, echo: bool) -> None:
    error = engine_error("e", "apply", text)
    assert (error.code, error.echo) == (code, echo)
