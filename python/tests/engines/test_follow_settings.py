# SPDX-License-Identifier: Apache-2.0
"""The variables by which a server follows a log, and the directory that each server has for itself."""

from __future__ import annotations

import multiprocessing
import os
import pathlib

import pytest

from sparsecast.engines.follow_settings import FollowSettings, When, log_of_worker
from sparsecast.engines.worker_follower import lock_state
from sparsecast.errors import UsageError
from sparsecast.transports import Log


def settings(**variables: str) -> FollowSettings:
    found = FollowSettings.from_environment({f"SPARSECAST_{name}": value for name, value in variables.items()}, "s-80")
    assert found is not None
    return found


def test_without_a_location_nothing_is_followed() -> None:
    assert FollowSettings.from_environment({}, "s") is None
    assert FollowSettings.from_environment({"SPARSECAST_FOLLOW": "", "SPARSECAST_FOLLOW_AT": "told"}, "s") is None


def test_defaults_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    plain = settings(FOLLOW="s3://bucket/run")
    assert (plain.keys, plain.interval, plain.pause, plain.at) == ((), 1.0, "keep", "once")
    assert plain.state.startswith("/home/someone/.cache/sparsecast/follow/s-80-")
    assert settings(FOLLOW="s3://bucket/other").state != plain.state
    set_by_all = settings(
        FOLLOW="/log", FOLLOW_STATE="/s", FOLLOW_KEYS="ed25519:a, ed25519:b", FOLLOW_INTERVAL="0.5", FOLLOW_AT="told"
    )
    assert set_by_all == FollowSettings("/log", "/s", ("ed25519:a", "ed25519:b"), 0.5, "keep", "told")
    log = log_of_worker(set_by_all.for_worker(), 1)
    assert (log.location, log.trusted_keys, log.state) == ("/log", set_by_all.keys, "/s/replica-1")
    of_drafts = settings(FOLLOW="/log", FOLLOW_DRAFT="keep", FOLLOW_DRAFT_PREFIX="eagle/").for_worker()
    assert (of_drafts["draft"], of_drafts["draft_prefix"]) == ("keep", "eagle/")


def test_a_server_is_told_by_init_info(tmp_path: pathlib.Path) -> None:
    assert FollowSettings.from_init_info({"master_address": "x"}, {}, "s") is None
    told = {"follow": "/log", "follow_keys": ["ed25519:a", "ed25519:b"], "follow_interval": 0.5, "follow_at": "told"}
    environment = {"SPARSECAST_FOLLOW_STATE": "/s", "SPARSECAST_FOLLOW_AT": "once"}
    expected = FollowSettings("/log", "/s", ("ed25519:a", "ed25519:b"), 0.5, "keep", "told")
    assert FollowSettings.from_init_info(told, environment, "s") == expected
    for wrong, words in (
        ({"follow": ""}, "no location of a log"),
        ({"follow": "/log", "port": 1}, "port: with 'follow' there can only be follow_state, "),
        ({"follow": "/log", "follow_at": "noon"}, "SPARSECAST_FOLLOW_AT: 'noon'"),
    ):
        with pytest.raises(UsageError, match=words):
            FollowSettings.from_init_info(wrong, environment, "s")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("INTERVAL", "often", "'often' is no number of seconds"),
        ("INTERVAL", "0", "0.0 s is not positive"),
        ("PAUSE", "never", "'never' is none of keep, retract, wait, abort"),
        ("AT", "noon", "'noon' is none of once, told, behind:K, pinned:N"),
        ("AT", "behind", "'behind' is none of"),
        ("AT", "pinned:-1", "'pinned:-1' is none of"),
        ("DRAFT", "leave", "'leave' is none of follow, keep"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(variable: str, value: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"SPARSECAST_FOLLOW_{variable}: {words}"):
        settings(FOLLOW="/log", **{f"FOLLOW_{variable}": value})


@pytest.mark.parametrize("text", ["once", "told", "behind:0", "behind:3", "pinned:12"])
def test_when_versions_are_taken_is_read_and_written(text: str) -> None:
    assert str(When.parse(settings(FOLLOW="/log", FOLLOW_AT=text).at)) == text


def _try_to_lock(state: pathlib.Path) -> None:
    try:
        lock_state(Log("/log", state=state))
    except UsageError as error:
        assert "another server follows a log with it: give each server a SPARSECAST_FOLLOW_STATE" in str(error)
        os._exit(7)


def test_a_state_directory_is_for_one_process(tmp_path: pathlib.Path) -> None:
    lock = lock_state(Log("/log", state=tmp_path / "state"))

    def ended() -> int | None:
        process = multiprocessing.get_context("fork").Process(target=_try_to_lock, args=(tmp_path / "state",))
        process.start()
        process.join()
        return process.exitcode

    assert ended() == 7
    os.close(lock)
    assert ended() == 0
