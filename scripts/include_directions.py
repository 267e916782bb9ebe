#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Checks that dependencies point one way: who includes whom in C++ and CUDA, who imports whom in Python.

    scripts/include_directions.py [--graph]

Holds the #include lines of src/, include/, cuda/ and tools/ and the imports of python/sparsecast against the tables in
scripts/include_directions.txt, which explains its own form; then looks for circles between folders, between files, and
between the modules of python/sparsecast. Prints each offending line with its file and number; the exit status is 1 if
there is any. --graph prints which folder or package includes or imports which, and how often, instead.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
ROOTS = ("src", "include", "cuda", "tools")
SEARCHED = ("src", "include", "cuda", "")  # Where the compiler looks for what stands in quotes.
PUBLIC = "include/sparsecast/"
ENDINGS = {".c", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
PYTHON_PACKAGE = "python/sparsecast"
CORE = "the modules of python/sparsecast itself"  # Every package may import these, and they import no package.
INCLUDE = re.compile(r'\s*#\s*include\s*"([^"]+)"')


@dataclass
class Table:
    """The contents of include_directions.txt."""

    layer_of: dict[str, int] = field(default_factory=dict)  # Folder -> number of its layer, low to high.
    owner_of: dict[str, str] = field(default_factory=dict)  # Public header -> the folder to which it belongs.
    imports: dict[str, set[str]] = field(default_factory=dict)  # Python package -> the packages that it may import.
    allowed: set[tuple[str, str]] = field(default_factory=set)  # (file, what it includes or imports)

    def named(self, path: str) -> str | None:
        """The nearest folder above `path` that the table names."""
        parts = path.split("/")
        for end in range(len(parts), 0, -1):
            folder = "/".join(parts[:end])
            if folder in self.layer_of:
                return folder
        return None

    def folder_of(self, file: str) -> str | None:
        """The folder to which the file counts: a public header's is the one that owns it."""
        if file.startswith(PUBLIC):
            return self.owner_of.get(file[len(PUBLIC) :])
        return self.named(file.rpartition("/")[0])

    def package_of(self, file: str) -> str | None:
        """The Python package to which a file of python/sparsecast counts: the nearest package above it that the table
        names, CORE for a file directly in python/sparsecast, and None if the table names no package above the file.
        """
        parts = file[len(PYTHON_PACKAGE) + 1 :].split("/")[:-1]
        for end in range(len(parts), 0, -1):
            if "/".join(parts[:end]) in self.imports:
                return "/".join(parts[:end])
        return None if parts else CORE


@dataclass(frozen=True)
class Edge:
    """One #include or import: where it stands, and the file that it names."""

    source: str
    line: int
    target: str
    in_function: bool = False  # An import that runs when a function is called.


def read_table(text: str) -> Table:
    """Raises ValueError, with the line's number, for a line that makes no sense."""
    table = Table()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        kind, rest = words[0], words[1:]
        if kind == "layer" and rest:
            for folder in rest:
                if table.layer_of.setdefault(folder, number) != number:
                    raise ValueError(f"line {number}: {folder} has a layer already")
        elif kind == "public" and len(rest) > 1:
            if table.named(rest[0]) is None:
                raise ValueError(f"line {number}: {rest[0]} is in no layer above this line")
            for header in rest[1:]:
                if table.owner_of.setdefault(header, rest[0]) != rest[0]:
                    raise ValueError(f"line {number}: {header} belongs to {table.owner_of[header]} already")
        elif kind == "python" and rest:
            if rest[0] in table.imports:
                raise ValueError(f"line {number}: {rest[0]} has a line already")
            for package in rest[1:]:
                if package not in table.imports:
                    raise ValueError(f"line {number}: {package} has no 'python' line above this one")
            table.imports[rest[0]] = set(rest[1:])
        elif kind == "allow" and len(rest) == 2:
            table.allowed.add((rest[0], rest[1]))
        else:
            raise ValueError(f"line {number}: expected 'layer', 'public', 'python' or 'allow' and names")
    return table


def includes(repository: pathlib.Path) -> tuple[list[str], list[Edge]]:
    """All C++ and CUDA files below the roots, and their includes of one another."""
    files = sorted(
        path.relative_to(repository).as_posix()
        for root in ROOTS
        for path in (repository / root).rglob("*")
        if path.suffix in ENDINGS and path.is_file()
    )
    known = set(files)
    edges = []
    for file in files:
        own = file.rpartition("/")[0]
        for number, line in enumerate((repository / file).read_text(encoding="utf-8").splitlines(), 1):
            if match := INCLUDE.match(line):
                candidates = (f"{folder}/{match[1]}".lstrip("/") for folder in (own, *SEARCHED))
                target = next((name for name in candidates if name in known), None)
                if target is not None:
                    edges.append(Edge(file, number, target))
    return files, edges


def against_layers(
    table: Table, files: Iterable[str], edges: Iterable[Edge], needed: set[tuple[str, str]]
) -> Iterator[str]:
    """Sentences about files without a layer and includes that point upwards. Adds to `needed` the exceptions used."""
    unplaced = set()
    for file in files:
        if table.folder_of(file) is None:
            unplaced.add(file if file.startswith(PUBLIC) else file.rpartition("/")[0] + "/")
    for name in sorted(unplaced):
        yield f"{name}: in no layer; give it a place in scripts/include_directions.txt"
    for edge in edges:
        source, target = table.folder_of(edge.source), table.folder_of(edge.target)
        if source is None or target is None or source == target:
            continue
        if table.layer_of[_layer(table, target)] < table.layer_of[_layer(table, source)]:
            continue
        if (edge.source, edge.target) in table.allowed:
            needed.add((edge.source, edge.target))
            continue
        yield f"{edge.source}:{edge.line}: {source} must not depend on {target} ({edge.target})"


def against_packages(
    table: Table, files: Iterable[str], edges: Iterable[Edge], needed: set[tuple[str, str]]
) -> Iterator[str]:
    """Sentences about Python packages without a line, imports that their lines do not name, and names on these lines
    that no import needs. Adds to `needed` the exceptions used.
    """
    for folder in sorted({file.rpartition("/")[0] for file in files if table.package_of(file) is None}):
        yield f"{folder}/: has no 'python' line; give it a place in scripts/include_directions.txt"
    unused = {(package, target) for package, targets in table.imports.items() for target in targets}
    for edge in edges:
        source, target = table.package_of(edge.source), table.package_of(edge.target)
        if source is None or target is None or source == target or target == CORE:
            continue
        if target in table.imports.get(source, ()):
            unused.discard((source, target))
        elif (edge.source, edge.target) in table.allowed:
            needed.add((edge.source, edge.target))
        else:
            yield f"{edge.source}:{edge.line}: {source} must not import {target} ({edge.target})"
    for package, target in sorted(unused):
        yield f"scripts/include_directions.txt: 'python {package}' names {target}, which it does not import any more"


def _layer(table: Table, folder: str) -> str:
    named = table.named(folder)
    assert named is not None
    return named


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """A shortest circle through each group of nodes that reach one another, each beginning with its least node."""
    neighbours = {node: sorted(set(targets) - {node}) for node, targets in sorted(graph.items())}
    found: list[list[str]] = []
    seen: set[str] = set()
    for start in neighbours:
        if start in seen:
            continue
        before: dict[str, str] = {}
        queue = [start]
        for node in queue:
            for target in neighbours.get(node, ()):
                if target not in before:
                    before[target] = node
                    queue.append(target)
        if start in before:
            circle = [before[start]]
            while circle[-1] != start:
                circle.append(before[circle[-1]])
            found.append(circle[::-1])
            seen.update(circle)
    return found


def circle_sentences(what: str, edges: Iterable[Edge], place: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each circle among the places of the edges' ends, with one line for each of its steps."""
    lines: dict[tuple[str, str], list[Edge]] = defaultdict(list)
    graph: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        pair = (place[edge.source], place[edge.target])
        lines[pair].append(edge)
        graph[pair[0]].add(pair[1])
    for circle in circles(graph):
        yield f"a circle of {what}: {' -> '.join([*circle, circle[0]])}"
        for pair in zip(circle, [*circle[1:], circle[0]], strict=True):
            edge = lines[pair][0]
            more = f", and {len(lines[pair]) - 1} more" if len(lines[pair]) > 1 else ""
            yield f"    {edge.source}:{edge.line}: {edge.target}{more}"


def python_imports(repository: pathlib.Path) -> tuple[dict[str, str], list[Edge]]:
    """The modules of the package as {file: module}, and their imports of one another, also for type checkers only."""
    base = repository / PYTHON_PACKAGE
    module_of = {}
    for path in sorted(base.rglob("*.py")):
        parts = list(path.relative_to(base.parent).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        module_of[path.relative_to(repository).as_posix()] = ".".join(parts)
    file_of = {module: file for file, module in module_of.items()}
    edges = []
    for file, module in module_of.items():
        package = module if file.endswith("__init__.py") else module.rpartition(".")[0]
        for line, name, in_function in _imported(ast.parse((repository / file).read_text(encoding="utf-8")), package):
            target = name if name in file_of else name.rpartition(".")[0]  # A module, or something in it.
            if target in file_of and target != module:
                edges.append(Edge(file, line, file_of[target], in_function))
    return module_of, edges


def _imported(node: ast.AST, package: str, in_function: bool = False) -> Iterator[tuple[int, str, bool]]:
    """(line, dotted name, whether it is in a function) of each import below `node`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name, in_function) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                above = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*above, base] if base else above)
            yield from ((child.lineno, f"{base}.{alias.name}", in_function) for alias in child.names)
        else:
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from _imported(child, package, in_function or is_function)


def check(repository: pathlib.Path, table: Table) -> list[str]:
    """Everything that is wrong, as lines to print."""
    files, edges = includes(repository)
    module_of, imports = python_imports(repository)
    needed: set[tuple[str, str]] = set()
    found = list(against_layers(table, files, edges, needed))
    found += against_packages(table, module_of, imports, needed)
    found += (
        f"scripts/include_directions.txt: 'allow {source} {target}' is not needed any more"
        for source, target in sorted(table.allowed - needed)
    )
    folders = {file: file.rpartition("/")[0] for file in files}
    found += circle_sentences("folders", edges, folders)
    found += circle_sentences("files", edges, {file: file for file in files})
    # Imports in functions run after all modules are loaded.
    found += circle_sentences("modules", [edge for edge in imports if not edge.in_function], module_of)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks that dependencies point one way.")
    parser.add_argument(
        "--graph", action="store_true", help="print which folder or package includes or imports which, and how often"
    )
    parser.add_argument("--repository", type=pathlib.Path, default=REPOSITORY, help=argparse.SUPPRESS)
    parser.add_argument("--table", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    repository = arguments.repository.resolve()
    path = arguments.table or pathlib.Path(__file__).with_suffix(".txt")
    try:
        table = read_table(path.read_text(encoding="utf-8"))
    except ValueError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    if arguments.graph:
        counts: dict[tuple[str, str], int] = defaultdict(int)
        for edge in includes(repository)[1]:
            counts[table.folder_of(edge.source) or "?", table.folder_of(edge.target) or "?"] += 1
        for edge in python_imports(repository)[1]:
            counts[table.package_of(edge.source) or "?", table.package_of(edge.target) or "?"] += 1
        for (source, target), count in sorted(counts.items()):
            if source != target:
                print(f"{source} -> {target} ({count})")
        return 0
    found = check(repository, table)
    print("\n".join(found) if found else "all dependencies point one way")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
