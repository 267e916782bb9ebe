# SPDX-License-Identifier: Apache-2.0
"""A control plane and a live SGLang server under load; SGLang's own load of a checkpoint is the judge."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time
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
from live_model import make_model
from live_servers import LiveServer, sglang_source, with_release
from live_trainer import POLICY, Trainer

import sparsecast
from sparsecast.control import SyncError

IN_FLIGHT = 4


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_release(tmp_path_factory.mktemp("installed"), sparsecast.__version__)


@pytest.fixture(scope="module")
def server(start: Start, model: Path, installed: Path) -> LiveServer:
    variables = {"SPARSECAST_REQUEST_VERSIONS": "1"}
    return start(model, kind="sglang", packages=(installed,), variables=variables).wait()


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


def refusal(server: LiveServer, model: Path, *, needs_anchor: bool = True) -> str:
    """What `sync_now` says to a trainer that the server refuses; the server goes on."""
    trainer = Trainer(model)
    begin = time.monotonic()
    try:
        trainer.add(server, needs_anchor=needs_anchor)
        with pytest.raises(SyncError) as refused:
            trainer.plane.sync_now(replace(POLICY, join_timeout=1800))  # Longer than a test may take.
    finally:
        trainer.close()
    assert time.monotonic() - begin < 600
    assert server.complete(PROMPTS[0])
    return str(refused.value)


def test_only_releases_that_differ_in_the_patch_number_work_together(
    server: LiveServer, model: Path, installed: Path
) -> None:
    major, minor, patch = sparsecast.__version__.split(".")[:3]
    release = installed / "release"
    release.write_text(f"{major}.{int(minor) + 1}.{patch}")
    said = refusal(server, model)
    assert f"the trainer has sparsecast {sparsecast.__version__}, and this server {release.read_text()}" in said
    assert f"install sparsecast=={major}.{minor}.*" in said
    release.write_text(f"{major}.{minor}.{int(patch) + 7}")
    fresh = Trainer(model)
    try:
        fresh.add(server, needs_anchor=True)
        assert fresh.plane.sync_now().result == "ok"
    finally:
        fresh.close()


def test_a_model_of_other_names_is_refused_at_once_with_the_names(server: LiveServer, tmp_path: Path) -> None:
    assert "model.layers.4." in refusal(server, make_model(tmp_path / "deeper", layers=5), needs_anchor=False)


def kill_a_trainer(model: Path, server: LiveServer, step: str) -> None:
    program = [sys.executable, str(Path(__file__).with_name("live_trainer.py"))]
    arguments = [str(model), str(server.port), step, "keep", "3.0", "sglang"]
    ended = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=240)
    assert ended.returncode == -9 and "dying" in ended.stdout, ended.stderr


def test_after_the_death_of_a_trainer_in_its_pause_the_server_answers_and_takes_the_next(
    server: LiveServer, trainer: Trainer, model: Path
) -> None:
    trainer.plane.remove("127.0.0.1", server.port)
    kill_a_trainer(model, server, "pause")
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


def test_after_the_death_of_a_trainer_that_joins_the_server_goes_on_with_what_it_has(
    server: LiveServer, model: Path
) -> None:
    before = server.complete(PROMPTS[0])
    kill_a_trainer(model, server, "leave")
    server.post("/flush_cache")
    assert server.complete(PROMPTS[0]) == before  # It would wait for the next trainer.


def answers(server: LiveServer, replicas: int) -> list[str]:
    """What each replica answers to the same prompts."""
    found = []
    for replica in range(replicas):
        server.post("/flush_cache")
        found.append(json.dumps([server.complete(prompt, routed_dp_rank=replica) for prompt in PROMPTS]))
    return found


@pytest.mark.skipif(
    "torch.cuda.current_stream()" in sglang_source("managers/scheduler_pp_mixin.py"),
    reason="the loop for stages of this SGLang asks for a CUDA stream",
)
def test_every_rank_of_replicas_and_stages_holds_what_sglang_itself_would_load(
    start: Start, model: Path, tmp_path: Path
) -> None:
    server = start(model, "--dp-size", "2", "--pp-size", "2", kind="sglang", ranks=4).wait()
    trainer = Trainer(model)
    try:
        trainer.add(server)
        assert trainer.plane.sync_now().source["changed"] == 0
        before = answers(server, 2)
        with requests_in_flight(server) as failures:
            report = trainer.sync(replace(POLICY, pause="keep"))
        assert report.result == "ok" and not failures
        assert server.version() == str(report.version)
        now = answers(server, 2)
        assert before[0] == before[1] != now[0] == now[1]
        body = {"model_path": str(trainer.save(tmp_path / "checkpoint")), "load_format": None}
        assert server.post("/update_weights_from_disk", body, 120)["success"]
        assert answers(server, 2) == now
    finally:
        trainer.close()
        server.kill()
