# SPDX-License-Identifier: Apache-2.0
"""Every name that this package imports from an engine, and every call of vLLM's engine client, is in its releases."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from releases import parts_of, releases, version_of

from sparsecast.engines.sglang import installed, plugin

PACKAGE = Path(__file__).parents[2] / "sparsecast"


def imported(root: str, has: Callable[[str, str], bool] = lambda *_: True) -> set[tuple[str, str]]:
    """(module, name) that this package imports from the package `root`. Where it catches an ImportError: what it imports
    then instead, if the package has not all names of the `try`, by `has`.
    """
    return {each for path in PACKAGE.rglob("*.py") for each in _imported([ast.parse(path.read_text())], root, has)}


def _imported(nodes: Iterable[ast.AST], root: str, has: Callable[[str, str], bool]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).split(".")[0] == root:
            yield from ((str(node.module), each.name) for each in node.names)
        caught = [each for each in getattr(node, "handlers", ()) if ast.unparse(each.type or each) == "ImportError"]
        if isinstance(node, ast.Try) and caught and not all(has(*each) for each in _imported(node.body, root, has)):
            yield from _imported(caught[0].body, root, has)
        else:
            yield from _imported(ast.iter_child_nodes(node), root, has)


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
    is_newest = parts_of(version_of(package)) == installed.SUPPORTED[1]  # Does without no name.
    used = imported("sglang") if is_newest else imported("sglang", partial(defines, package.parent))
    assert len(used) >= 30
    if not (package / "srt/plugins").exists():  # Then nothing calls `plugin.register`: `launch_server` installs hooks.
        used = {each for each in used if not each[0].startswith("sglang.srt.plugins.")}
    assert [each for each in sorted(used) if not defines(package.parent, *each)] == []


@pytest.mark.parametrize("package", releases("sglang"))
def test_the_released_sglang_has_every_function_that_is_hooked(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSECAST_REQUEST_VERSIONS", "1")
    monkeypatch.setenv("SPARSECAST_FOLLOW_ADAPTERS", "somewhere")
    monkeypatch.setattr(installed.importlib.util, "find_spec", partial(spec_in, package.parent))
    hooked = [each.target for each in plugin.hooks()]
    assert len(hooked) >= 14
    number = parts_of(version_of(package))
    assert any(".recv_requests" in each or ".ingest_requests" in each for each in hooked) or (0, 5, 13) <= number < (
        0,
        5,
        21,
    )
    assert [target for target in hooked if not has_function(package.parent, target)] == []
    # The checker's own answer is made by its own method, of the answers of its communicator.
    checker = next(target for target in hooked if "Tokenizer" in target and target.endswith(".check_weights"))
    source = source_of(package.parent, checker.rpartition(".")[0].rpartition(".")[0])
    assert "results = await self.check_weights_communicator(obj)" in source


def spec_in(site: Path, module: str) -> SimpleNamespace | None:
    """As importlib.util.find_spec, in the directory `site`, without imports of the packages around the module."""
    place = site.joinpath(*module.split("."))
    found = [each for each in (place.with_suffix(".py"), place / "__init__.py") if each.exists()]
    return SimpleNamespace(origin=str(found[0])) if found else None


def source_of(site: Path, module: str) -> str:
    spec = spec_in(site, module)
    return Path(spec.origin).read_text() if spec is not None else ""


def has_function(site: Path, target: str) -> bool:
    """Whether `site` has a function "module.name" or "module.Class.name"."""
    owner, _, name = target.rpartition(".")
    module, _, last = owner.rpartition(".")
    is_method = last[:1].isupper()
    body: list[ast.stmt] = ast.parse(source_of(site, module if is_method else owner)).body
    if is_method:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == last), [])
    return any(isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name for node in body)


def test_a_name_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one/two.py").write_text("from x import Here\n")
    assert defines(tmp_path, "one.two", "Here") and defines(tmp_path, "one", "two")
    (tmp_path / "one/three.py").write_text("class A:\n    async def b(self): ...\n")
    assert has_function(tmp_path, "one.three.A.b")
    assert not has_function(tmp_path, "one.three.b") and not has_function(tmp_path, "one.four.A.b")
    assert not defines(tmp_path, "one.two", "There") and not defines(tmp_path, "one.four", "Here")
