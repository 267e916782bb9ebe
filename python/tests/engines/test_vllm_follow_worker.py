# SPDX-License-Identifier: Apache-2.0
"""vLLM workers that follow a log, over models of vLLM's own classes, against fresh loads by vLLM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models
from safetensors.torch import save_file

from sparsecast.engines.vllm import follow_worker
from sparsecast.torch import Log, Publisher

KINDS = ["qwen2", "qwen3-moe-fp8", "deepseek-v3-fp8", "nemotron-h"]
SECONDS = 60.0


class Worker:
    """What a worker has of vLLM's own, as far as it matters here."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.tensors = models.checkpoint(kind, seed=1)
        save_file(self.tensors, str(folder / "model.safetensors"))
        self.vllm_config = models.config(kind, folder=folder)
        models.start(self.vllm_config)
        self.device = torch.device("cpu")
        self.model_runner = SimpleNamespace()
        self.model = self.fresh()

    def get_model(self) -> torch.nn.Module:
        return self.model

    def fresh(self) -> torch.nn.Module:
        model = models.build(self.vllm_config)
        models.load(model, self.vllm_config, self.tensors)
        return model

    def follow(self, log: Log, state: Path) -> dict[str, Any]:
        settings = {"location": log.location, "state": str(state), "keys": [], "interval": 0.02}
        return follow_worker.sparsecast_follow(self, settings)

    def apply_until(self, version: int) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while (status := follow_worker.sparsecast_follow_apply(self, [0]))["version"] != version:
            assert time.monotonic() < until and status["state"] != "broken", status
            time.sleep(0.01)
        return status

    def close(self) -> None:
        receiver = vars(self).get("_sparsecast_follower", SimpleNamespace(_receiver=None))._receiver
        if receiver is not None:
            receiver.close(SECONDS)
        models.stop()


@pytest.fixture(params=KINDS)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
    folder = tmp_path / "model"
    folder.mkdir()
    made = Worker(request.param, folder)
    yield made
    made.close()


def test_every_version_of_a_log_is_that_of_a_fresh_load(worker: Worker, tmp_path: Path) -> None:
    sent = {name: tensor.clone() for name, tensor in worker.tensors.items()}
    log = Log(tmp_path / "log", mirror=tmp_path / "mirror.safetensors")
    publisher = Publisher(list(sent.items()), transport=log)
    addresses = [t.data_ptr() for t in (*worker.model.parameters(), *worker.model.buffers())]
    status = worker.follow(log, tmp_path / "state")
    assert status["state"] in ("unproven", "ready"), status
    for seed in range(3):
        worker.tensors = models.random_updates(worker.tensors, seed=seed)
        for name, tensor in sent.items():
            models.bits_of(tensor).copy_(models.bits_of(worker.tensors[name]))
        status = worker.apply_until(publisher.publish().version)
        assert status["is_whole"] and status["reseeded"] == 0
        assert models.differing(worker.model, worker.fresh()) == []
    assert [t.data_ptr() for t in (*worker.model.parameters(), *worker.model.buffers())] == addresses


def refusal(worker: Worker, tmp_path: Path) -> str:
    status = worker.follow(Log(tmp_path / "log"), tmp_path / "state")
    assert status["state"] == "broken" and status["is_whole"]
    assert follow_worker.sparsecast_follow_apply(worker, [0])["error"] == status["error"]
    return str(status["error"])


@pytest.mark.parametrize("worker", ["qwen2"], indirect=True)
def test_what_cannot_follow_is_refused_with_the_cure(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = worker.vllm_config
    monkeypatch.setattr(config.model_config, "enable_sleep_mode", True)
    assert "--enable-sleep-mode" in refusal(worker, tmp_path)
    del worker._sparsecast_follower
    monkeypatch.setattr(config, "weight_transfer_config", object())
    assert "start vLLM without it, or without SPARSECAST_FOLLOW" in refusal(worker, tmp_path)
    del worker._sparsecast_follower
    monkeypatch.undo()
    worker.model.model.embed_tokens.weight.data[0, 0] = 7
    assert "model.embed_tokens.weight" in refusal(worker, tmp_path)
