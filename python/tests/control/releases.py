# SPDX-License-Identifier: Apache-2.0
"""Released packages of engines, whose source tests read: nothing of them is imported, which would need more packages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest


def version_of(package: Path) -> str:
    """The version of a package, by its metadata beside it: "0.32.0"."""
    found = [
        re.fullmatch(rf"{package.name}(_cpu)?-(\d[^-]*)\.dist-info", each.name) for each in package.parent.iterdir()
    ]
    return next(each.group(2) for each in found if each is not None)


def releases(name: str) -> list[object]:
    """Parameters of a test: the folders of the package in the directories of SPARSECAST_RELEASES, each a site-packages or
    an unpacked wheel (scripts/engine_releases.sh).
    """
    found = [Path(each) / name for each in os.environ.get("SPARSECAST_RELEASES", "").split(os.pathsep) if each]
    named = [pytest.param(each, id=f"{name}-{version_of(each)}") for each in found if each.is_dir()]
    return list(named) or [pytest.param(None, marks=pytest.mark.skip(reason=f"SPARSECAST_RELEASES has no {name}"))]


def parts_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
