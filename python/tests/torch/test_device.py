# SPDX-License-Identifier: Apache-2.0
"""What needs no device to be seen of how the package uses one: the device of its thread, torch's cached memory."""

from __future__ import annotations

import pathlib
import sys
import threading
import types

import pytest
import torch
from torch import nn

from sparsecast import _core
from sparsecast.torch import Log, Publisher, publisher


def test_the_thread_of_a_publisher_begins_on_the_device_of_the_tensors(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(publisher, "cuda_device", lambda tensors: torch.device("cuda", 1))
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: entered.append((threading.current_thread().name, device))
    )
    with Publisher(nn.Linear(4, 4), transport=Log(tmp_path / "log", mirror=tmp_path / "mirror")) as trainer:
        trainer.publish(wait=False).result(60)
        trainer.publish(wait=False).result(60)
    assert entered == [("sparsecast-publish_0", torch.device("cuda", 1))]


def test_memory_that_torch_keeps_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    stub = types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=lambda: calls.append("empty_cache")))
    monkeypatch.setitem(sys.modules, "torch", stub)
    assert _core._release_cached_memory()
    assert calls == ["empty_cache"]


def test_without_torch_there_is_nothing_to_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    assert _core._release_cached_memory()
    assert "torch" not in sys.modules


def test_an_error_of_torch_is_told_and_goes_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no cache today")

    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=types.SimpleNamespace(empty_cache=fail)))
    assert _core._release_cached_memory()
    assert told == ["no cache today"]
