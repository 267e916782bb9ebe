# SPDX-License-Identifier: Apache-2.0
"""The engine of a vLLM server that follows a delta log, as its API process leads it.

    SPARSECAST_FOLLOW=s3://bucket/run VLLM_PLUGINS=sparsecast vllm serve MODEL

Development mode is not needed: the calls are those of vLLM's EngineClient. The workers' part is `follow_worker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsecast.engines.follow_settings import FollowSettings, FollowStep
from sparsecast.engines.vllm.workers import ask_workers
from sparsecast.errors import UsageError


class VllmEngine:
    """Passes the calls of a `LedEngine` on to `client`, vLLM's EngineClient, so that the server can follow a log."""

    def __init__(self, client: Any, settings: FollowSettings, processes: int = 1) -> None:
        """Raises UsageError for a server of several API processes (`processes`), because each of them would lead the
        workers.
        """
        if processes > 1:
            raise UsageError(
                f"SPARSECAST_FOLLOW: the server has {processes} API processes, and one leads the workers: start vLLM "
                "with --api-server-count 1"
            )
        self._client = client
        self._settings = settings

    async def ask(
        self, step: FollowStep, replicas: Sequence[int] = (), goal: int | None = None
    ) -> list[dict[str, Any]]:
        if step == "follow":
            return await ask_workers(self._client, "sparsecast_follow", self._settings.for_worker(), goal)
        if step == "status":
            return await ask_workers(self._client, "sparsecast_follow_status", goal)
        return await ask_workers(self._client, f"sparsecast_follow_{step}", list(replicas))

    async def is_paused(self) -> bool:
        return bool(await self._client.is_paused())

    async def pause(self, mode: str) -> None:
        keeps = mode in ("keep", "retract")
        await self._client.pause_generation(mode="keep" if keeps else mode, clear_cache=not keeps)

    async def resume(self) -> None:
        await self._client.resume_generation()

    async def reset_cache(self, mode: str) -> bool:
        return bool(await self._client.reset_prefix_cache(reset_running_requests=mode == "retract"))

    async def name(self, version: str) -> None:
        await self._client.update_weight_version(version)
