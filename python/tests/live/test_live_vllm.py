# SPDX-License-Identifier: Apache-2.0
"""A control plane and live vLLM servers under load. Every version is compared with vLLM's own loading of it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM for CPUs is not installed here", allow_module_level=True)

import httpx
import torch
import transformers
from conftest import Start, by_hand
from live_load import PROMPTS, Load, probe, reload
from live_servers import LiveServer, free_port, overlay, with_release
from live_trainer import POLICY, Trainer, endpoint
from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory

import sparsecast
from sparsecast.control import SyncError
from sparsecast.engines.vllm.plugin import register
from sparsecast.engines.vllm.trainer import SparsecastTrainerInitInfo
from sparsecast.errors import Error
from sparsecast.torch import Publisher
from sparsecast.transports import Log

IN_FLIGHT = 16
SECRET = "a secret in the environment of the first server"
register()


class Scene:
    """Servers and the trainer that the tests of this file share, in their order."""

    def __init__(self, start: Start, model: Path, work: Path) -> None:
        self.start = start
        self.work = work
        self.checkpoints = 0
        self.release = work / "installed" / "release"
        installed = with_release(work / "installed", sparsecast.__version__)
        variables = {"SPARSECAST_REQUEST_VERSIONS": "1", "SPARSECAST_SECRET": SECRET}
        self.first = start(model, packages=(installed,), variables=variables)
        self.stock = start(model, plugged=False)  # No part of sparsecast: it loads checkpoints as vLLM does.
        self.second: LiveServer | None = None
        self.trainer = Trainer(model)
        self.first.wait()
        self.stock.wait()
        self.trainer.add(self.first)

    def expected(self) -> str:
        """The logprobs of the trainer's weights, saved as a checkpoint and loaded by the stock server itself."""
        self.checkpoints += 1
        directory = self.trainer.save(self.work / f"checkpoint-{self.checkpoints}")
        reload(self.stock, directory)
        return probe(self.stock)


@pytest.fixture(scope="module")
def scene(start: Start, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(start, model, tmp_path_factory.mktemp("scene"))
    yield made
    made.trainer.close()


def test_the_first_sync_verifies_what_the_server_was_started_from(scene: Scene) -> None:
    report = scene.trainer.plane.sync_now()
    assert report.result == "ok" and report.regrouped and report.source["changed"] == 0
    assert probe(scene.first) == probe(scene.stock)


@pytest.mark.parametrize("pause", ["keep", "retract", "wait", "abort"])
def test_every_version_is_what_vllm_itself_would_have_loaded_and_no_request_fails(scene: Scene, pause: str) -> None:
    load = Load([scene.first], IN_FLIGHT)
    before = probe(scene.first)
    with load.running():
        report = scene.trainer.sync(replace(POLICY, pause=pause))
    assert report.result == "ok" and 0 < report.source["changed"] < report.source["elements"] // 2
    assert report.endpoints[0].lease is True and not report.endpoints[0].left_paused
    assert set(report.endpoints[0].calls) == {"pause", "apply", "finish", "flush", "resume"}
    assert not load.failures and load.requests >= IN_FLIGHT
    # vLLM ends the stream of a request that it aborts before the first token without a reason.
    assert set(load.reasons) <= ({"length", "abort", "none"} if pause == "abort" else {"length"})
    assert scene.first.version() == str(report.version)
    now = probe(scene.first)
    assert now != before and now == scene.expected()


def test_a_request_names_the_version_it_needs_and_a_response_the_version_it_has(scene: Scene) -> None:
    version = scene.trainer.publisher.version
    body = {"model": "m", "prompt": PROMPTS[0], "max_tokens": 4}

    def complete(**more: str) -> httpx.Response:
        headers = {f"x-weight-version{name}": value for name, value in more.items()}
        return httpx.post(f"{scene.first.url}/v1/completions", json=body, headers=headers, timeout=180)

    answer = complete()
    assert answer.headers["x-weight-version-start"] == answer.headers["x-weight-version-end"] == str(version)
    assert complete(**{"": str(version)}).status_code == 200
    assert complete(**{"": str(version - 1)}).status_code == 409
    assert complete(**{"-at-least": str(version + 1)}).json()["error"]["weight_version"] == version


def test_a_server_freshly_started_on_the_checkpoint_agrees_and_joins_as_the_second(scene: Scene) -> None:
    expected = scene.expected()
    scene.second = scene.start(scene.work / f"checkpoint-{scene.checkpoints}").wait()
    assert probe(scene.second) == expected == probe(scene.first)
    scene.trainer.add(scene.second, start_version=scene.trainer.publisher.version)
    load = Load([scene.first, scene.second], 4)
    with load.running():
        for pause in ("wait", "keep"):
            assert scene.trainer.sync(replace(POLICY, pause=pause)).result == "ok"
    assert not load.failures
    assert probe(scene.first) == probe(scene.second) == scene.expected()


def test_a_server_that_was_killed_is_missing_and_one_started_in_its_place_is_seeded(scene: Scene, model: Path) -> None:
    assert scene.second is not None
    scene.second.kill()
    with pytest.raises(SyncError, match=f"endpoint vllm-{scene.second.port}: health"):
        scene.trainer.sync()
    assert scene.trainer.sync(replace(POLICY, allow_missing=True)).result == "partial"
    assert probe(scene.first) == scene.expected()
    scene.second = scene.start(model, port=scene.second.port).wait()
    assert scene.trainer.sync().result == "ok"
    assert probe(scene.first) == probe(scene.second) == scene.expected()
    scene.trainer.plane.remove("127.0.0.1", scene.second.port)


def kill_a_trainer(scene: Scene, model: Path, server: LiveServer, step: str, lease: float) -> None:
    """Starts a trainer that seeds `server` from `model`, and dies at `step` of its second sync."""
    program = [sys.executable, str(Path(__file__).with_name("live_trainer.py"))]
    step, _, after = step.partition(" after ")
    arguments = [str(model), str(server.port), step, "keep", str(lease)]
    environment = {**os.environ, "LIVE_DIE_AFTER": after.removesuffix(" ms") or "0"}
    ended = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=240, env=environment)
    assert ended.returncode == -9, f"{ended.returncode}: {ended.stdout}{ended.stderr}"
    assert step == "unmet" or "joined at version" in ended.stdout, ended.stderr


