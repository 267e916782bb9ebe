# SPDX-License-Identifier: Apache-2.0
"""Every name that this package imports from an engine, and every call of vLLM's engine client, is in its releases."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from releases import releases

PACKAGE = Path(__file__).parents[2] / "sparsecast"


def imported(root: str) -> set[tuple[str, str]]:
    """(module, name) that this package imports from the package `root`."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).split(".")[0] == root:
                found |= {(str(node.module), each.name) for each in node.names}
    return found


def defines(site: Path, module: str, name: str) -> bool:
    """Whether a module of the directory `site` has `name`: a module, or what its source defines, imports or exports."""
    place = site.joinpath(*module.split("."))
    if (place / name).is_dir() or (place / f"{name}.py").exists():
        return True
    source = next((each for each in (place.with_suffix(".py"), place / "__init__.py") if each.exists()), None)
    return source is not None and name in set(names(ast.parse(source.read_text())))


def names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (each.asname or each.name for each in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value  # vllm/__init__.py imports what it is asked for, by a table of names.


@pytest.mark.parametrize("package", releases("vllm"))
def test_the_released_vllm_has_every_name_that_is_imported_from_it(package: Path) -> None:
    used = imported("vllm")
    assert len(used) >= 30
    assert [each for each in sorted(used) if not defines(package.parent, *each)] == []


@pytest.mark.parametrize("package", releases("vllm"))
def test_the_released_engine_client_has_every_method_that_is_called(package: Path) -> None:
    called = set()
    for name in ("endpoints.py", "led_engine.py"):
        for node in ast.walk(ast.parse((PACKAGE / "engines/vllm" / name).read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self._engine", "self._client"):
                called.add(node.attr)
    assert len(called) >= 6
    tree = ast.parse((package / "engine/protocol.py").read_text())
    client = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "EngineClient")
    assert called <= {each.name for each in client.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    # One of these functions lets sparsecast.engines.vllm.workers ask the workers of all replicas.
    core = (package / "v1/engine/core_client.py").read_text()
    assert "def call_utility_all_async(" in core or "def _call_utility_async(" in core and "self.core_engines" in core


@pytest.mark.parametrize("package", releases("sglang"))
def test_the_released_sglang_has_every_name_that_is_imported_from_it(package: Path) -> None:
    used = imported("sglang")
    assert len(used) >= 30
    assert [each for each in sorted(used) if not defines(package.parent, *each)] == []


def test_a_name_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/two.py").write_text("from x import Here\n")
    assert defines(tmp_path, "one.two", "Here") and defines(tmp_path, "one", "two")
    assert not defines(tmp_path, "one.two", "There") and not defines(tmp_path, "one.three", "Here")
