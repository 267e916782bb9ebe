# SPDX-License-Identifier: Apache-2.0
"""In place of SGLang's compiled kernels, of which PyPI has those for CUDA only: names exist, and calls raise.

With PyTorch's attention and sampling a Qwen3 on a CPU calls none of them. For tests; no supported build of SGLang.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any, NoReturn

import torch

__version__ = "0.4.10"


class _Missing:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{self._name} is not here: this test has no GPU")

    def __getattr__(self, name: str) -> _Missing:  # Older releases of SGLang list kernels' number formats.
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)


class _Modules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules of this package that older releases of SGLang import from, with the same names in them."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name.startswith("sgl_kernel.") else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = __getattr__  # type: ignore[method-assign]


__path__: list[str] = []
sys.meta_path.append(_Modules())


def _without_pinned_memory() -> None:
    """SGLang's LoRA layers ask for pinned memory on a CPU, too, where torch has none."""

    def unpinned(make_tensor: Any) -> Any:
        def made(*arguments: Any, **options: Any) -> torch.Tensor:
            options.pop("pin_memory", None)
            return make_tensor(*arguments, **options)

        return made

    for name in ("tensor", "zeros", "empty"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]


if os.environ.get("SPARSECAST_TEST_UNPINNED"):
    _without_pinned_memory()
