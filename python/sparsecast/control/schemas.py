# SPDX-License-Identifier: Apache-2.0
"""JSON schemas of the control service. Unknown fields are an error."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StrictBool, StrictFloat, StrictInt, StrictStr

from sparsecast.control.endpoints import MAX_RANKS, Endpoint
from sparsecast.control.policy import SyncPolicy

Seconds = Annotated[StrictFloat | StrictInt, Field(gt=0, le=86400)]
Port = Annotated[StrictInt, Field(ge=1, le=65535)]
Names = Annotated[list[StrictStr], Field(min_length=1, description="Names of endpoints; all if left out.")]
Tag = Literal["weights", "kv_cache"]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EndpointIn(Body):
    """An inference server that takes part in syncs."""

    host: StrictStr = Field(max_length=255, description="Host name or address, without scheme.", examples=["10.0.0.7"])
    port: Port
    world_size: Annotated[StrictInt, Field(ge=1, le=MAX_RANKS, description="TP * PP * DP of the engine.")] = 1
    kind: Literal["sglang", "vllm"] = "sglang"
    name: StrictStr = Field(
        default="", max_length=128, description="Its name in messages and metrics; host:port if empty."
    )
    scheme: Literal["http", "https"] = "http"
    token: SecretStr = Field(default=SecretStr(""), description="Bearer token that the server asks for. Never shown.")
    start_version: Annotated[StrictInt, Field(ge=0)] = 0
    options: dict[str, Any] = Field(default_factory=dict, description="More fields for the engine's own side.")
    needs_anchor: StrictBool = Field(default=False, description="It holds other weights than the trainer started from.")

    def endpoint(self) -> Endpoint:
        fields = self.model_dump(exclude={"needs_anchor", "token"})
        return Endpoint(**fields, token=self.token.get_secret_value())


class SyncIn(Body):
    """Settings that replace the policy of the control plane for this sync; all fields are optional."""

    pause: Literal["none", "abort", "wait", "keep", "retract"] | None = None
    flush_cache: StrictBool | None = None
    allow_missing: StrictBool | None = None
    health_timeout: Seconds | None = None
    join_timeout: Seconds | None = None
    sync_timeout: Seconds | None = None
    call_timeout: Seconds | None = None
    pause_lease: Seconds | None = None

    def policy(self, usual: SyncPolicy) -> SyncPolicy:
        return dataclasses.replace(usual, **self.model_dump(exclude_none=True))


class PauseIn(Body):
    mode: Literal["abort", "wait", "keep", "retract"] = "abort"
    endpoints: Names | None = None


class ResumeIn(Body):
    endpoints: Names | None = None


class MemoryIn(Body):
    tags: Annotated[list[Tag], Field(min_length=1)] = ["weights", "kv_cache"]
    endpoints: Names | None = None


class XorlEndpointIn(Body):
    """Body of xorl's request to add an endpoint."""

    host: StrictStr = Field(max_length=255)
    port: Port
    world_size: Annotated[StrictInt, Field(ge=1, le=MAX_RANKS)] = 1


class XorlEndpointOut(Body):
    host: StrictStr = Field(max_length=255)
    port: Port
    world_size: StrictInt | None = Field(default=None, description="Not needed.")


class XorlSyncIn(Body):
    """Body of xorl's request for a sync. `group_name` and `buffer_size_mb` have no effect here, as the answer says."""

    master_address: StrictStr | None = Field(default=None, max_length=255, description="Where ranks meet from now on.")
    master_port: Port | None = None
    group_name: StrictStr | None = None
    buffer_size_mb: StrictInt | StrictFloat | None = None


class EndpointOut(BaseModel):
    """An endpoint as the control plane knows it."""

    name: str
    host: str
    port: int
    scheme: str
    kind: str
    world_size: int
    has_token: bool
    state: Literal["joining", "ready", "updating", "asleep", "unhealthy", "fenced"]
    version: int | None = Field(description="The last version that the endpoint verified.")
    in_doubt: bool = Field(description="It may be at the version after that; the next regroup settles it.")
    needs_anchor: bool
    paused: bool
    held: bool = Field(description="Paused because somebody asked for it: syncs do not resume it.")
    asleep: list[Tag]
    error: str
    failures: int


class EndpointStatusOut(EndpointOut):
    lag: int | None = Field(description="Versions behind the trainer.")
    answers: bool | None = Field(default=None, description="Only if probed.")
    serves: int | None = Field(default=None, description="Only if probed: the version that the server names.")
    problem: str | None = Field(default=None, description="Only if probed: why it does not answer.")


class EndpointsOut(BaseModel):
    endpoints: list[EndpointOut]


class AddedOut(BaseModel):
    created: bool = Field(description="False: it was registered already.")
    endpoint: EndpointOut


class EndpointSyncOut(BaseModel):
    """Report about one endpoint in a sync; seconds were measured in the control plane, around the calls."""

    name: str
    version: int | None
    in_doubt: bool
    state: str
    rank_offset: int | None
    error: str
    step: str
    code: str
    cache_flushed: bool | None
    left_paused: bool
    stage_seconds: float
    apply_seconds: float
    pause_seconds: float


class SyncOut(BaseModel):
    """Report of a sync. The result is "ok" if every endpoint is at `version`, "partial" if all are but for endpoints
    that did not take part.
    """

    result: Literal["ok", "partial", "failed"]
    version: int
    generation: int
    regrouped: bool
    seconds: float
    regroup_seconds: float
    error: str
    source: dict[str, Any] = Field(description="The trainer's figures: density, bytes, seconds.")
    endpoints: list[EndpointSyncOut]


class StatusOut(BaseModel):
    version: int = Field(description="The trainer's committed version.")
    generation: int
    group: str
    busy: str = Field(description="Which operation is in progress, for whom; empty if none.")
    endpoints: list[EndpointStatusOut]
    last_sync: SyncOut | None


class DoneOut(BaseModel):
    endpoints: list[EndpointOut]


class XorlSyncOut(SyncOut):
    success: bool
    ignored: list[str] = Field(description="Fields of the request that have no meaning here.")


class FailureOut(BaseModel):
    endpoint: str
    step: str
    code: str
    message: str


class ErrorDetail(BaseModel):
    code: str = Field(description="usage, busy, unauthenticated, peer_failed, ...")
    message: str
    failures: list[FailureOut] | None = None
    report: SyncOut | None = Field(default=None, description="Of a sync that failed: who is at which version.")


class ErrorOut(BaseModel):
    error: ErrorDetail


class HealthOut(BaseModel):
    status: Literal["ok"] = "ok"
