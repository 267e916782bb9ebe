# SPDX-License-Identifier: Apache-2.0
"""Client of an SGLang server that has sparsecast's receiver plugged in.

Every route used here needs the admin key if the server has one (`--admin-api-key`), else its API key.
"""

from __future__ import annotations

import json
import math
import time
from typing import Any

from sparsecast.control.endpoints import Placement
from sparsecast.control.engine import RANKS_SHARE, EngineClient, EngineStatus, PauseMode, parse_version
from sparsecast.control.errors import EndpointError
from sparsecast.control.http import engine_error
from sparsecast.control.world import WorldSpec, engine_fields

_PAUSE_MODES = {
    PauseMode.ABORT: "abort",
    PauseMode.KEEP: "in_place",
    PauseMode.RETRACT: "retract",
}
GROUP_NAME = "sparsecast"
_NO_PLUGIN = (
    "the server runs without the plug-in: pip install sparsecast in its environment, and name sparsecast in "
    "SGLANG_PLUGINS if that is set; SGLang before 0.5.11 has no plug-ins and needs to be started by "
    "python -m sparsecast.engines.sglang.launch_server"
)


def group_request(world: WorldSpec, placement: Placement) -> dict[str, Any]:
    """Returns the body of /init_weights_update_group that makes an engine join `world`. Values for which SGLang has no
    field are JSON in `group_name`.
    """
    needs_anchor = placement.endpoint.name in world.anchored
    more = {**engine_fields(world, placement), "needs_anchor": needs_anchor}
    return {
        "master_address": world.host,
        "master_port": world.port,
        "rank_offset": placement.rank_offset,
        "world_size": world.size,
        "group_name": f"{GROUP_NAME}:{json.dumps(more)}",
        "backend": "sparsecast",
    }


def phase_request(phase: str, timeout: float, base_version: int | None = None) -> dict[str, Any]:
    """Returns the body of /weights_checker for a step of an update. The step, `phase` ("receive", "staged", "apply" or
    "cancel"), is sent as JSON in `action`. The ranks get a little less than `timeout` seconds, so that they can report
    a failure before the call itself times out.
    """
    fields: dict[str, Any] = {"phase": phase, "timeout": timeout * RANKS_SHARE}
    if base_version is not None:
        fields["base_version"] = base_version
    return {"action": f"{GROUP_NAME}:{json.dumps(fields)}"}


class SglangClient(EngineClient):
    """Client of an SGLang server (see `EngineClient`). It does not support `PauseMode.WAIT`, because SGLang cannot hold
    new requests back while others are finished.
    """

    pause_modes = frozenset(_PAUSE_MODES)
    _stages = 1

    async def _post(
        self, path: str, step: str, timeout: float, body: dict[str, Any], hide: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Posts `body` and returns the JSON of the answer. An answer {"success": false} raises `EndpointError`,
        whatever its status.
        """
        answer = await self.http.call("POST", path, step=step, timeout=timeout, json=body, hide=hide)
        value = answer.json()
        if value.get("success", True) is not True:
            message = str(value.get("message", "the server says no more than that"))
            for secret in hide:
                message = message.replace(secret, "***")
            raise engine_error(self.endpoint.name, step, message)
        return value

    async def health(self, timeout: float) -> EngineStatus:
        # Not /health: that generates a token, for at least a second, and never succeeds while paused. /server_info asks
        # the scheduler; the version is the tokenizer manager's.
        until = time.monotonic() + timeout
        server = (await self.http.call("GET", "/server_info", step="health", timeout=timeout)).json()
        model = await self.http.call("GET", "/model_info", step="health", timeout=until - time.monotonic())
        states = server.get("internal_states")
        if isinstance(states, list) and not any(isinstance(state, dict) and GROUP_NAME in state for state in states):
            raise EndpointError(self.endpoint.name, "health", _NO_PLUGIN, code="unsupported")
        # Attention by replicas is within one engine; older releases have its width in dp_size.
        replicas = 1 if server.get("enable_dp_attention") else server.get("dp_size", 1)
        sizes: list[Any] = [server.get("tp_size"), server.get("pp_size"), replicas]
        world_size = math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None
        self._stages = sizes[1] if isinstance(sizes[1], int) else 1
        return EngineStatus(parse_version(model.json().get("weight_version")), world_size)

    async def join(self, world: WorldSpec, placement: Placement, timeout: float) -> None:
        body = group_request(world, placement)
        await self._post("/init_weights_update_group", "join", timeout, body, hide=(world.secret,))

    async def leave(self, timeout: float) -> None:
        await self._post("/destroy_weights_update_group", "leave", timeout, {"group_name": GROUP_NAME})

    async def receive(self, base_version: int, timeout: float) -> None:
        await self._post("/weights_checker", "receive", timeout, phase_request("receive", timeout, base_version))

    async def staged(self, timeout: float) -> None:
        await self._post("/weights_checker", "staged", timeout, phase_request("staged", timeout))

    async def pause(self, mode: PauseMode, timeout: float) -> None:
        if mode is PauseMode.RETRACT and self._stages > 1:
            message = "SGLang cannot retract requests from pipeline stages (--pp-size): pause with keep or abort"
            raise EndpointError(self.endpoint.name, "pause", message, code="usage")
        await self._post("/pause_generation", "pause", timeout, {"mode": _PAUSE_MODES[mode]})

    async def resume(self, timeout: float) -> None:
        await self._post("/continue_generation", "resume", timeout, {"torch_empty_cache": False})

    async def hold(self, seconds: float, timeout: float) -> bool:
        fields = {"phase": "lease", "timeout": timeout, "seconds": seconds}
        await self._post("/weights_checker", "lease", timeout, {"action": f"{GROUP_NAME}:{json.dumps(fields)}"})
        return True

    async def apply(self, base_version: int, timeout: float) -> None:
        await self._post("/weights_checker", "apply", timeout, phase_request("apply", timeout, base_version))

    async def finish(self, version: int, timeout: float) -> None:
        body = {"new_version": str(version), "abort_all_requests": False}
        await self._post("/update_weight_version", "finish", timeout, body)

    async def cancel(self, timeout: float) -> None:
        await self._post("/weights_checker", "cancel", timeout, phase_request("cancel", timeout))

    async def flush(self, mode: PauseMode, timeout: float) -> None:
        await self.http.call("POST", "/flush_cache", step="flush", timeout=timeout)

    async def sleep(self, tags: tuple[str, ...], timeout: float) -> None:
        # SGLang ends the scheduler if it has to release memory that running requests hold.
        await self.pause(PauseMode.ABORT, timeout)
        await self.http.call(
            "POST", "/release_memory_occupation", step="sleep", timeout=timeout, json={"tags": list(tags)}
        )

    async def wake(self, tags: tuple[str, ...], timeout: float) -> None:
        await self.http.call(
            "POST", "/resume_memory_occupation", step="wake", timeout=timeout, json={"tags": list(tags)}
        )
