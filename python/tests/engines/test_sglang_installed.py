# SPDX-License-Identifier: Apache-2.0
"""Releases of SGLang: which are refused, what an older one lacks, and hooks in one that has no plug-ins."""

from __future__ import annotations

import asyncio
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from sparsecast.engines import release
from sparsecast.engines.sglang import installed, plugin
from sparsecast.errors import UnsupportedError


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(release, "_said", set())
    monkeypatch.setattr(installed._log, "warning", lambda words, *values: found.append(words % values))
    return found


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.5.10.post1", []),
        ("0.5.12", []),
        ("0.5.23", []),
        ("0.5.24rc1", ["sparsecast is made for SGLang 0.5.10 to 0.5.23; this is 0.5.24rc1, which may differ"]),
        ("0.0.0.dev1", None),
        ("unknown", ["sparsecast is made for SGLang 0.5.10 to 0.5.23; this is unknown, which may differ"]),
        ("0.5.9", None),
    ],
)
def test_an_older_sglang_is_refused_and_a_newer_one_said_once(
    monkeypatch: pytest.MonkeyPatch, said: list[str], version: str, words: list[str] | None
) -> None:
    monkeypatch.setitem(sys.modules, "sglang", types.SimpleNamespace(__version__=version))
    if words is None:
        with pytest.raises(
            UnsupportedError, match=f"SGLang {version} has another update interface: .* 0.5.10 to 0.5.23"
        ):
            installed.check_version()
    else:
        installed.check_version()
        installed.check_version()
        assert said == words


def source(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str) -> None:
    """A module of a SGLang that cannot be imported, only read."""
    path = folder / f"{module}.py"
    path.write_text(text + "\nraise RuntimeError('imported')\n")
    known = {each.stem: each for each in folder.iterdir()}
    found = {name: types.SimpleNamespace(origin=str(each)) for name, each in known.items()}
    monkeypatch.setattr(installed.importlib.util, "find_spec", found.get)


def test_what_an_older_sglang_lacks_is_said_once_with_what_that_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    source(tmp_path, monkeypatch, "sglang.srt.managers.tp_worker", "class TpModelWorker:\n    def update(self): ...")
    monkeypatch.setitem(sys.modules, "sglang", types.SimpleNamespace(__version__="0.5.12"))
    installed.say_what_is_missing()
    installed.say_what_is_missing()
    assert len(said) == 2
    assert "tokens of versions before" in said[0] and "the draft of a server that follows a log stays behind" in said[1]
    source(tmp_path, monkeypatch, "sglang.srt.managers.tp_worker", "class A:\n    def weight_update_runners(self): ...")
    stamps = "class Manager:\n    def record_weight_version_after_update(self): ..."
    source(tmp_path, monkeypatch, "sglang.srt.managers.scheduler_components.weight_updater", stamps)
    assert installed.missing() == []


def test_hooks_go_where_the_installed_release_has_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(tmp_path, monkeypatch, "sglang.srt.managers.scheduler", "class Scheduler:\n    def is_fully_idle(self): ...")
    older = {hook.target.rpartition("managers.")[2]: hook.function for hook in plugin.hooks()}
    assert older["scheduler_update_weights_mixin.SchedulerUpdateWeightsMixin.check_weights"] is plugin.check_weights
    assert older["scheduler.Scheduler.is_fully_idle"] is plugin.stages.is_idle
    newer = (
        "class Scheduler:\n    def is_fully_idle(self, ignore_waiting=False): ...\n    def ingest_requests(self): ..."
    )
    source(
        tmp_path, monkeypatch, "sglang.srt.managers.scheduler", newer + "\n    def _pp_microbatches_drained(self): ..."
    )
    found = {hook.target.rpartition("managers.")[2]: hook.function for hook in plugin.hooks()}
    assert found["scheduler.Scheduler._pp_microbatches_drained"] is plugin.stages.is_drained
    assert "scheduler.Scheduler.ingest_requests" in found and "scheduler.Scheduler.is_fully_idle" not in found


def test_without_plugins_hooks_are_put_around_functions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mixin:
        def work(self, number: int) -> int:
            return number

    class Scheduler(Mixin):
        async def wait(self, number: int) -> int:
            return number

    module: Any = types.ModuleType("of_sglang")
    module.Scheduler, module.Mixin, module.begin = Scheduler, Mixin, lambda: ["begun"]
    monkeypatch.setitem(sys.modules, "of_sglang", module)

    async def twice(original: Any, scheduler: Any, number: int) -> int:
        return 2 * int(await original(scheduler, number))

    hooks = [
        installed.Hook("of_sglang.Mixin.work", lambda original, scheduler, number: 10 * original(scheduler, number)),
        installed.Hook("of_sglang.Scheduler.wait", twice),
        installed.Hook("of_sglang.begin", lambda result: [*result, "led"], "after"),
        installed.Hook("of_sglang.begin", lambda result: [*result, "followed"], "after"),
    ]
    for _ in range(2):  # As in a child of a process that has them already.
        installed.install(hooks)
    assert Scheduler().work(4) == 40 and asyncio.run(Scheduler().wait(4)) == 8
    assert module.begin() == ["begun", "led", "followed"]
