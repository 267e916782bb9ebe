# SPDX-License-Identifier: Apache-2.0
"""Client of a vLLM server whose workers have sparsecast's weight-transfer backend.

The server is started with `--weight-transfer-config '{"backend": "sparsecast"}'` and VLLM_SERVER_DEV_MODE=1, which
opens the routes used here; with `--worker-extension-cls sparsecast.engines.vllm.WorkerExtension` it can say when an
update has come, so that it is paused for the apply only. Mind that vLLM's own API key does not protect them: only
paths under /v1 ask for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from typing import Any

from sparsecast.control.endpoints import Placement
from sparsecast.control.engine import WEIGHTS, EngineClient, EngineStatus, PauseMode, parse_version
from sparsecast.control.errors import EndpointError
from sparsecast.control.http import Answer
from sparsecast.control.world import WorldSpec, engine_fields

_PAUSE_MODES = {
    PauseMode.ABORT: "abort",
    PauseMode.WAIT: "wait",
    PauseMode.KEEP: "keep",
    PauseMode.RETRACT: "keep",  # the flush then preempts the kept requests
}
_START = """start the server with --weight-transfer-config '{"backend": "sparsecast"}'"""
_EXTENSION = "--worker-extension-cls sparsecast.engines.vllm.WorkerExtension"
# Phrases of vLLM's error for a join, and what the message then advises.
_CURES = {
    "Weight transfer not configured": _START,
    "Invalid init_info": f"it has another backend, or another version of sparsecast; {_START}",
}
# Phrases of vLLM's error for a step of an update that is no longer open.
_ENDED = ("start_weight_update must be called before", "without a matching start_weight_update")
_log = logging.getLogger("sparsecast")
_FIRST_POLL_SECONDS = 0.01  # every poll takes the engine a moment between two steps
_LAST_POLL_SECONDS = 0.25


def init_info(world: WorldSpec, placement: Placement) -> dict[str, Any]:
    """Returns the body field `init_info` of /init_weight_transfer_engine: the fields of
    `sparsecast.engines.vllm.SparsecastInitInfo`, with which an engine joins `world`.
    """
    info = {
        **engine_fields(world, placement),
        "host": world.host,
        "port": world.port,
        "world_size": world.size,
        "rank_offset": placement.rank_offset,
    }
    if placement.endpoint.name in world.anchored:
        info["needs_anchor"] = True  # an older backend refuses the field, which is better than a group without seeding
    return info


def update_info(base_version: int) -> dict[str, Any]:
    """Returns the body field `update_info` of /update_weights: the fields of
    `sparsecast.engines.vllm.SparsecastUpdateInfo`.
    """
    return {"base_version": base_version}


class UpdateSteps(ABC):
    """Implements `receive`, `staged`, `apply`, `finish` and `cancel` of `EngineClient` for vLLM. Subclasses provide
    `_post`, which carries the calls.
    """

    # A missing feature is remembered for one sync only: a proxy answers 404 while its server starts, too.
    _tells_states = True  # False once the workers of this sync are known not to have the extension

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the engine, in messages."""

    @abstractmethod
    async def _post(
        self, path: str, step: str, timeout: float, body: dict[str, Any] | None = None, **params: str
    ) -> dict[str, Any]:
        """Sends a POST request to the route `path` of the server, with the JSON `body` and the query `params`, and
        returns the JSON of the answer. Raises `EndpointError`, which names `step`.
        """

    async def receive(self, base_version: int, timeout: float) -> None:
        until = time.monotonic() + timeout
        self._tells_states = True
        try:
            await self._post("/start_weight_update", "receive", timeout)
        except EndpointError as error:
            if "already active" not in error.message:
                raise
            # A session is left from an update whose end did not arrive.
            await self.cancel(until - time.monotonic())
            await self._post("/start_weight_update", "receive", until - time.monotonic())

    async def staged(self, timeout: float) -> None:
        """Waits until the workers have staged the version. Workers without the worker extension cannot tell: then it
        returns without waiting, and `apply` waits for the version.
        """
        until = time.monotonic() + timeout
        pause = _FIRST_POLL_SECONDS
        while self._tells_states:
            states = await self._states(until - time.monotonic())
            if states == {"staged"}:
                return
            failed = states - {"receiving", "staged"}
            if failed and self._tells_states:
                message = f"a worker is {', '.join(sorted(failed))} instead of receiving"
                raise EndpointError(self.name, "staged", message, echo="broken" in failed)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_POLL_SECONDS)

    async def _states(self, timeout: float) -> set[str]:
        body = {"method": "sparsecast_status"}
        try:
            answer = await self._post("/collective_rpc", "staged", timeout, body)
        except EndpointError as error:
            if error.code in ("timeout", "io", "unauthenticated"):
                raise
            self._tells_states = False
            return set()
        results = answer.get("results")
        workers = results if isinstance(results, list) else []
        return {str(worker.get("state")) if isinstance(worker, dict) else "unknown" for worker in workers}

    async def apply(self, base_version: int, timeout: float) -> None:
        await self._post("/update_weights", "apply", timeout, {"update_info": update_info(base_version)})

    async def finish(self, version: int, timeout: float) -> None:
        await self._post("/finish_weight_update", "finish", timeout, {"weight_version": str(version)})

    async def cancel(self, timeout: float) -> None:
        # The first call makes the backend drop the staged version and raise an error, which leaves the session of vLLM
        # open; the second call closes it. After a failed /update_weights the session is already closed, and both calls
        # fail.
        until = time.monotonic() + timeout
        try:
            await self._post("/finish_weight_update", "cancel", timeout)
        except EndpointError as error:
            if error.code in ("timeout", "io"):
                raise
            await self._post("/finish_weight_update", "cancel", until - time.monotonic())


