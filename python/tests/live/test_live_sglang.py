# SPDX-License-Identifier: Apache-2.0
"""A control plane and a live SGLang server under load; SGLang's own load of a checkpoint is the judge."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("SGLang is not installed here", allow_module_level=True)

from conftest import Start
from live_load import PROMPTS, probe
from live_servers import LiveServer
from live_trainer import POLICY, Trainer

IN_FLIGHT = 4


@pytest.fixture(scope="module")
def server(start: Start, model: Path) -> LiveServer:
    return start(model, kind="sglang", variables={"SPARSECAST_REQUEST_VERSIONS": "1"}).wait()


@pytest.fixture(scope="module")
def trainer(server: LiveServer, model: Path) -> Iterator[Trainer]:
    made = Trainer(model)
    made.add(server)
    made.plane.sync_now()
    yield made
    made.close()


@contextmanager
def requests_in_flight(server: LiveServer) -> Iterator[list[str]]:
    """Generates all the time inside the block; gives the failures."""
    failures: list[str] = []
    enough = threading.Event()

    def generate(number: int) -> None:
        while not enough.is_set():
            try:
                server.complete(PROMPTS[number % len(PROMPTS)], 64, 120)
            except Exception as error:
                failures.append(str(error)[:300])

    threads = [threading.Thread(target=generate, args=(n,), daemon=True) for n in range(IN_FLIGHT)]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        enough.set()
        for thread in threads:
            thread.join(180)
        assert not any(thread.is_alive() for thread in threads), "requests hang"


@pytest.mark.parametrize("pause", ["retract", "keep"])
def test_a_version_is_stamped_and_no_request_fails(server: LiveServer, trainer: Trainer, pause: str) -> None:
    before = probe(server)
    with requests_in_flight(server) as failures:
        report = trainer.sync(replace(POLICY, pause=pause))
    assert report.result == "ok" and report.endpoints[0].lease is True and not failures
    assert server.version() == str(report.version)
    assert probe(server) != before


def test_a_request_names_the_version_it_needs(server: LiveServer, trainer: Trainer) -> None:
    body = {"input_ids": PROMPTS[0], "sampling_params": {"max_new_tokens": 4}}
    version = trainer.publisher.version

    def generate(needed: int) -> httpx.Response:
        headers = {"x-weight-version-at-least": str(needed)}
        return httpx.post(f"{server.url}/generate", json=body, headers=headers, timeout=180)

    assert generate(version).headers["x-weight-version-end"] == str(version)
    assert generate(version + 1).status_code == 409


def test_the_weights_are_those_that_sglang_itself_would_load(
    server: LiveServer, trainer: Trainer, tmp_path: Path
) -> None:
    server.post("/flush_cache")
    now = probe(server)
    body = {"model_path": str(trainer.save(tmp_path / "checkpoint")), "load_format": None}
    assert server.post("/update_weights_from_disk", body, 120)["success"]
    server.post("/flush_cache")
    assert probe(server) == now


def test_after_the_death_of_a_trainer_in_its_pause_the_server_answers_and_takes_the_next(
    server: LiveServer, trainer: Trainer, model: Path
) -> None:
    trainer.plane.remove("127.0.0.1", server.port)
    program = [sys.executable, str(Path(__file__).with_name("live_trainer.py"))]
    arguments = [str(model), str(server.port), "pause", "keep", "3.0", "sglang"]
    ended = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=240)
    assert ended.returncode == -9 and "joined at version" in ended.stdout, ended.stderr
    answer = server.complete(PROMPTS[0])  # Without a lease it would hang in a paused server.
    fresh = Trainer(model)
    try:
        fresh.add(server, needs_anchor=True)
        fresh.plane.sync_now()
        server.post("/flush_cache")
        assert server.complete(PROMPTS[0]) == answer  # The version before: what both trainers began with.
        assert fresh.sync().result == "ok"
    finally:
        fresh.close()
