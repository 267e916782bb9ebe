# SPDX-License-Identifier: Apache-2.0
"""How a sync treats the engines: the caller's choices, with their deadlines."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from sparsecast.control.engine import PauseMode
from sparsecast.errors import UsageError


@dataclass(frozen=True)
class SyncPolicy:
    """Choices and deadlines of a sync; times are in seconds.

    pause           what happens to requests in flight (`PauseMode`).
    flush_cache     whether to drop cached prefixes after the apply. With `PauseMode.NONE` and `KEEP` an engine may be
                    unable to drop them; this is reported (`cache_flushed`) and does not fail the sync.
    allow_missing   whether to go on without endpoints that do not answer or are asleep; the result is then "partial".
                    Otherwise one such endpoint fails the sync before any weights are sent.
    health_timeout  deadline for the health check of one endpoint.
    join_timeout    deadline for making a group after the membership changed, including the seeding of new engines.
    sync_timeout    deadline for the exchange, from the first byte to the decision; with `PauseMode.WAIT` this includes
                    the time in which requests are finished.
    call_timeout    deadline for each call of: pause, flush, resume, sleep, wake, and cleaning up after a failure.
    pause_lease     a server that hears nothing from this control plane for this long ends the update and resumes by
                    itself, if it supports leases (`lease` in the report says so); 0: never.
    """

    pause: PauseMode = PauseMode.ABORT
    flush_cache: bool = True
    allow_missing: bool = False
    health_timeout: float = 10.0
    join_timeout: float = 300.0
    sync_timeout: float = 120.0
    call_timeout: float = 30.0
    pause_lease: float = 30.0

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "pause", PauseMode(self.pause))
        except ValueError:
            modes = ", ".join(mode.value for mode in PauseMode)
            raise UsageError(f"pause is {self.pause!r}, not one of {modes}") from None
        for each in fields(self):
            if each.name.endswith("_timeout") or each.name == "pause_lease":
                value = getattr(self, each.name)
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise UsageError(f"{each.name} is {value!r}, not a number of seconds")
                off = each.name == "pause_lease" and value == 0
                if not off and not (math.isfinite(value) and 0 < value <= 86400):
                    raise UsageError(f"{each.name} is {value!r}, not between 0 and 86400 seconds")
