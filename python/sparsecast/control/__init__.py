# SPDX-License-Identifier: Apache-2.0
"""The control plane: inference endpoints, and operations on all of them together.

`ControlPlane` leads a trainer and its SGLang and vLLM servers through syncs; `ControlService` offers the same over
HTTP, and `sparsecast-control` (`python -m sparsecast.control`) is the command-line client of that. See
docs/control.md.

Needs httpx; the service also fastapi, uvicorn and prometheus_client (python/tests/requirements-control.txt).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparsecast.control.endpoints import Endpoint
from sparsecast.control.engine import PauseMode
from sparsecast.control.errors import BusyError, ConflictError, EndpointError, UnknownEndpointError
from sparsecast.control.followers import take_together
from sparsecast.control.plane import ControlPlane
from sparsecast.control.policy import SyncPolicy
from sparsecast.control.publisher_source import PublisherSource
from sparsecast.control.report import EndpointReport, State, SyncError, SyncReport
from sparsecast.control.world import SourceReport, SyncSource, WorldSpec

if TYPE_CHECKING:
    from sparsecast.control.distributed_source import DistributedSource
    from sparsecast.control.service import ControlService

__all__ = [
    "BusyError",
    "ConflictError",
    "ControlPlane",
    "ControlService",
    "DistributedSource",
    "Endpoint",
    "EndpointError",
    "EndpointReport",
    "PauseMode",
    "PublisherSource",
    "SourceReport",
    "State",
    "SyncError",
    "SyncPolicy",
    "SyncReport",
    "SyncSource",
    "UnknownEndpointError",
    "WorldSpec",
    "take_together",
]


def __getattr__(name: str) -> object:
    # These have more dependencies than the rest, so they are imported on first use.
    if name == "DistributedSource":
        from sparsecast.control.distributed_source import DistributedSource

        return DistributedSource
    if name == "ControlService":
        from sparsecast.control.service import ControlService

        return ControlService
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
