# SPDX-License-Identifier: Apache-2.0
"""Entry points of the programs of the package. Each names the extra that must be installed where its dependencies are
missing.
"""

from __future__ import annotations

import sys


def _missing(program: str, extra: str, error: ModuleNotFoundError) -> int:
    if (error.name or "").partition(".")[0] == "sparsecast":
        raise error
    words = f"it needs the package {error.name}: pip install 'sparsecast[{extra}]'"
    print(f"{program}: {words} [usage]", file=sys.stderr)
    return 2


def record() -> int:
    """Runs ``sparsecast-record``, which is also ``sparsecast record``, and returns its exit code."""
    try:
        from .record.cli import main
    except ModuleNotFoundError as error:
        return _missing("sparsecast-record", "torch,record", error)
    return main()


def control() -> int:
    """Runs ``sparsecast-control``, which is also ``sparsecast control``, and returns its exit code."""
    try:
        from .control.cli import main
    except ModuleNotFoundError as error:
        return _missing("sparsecast-control", "control", error)
    return main()
