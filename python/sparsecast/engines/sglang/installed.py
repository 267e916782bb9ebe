# SPDX-License-Identifier: Apache-2.0
"""The installed SGLang: whether it is a release that sparsecast is made for, what it lacks, where the hooks of the
plug-in go, and how they get there in a release without plug-ins. Nothing here needs SGLang before it is called.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparsecast.engines.release import refuse_other_engine, say_lacks

SUPPORTED = ((0, 5, 10), (0, 5, 23))
"""First and last version of SGLang that this is made for; docs/engines-sglang.md says what was run with each."""

Kind = Literal["around", "after"]
_log = logging.getLogger("sparsecast")


class Hook(NamedTuple):
    """A function of the plug-in that is called in the place of a function of SGLang, or after it."""

    target: str
    """Dotted name of SGLang's function."""
    function: Callable[..., Any]
    kind: Kind = "around"


def check_version() -> None:
    """Logs a warning, once in a process, if the installed version of SGLang is newer than those that sparsecast is made
    for. Raises UnsupportedError for an older version.
    """
    from sglang import __version__

    refuse_other_engine("SGLang", __version__, SUPPORTED, "has another update interface", _log)


def missing() -> list[str]:
    """Returns a sentence for each thing that the installed SGLang lacks, and that sparsecast has to do without."""
    lacks = []
    if not defines("sglang.srt.managers.scheduler_components.weight_updater", "record_weight_version_after_update"):
        lacks.append(
            "its scheduler does not stamp versions: weight_version of an answer is the one that the server had when the "
            "request ended, also for tokens of versions before"
        )
    if not defines("sglang.srt.managers.tp_worker", "weight_update_runners"):
        lacks.append(
            "its draft workers do not name their models: the draft of a server that follows a log stays behind"
        )
    return lacks


def say_what_is_missing() -> None:
    """Logs what the installed SGLang lacks (`missing`), once in a process."""
    from sglang import __version__

    say_lacks("SGLang", __version__, missing(), _log)


def defines(module: str, name: str) -> bool:
    """Returns whether a module of SGLang exists and defines a function or class, itself or in a class, whose name (with
    what follows it) matches the pattern `name`. Reads the source: an import would come before other plug-ins have
    replaced the classes that the module imports.
    """
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            return (
                re.search(rf"^ *(async )?(def|class) {name}\b", Path(spec.origin).read_text("utf-8"), re.M) is not None
            )
    return False


def existing(*methods: str) -> str:
    """Returns the first of these methods (module.Class.method) that the installed SGLang has, whose place differs between
    releases; the last if it has none.
    """
    for method in methods[:-1]:
        owner, _, name = method.rpartition(".")
        if defines(owner.rpartition(".")[0], name):
            return method
    return methods[-1]


def install(hooks: list[Hook]) -> None:
    """Puts hooks around functions of a SGLang without plug-ins, as HookRegistry does in newer ones. A function that has
    its hook already is left alone.
    """
    for target, hook, kind in hooks:
        owner_name, _, name = target.rpartition(".")
        owner = pkgutil.resolve_name(owner_name)
        original = getattr(owner, name)
        if hook not in getattr(original, "_sparsecast_hooks", ()):
            wrapped = _hooked(original, hook, kind)
            wrapped._sparsecast_hooks = (hook, *getattr(original, "_sparsecast_hooks", ()))  # type: ignore[attr-defined]
            setattr(owner, name, wrapped)


def _hooked(original: Callable[..., Any], hook: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*arguments: Any, **options: Any) -> Any:
        first = original if kind == "around" else original(*arguments, **options)
        return hook(first, *arguments, **options)

    return call
