#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the functions that NCCL libraries export, for src/nccl_dropin/functions.inc.

    scripts/nccl_functions.py LIBNCCL... > src/nccl_dropin/functions.inc
    scripts/nccl_functions.py --check DROP_IN LIBNCCL...     # what keeps DROP_IN from standing in for a LIBNCCL

LIBNCCL is libnccl.so.2 of a release, or an nccl.h. The list only grows: pass the releases from the oldest that is
supported to the newest.
"""

import re
import subprocess
import sys
from pathlib import Path

# Defined in src/nccl_dropin/exports.cpp; every other function is forwarded by name.
OWN = [
    "ncclBcast",
    "ncclBroadcast",
    "ncclCommAbort",
    "ncclCommDestroy",
    "ncclCommGetAsyncError",
    "ncclCommInitRank",
    "ncclCommInitRankConfig",
    "ncclGetUniqueId",
    "ncclGroupEnd",
    "ncclGroupStart",
]


def functions(path: str) -> set[str]:
    """Returns the names of NCCL's functions in a library, or those that a header declares."""
    if path.endswith(".h"):
        return set(re.findall(r"\b(?:ncclResult_t|char\s*\*)\s*(p?nccl[A-Z]\w*)\s*\(", Path(path).read_text("utf-8")))
    command = ["nm", "-D", "--defined-only", path]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = [line.split() for line in lines]
    return {s[2].split("@")[0] for s in symbols if len(s) == 3 and s[1] in "TW" and re.match(r"p?nccl[A-Z]", s[2])}


def dynamic(path: str, tag: str) -> list[str]:
    """Returns the values of a tag of a library's dynamic section: SONAME is the name by which programs that were linked
    with the library load it, NEEDED are the libraries that it brings along.
    """
    text = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True).stdout
    return re.findall(rf"\({tag}\).*\[(.*)\]", text)


def versioned(path: str) -> list[str]:
    """Returns the functions of NCCL that a library exports with a symbol version."""
    symbols = subprocess.run(["nm", "-D", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\b(p?nccl[A-Z]\w*@@?\S+)", symbols)


def check(drop_in: str, others: list[str]) -> list[str]:
    """Returns what keeps the drop-in from standing in for libraries, or for those of headers."""
    have = functions(drop_in)
    found = [f"{drop_in} lacks {name} of {path}" for path in others for name in sorted(functions(path) - have)]
    # Programs and libraries that want a version take a symbol without one, but not one with another.
    found += [f"{drop_in} has a version of {name}, which no NCCL has" for name in versioned(drop_in)]
    # The loader would take the preloaded file for the real library, which would never be loaded then.
    name = dynamic(drop_in, "SONAME")
    if any(name == dynamic(path, "SONAME") for path in others if not path.endswith(".h")):
        found.append(f"{drop_in} has the soname of NCCL, {name}")
    found += [f"{drop_in} needs {name}" for name in dynamic(drop_in, "NEEDED") if re.match("lib(mpi|curl)", name)]
    return found


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--check"] and len(arguments) > 2:
        found = check(arguments[1], arguments[2:])
        for line in found:
            print(line, file=sys.stderr)
        return 1 if found else 0
    if not arguments or arguments[0] == "--check":
        print(__doc__, file=sys.stderr)
        return 2
    names = set().union(*(functions(path) for path in arguments)) - set(OWN)
    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Made by scripts/nccl_functions.py: the functions that are forwarded by name, each with its number.")
    for number, name in enumerate(sorted(names)):
        print(f"SPARSECAST_FORWARD({name}, {number})")
    print(f"SPARSECAST_FORWARD_COUNT({len(names)})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
