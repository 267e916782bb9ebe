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

    joining    registered, but not in the group yet: it may serve any weights.
    ready      in the group, at the version in its record.
    updating   a sync is in progress.
    asleep     memory of the engine is released.
    unhealthy  the endpoint failed a step, which `error` names; the next sync checks its health again.
    fenced     the engine follows another trainer, which joined it after this one: syncs leave it alone.
    """

    JOINING = "joining"
    READY = "ready"
    UPDATING = "updating"
    ASLEEP = "asleep"
    UNHEALTHY = "unhealthy"
    FENCED = "fenced"


@dataclass
class EndpointRecord:
    """Facts that the control plane knows about an endpoint.

    version       the last version that the engine has verified; None before the first.
    in_doubt      a sync failed after the engine had begun to write, and the engine did not answer: it is at `version`
                  or at the next version. The next regroup settles which.
    needs_anchor  the engine's weights are not usable: the next sync seeds it with all weights.
    paused        generation is stopped.
    held          generation was stopped by `ControlPlane.pause`, so that a sync does not resume it.
    asleep        which of "weights" and "kv_cache" are released from device memory now.
    error         message of the last failure; empty since the last success.
    failures      number of steps that have failed since the endpoint was registered.
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
        """Returns the record and the endpoint as JSON values. The token is left out; `has_token` says whether there is
        one.
        """
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
    """Report about one endpoint in one sync. Seconds are measured in the control plane, around the calls.

    version        the version that the engine has verified at the end of the sync; None for none.
    in_doubt       the engine is at `version` or at the next version, and has not answered which.
    state          state of the endpoint at the end of the sync (`State`).
    rank_offset    first rank of the engine in the world; None if the sync did not make a group.
    error          message of what failed; empty if nothing did. `step` is the call that failed, and `code` the code of
                   its error.
    cache_flushed  whether cached prefixes were dropped; None if that was not requested.
    left_paused    the engine was not resumed: it may hold wrong bytes, or did not answer.
    calls          seconds of each call in the pause, by step: pause, apply, finish, flush, resume.
    lease          whether the server would have resumed by itself if this process had died in the pause; None if it was
                   not paused.
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
    """Report of one sync. `result` is "ok" (every endpoint is at `version`), "partial" (every endpoint is, but for
    those that were left out) or "failed". `source` has the figures of the trainer's own report. `warnings` are
    sentences about figures that differ much from those of earlier syncs (`SyncAlarms`).
    """

    result: str
    version: int
    generation: int
    regrouped: bool = False
    seconds: float = 0.0
    regroup_seconds: float = 0.0
    error: str = ""
    source: dict[str, Any] = field(default_factory=dict)
    endpoints: list[EndpointReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return asdict(self)

    def who_is_where(self) -> str:
        """Returns one line of text with the versions of the trainer and of every endpoint."""
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
    """Raised if a sync, or an operation on several endpoints, did not succeed everywhere.

    `failures` has the causes: one error for each endpoint that failed by itself or, if all errors only echo other
    failures, for each endpoint that failed. It is empty if only the trainer failed. `report` has the versions of all
    endpoints; it is None for operations other than a sync.
    """

    def __init__(self, message: str, failures: list[EndpointError], report: SyncReport | None = None) -> None:
        super().__init__(message)
        self.failures = failures
        self.report = report


def source_figures(report: object) -> dict[str, Any]:
    """Returns the figures of a trainer's report that a `SyncReport` keeps, by name, as JSON values. Figures that
    `report` does not have are left out.
    """
    values = {name: getattr(report, name, None) for name in _SOURCE_FIELDS}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, (int, float, str)) and not isinstance(value, bool)
    }