# The last is in the middle of an apply, which takes a few milliseconds here.
@pytest.mark.parametrize("step", ["staged", "pause", "apply after 6 ms"])
def test_after_the_death_of_a_trainer_a_server_answers_with_a_whole_version_and_takes_the_next_trainer(
    scene: Scene, model: Path, step: str
) -> None:
    server = scene.second
    assert server is not None
    kill_a_trainer(scene, model, server, step, lease=3.0)
    answer = server.complete(PROMPTS[0])  # Without a lease it would hang in a paused server.
    states = server.states()
    assert len({(state["state"], state["version"]) for state in states}) == 1
    assert states[0]["state"] in (("staged", "broken") if step == "staged" else ("ready", "broken"))
    if states[0]["state"] == "ready":
        assert states[0]["version"] == 2 and server.version() == "2"
    else:
        assert states[0]["version"] == 1 and states[0]["in_doubt"] == 0 and server.version() in ("default", "1")
        assert answer == complete_of(model, scene)
    fresh = Trainer(model)
    try:
        fresh.add(server, needs_anchor=step != "staged")
        assert fresh.sync(POLICY).result == "ok"
        assert answer != server.complete(PROMPTS[0])
    finally:
        fresh.close()


def test_after_the_death_of_a_trainer_that_joins_a_server_goes_on_with_what_it_has(scene: Scene, model: Path) -> None:
    server = scene.second
    assert server is not None
    before = server.complete(PROMPTS[0])
    kill_a_trainer(scene, model, server, "unmet", lease=3.0)
    assert server.complete(PROMPTS[0]) == before  # It would wait for the next trainer.
    assert {state["is_whole"] for state in server.states()} == {True}
    fresh = Trainer(model)
    try:
        fresh.add(server, needs_anchor=True)
        assert fresh.sync(POLICY).result == "ok"
    finally:
        fresh.close()


def complete_of(model: Path, scene: Scene) -> object:
    """What the stock server answers with the weights that the killed trainer began with."""
    reload(scene.stock, model)
    return scene.stock.complete(PROMPTS[0])


def test_a_server_without_the_plug_in_is_refused_with_the_cure(scene: Scene) -> None:
    trainer = Trainer(scene.first.model)
    try:
        trainer.add(scene.stock)
        with pytest.raises(SyncError, match="--weight-transfer-config"):
            trainer.plane.sync_now()
    finally:
        trainer.close()


def test_a_model_of_other_names_is_refused_at_once_with_the_names(scene: Scene, tmp_path: Path) -> None:
    from live_model import make_model

    trainer = Trainer(make_model(tmp_path / "deeper", layers=5))
    begin = time.monotonic()
    try:
        trainer.add(scene.first, needs_anchor=True)
        with pytest.raises(SyncError, match=r"model\.layers\.4\."):
            trainer.plane.sync_now(replace(POLICY, join_timeout=1800))  # Longer than a test may take.
    finally:
        trainer.close()
    assert time.monotonic() - begin < 600
    assert scene.first.complete(PROMPTS[0])


