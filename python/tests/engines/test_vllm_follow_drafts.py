# SPDX-License-Identifier: Apache-2.0
"""vLLM workers with drafts of vLLM's own classes that follow a log, against fresh loads by vLLM."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models
from test_vllm_follow_worker import SECONDS, Worker

# isort: split
import vllm_drafts as drafts
from safetensors.torch import save_file
from vllm.config import VllmConfig

from sparsecast.engines.vllm import follow_worker
from sparsecast.torch import Log, Publisher

PREFIX = "eagle/"
Tensors = dict[str, torch.Tensor]


class DraftWorker(Worker):
    """A worker with a draft, and a trainer that publishes `sent` to a log. `tensors` has all tensors of both models by
    their names in the log, where those of a draft with files of its own have the prefix."""

    def __init__(self, config: VllmConfig, tensors: Tensors, folder: Path) -> None:
        self.folder, self.tensors, self.vllm_config = folder, tensors, config
        files: dict[Path, Tensors] = {folder: {}, folder / "head": {}}
        for name, tensor in tensors.items():
            where = folder / "head" if name.startswith(PREFIX) else folder
            files[where][name.removeprefix(PREFIX)] = tensor
        for where, contents in files.items():
            if contents:
                save_file(contents, str(where / "model.safetensors"))
        self.head = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
        models.start(config)
        self.device = torch.device("cpu")
        self.pair = self.fresh_pair()
        self.model = self.pair.target
        self.model_runner = SimpleNamespace(get_draft_model=lambda: self.pair.draft)

    def fresh_pair(self) -> drafts.Pair:
        pair = drafts.build(self.vllm_config, self.head or None)
        own = {name.removeprefix(PREFIX): t for name, t in self.tensors.items() if name.startswith(PREFIX)}
        pair.load({n: t for n, t in self.tensors.items() if not n.startswith(PREFIX)}, own or self.tensors)
        return pair

    def log_of(self, sent: Callable[[str], bool] = lambda name: True) -> Log:
        """A new log, with the tensors that are sent."""
        log = Log(self.folder.parent / "log", mirror=self.folder.parent / "mirror.safetensors")
        self.sent = {name: tensor.clone() for name, tensor in self.tensors.items() if sent(name)}
        self.publisher = Publisher(list(self.sent.items()), transport=log)
        return log

    def follow_draft(self, **settings: Any) -> dict[str, Any]:
        log, state = str(self.folder.parent / "log"), str(self.folder.parent / "state")
        common = {"location": log, "state": state, "keys": [], "interval": 0.02}
        return follow_worker.sparsecast_follow(self, {**common, **settings})

    def version_comes(self, seed: int) -> None:
        """The next version of what is sent has been written."""
        self.tensors |= models.random_updates({name: self.tensors[name] for name in self.sent}, seed=seed)
        for name, tensor in self.sent.items():
            models.bits_of(tensor).copy_(models.bits_of(self.tensors[name]))
        status = self.apply_until(self.publisher.publish().version)
        assert status["is_whole"] and status["reseeded"] == 0, status

    def close(self) -> None:
        super().close()
        if "publisher" in vars(self):
            self.publisher.close()


def mimo_of(folder: Path) -> DraftWorker:
    """MiMo with its MTP layer in the files of the target."""
    config = drafts.config("mimo", folder, "mtp")
    return DraftWorker(
        config, drafts.tensors_of({**models.checkpoint_shapes("mimo"), **drafts.mtp_shapes()}, 1), folder
    )


def eagle_of(folder: Path) -> DraftWorker:
    """Llama with an EAGLE head in files of its own."""
    head = drafts.write_config(folder / "head", drafts.EAGLE_CONFIG)
    own = {PREFIX + name: shape for name, shape in drafts.eagle_shapes(embeddings=True).items()}
    tensors = drafts.tensors_of({**models.checkpoint_shapes("llama"), **own}, 1)
    return DraftWorker(drafts.config("llama", folder, "eagle", head), tensors, folder)


@pytest.fixture(params=[mimo_of, eagle_of], ids=["mtp", "eagle"])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DraftWorker]:
    made = request.param(tmp_path / "model")
    yield made
    made.close()


only_mtp = pytest.mark.parametrize("worker", [mimo_of], indirect=True, ids=["mtp"])
only_eagle = pytest.mark.parametrize("worker", [eagle_of], indirect=True, ids=["eagle"])


@pytest.fixture
def said() -> Iterator[list[str]]:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("vllm.sparsecast")
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


def is_draft(name: str) -> bool:
    return name.startswith(PREFIX) or "mtp_layers" in name


def of_draft_alone(worker: DraftWorker, before: drafts.Pair) -> list[str]:
    """Tensors of the draft that were others in `before`, without those that it shares with the target."""
    shared = {tensor.data_ptr() for tensor in worker.pair.target.parameters()}
    own = {f"draft.{n}" for n, tensor in worker.pair.draft.named_parameters() if tensor.data_ptr() not in shared}
    return sorted(own & set(worker.pair.differing(before)))


def prefix_of(worker: DraftWorker) -> dict[str, str]:
    return {"draft_prefix": PREFIX} if worker.head else {}


def test_target_and_draft_are_those_of_a_fresh_load_after_every_version(worker: DraftWorker, said: list[str]) -> None:
    worker.log_of()
    addresses = worker.pair.addresses()
    assert worker.follow_draft(**prefix_of(worker))["state"] in ("unproven", "ready")
    before = worker.fresh_pair()
    for seed in range(2):
        worker.version_comes(seed)
        assert worker.pair.differing(worker.fresh_pair()) == []
    assert of_draft_alone(worker, before)
    assert worker.pair.addresses() == addresses
    assert not any("is not updated" in words for words in said)


def test_a_draft_whose_tensors_the_log_lacks_stays_as_it_is_and_is_named(worker: DraftWorker, said: list[str]) -> None:
    worker.log_of(lambda name: not is_draft(name))
    assert worker.follow_draft(**prefix_of(worker))["state"] in ("unproven", "ready")
    before = worker.fresh_pair()
    worker.version_comes(0)
    assert worker.pair.differing(worker.fresh_pair()) == []
    assert of_draft_alone(worker, before) == []
    path = worker.vllm_config.speculative_config.draft_model_config.model
    kept = [words for words in said if "is not updated" in words]
    assert len(kept) == 1 and path in kept[0] and "the trainer's table has no tensors of it" in kept[0]


@only_eagle
def test_a_draft_that_is_to_be_kept_stays_as_it_is_although_the_log_has_it(worker: DraftWorker) -> None:
    worker.log_of()
    worker.follow_draft(draft_prefix=PREFIX, draft="keep")
    before = worker.fresh_pair()
    worker.version_comes(0)
    wrong = worker.pair.differing(worker.fresh_pair())
    assert wrong and all(name.startswith("draft.") for name in wrong)
    assert of_draft_alone(worker, before) == []


@only_eagle
def test_a_log_with_a_draft_that_the_server_was_not_told_of_is_refused_by_name(
    worker: DraftWorker, said: list[str]
) -> None:
    worker.log_of()
    worker.follow_draft()
    assert "SPARSECAST_FOLLOW_DRAFT_PREFIX" in said[0]
    worker.publisher.publish()
    status = wait_until_broken(worker)
    assert status["is_whole"] and PREFIX in status["error"]


def wait_until_broken(worker: DraftWorker) -> dict[str, Any]:
    until = time.monotonic() + SECONDS
    while (status := follow_worker.sparsecast_follow_apply(worker, [0]))["state"] != "broken":
        assert time.monotonic() < until, status
        time.sleep(0.01)
    return status


@only_mtp
def test_a_prefix_that_no_draft_has_is_refused_with_the_cure(worker: DraftWorker) -> None:
    status = worker.follow_draft(draft_prefix=PREFIX)
    assert status["state"] == "broken" and status["is_whole"]
    assert "SPARSECAST_FOLLOW_DRAFT_PREFIX: 'eagle/'" in status["error"] and "without this variable" in status["error"]


@only_mtp
def test_a_server_that_does_not_guess_follows_a_log_without_the_head_of_its_checkpoint(worker: DraftWorker) -> None:
    worker.vllm_config.speculative_config = None
    worker.model_runner = SimpleNamespace()
    worker.log_of(lambda name: not is_draft(name))
    assert worker.follow_draft()["state"] in ("unproven", "ready")
    worker.version_comes(0)
    target = {name: tensor for name, tensor in worker.tensors.items() if not is_draft(name)}
    fresh = models.build(worker.vllm_config)
    models.load(fresh, worker.vllm_config, target)
    assert models.differing(worker.model, fresh) == []
