# SPDX-License-Identifier: Apache-2.0
"""`python -m sparsecast.control`: the command-line client of a control service."""

from __future__ import annotations

import sys

from sparsecast.control.cli import main

if __name__ == "__main__":
    sys.exit(main())
