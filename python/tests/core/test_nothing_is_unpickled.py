# SPDX-License-Identifier: Apache-2.0
"""Nothing that comes from a peer is unpickled, imported or run: the package has no means to."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

PACKAGE = pathlib.Path(__file__).parents[2] / "sparsecast"
MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "compile"}
#: What imports or runs a module; one whose name is written there is as an import statement.
CALLS_OF_MODULES = {"__import__", "import_module", "run_module", "run_path"}
#: Imports what the user names on the command line of a test (`--start`).
NAMED_BY_USERS = "testing/weight_transfer/backends.py", "calls import_module"
#: Of torch and torch.distributed: what unpickles.
ATTRIBUTES = {"all_gather_object", "broadcast_object_list", "gather_object", "recv_object_list", "scatter_object_list"}


def findings(path: pathlib.Path, root: pathlib.Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        where = f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
            if names & MODULES:
                yield f"{where}: imports {names & MODULES}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield f"{where}: imports from {node.module}"
        if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            yield f"{where}: {node.attr}"
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            is_written = bool(node.args) and isinstance(node.args[0], ast.Constant)
            if (name in CALLS and not (isinstance(owner, ast.Name) and owner.id == "re")) or (
                name in CALLS_OF_MODULES and not is_written
            ):
                yield f"{where}: calls {name}"
            if name == "load" and isinstance(owner, ast.Name) and owner.id in ("torch", "numpy", "np"):
                yield f"{where}: calls {owner.id}.load"


def test_no_module_of_the_package_can_unpickle_or_run_what_it_receives() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 50
    found = [finding for path in files for finding in findings(path, PACKAGE)]
    named = [one for one in found if one.startswith(NAMED_BY_USERS[0]) and one.endswith(NAMED_BY_USERS[1])]
    assert len(named) <= 1 and found == named


def test_the_search_finds_what_it_is_for(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import pickle\nfrom dill import loads\nimport torch\ntorch.load('x')\neval('1')\ndist.all_gather_object([], 1)\n"
        "import_module(name)\nimport_module('json')\n"
    )
    assert len(list(findings(path, tmp_path))) == 6