class VllmClient(UpdateSteps, EngineClient):
    """Client of a vLLM server (see `EngineClient`)."""

    pause_modes = frozenset(_PAUSE_MODES)
    _warned = False  # that the server has no leases; until it has

    @property
    def name(self) -> str:
        return self.endpoint.name

    async def _post(
        self, path: str, step: str, timeout: float, body: dict[str, Any] | None = None, **params: str
    ) -> dict[str, Any]:
        try:
            answer = await self.http.call(
                "POST", path, step=step, timeout=timeout, json=body, params=list(params.items())
            )
        except EndpointError as error:
            if not any(words in error.message for words in _ENDED):
                raise
            words = "the server has ended this update: the lease of its pause ran out, or another trainer has joined it"
            raise EndpointError(error.endpoint, step, f"{words} ({error.message})", code=error.code) from error
        return answer.json()

    async def health(self, timeout: float) -> EngineStatus:
        until = time.monotonic() + timeout

        async def get(path: str) -> Answer:
            return await self.http.call("GET", path, step="health", timeout=until - time.monotonic())

        # At once: the engine answers between two steps, and each of three questions would wait for one.
        paths = ("/health", "/weight_info", "/get_world_size", "/is_paused")
        _, info, size, pause = await asyncio.gather(*(get(path) for path in paths))
        version = info.json().get("weight_version")
        world_size = size.json().get("world_size")
        paused = pause.json().get("is_paused")
        return EngineStatus(
            parse_version(version),
            world_size if isinstance(world_size, int) else None,
            paused if isinstance(paused, bool) else None,
        )

    async def join(self, world: WorldSpec, placement: Placement, timeout: float) -> None:
        body = {"init_info": init_info(world, placement)}
        try:
            await self.http.call(
                "POST", "/init_weight_transfer_engine", step="join", timeout=timeout, json=body, hide=[world.secret]
            )
        except EndpointError as error:
            cure = next((cure for words, cure in _CURES.items() if words in error.message), "")
            if not cure:
                raise
            raise EndpointError(error.endpoint, "join", f"{error.message}: {cure}", code="unsupported") from error

    async def leave(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        try:
            await self._leave(until)
        except EndpointError as error:
            if "during a weight update" not in error.message:
                raise
            # The trainer of that update is gone, without its end.
            await self.cancel(until - time.monotonic())
            await self._leave(until)

    async def _leave(self, until: float) -> None:
        try:
            await self._post("/shutdown_weight_transfer_engine", "leave", until - time.monotonic())
            return
        except EndpointError as error:
            if error.code != "unsupported":
                raise
            without_route = error
        # vLLM before 0.32 has no such route. The workers have the method if they have the worker extension.
        try:
            await self._post("/collective_rpc", "leave", until - time.monotonic(), {"method": "sparsecast_leave"})
        except EndpointError as error:
            if "is not implemented" not in error.message:
                raise
            words = f"{without_route.message}; its workers cannot leave their group without {_EXTENSION}"
            raise EndpointError(error.endpoint, "leave", words, code="unsupported") from error

    async def pause(self, mode: PauseMode, timeout: float) -> None:
        clear = "false" if mode is PauseMode.KEEP else "true"
        await self._post("/pause", "pause", timeout, mode=_PAUSE_MODES[mode], clear_cache=clear)

    async def resume(self, timeout: float) -> None:
        await self._post("/resume", "resume", timeout)

    async def hold(self, seconds: float, timeout: float) -> bool:
        try:
            await self._post("/sparsecast/lease", "lease", timeout, {"seconds": seconds})
        except EndpointError as error:
            if error.code != "unsupported":
                raise
            # The server was started without VLLM_PLUGINS=sparsecast, or something before it answers.
            if not self._warned:
                _log.warning(
                    "%s: no lease on its pause, which lasts if this process dies: %s", self.endpoint.name, error
                )
            self._warned = True
            return False
        self._warned = False
        return True

    async def flush(self, mode: PauseMode, timeout: float) -> None:
        again = "true" if mode is PauseMode.RETRACT else "false"
        answer = await self._post("/reset_prefix_cache", "flush", timeout, reset_running_requests=again)
        if answer.get("success") is not True:
            message = "the prefix cache was not reset: requests hold blocks of it"
            raise EndpointError(self.endpoint.name, "flush", message)

    async def sleep(self, tags: tuple[str, ...], timeout: float) -> None:
        if WEIGHTS in tags:
            # Level 2 keeps no copy on the host: the next sync seeds the weights. The KV cache goes with it.
            await self._post("/sleep", "sleep", timeout, level="2", mode="abort")
        else:
            await self._post("/pause", "sleep", timeout, mode="abort", clear_cache="true")
            try:
                await self._post("/release_kv_cache_memory", "sleep", timeout)
            except EndpointError as error:
                if error.code != "unsupported":
                    raise
                words = "vLLM before 0.31 does not release its KV cache alone: resume it, or let its weights sleep, too"
                raise EndpointError(error.endpoint, "sleep", f"{words} ({error.message})", code=error.code) from error

    async def wake(self, tags: tuple[str, ...], timeout: float) -> None:
        answer = await self.http.call(
            "POST", "/wake_up", step="wake", timeout=timeout, params=[("tags", tag) for tag in tags]
        )
        answer.json()
