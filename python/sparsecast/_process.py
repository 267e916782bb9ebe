# SPDX-License-Identifier: Apache-2.0
"""The process that made an object: a forked child has none of its threads, and its connections are the parent's."""

from __future__ import annotations

import os

from .errors import UsageError


class ProcessMark:
    """Remembers the process that made this object."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether the current process made this object; False in a forked child."""
        return os.getpid() == self._process

    def require_here(self) -> None:
        """Raises UsageError in a forked child of the process that made this object."""
        if not self.is_here:
            raise UsageError(f"made in process {self._process}; a forked child cannot use it")
