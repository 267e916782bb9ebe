# SPDX-License-Identifier: Apache-2.0
"""SGLang schedulers with drafts of SGLang's own classes that follow a log, against fresh loads by SGLang."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("sglang") is None:  # Only the ranks' processes import it.
    pytest.skip("needs sglang", allow_module_level=True)
import sglang_drafts as drafts
import sglang_engine
from sglang_ranks import Engine

from sparsecast.torch import Log, Publisher

PREFIX = "eagle/"


class Scene:
    """Schedulers that were started from a target and a draft, and a trainer of both, which publishes to logs.
    `tensors` has all tensors by their names in the log; those of a draft with files of its own have the prefix.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], head: dict[str, Any], own: dict[str, tuple[int, ...]], ranks: int
    ) -> None:
        self.folder, self.config, self.head, self.ranks = folder, config, head, ranks
        self.tensors = {**sglang_engine.canonical_tensors(config, seed=7), **drafts.tensors_of(own, 8)}
        self.has_files = any(name.startswith(PREFIX) for name in own)
        self.of_draft = set(own)
        self.logs = 0
        self.save("v0")
        self.engine = Engine(folder / "v0", ranks)
        self.engine.call("drafts", "open_draft", self.draft_folder("v0"))

    def draft_folder(self, name: str) -> Path:
        return self.folder / name / "head" if self.has_files else self.folder / name

    def save(self, name: str) -> None:
        """What the trainer would save."""
        target = {n: tensor for n, tensor in self.tensors.items() if not n.startswith(PREFIX)}
        sglang_engine.write_checkpoint(self.folder / name, self.config, target)
        if self.has_files:
            own = {n.removeprefix(PREFIX): tensor for n, tensor in self.tensors.items() if n.startswith(PREFIX)}
            sglang_engine.write_checkpoint(self.folder / name / "head", self.head, own)

    def follow(self, sent: Callable[[str], bool] = lambda name: True, **variables: str) -> tuple[Any, list[str]]:
        """Begins to follow a new log with the tensors that are sent, from the weights of now."""
        self.logs += 1
        log = self.folder / f"log {self.logs}"
        weights = {name: tensor for name, tensor in self.tensors.items() if sent(name)}
        self.sent = {name: tensor.clone() for name, tensor in weights.items()}
        mirror = self.folder / f"mirror {self.logs}.safetensors"
        positions = "packed" if self.ranks > 1 else "auto"
        self.publisher = Publisher(list(self.sent.items()), transport=Log(log, mirror=mirror), positions=positions)
        common = {"FOLLOW": str(log), "FOLLOW_STATE": f"{log} state", "FOLLOW_INTERVAL": "0.02"}
        prefix = {"FOLLOW_DRAFT_PREFIX": PREFIX} if self.has_files else {}
        status, said = self.engine.call("drafts", "follow", {**common, **prefix, **variables})[0]
        return status, said

    def version_comes(self, difference: int = 1) -> None:
        """The next version of what is sent has been written."""
        for tensor in self.sent.values():
            if not tensor.is_floating_point():
                continue
            bits = tensor.view(torch.int16).flatten()
            bits[:: max(1, bits.numel() // 5)] += difference
        self.tensors |= {name: tensor.clone() for name, tensor in self.sent.items()}
        version = self.publisher.publish().version
        status = self.engine.call("following", "apply")[0]
        assert status["version"] == version and status["is_whole"] and status["reseeded"] == 0, status

    def differences(self, target: str, draft: str) -> list[str]:
        wrong = self.engine.call("differences", self.folder / target)
        wrong += self.engine.call("drafts", "differences", self.draft_folder(draft))
        return [name for names in wrong for name in names]

    def end(self) -> None:
        self.engine.call("following", "end")
        self.publisher.close()

    def close(self) -> None:
        self.engine.close()


HEADS = {
    "eagle": (drafts.EAGLE, drafts.eagle_shapes(), 2),
    "eagle-3": (drafts.EAGLE3, drafts.eagle3_shapes(), 1),
}


@pytest.fixture(params=["mtp", *HEADS], scope="module")
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("sglang")
    if request.param == "mtp":
        made = Scene(folder, drafts.MIMO, {}, drafts.mtp_shapes(), ranks=1)
    else:
        head, shapes, ranks = HEADS[request.param]
        own = {PREFIX + name: shape for name, shape in shapes.items()}
        made = Scene(folder, drafts.LLAMA, head, own, ranks)
    yield made
    made.close()


# The tests run in this order, on one engine, whose weights are those of the files until a version has been written.


def test_a_wrong_prefix_is_refused_with_the_cure(scene: Scene) -> None:
    if scene.has_files:
        status, said = scene.follow(FOLLOW_DRAFT_PREFIX="")
        assert status["state"] == "unproven" and "SPARSECAST_FOLLOW_DRAFT_PREFIX does not say" in said[0]
    else:
        status, _ = scene.follow(FOLLOW_DRAFT_PREFIX=PREFIX)
        assert status["state"] == "broken" and "'eagle/' is for the names of a draft model" in status["error"]
    scene.end()


def is_kept(scene: Scene, words: str, status: Any, said: list[str]) -> None:
    """A version reaches the target alone, and the next one brings its first weights back."""
    assert status["state"] in ("unproven", "ready")
    assert [words in warning for warning in said] == [True] * bool(words)
    scene.version_comes()
    scene.save("target")
    assert scene.differences("target", "v0") == []
    scene.version_comes(-1)
    assert scene.differences("v0", "v0") == []
    scene.end()


def test_a_draft_whose_tensors_the_log_lacks_stays_as_it_is_and_is_named(scene: Scene) -> None:
    status, said = scene.follow(lambda name: name not in scene.of_draft)
    is_kept(scene, f"{scene.draft_folder('v0')} is not updated by sparsecast: the trainer's table has no", status, said)


def test_a_draft_that_is_to_be_kept_stays_as_it_is_although_the_log_has_it(scene: Scene) -> None:
    is_kept(scene, "", *scene.follow(FOLLOW_DRAFT="keep"))


def test_every_version_of_target_and_draft_is_that_of_a_fresh_load(scene: Scene) -> None:
    addresses = scene.engine.call("drafts", "addresses")
    status, said = scene.follow()
    assert status["state"] in ("unproven", "ready") and said == []
    for name in ("v1", "v2"):
        scene.version_comes()
        scene.save(name)
        assert scene.differences(name, name) == []
    assert scene.engine.call("drafts", "differences", scene.draft_folder("v1"))[0] != []  # Both versions reached it.
    assert scene.engine.call("drafts", "addresses") == addresses
    scene.end()
