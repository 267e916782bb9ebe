# SPDX-License-Identifier: Apache-2.0
"""In place of SGLang's compiled kernels, of which PyPI has those for CUDA only: names exist, and calls raise.

With PyTorch's attention and sampling a Qwen3 on a CPU calls none of them. For tests; no supported build of SGLang.
"""

from __future__ import annotations

from typing import Any, NoReturn

__version__ = "0.4.10"


class _Missing:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise RuntimeError(f"sgl_kernel.{self._name} is not here: this test has no GPU")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)
