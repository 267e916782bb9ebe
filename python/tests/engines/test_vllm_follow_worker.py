# SPDX-License-Identifier: Apache-2.0
"""vLLM workers that follow a log, over models of vLLM's own classes, against fresh loads by vLLM."""

from __future__ import annotations

import shutil
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
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.v1.worker.worker_base import WorkerBase

from sparsecast.engines import worker_follower
from sparsecast.engines.trace.slots import slots
from sparsecast.engines.vllm import SparsecastWeightTransferEngine, follow_worker
from sparsecast.errors import DeadlineError, DirtyError, UsageError
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
        self.derived: list[str] = []

    def get_model(self) -> torch.nn.Module:
        return self.model

    def fresh(self) -> torch.nn.Module:
        model = models.build(self.vllm_config)
        models.load(model, self.vllm_config, self.tensors)
        return model

    def sleep(self, level: int = 1) -> None:
        """As vLLM's worker on a device: after a sleep of level 2 nothing is left of parameters, nor of what vLLM has
        computed from them; buffers come back.
        """
        assert self._sparsecast_follower.status()["state"] == "asleep"
        if level == 2:
            for slot in slots(self.model):
                if slot.name in self.derived or isinstance(slot.tensor, torch.nn.Parameter):
                    models.bits_of(slot.data).fill_(0x2A)

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.woken = tags

    def differences(self) -> list[str]:
        """Names of parameters, buffers and computed tensors that are not those of a fresh load."""
        fresh = self.fresh()
        made = {slot.name: slot.data for slot in slots(fresh)}
        computed = [slot for slot in slots(self.model) if slot.name in self.derived]
        wrong = [s.name for s in computed if not torch.equal(models.bits_of(s.data), models.bits_of(made[s.name]))]
        return models.differing(self.model, fresh) + wrong

    def follow(self, log: Log, state: Path) -> dict[str, Any]:
        settings = {"location": log.location, "state": str(state), "keys": [], "interval": 0.02}
        status = follow_worker.sparsecast_follow(self, settings)
        self.derived = status.get("derived", [])
        return status

    def apply_until(self, version: int) -> dict[str, Any]:
        until = time.monotonic() + SECONDS
        while (status := follow_worker.sparsecast_follow_apply(self, [0]))["version"] != version:
            assert time.monotonic() < until and status["state"] != "broken", status
            time.sleep(0.01)
        return status

    def close(self) -> None:
        if (follower := vars(self).get("_sparsecast_follower")) is not None:
            follower.sleep(loses_weights=False)
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


def publish(worker: Worker, sent: dict[str, torch.Tensor], publisher: Publisher, seed: int) -> int:
    worker.tensors = models.random_updates(worker.tensors, seed=seed)
    for name, tensor in sent.items():
        models.bits_of(tensor).copy_(models.bits_of(worker.tensors[name]))
    return publisher.publish().version


