# SPDX-License-Identifier: Apache-2.0
"""A text corpus on every machine with Python: the documentation strings of the standard library."""

from __future__ import annotations

import ast
import pathlib
import sysconfig
import warnings
from collections.abc import Iterator

#: Every n-th module is left out of pretraining, and its text is used for fine-tuning.
HELD_OUT_EVERY = 4


def _docstrings(path: pathlib.Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Old escapes in string literals are no concern of ours.
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text


def standard_library_text(*, held_out: bool) -> bytes:
    """Returns the documentation strings of the held-out modules of the standard library, or, if not ``held_out``, of
    the modules for pretraining, in order of the modules' paths.

    The text is equal on all machines with the same Python version.
    """
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}
    modules = sorted(path for path in root.rglob("*.py") if not skipped.intersection(path.relative_to(root).parts))
    chosen = (path for i, path in enumerate(modules) if (i % HELD_OUT_EVERY == 0) == held_out)
    return "\n\n".join(text for path in chosen for text in _docstrings(path)).encode()
