# SPDX-License-Identifier: Apache-2.0
"""The adapters of a SGLang server that follows their logs by itself.

SPARSECAST_FOLLOW_ADAPTERS=/shared/math/log python -m sglang.launch_server --model-path MODEL --enable-lora ...
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from sparsecast.adapters.following import VARIABLE, AdapterFollowing, AdapterSettings
from sparsecast.adapters.own_server import SglangOwnServer
from sparsecast.engines.follow_routes import adapters_router
from sparsecast.engines.sglang.led_engine import while_serving
from sparsecast.errors import UsageError

_log = logging.getLogger("sparsecast")


def follow_adapters(tokenizer: Any, settings: AdapterSettings) -> None:
    """Makes SGLang's HTTP server, before it serves, follow the logs of adapters while it serves, and say how it stands
    at a route of its own.

    Raises UsageError for a server that takes no adapters while it runs, or that has several tokenizer processes.
    """
    from sglang.srt.entrypoints.http_server import app

    from sparsecast.engines.sglang.releases import get_lora, get_model, get_parallel, get_serving

    if not get_lora().enable_lora:
        raise UsageError(f"{VARIABLE}: the server takes no adapters: start SGLang with --enable-lora")
    if get_parallel().dp_size > 1 or get_serving().tokenizer_worker_num > 1:
        raise UsageError(
            f"{VARIABLE}: SGLang loads adapters while it runs only with --dp-size 1 and --tokenizer-worker-num 1"
        )
    app.include_router(adapters_router())

    @contextlib.asynccontextmanager
    async def follow() -> AsyncIterator[None]:
        server = SglangOwnServer(tokenizer, asyncio.get_running_loop())
        app.state.sparsecast_adapters = AdapterFollowing(server, settings, get_model().model_path, _log)
        app.state.sparsecast_adapters.start()
        try:
            yield
        finally:
            app.state.sparsecast_adapters.stop()

    while_serving(app, follow)
