# SPDX-License-Identifier: Apache-2.0
"""Reports of syncs: for the trainer, and endpoint by endpoint."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

from sparsecast.control.endpoints import Endpoint
from sparsecast.control.errors import EndpointError
from sparsecast.errors import PeerFailedError


class State(str, enum.Enum):
    """State of an endpoint.

    joining    registered, not in the group yet: it may serve any weights.
    ready      in the group, at `version`.
    updating   a sync is under way.
    asleep     its memory is released.
    unhealthy  it failed a step, named in `error`; the next sync checks its health again.
    fenced     it follows another trainer, which joined it after this one: syncs leave it alone.
    """

    JOINING = "joining"
    READY = "ready"
    UPDATING = "updating"
    ASLEEP = "asleep"
    UNHEALTHY = "unhealthy"
    FENCED = "fenced"


@dataclass
class EndpointRecord:
    """Record of an endpoint in the control plane.

    version       the last version that it has verified; None before the first.
    in_doubt      a sync failed when it had begun to write, and no answer came: it is at `version` or at the one
                  after. The next regroup settles which.
    needs_anchor  what it holds is of no use: the next sync seeds it with all weights.
    paused, held  generation is stopped; `held`: because somebody asked for it, so that a sync does not resume it.
    asleep        which of "weights" and "kv_cache" have no memory now.
    error         what failed last, empty since the last success; failures: how many steps failed in all.
    """

    endpoint: Endpoint
    state: State = State.JOINING
    version: int | None = None
    in_doubt: bool = False
    needs_anchor: bool = False
    paused: bool = False
    held: bool = False
    asleep: tuple[str, ...] = ()
    error: str = ""
    failures: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values, without the token."""
        endpoint = self.endpoint
        return {
            "name": endpoint.name,
            "host": endpoint.host,
            "port": endpoint.port,
            "scheme": endpoint.scheme,
            "kind": endpoint.kind,
            "world_size": endpoint.world_size,
            "has_token": bool(endpoint.token),
            "state": self.state.value,
            "version": self.version,
            "in_doubt": self.in_doubt,
            "needs_anchor": self.needs_anchor,
            "paused": self.paused,
            "held": self.held,
            "asleep": list(self.asleep),
            "error": self.error,
            "failures": self.failures,
        }


@dataclass
class EndpointReport:
    """One endpoint in one sync. Seconds are measured here, around the calls.

    version        the version that it has verified afterwards; None for none. `in_doubt`: or the one after it.
    error          empty if nothing failed; `step` and `code` say what and how.
    cache_flushed  None if it was not requested.
    left_paused    it was not resumed: it may hold wrong bytes, or did not answer.
    calls          seconds of each call in the pause, by step: pause, apply, finish, flush, resume.
    lease          it would have resumed by itself if this process had died in the pause; None if it was not paused.
    """

    name: str
    version: int | None = None
    in_doubt: bool = False
    state: str = State.JOINING.value
    rank_offset: int | None = None
    error: str = ""
    step: str = ""
    code: str = ""
    cache_flushed: bool | None = None
    left_paused: bool = False
    lease: bool | None = None
    calls: dict[str, float] = field(default_factory=dict)
    stage_seconds: float = 0.0
    apply_seconds: float = 0.0
    pause_seconds: float = 0.0


@dataclass
class SyncReport:
    """One sync. `result` is "ok" (every endpoint is at `version`), "partial" (all but those left out) or "failed"."""

    result: str
    version: int
    generation: int
    regrouped: bool = False
    seconds: float = 0.0
    regroup_seconds: float = 0.0
    error: str = ""
    source: dict[str, Any] = field(default_factory=dict)
    endpoints: list[EndpointReport] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return asdict(self)

    def who_is_where(self) -> str:
        """Returns one line with the version of every endpoint."""
        parts = []
        for each in self.endpoints:
            where = "at no known version" if each.version is None else f"at {each.version}"
            doubt = ", or the next (in doubt)" if each.in_doubt else ""
            parts.append(f"{each.name} {where}{doubt}")
        return f"trainer at {self.version}; " + (", ".join(parts) if parts else "no endpoints")


_SOURCE_FIELDS = (
    *("version", "step", "density", "elements", "changed", "applied", "sent_bytes", "received_bytes", "dense_bytes"),
    *("encode_seconds", "wire_seconds", "stage_seconds", "apply_seconds", "total_seconds", "digest"),
)


class SyncError(PeerFailedError):
    """A sync, or an operation on several endpoints, did not succeed everywhere.

    `failures` are the causes, one an endpoint that failed (empty if the trainer alone did). `report` says for every
    endpoint at which version it is; None for operations other than a sync.
    """

    def __init__(self, message: str, failures: list[EndpointError], report: SyncReport | None = None) -> None:
        super().__init__(message)
        self.failures = failures
        self.report = report


def source_figures(report: object) -> dict[str, Any]:
    """Returns the figures that the report of a source has, as JSON values."""
    values = {name: getattr(report, name, None) for name in _SOURCE_FIELDS}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (int, float, str)) and not isinstance(value, bool)
    }
