#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the functions that NCCL libraries export, for src/nccl_dropin/functions.inc.

    scripts/nccl_functions.py LIBNCCL... > src/nccl_dropin/functions.inc
    scripts/nccl_functions.py --check DROP_IN LIBNCCL...     # fails if DROP_IN lacks a function of a LIBNCCL

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


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--check"]:
        have = functions(arguments[1])
        missing = {name: path for path in arguments[2:] for name in functions(path) - have}
        for name, path in sorted(missing.items()):
            print(f"{arguments[1]} lacks {name} of {path}", file=sys.stderr)
        return 1 if missing else 0
    if not arguments:
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
