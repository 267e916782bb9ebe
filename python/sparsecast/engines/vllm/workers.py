# SPDX-License-Identifier: Apache-2.0
"""Calls of a vLLM server's API process to all its workers."""

from __future__ import annotations

from typing import Any


async def ask_workers(engine: Any, method: str, *arguments: Any) -> list[dict[str, Any]]:
    """Calls `method` of all workers of all replicas, and returns their answers; `engine` is vLLM's EngineClient. vLLM's
    own collective_rpc would also call all workers, but would return the answers of the first replica only.
    """
    ask = getattr(getattr(engine, "engine_core", None), "call_utility_all_async", None)
    if ask is None:
        answers: list[dict[str, Any]] = await engine.collective_rpc(method, args=arguments)
        return answers
    replicas: list[list[dict[str, Any]]] = await ask("collective_rpc", method, None, arguments, None)
    return [answer for answers in replicas for answer in answers]
