# SPDX-License-Identifier: Apache-2.0
"""What needs no device to be seen of how the package uses one: torch's cached memory."""

from __future__ import annotations

import sys
import types

import pytest

from sparsecast import _core


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
