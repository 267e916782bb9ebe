# SPDX-License-Identifier: Apache-2.0
"""Requests that are in flight all the time, and what became of them; and fixed prompts whose logprobs name the weights."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from live_model import VOCABULARY
from live_servers import LiveServer

PROMPTS = [[random.Random(n).randrange(3, VOCABULARY) for _ in range(n)] for n in (5, 17, 33, 100)]


def probe(server: LiveServer, replica: int | None = None) -> str:
    """Returns the exact logprobs of fixed prompts as text: equal for equal weights, on one kind of server."""
    return json.dumps([server.complete(prompt, replica=replica) for prompt in PROMPTS], sort_keys=True)


def reload(server: LiveServer, checkpoint: Path) -> None:
    """Loads a checkpoint by the engine's own loader, in all replicas."""
    if server.kind == "sglang":
        where = {"model_path": str(checkpoint), "load_format": None}
        assert server.post("/update_weights_from_disk", where, 120)["success"]
        server.post("/flush_cache")
        return
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}}
    server.post("/collective_rpc", body, 120)
    server.post("/reset_prefix_cache")


class Load:
    """Streams completions from servers, `in_flight` at a time. `failures` are sentences; `reasons` count ends."""

    def __init__(self, servers: list[LiveServer], in_flight: int) -> None:
        self.requests = self.tokens = 0
        self.failures: list[str] = []
        self.reasons: Counter[str] = Counter()
        self._urls = [server.url for server in servers]
        self._in_flight = in_flight
        self._enough = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._first = threading.Event()

    async def _run(self) -> None:
        # No connection is kept: one that a server closes between two requests would count as a request that failed.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(timeout=240, limits=limits) as client:
            await asyncio.gather(*(self._stream(client, n) for n in range(self._in_flight)))

    async def _stream(self, client: httpx.AsyncClient, number: int) -> None:
        choose = random.Random(number)
        url = self._urls[number % len(self._urls)] + "/v1/completions"
        while not self._enough.is_set():
            prompt = [choose.randrange(3, VOCABULARY) for _ in range(choose.randrange(8, 48))]
            body = {"model": "m", "prompt": prompt, "max_tokens": choose.randrange(24, 96), "stream": True}
            self.requests += 1
            try:
                async with client.stream("POST", url, json={**body, "ignore_eos": True, "seed": number}) as answer:
                    if answer.status_code != 200:
                        self.failures.append(f"{answer.status_code}: {(await answer.aread())[:200]!r}")
                        await asyncio.sleep(0.2)
                        continue
                    self.reasons[await self._read(answer)] += 1
            except httpx.HTTPError as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.2)

    async def _read(self, answer: httpx.Response) -> str:
        reason = "none"
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            value: dict[str, Any] = json.loads(line[6:])
            if "error" in value:
                self.failures.append(str(value["error"])[:200])
            for choice in value.get("choices", []):
                self.tokens += 1
                self._first.set()
                reason = choice.get("finish_reason") or reason
        return reason

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Requests are in flight inside the block, from the first token on; at its end they are finished."""
        self._thread.start()
        assert self._first.wait(240), f"no token came: {self.failures[:3]}"
        try:
            yield self
        finally:
            self._enough.set()
            self._thread.join(300)
            assert not self._thread.is_alive(), "requests hang"
