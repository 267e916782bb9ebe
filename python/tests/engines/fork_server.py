# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked from one that has imported an engine's package: once, not once a process."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any


def forks_of(module: str) -> Any:
    """Returns the context for processes that find `module`, of this folder, imported; the same in all calls."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    here = str(Path(__file__).parent)
    if here not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # The fork server looks nowhere else.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here]))
    return context
