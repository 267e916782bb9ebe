# SPDX-License-Identifier: Apache-2.0
"""Calls of a vLLM server's API process to all its workers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any


async def ask_workers(engine: Any, method: str, *arguments: Any) -> list[dict[str, Any]]:
    """Calls `method` of all workers of all replicas, and returns their answers; `engine` is vLLM's EngineClient. vLLM's
    own collective_rpc would also call all workers, but would return the answers of the first replica only.
    """
    core = getattr(engine, "engine_core", None)
    ask = getattr(core, "call_utility_all_async", None)
    if ask is None and len(getattr(core, "core_engines", ())) > 1:
        ask = partial(_ask_replicas, core)  # Before vLLM 0.32.
    if ask is None:
        answers: list[dict[str, Any]] = await engine.collective_rpc(method, args=arguments)
        return answers
    replicas: list[list[dict[str, Any]]] = await ask("collective_rpc", method, None, arguments, None)
    return [answer for answers in replicas for answer in answers]


async def _ask_replicas(core: Any, *call: Any) -> list[Any]:
    """Returns the answer of each replica to `call`. `core` is the client of vLLM's engine processes."""
    return await asyncio.gather(*(core._call_utility_async(*call, engine=each) for each in core.core_engines))
