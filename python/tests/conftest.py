# SPDX-License-Identifier: Apache-2.0
"""For all tests: helpers that are no part of the package."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "support"))
