# SPDX-License-Identifier: Apache-2.0
"""Every route and field that the clients use is in the released servers, read from their own source.

The clients are run against stubs, and what they sent is compared with the servers' route definitions. Nothing of the
servers is imported: they need a GPU's libraries for that.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from conftest import QUICK
from releases import parts_of, releases, version_of
from stub_engines import StubEngine

from sparsecast.control import ControlPlane


@dataclass
class RouteDefinition:
    """One route of a server: methods, and the fields that it takes. `values`: the literals that a field may have."""

    methods: set[str]
    query: set[str] = field(default_factory=set)
    body: set[str] = field(default_factory=set)
    required: set[str] = field(default_factory=set)
    values: dict[str, set[str]] = field(default_factory=dict)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def route_decorators(tree: ast.Module) -> Iterator[tuple[str, set[str], ast.AsyncFunctionDef | ast.FunctionDef]]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef)):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call) or not isinstance(decorator.func, ast.Attribute):
                continue
            verb = decorator.func.attr
            if verb not in ("get", "post", "put", "delete", "api_route") or not decorator.args:
                continue
            if not isinstance(decorator.args[0], ast.Constant):
                continue
            methods = {verb.upper()}
            if verb == "api_route":
                listed = next(each.value for each in decorator.keywords if each.arg == "methods")
                methods = set(ast.literal_eval(listed))
            yield str(decorator.args[0].value), methods, node


def classes_of(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def fields_of(name: str, classes: dict[str, ast.ClassDef], route: RouteDefinition) -> None:
    """Fields of a message class, those that it inherits among them."""
    if name not in classes:
        return
    for base in classes[name].bases:
        if isinstance(base, ast.Name):
            fields_of(base.id, classes, route)
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            route.body.add(node.target.id)
            if node.value is None:
                route.required.add(node.target.id)
            route.values.update(literals(node.target.id, node.annotation))


def literals(name: str, annotation: ast.expr) -> dict[str, set[str]]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            return {name: {str(each.value) for each in ast.walk(node.slice) if isinstance(each, ast.Constant)}}
    return {}


def parameters(function: ast.AsyncFunctionDef | ast.FunctionDef) -> Iterator[tuple[ast.arg, str, bool]]:
    """Each parameter with the source of its annotation and default, and whether it has a default."""
    arguments = function.args.args
    without = len(arguments) - len(function.args.defaults)
    for index, argument in enumerate(arguments):
        default = function.args.defaults[index - without] if index >= without else None
        text = ast.unparse(argument.annotation) if argument.annotation is not None else ""
        yield argument, text + (" = " + ast.unparse(default) if default is not None else ""), default is not None


def vllm_routes(package: Path) -> dict[str, RouteDefinition]:
    root = package / "entrypoints"
    modes: dict[str, set[str]] = {}
    for node in parsed(package / "v1/engine/__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PauseMode":
            modes = literals("mode", node.value)
    assert modes["mode"] >= {"abort", "wait", "keep"}
    routes: dict[str, RouteDefinition] = {}
    for path in (*root.glob("rl/online/api_router.py"), *root.glob("serve/dev/*/api_router.py"),
                 root / "serve/instrumentator/health.py"):  # fmt: skip
        for name, methods, function in route_decorators(parsed(path)):
            route = RouteDefinition(methods)
            for argument, text, has_default in parameters(function):
                if "Body(" in text:
                    route.body.add(argument.arg)
                    if not has_default:
                        route.required.add(argument.arg)
                elif "Query(" in text:
                    route.query.add(argument.arg)
                    if "PauseMode" in text:
                        route.values.update(modes)
            source = ast.unparse(function)
            route.query |= set(re.findall(r"query_params\.get(?:list)?\('(\w+)'", source))
            route.body |= set(re.findall(r"body\.get\('(\w+)'", source))
            routes[name] = route
    return routes


def sglang_routes(package: Path) -> dict[str, RouteDefinition]:
    root = package / "srt"
    messages = classes_of(parsed(root / "managers/io_struct.py"))
    routes: dict[str, RouteDefinition] = {}
    for name, methods, function in route_decorators(parsed(root / "entrypoints/http_server.py")):
        route = RouteDefinition(methods)
        for argument, text, _ in parameters(function):
            if text in messages:
                fields_of(text, messages, route)
            elif "Body(" in text:
                for message in messages:
                    if f"[{message}," in text or f"[Optional[{message}]" in text:
                        fields_of(message, messages, route)
            elif "Query(" in text:
                route.query.add(argument.arg)
        routes[name] = route
    return routes


def check(engine: StubEngine, routes: dict[str, RouteDefinition]) -> set[str]:
    """That all calls which the engine got are what `routes` take; the paths that were called."""
    for method, path, query, body in engine.calls:
        if path.startswith("/sparsecast/"):
            continue  # A route of this package's plug-in.
        assert path in routes, f"the released server has no route {path}"
        route = routes[path]
        assert method in route.methods, f"{path} takes {route.methods}, not {method}"
        assert set(query) <= route.query, f"{path} takes the query {route.query}, not {set(query)}"
        sent = set(body or {})
        assert sent <= route.body, f"{path} has no fields {sent - route.body}"
        assert route.required <= sent, f"{path} needs {route.required - sent}"
        for name, value in {**query, **(body or {})}.items():
            if name in route.values:
                assert value in route.values[name], f"{path}: {name} is one of {route.values[name]}, not {value}"
    return {path for _, path, _, _ in engine.calls}


def use_everything(plane: ControlPlane, engines: list[StubEngine]) -> None:
    for mode in ("abort", "keep", "retract"):
        plane.sync_now(replace(QUICK, pause=mode))
    plane.pause("wait", ["vl"])
    plane.resume()
    alone = "/release_kv_cache_memory" not in engines[1].lacks
    plane.sleep(["kv_cache"], None if alone else ["sg"])
    plane.wake(["kv_cache"])
    plane.sleep()
    plane.wake(["weights"])
    plane.sync_now()
    plane.wake(["kv_cache"])
    engines[0].faults["apply"] = engines[1].faults["apply"] = 500
    with pytest.raises(Exception, match="caught fire"):
        plane.sync_now()
    for engine in engines:
        engine.faults.clear()
        plane.remove("127.0.0.1", engine.port)


# Routes that vLLM has from a version on; `VllmClient` does without them before.
SINCE = {"/shutdown_weight_transfer_engine": (0, 32), "/release_kv_cache_memory": (0, 31)}


@pytest.mark.parametrize("package", releases("vllm"))
def test_the_released_vllm_has_every_route_and_field_that_its_client_uses(
    plane: ControlPlane, engines: list[StubEngine], package: Path
) -> None:
    routes = vllm_routes(package)
    lacking = {path for path, since in SINCE.items() if parts_of(version_of(package)) < since}
    assert not lacking & set(routes) and set(SINCE) - lacking <= set(routes), f"SINCE is wrong: {lacking}"
    engines[1].lacks = lacking
    use_everything(plane, engines)
    engines[1].calls = [call for call in engines[1].calls if call[1] not in lacking]  # Answered with 404.
    called = check(engines[1], routes)
    assert len(called) >= 16 - len(lacking), f"only {sorted(called)} were tried"


@pytest.mark.parametrize("package", releases("sglang"))
def test_the_released_sglang_has_every_route_and_field_that_its_client_uses(
    plane: ControlPlane, engines: list[StubEngine], package: Path
) -> None:
    use_everything(plane, engines)
    routes = sglang_routes(package)
    if parts_of(version_of(package)) < (0, 5, 12):
        # It never empties torch's cache, and its messages are dataclasses, of which the route passes over other fields.
        assert not routes["/continue_generation"].body & {"torch_empty_cache"}
        assert "@dataclass\nclass ContinueGenerationReqInput(" in (package / "srt/managers/io_struct.py").read_text()
        routes["/continue_generation"].body.add("torch_empty_cache")
    called = check(engines[0], routes)
    assert len(called) >= 11, f"only {sorted(called)} were tried"


def test_the_check_finds_a_field_that_a_server_does_not_have(plane: ControlPlane, engines: list[StubEngine]) -> None:
    plane.sync_now()
    routes = {path: RouteDefinition({method}, set(query), set(body or {})) for method, path, query, body in
              engines[0].calls}  # fmt: skip
    check(engines[0], routes)
    routes["/update_weight_version"].body.discard("abort_all_requests")
    with pytest.raises(AssertionError, match="has no fields {'abort_all_requests'}"):
        check(engines[0], routes)
