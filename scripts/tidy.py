#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Runs clang-tidy over the C++ files that a compilation database knows: those that changed, or all.

    scripts/tidy.py --build DIRECTORY [--since COMMIT | FILE...]

DIRECTORY holds compile_commands.json. With --since, it looks at sources that differ from COMMIT, committed or not, and
for each header that does at one source that includes it; those with the most changed lines come first. With FILEs, at
these; with neither, at all. --most-files and --seconds bound the work: what is left out is named, and is no failure.
The exit status is 1 if clang-tidy found anything.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
SOURCES = {".c", ".cpp"}
HEADERS = {".h", ".hpp"}
EMULATED = "SPARSECAST_CUDA_EMULATION"
# Flags of GCC that clang does not know, and instrumentation, which only costs time here.
FOREIGN = re.compile(r"--param=.*|-f(no-)?sanitize.*|-fno-omit-frame-pointer")
INCLUDE = re.compile(r'^\s*#\s*include\s*"(?:[^"\n]*/)?([^"/\n]+)"', re.MULTILINE)
FINDING = re.compile(r"^(/[^:\n]+:\d+:\d+): (?:warning|error): .* \[([^\]\n]+)\]$", re.MULTILINE)


def read_database(path: pathlib.Path) -> dict[str, dict[str, str]]:
    """{path relative to the repository: entry} with one command a file, which clang understands."""
    entries: dict[str, dict[str, str]] = {}
    for entry in json.loads(path.read_text(encoding="utf-8")):
        file = pathlib.Path(entry["directory"], entry["file"]).resolve()
        generated = file.is_relative_to(path.resolve().parent)
        if generated or not file.is_relative_to(REPOSITORY):
            continue
        if file.suffix in SOURCES and EMULATED not in entry["command"]:
            flags = [flag for flag in shlex.split(entry["command"]) if not FOREIGN.fullmatch(flag)]
            command = shlex.join([*flags, "-Wno-unknown-warning-option"])
            entries.setdefault(file.relative_to(REPOSITORY).as_posix(), {**entry, "command": command})
    return entries


def changed_since(commit: str) -> dict[str, int]:
    """{path: changed lines} of files that differ from the commit, with those that git does not track yet."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout

    lines = {}
    for row in git("diff", "--numstat", "--no-renames", "--diff-filter=d", commit).splitlines():
        added, removed, name = row.split("\t")
        lines[name] = int(added) + int(removed) if added.isdigit() else 0
    for name in git("ls-files", "--others", "--exclude-standard").splitlines():
        lines.setdefault(name, 0)
    return lines


def includers(known: Iterable[str]) -> dict[str, str]:
    """{name of a header: the first source that includes one of that name}."""
    found: dict[str, str] = {}
    for source in known:
        for name in INCLUDE.findall((REPOSITORY / source).read_text(encoding="utf-8")):
            found.setdefault(name, source)
    return found


def chosen(changed: dict[str, int], known: Iterable[str]) -> list[str]:
    """Sources to look at for these changes, most changed lines first.

    For a header that is the source of the same name beside it, else the first that includes one of its name.
    """
    known = sorted(known)
    first_of = includers(known)
    weights: collections.Counter[str] = collections.Counter()
    for name, lines in changed.items():
        path = pathlib.PurePosixPath(name)
        source: str | None = name
        if path.suffix in HEADERS:
            beside = path.with_suffix(".cpp").as_posix()
            source = beside if beside in known else first_of.get(path.name)
        if source in known:
            weights[source] += lines
    return [name for name, _ in weights.most_common()]


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs clang-tidy over C++ files that changed, or over all.")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the directory of compile_commands.json")
    parser.add_argument("--since", metavar="COMMIT", help="only what differs from it")
    parser.add_argument("--clang-tidy", default="clang-tidy", metavar="PROGRAM")
    parser.add_argument("--fix", action="store_true", help="let clang-tidy mend what it can, one file at a time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most-files", type=int, metavar="N")
    parser.add_argument("--seconds", type=float, metavar="S", help="begin with no file after so long")
    parser.add_argument("files", nargs="*", metavar="FILE")
    arguments = parser.parse_args()

    known = read_database(arguments.build / "compile_commands.json")
    own = arguments.build / "tidy"
    own.mkdir(parents=True, exist_ok=True)
    (own / "compile_commands.json").write_text(json.dumps(list(known.values())), encoding="utf-8")
    files = arguments.files or sorted(known)
    if arguments.since:
        files = chosen(changed_since(arguments.since), known)
    left_out = files[arguments.most_files :] if arguments.most_files is not None else []
    files = files[: len(files) - len(left_out)]
    begun = time.monotonic()

    def look(name: str) -> str | None:
        if arguments.seconds is not None and time.monotonic() - begun > arguments.seconds:
            return None
        command = [arguments.clang_tidy, "-p", str(own), "--quiet", "--warnings-as-errors=*"]
        command += ["--fix"] if arguments.fix else []
        result = subprocess.run([*command, name], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return ""
        return result.stdout if FINDING.search(result.stdout) else f"{name}: {result.stdout}{result.stderr}"

    findings: dict[str, str] = {}  # What is found in a header is found through each source that includes it.
    unread = []
    with concurrent.futures.ThreadPoolExecutor(1 if arguments.fix else max(1, arguments.jobs)) as pool:
        for name, text in zip(files, pool.map(look, files), strict=True):
            if text is None:
                left_out.append(name)
                continue
            begins = list(FINDING.finditer(text))
            if any(match[2].startswith("clang-diagnostic-error") for match in begins) or (text and not begins):
                unread.append(name)
                print(text)
                continue
            for index, match in enumerate(begins):
                end = begins[index + 1].start() if index + 1 < len(begins) else len(text)
                findings.setdefault(match[1] + match[2], text[match.start() : end].rstrip())
    for text in findings.values():
        print(text)
    checks = (FINDING.findall(text)[0][1].partition(",")[0] for text in findings.values())
    by_check = collections.Counter(checks)
    print(
        f"clang-tidy: {len(files) + len(left_out)} files, {len(findings)} findings in {time.monotonic() - begun:.0f} s"
    )
    if unread:
        print(f"clang-tidy: cannot read {len(unread)} of them: {' '.join(unread)}")
    for check, count in by_check.most_common():
        print(f"    {count} {check}")
    if left_out:
        print(f"no time for {len(left_out)} of them: {' '.join(left_out)}")
    return 1 if findings or (unread and len(unread) == len(files)) else 0


if __name__ == "__main__":
    sys.exit(main())
