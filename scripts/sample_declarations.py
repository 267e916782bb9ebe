#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Draws declarations at random, each with its comment, for a reader who grades whether they stand by themselves.

    scripts/sample_declarations.py [--seed N] [--count N] [FOLDER...]

The reader answers one question for each declaration, without opening another file: does the comment, with the name and
the types, say what the declaration does or holds?

    clear     yes, and in plain English
    code      no: it takes the code behind it to know
    awkward   yes, but only at the second reading

Declarations are functions, classes, and fields with a comment in C++ and CUDA headers (include/, src/, cuda/), and
functions and classes with a docstring in python/sparsecast. The same seed draws the same declarations from the same
sources. Prints a row a declaration, and the numbers to divide by.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import random
import re
from collections.abc import Iterator

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("include", "src", "cuda", "python/sparsecast")
COMMENT = re.compile(r"\s*///(?!<) ?(.*)")
TRAILING = re.compile(r"\s*(?P<code>[^/\s].*?)\s*///< (?P<comment>.*)")


def in_header(path: pathlib.Path) -> Iterator[tuple[int, str, str]]:
    """Yields (line, comment, declaration): of a block of /// lines, and of a line with ///<."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment: list[str] = []
    for number, line in enumerate(lines, 1):
        if trailing := TRAILING.fullmatch(line):
            words = [trailing["comment"]]
            for more in lines[number:]:  # A comment that goes on below.
                if not (rest := re.fullmatch(r"\s*///< (.*)", more)):
                    break
                words.append(rest[1])
            yield number, " ".join(words), trailing["code"]
            comment = []
        elif above := COMMENT.fullmatch(line):
            comment.append(above[1])
        elif comment:
            if line.strip():
                declaration = " ".join(part.strip() for part in lines[number - 1 : number + 3])
                yield number, " ".join(comment), re.split(r"[;{]", declaration)[0]
            comment = []


def in_module(path: pathlib.Path) -> Iterator[tuple[int, str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
            text := ast.get_docstring(node)
        ):
            header = ast.unparse(node).split('"""')[0].split(":\n")[0]
            yield node.lineno, " ".join(text.split()), header


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("folders", nargs="*", default=FOLDERS, metavar="FOLDER")
    options = parser.parse_args()
    found = []
    for folder in options.folders:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            place = path.relative_to(REPOSITORY)
            if path.suffix in {".hpp", ".cuh", ".h"}:
                found += [(place, *row) for row in in_header(path)]
            elif path.suffix == ".py":
                found += [(place, *row) for row in in_module(path)]
    drawn = random.Random(options.seed).sample(found, min(options.count, len(found)))
    for number, (place, line, comment, declaration) in enumerate(drawn, 1):
        print(f"{number}. {place}:{line}\n   {declaration[:200]}\n   {comment}\n")
    print(f"{len(drawn)} of {len(found)} declarations, seed {options.seed}")


if __name__ == "__main__":
    main()