def test_a_server_that_slept_comes_to_the_newest_version(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = {name: tensor.clone() for name, tensor in worker.tensors.items()}
    log = Log(tmp_path / "log", mirror=tmp_path / "mirror.safetensors")
    publisher = Publisher(list(sent.items()), transport=log)
    worker.follow(log, tmp_path / "state")
    worker.apply_until(publish(worker, sent, publisher, 0))

    worker.sleep(level=1)  # The weights come back as they were: nothing has to be fetched but the next version.
    version = publish(worker, sent, publisher, 1)
    follow_worker.sparsecast_follow_apply(worker, [0])
    follow_worker.sparsecast_follow_drop(worker, [0])
    worker.wake_up(tags=["kv_cache"])
    assert follow_worker.sparsecast_follow_status(worker)["state"] == "asleep"
    worker.wake_up(tags=["weights"])
    assert worker.woken == ["weights"]
    status = worker.apply_until(version)
    assert status["reseeded"] == 0 and worker.differences() == []

    worker.sleep(level=2)  # Nothing is left of the weights. The log is out of reach for a time, too.
    version = publish(worker, sent, publisher, 2)
    (tmp_path / "log").rename(tmp_path / "away")
    monkeypatch.setattr(worker_follower, "_WAKE_SECONDS", 0.3)
    with pytest.raises(DeadlineError, match="lost while it slept"):
        worker.wake_up()
    assert not follow_worker.sparsecast_follow_status(worker)["is_whole"]
    (tmp_path / "away").rename(tmp_path / "log")
    monkeypatch.undo()
    worker.wake_up()
    status = follow_worker.sparsecast_follow_status(worker)
    assert status["is_whole"] and status["version"] >= version - 1, status  # Not the anchor, which is older.
    worker.apply_until(version)
    assert worker.differences() == []
    before = worker.tensors
    worker.apply_until(publish(worker, sent, publisher, 3))
    assert worker.differences() == []

    follow_worker.sparsecast_follow_status(worker, version)  # Pinned at the version before.
    worker.sleep(level=2)
    worker.wake_up()
    worker.tensors = before
    assert worker.apply_until(version)["is_whole"] and worker.differences() == []


@pytest.mark.parametrize("worker", ["qwen2"], indirect=True)
def test_weights_that_a_sleep_lost_are_not_served_without_a_log_that_can_be_followed(
    worker: Worker, tmp_path: Path
) -> None:
    sent = {name: tensor.clone() for name, tensor in worker.tensors.items()}
    log = Log(tmp_path / "log", mirror=tmp_path / "mirror.safetensors")
    publisher = Publisher(list(sent.items()), transport=log)
    worker.follow(log, tmp_path / "state")
    worker.apply_until(publish(worker, sent, publisher, 0))
    worker.sleep(level=2)
    shutil.rmtree(tmp_path / "log")
    other = Log(tmp_path / "log", mirror=tmp_path / "other.safetensors")
    Publisher([(name, tensor.clone()) for name, tensor in sent.items()], transport=other)
    with pytest.raises(DirtyError, match="does not give them back"):
        worker.wake_up()
    status = follow_worker.sparsecast_follow_status(worker)
    assert status["state"] in ("broken", "dirty") and not status["is_whole"]


@pytest.mark.parametrize("worker", ["qwen2"], indirect=True)
def test_a_worker_takes_its_weights_from_a_log_or_from_a_trainer(worker: Worker, tmp_path: Path) -> None:
    sent = {name: tensor.clone() for name, tensor in worker.tensors.items()}
    log = Log(tmp_path / "log", mirror=tmp_path / "mirror.safetensors")
    Publisher(list(sent.items()), transport=log)
    config = WeightTransferConfig(backend="sparsecast")
    worker.vllm_config.weight_transfer_config = config
    engine = SparsecastWeightTransferEngine(config, worker.vllm_config, worker.device, worker.model)
    worker.weight_transfer_engine = engine
    assert hasattr(WorkerBase, "sparsecast_follow")
    with pytest.raises(UsageError, match="start vLLM with VLLM_PLUGINS=sparsecast"):
        engine.parse_init_info({"follow": log.location})
    engine.receiver = object()  # type: ignore[assignment]
    assert "from a log or from a trainer" in worker.follow(log, tmp_path / "state")["error"]
    engine.receiver = None
    assert worker.follow(log, tmp_path / "state")["state"] in ("unproven", "ready")
    with pytest.raises(UsageError, match=f"this one follows {log.location} until it ends"):
        engine.init_transfer_engine(SimpleNamespace())  # type: ignore[arg-type]


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
    monkeypatch.setattr(config, "weight_transfer_config", object())
    assert "start vLLM without it, or without SPARSECAST_FOLLOW" in refusal(worker, tmp_path)
    del worker._sparsecast_follower
    monkeypatch.undo()
    worker.model.model.embed_tokens.weight.data[0, 0] = 7
    assert "model.embed_tokens.weight" in refusal(worker, tmp_path)


@pytest.mark.parametrize("kind", ["llama", "llama-fp8"])
def test_the_base_of_a_server_with_adapters_follows(kind: str, tmp_path: Path) -> None:
    import vllm_adapters

    served = Worker.__new__(Worker)
    served.tensors = models.checkpoint(kind, seed=1)
    (tmp_path / "model").mkdir()
    save_file(served.tensors, str(tmp_path / "model" / "model.safetensors"))
    served.vllm_config = vllm_adapters.with_adapters(models.config(kind, folder=tmp_path / "model"))
    models.start(served.vllm_config)
    try:
        served.device, served.model_runner = torch.device("cpu"), SimpleNamespace()
        served.model = vllm_adapters.Server(served.vllm_config).model
        log = Log(tmp_path / "log", mirror=tmp_path / "mirror.safetensors")
        sent = {name: tensor.clone() for name, tensor in served.tensors.items()}
        publisher = Publisher(list(sent.items()), transport=log)
        assert served.follow(log, tmp_path / "state")["state"] in ("unproven", "ready")
        served.tensors = models.random_updates(served.tensors, seed=0)
        for name, tensor in sent.items():
            models.bits_of(tensor).copy_(models.bits_of(served.tensors[name]))
        served.apply_until(publisher.publish().version)
        live = {name.replace(".base_layer.", "."): t for name, t in served.model.named_parameters()}
        fresh = dict(served.fresh().named_parameters())
        assert live.keys() == fresh.keys()
        assert [n for n in fresh if not torch.equal(models.bits_of(live[n].data), models.bits_of(fresh[n].data))] == []
    finally:
        served.close()