def test_only_releases_that_differ_in_the_patch_number_work_together(scene: Scene) -> None:
    server, trainer = scene.first, Trainer(scene.first.model)
    major, minor, patch = sparsecast.__version__.split(".")[:3]
    other = f"{major}.{int(minor) + 1}.{patch}"
    try:
        trainer.add(server, needs_anchor=True)
        scene.release.write_text(other)
        with pytest.raises(SyncError) as refused:
            trainer.plane.sync_now()
        words = f"the trainer has sparsecast {sparsecast.__version__}, and this server {other}"
        assert words in str(refused.value) and f"install sparsecast=={major}.{minor}.*" in str(refused.value)
        assert refused.value.failures[0].code == "unsupported"
        assert server.complete(PROMPTS[0])
        scene.release.write_text(f"{major}.{minor}.{int(patch) + 7}")
        assert trainer.plane.sync_now().result == "ok"
    finally:
        scene.release.write_text(sparsecast.__version__)
        trainer.close()


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (SECRET, "does not know its secret: give every rank the same"),
        ("", "no secret: neither in the init info nor in"),
    ],
    ids=["another", "none"],
)
def test_a_secret_that_only_the_trainer_has_is_named_there(scene: Scene, there: str, words: str) -> None:
    server = scene.first if there else scene.second
    assert server is not None
    # Shared with the server's environment, not sent.
    info = SparsecastTrainerInitInfo(rank=0, secret="another secret than the server's", send_secret=False, timeout=240)
    source = ModuleSource(torch_model(server.model).to(torch.bfloat16))
    begin = time.monotonic()
    with pytest.raises(Error, match=words):
        WeightTransferTrainerFactory.trainer_init(info, client=HTTPVLLMWeightSyncClient(server.url), source=source)
    assert time.monotonic() - begin < 120  # Not at the deadline.
    assert server.complete(PROMPTS[0])


def test_two_tensor_parallel_ranks_hold_what_vllm_would_have_loaded_on_two(scene: Scene, model: Path) -> None:
    server = scene.start(model, ranks=2).wait()
    trainer = Trainer(model)
    try:
        trainer.add(server)
        trainer.plane.sync_now()
        load = Load([server], 4)
        with load.running():
            assert trainer.sync(replace(POLICY, pause="retract")).result == "ok"
        assert not load.failures
        now = probe(server)
        checkpoint = trainer.save(scene.work / "two ranks")
        reload(server, checkpoint)
        assert probe(server) == now
        with pytest.raises(SyncError, match="registered with world_size 1.* server says 2"):
            trainer.plane.remove("127.0.0.1", server.port)
            trainer.plane.add(replace(endpoint(server.port), world_size=1))
            trainer.plane.sync_now()
    finally:
        trainer.close()
        server.kill()


def test_the_newest_release_over_the_same_kernels(scene: Scene, model: Path, tmp_path: Path) -> None:
    package = os.environ.get("SPARSECAST_VLLM_PACKAGE", "")
    if not package:
        pytest.skip("SPARSECAST_VLLM_PACKAGE names no site-packages with a newer vLLM")
    newest = overlay(tmp_path / "overlay", Path(package))
    server = scene.start(model, packages=(newest,)).wait()
    trainer = Trainer(model)
    try:
        assert server.post("/collective_rpc", {"method": "sparsecast_status"})["results"]
        assert httpx.get(f"{server.url}/version", timeout=30).json()["version"].startswith("0.33.")
        # The program of docs/tutorials/live-server.md.
        program = Path(__file__).parents[3] / "examples" / "live_server" / "train.py"
        command = [sys.executable, str(program), str(model), server.url, "--steps", "2", "--port", str(free_port())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0 and "the server verified version 3, digest" in done.stdout, done.stderr
        trainer.add(server, needs_anchor=True)
        trainer.plane.sync_now()
        load = Load([server], 4)
        with load.running():
            report = trainer.sync(replace(POLICY, pause="retract"))
        assert report.endpoints[0].lease is True and not load.failures
        now = probe(server)
        reload(server, trainer.save(scene.work / "newest"))
        assert probe(server) == now
    finally:
        trainer.close()
        server.kill()


def torch_model(directory: Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


@by_hand
def test_a_stock_server_follows_a_delta_log_by_reloading_the_checkpoint(
    scene: Scene, model: Path, tmp_path: Path
) -> None:
    command = os.environ.get("SPARSECAST_CLI") or shutil.which("sparsecast")
    if command is None:
        pytest.skip("the command is not built")
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    shutil.copytree(model, checkpoint)
    trainer = torch_model(model)
    with Publisher(
        trainer, transport=Log(str(log), mirror=str(tmp_path / "mirror.safetensors")), wire_dtype=torch.bfloat16
    ) as publisher:
        publisher.publish()
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}}
        arguments = ["log", "follow", str(log), str(checkpoint), "--interval", "100ms"]
        arguments += ["--notify-url", f"{scene.stock.url}/collective_rpc", "--notify-json", json.dumps(body)]
        follower = subprocess.Popen([command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            with torch.no_grad():
                for parameter in trainer.parameters():
                    parameter.view(-1)[::50] *= 1.25
            before = probe(scene.stock)
            publisher.publish()
            until = time.monotonic() + 60
            while (now := probe(scene.stock)) == before and time.monotonic() < until:
                time.sleep(0.2)
            scene.stock.post("/reset_prefix_cache")
        finally:
            follower.kill()
    state = {name: tensor.to(torch.bfloat16) for name, tensor in trainer.state_dict().items()}
    trainer.save_pretrained(tmp_path / "saved", state_dict=state)
    (tmp_path / "saved" / "config.json").write_text((model / "config.json").read_text())
    now = probe(scene.stock)
    reload(scene.stock, tmp_path / "saved")
    assert now != before and probe(scene.stock) == now
