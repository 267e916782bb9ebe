#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Checks or writes the license line that every source file begins with.

    scripts/spdx.py [--check | --fix] [FILE...]

The line is `SPDX-License-Identifier: Apache-2.0`, as a comment of the file's own language, first in the file or right
after a shebang. Without FILE it looks at every file that git tracks or would track. It prints the files that lack the
line (--check, the default), or writes it into them (--fix); the exit status is 1 if --check found any.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
from collections.abc import Iterable

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
LICENSE = "SPDX-License-Identifier: Apache-2.0"

# What stands before and after the text of a comment.
SLASHES = ("// ", "")
STARS = ("/* ", " */")
HASH = ("# ", "")
COMMENTS = {
    **dict.fromkeys((".c", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".hpp.in"), SLASHES),
    **dict.fromkeys((".cmake", ".cmake.in", ".pc.in", ".py", ".sh", "CMakeLists.txt"), HASH),
    ".pml": STARS,
}
GENERATED = {"python/sparsecast/_core.pyi"}
NOT_OURS = ("testdata/",)


def comment_of(path: pathlib.Path) -> tuple[str, str] | None:
    """How a comment begins and ends in that file; None for a file that needs no license line."""
    for ending, comment in COMMENTS.items():
        if path.name.endswith(ending):
            return comment
    if path.suffix:
        return None
    with path.open("rb") as file:  # Scripts without a suffix.
        first = file.readline(200)
    return HASH if first.startswith(b"#!") and first.rstrip().endswith((b"sh", b"python3")) else None


def with_license(text: str, comment: tuple[str, str]) -> str:
    """The text with the license line in its place; the same text if it is there already."""
    line = f"{comment[0]}{LICENSE}{comment[1]}\n"
    shebang = ""
    if text.startswith("#!"):
        end = text.find("\n") + 1 or len(text)
        shebang, text = text[:end], text[end:]
        if not shebang.endswith("\n"):
            shebang += "\n"
    if text.startswith(line):
        return shebang + text
    # An empty line keeps it apart from a comment that says what the file is.
    apart = "\n" if text.startswith(comment[0].rstrip()) else ""
    return shebang + line + apart + text


def sources(repository: pathlib.Path) -> list[str]:
    """Paths of the files that git tracks or would track, relative to the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return sorted({name for name in listed.split("\0") if name})


def lacking(repository: pathlib.Path, names: Iterable[str], *, fix: bool) -> list[str]:
    """The files without the line, which is written into them if `fix`."""
    found = []
    for name in names:
        path = repository / name
        if name in GENERATED or name.startswith(NOT_OURS) or path.is_symlink() or not path.is_file():
            continue
        comment = comment_of(path)
        if comment is None:
            continue
        text = path.read_bytes().decode("utf-8")
        wanted = with_license(text, comment)
        if wanted != text:
            found.append(name)
            if fix:
                path.write_bytes(wanted.encode("utf-8"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks or writes the license line of source files.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="only say which files lack it (the default)")
    mode.add_argument("--fix", action="store_true", help="write it into those files")
    parser.add_argument("--repository", type=pathlib.Path, default=REPOSITORY, help=argparse.SUPPRESS)
    parser.add_argument("files", nargs="*", metavar="FILE", help="relative to the repository; all files unless given")
    arguments = parser.parse_args()
    repository = arguments.repository.resolve()
    found = lacking(repository, arguments.files or sources(repository), fix=arguments.fix)
    if arguments.fix:
        print(f"added the license line to {len(found)} files")
        return 0
    for name in found:
        print(f"{name}: does not begin with '{LICENSE}'")
    if found:
        print(f"{len(found)} files: scripts/spdx.py --fix adds the line", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
