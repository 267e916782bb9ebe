# SPDX-License-Identifier: Apache-2.0
"""Makes the released verl importable on a machine without GPUs, and without what none of the code that runs here calls.

What verl's modules import and these tests never reach are empty modules: datasets and pandas (training data), aiohttp, cupy
(device memory of verl's own engines), and, where they are not installed, SGLang and vLLM themselves.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import types
from typing import Any

VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23", "cupy": "13", "datasets": "3", "pandas": "2", "aiohttp": "3"}


def _empty_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Attributes(name, (), {})


class _Attributes(type):
    def __getattr__(cls, name: str) -> Any:
        return _empty_class(name)


class _Empty(types.ModuleType):
    """Has every attribute: a class that has every attribute, and so on."""

    def __getattr__(self, name: str) -> Any:
        return _empty_class(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, roots: set[str]) -> None:
        self._roots = roots

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._roots:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Empty(spec.name)
        module.__version__ = VERSIONS[spec.name.partition(".")[0]]  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def prepare() -> None:
    """Call it before the first import of verl."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    missing = {name for name in VERSIONS if importlib.util.find_spec(name) is None}
    if not missing:
        return
    sys.meta_path.append(_Finder(missing))
    installed = importlib.metadata.version

    def version(name: str) -> str:
        return VERSIONS[name] if name in missing else installed(name)

    importlib.metadata.version = version
