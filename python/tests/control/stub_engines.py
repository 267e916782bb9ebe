# SPDX-License-Identifier: Apache-2.0
"""Engines for tests: real HTTP servers with the routes of SGLang and vLLM, and faults on demand."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from stub_source import StubSource

from sparsecast.errors import Error


class StubEngine:
    """A server of `kind`. `faults` maps a step to what goes wrong there:

    an int             that status, with `fault_text`
    "hang"             no answer for `hang_seconds`
    "drip"             one byte of the answer at a time, for as long
    "die"              the connection breaks in the middle of the answer, and the server is gone
    "garbage", "huge"  200 with something else than JSON, or with far too much of it
    "redirect"         307 to `redirect_to`
    """

    def __init__(self, kind: str, source: StubSource, *, token: str = "", world_size: int = 1) -> None:
        self.kind = kind
        self.source = source
        self.token = token
        self.world_size = world_size
        self.internal_states: list[dict[str, Any]] = [{"sparsecast": {}}]
        self.stages = self.replicas = 1  # Of an SGLang server; the world size counts their ranks.
        self.faults: dict[str, int | str] = {}
        self.fault_text = "the engine has caught fire"
        self.hang_seconds = 30.0
        self.redirect_to = ""
        self.calls: list[tuple[str, str, dict[str, str], Any]] = []
        self.steps: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.name = ""
        self.weight_version = "default"
        self.paused = False
        self.pause_modes: list[str] = []
        self.flushed = 0
        self.flush_works = True
        self.has_leases = False
        self.leases: list[tuple[float, bool]] = []  # seconds, and whether it was paused then
        self.in_update = self.was_applied = False
        self.asleep: set[str] = set()
        self.versions_seen: list[str] = []
        self.lacks: set[str] = set()
        """Routes that this server does not have, and methods that its workers do not have."""
        self.state = "staged"
        self.timeout = 0.0
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    # the server

    def start(self, port: int = 0) -> StubEngine:
        routes = [Route("/{path:path}", self._serve, methods=["GET", "POST", "PUT", "DELETE"])]
        app = Starlette(routes=routes)

        async def with_faults(scope: Any, receive: Any, send: Any) -> None:
            await self._faulty(app, scope, receive, send)

        config = uvicorn.Config(
            with_faults, host="127.0.0.1", port=port, log_level="critical", lifespan="off", timeout_graceful_shutdown=0
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        until = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < until, "the stub engine did not start"
            time.sleep(0.005)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        return self

    def stop(self) -> None:
        self.end()
        if self._thread is not None:
            self._thread.join(5)

    def end(self) -> None:
        """The server ends soon."""
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True

    async def _faulty(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        step = self._step(scope["path"], body)
        self.steps.append(step)
        fault = self.faults.get(step)
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]}
        if fault == "hang":
            await asyncio.sleep(self.hang_seconds)
        elif fault == "drip":
            await send(head)
            until = time.monotonic() + self.hang_seconds
            while time.monotonic() < until:
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                await asyncio.sleep(0.02)
        elif fault == "die":
            await send(head)
            await send({"type": "http.response.body", "body": b"{", "more_body": True})
            assert self._server is not None
            self._server.should_exit = self._server.force_exit = True
            for server in self._server.servers:
                server.close()
            raise RuntimeError("the process is gone")
        else:
            await self._answer_or_app(app, scope, send, body, fault)

    async def _answer_or_app(self, app: Any, scope: Any, send: Any, body: bytes, fault: int | str | None) -> None:
        async def replay() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        answer: Response | None = None
        if isinstance(fault, int):
            answer = JSONResponse({"error": {"message": self.fault_text, "sent": body.decode()}}, status_code=fault)
        elif fault == "garbage":
            answer = PlainTextResponse("<html>It works!</html>")
        elif fault == "huge":
            answer = PlainTextResponse("x" * (8 << 20))
        elif fault == "redirect":
            answer = Response(status_code=307, headers={"location": self.redirect_to})
        if answer is not None:
            await answer(scope, replay, send)
            if fault == 500:
                raise RuntimeError(
                    "as an application that failed: the server closes the connection, and does not say so"
                )
        else:
            await app(scope, replay, send)

    def _step(self, path: str, body: bytes) -> str:
        if path == "/weights_checker":
            return str(json.loads(json.loads(body)["action"].partition(":")[2])["phase"])
        return {
            "/health": "health",
            "/server_info": "health",
            "/init_weight_transfer_engine": "join",
            "/init_weights_update_group": "join",
            "/shutdown_weight_transfer_engine": "leave",
            "/destroy_weights_update_group": "leave",
            "/start_weight_update": "receive",
            "/collective_rpc": "staged",
            "/update_weights": "apply",
            "/pause": "pause",
            "/pause_generation": "pause",
            "/resume": "resume",
            "/continue_generation": "resume",
            "/finish_weight_update": "finish",
            "/update_weight_version": "finish",
            "/reset_prefix_cache": "flush",
            "/flush_cache": "flush",
            "/sleep": "sleep",
            "/release_memory_occupation": "sleep",
            "/wake_up": "wake",
            "/resume_memory_occupation": "wake",
            "/sparsecast/lease": "lease",
        }.get(path, path)

    # the routes

    async def _serve(self, request: Request) -> Response:
        body = await request.body()
        value = json.loads(body) if body else None
        query = {name: ",".join(request.query_params.getlist(name)) for name in request.query_params}
        self.calls.append((request.method, request.url.path, query, value))
        self.headers.append(dict(request.headers))
        guarded = self.kind == "sglang" or request.url.path.startswith("/v1")
        if self.token and guarded and request.headers.get("authorization") != f"Bearer {self.token}":
            return JSONResponse({"error": "Unauthorized"}, status_code=401)
        routes = self._sglang_routes() if self.kind == "sglang" else self._vllm_routes()
        handler = routes.get((request.method, request.url.path))
        if handler is None or request.url.path in self.lacks:
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        try:
            return JSONResponse(await run_in_threadpool(handler, value, query))
        except Error as error:
            content = {"success": False, "message": f"{error} [{error.code}]"}
            return JSONResponse(content, status_code=400 if self.kind == "sglang" else 500)
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=400)

    def _sglang_routes(self) -> dict[tuple[str, str], Any]:
        return {
            ("GET", "/server_info"): lambda body, query: {
                "tp_size": self.world_size // (self.stages * self.replicas),
                "pp_size": self.stages,
                "dp_size": self.replicas,
                "internal_states": self.internal_states,
            },
            ("GET", "/model_info"): lambda body, query: {"weight_version": self.weight_version},
            ("POST", "/init_weights_update_group"): self._sglang_join,
            ("POST", "/destroy_weights_update_group"): lambda body, query: {"success": True, "message": ""},
            ("POST", "/weights_checker"): self._sglang_phase,
            ("POST", "/pause_generation"): lambda body, query: self._pause(body["mode"]),
            ("POST", "/continue_generation"): lambda body, query: self._resume(),
            ("POST", "/update_weight_version"): lambda body, query: self._name(body["new_version"]),
            ("POST", "/flush_cache"): lambda body, query: self._flush(),
            ("POST", "/release_memory_occupation"): lambda body, query: self._release(body["tags"]),
            ("POST", "/resume_memory_occupation"): lambda body, query: self._take(body["tags"]),
        }

    def _vllm_routes(self) -> dict[tuple[str, str], Any]:
        return {
            ("GET", "/health"): lambda body, query: {},
            ("GET", "/weight_info"): lambda body, query: {"weight_version": self.weight_version},
            ("GET", "/get_world_size"): lambda body, query: {"world_size": self.world_size},
            ("GET", "/is_paused"): lambda body, query: {"is_paused": self.paused},
            ("POST", "/init_weight_transfer_engine"): lambda body, query: self._join(body["init_info"]),
            ("POST", "/shutdown_weight_transfer_engine"): lambda body, query: self._vllm_leave(),
            ("POST", "/start_weight_update"): lambda body, query: self._begin(),
            ("POST", "/collective_rpc"): lambda body, query: {"results": [self._ask(body["method"])] * self.world_size},
            ("POST", "/update_weights"): lambda body, query: self._vllm_update(body["update_info"]),
            ("POST", "/finish_weight_update"): self._vllm_finish,
            ("POST", "/pause"): lambda body, query: self._pause(query["mode"]),
            ("POST", "/resume"): lambda body, query: self._resume(),
            ("POST", "/reset_prefix_cache"): lambda body, query: self._flush(),
            ("POST", "/sleep"): lambda body, query: self._release(["weights", "kv_cache"]),
            ("POST", "/release_kv_cache_memory"): lambda body, query: self._release(["kv_cache"]),
            ("POST", "/wake_up"): lambda body, query: self._take(query["tags"].split(",")),
            **({("POST", "/sparsecast/lease"): lambda body, query: self._lease(body)} if self.has_leases else {}),
        }

    def _sglang_join(self, body: Any, query: Any) -> dict[str, Any]:
        return self._join({**body, **json.loads(body["group_name"].partition(":")[2])})

    def _sglang_phase(self, body: Any, query: Any) -> dict[str, Any]:
        return self._phase(json.loads(body["action"].partition(":")[2]))

    def _vllm_finish(self, body: Any, query: Any) -> dict[str, Any]:
        if not self.in_update:
            raise ValueError("finish_weight_update called without a matching start_weight_update.")
        if not self.was_applied:
            self.was_applied = True
            raise ValueError("finish_weight_update without update_weights: the staged version was dropped")
        self.in_update = False
        return self._name(body["weight_version"]) if body is not None else {}

    def _lease(self, body: dict[str, Any]) -> dict[str, Any]:
        self.leases.append((body["seconds"], self.paused))
        return {}

    def _ask(self, method: str) -> dict[str, Any]:
        if method in self.lacks:
            raise ValueError(f"Method {method!r} is not implemented.")
        return self._vllm_leave() if method == "sparsecast_leave" else {"state": self.state}

    def _vllm_leave(self) -> dict[str, Any]:
        if self.in_update:
            raise ValueError("Cannot release a trainer connection during a weight update")
        return {"message": ""}

    def _vllm_update(self, info: dict[str, Any]) -> dict[str, Any]:
        try:
            assert info["base_version"] == self.source.version
            self._phase({"phase": "apply", "timeout": self.timeout})
        except BaseException:
            self.in_update = False
            raise
        self.was_applied = True
        return {}

    def _begin(self) -> dict[str, Any]:
        if self.in_update:
            raise ValueError("start_weight_update called while a weight update is already active")
        self.in_update, self.was_applied = True, False
        return {}

    def _join(self, info: dict[str, Any]) -> dict[str, Any]:
        self.name = info["engine"]
        self.timeout = info["timeout"]
        collective = self.source.collective
        collective.arrive("joined", self.name)
        collective.wait(lambda: collective.met, info["timeout"], "the trainer")
        return {"success": True, "message": ""}

    def _phase(self, info: dict[str, Any]) -> dict[str, Any]:
        collective = self.source.collective
        if info["phase"] == "apply":
            collective.arrive("applied", self.name)
            collective.wait(lambda: collective.committed, info["timeout"], "the decision")
        return {"success": True, "message": ""}

    def _pause(self, mode: str) -> dict[str, Any]:
        self.paused = True
        self.pause_modes.append(mode)
        return {"status": "paused"}

    def _resume(self) -> dict[str, Any]:
        self.paused = False
        self.versions_seen.append(self.weight_version)
        return {"status": "resumed"}

    def _name(self, version: str) -> dict[str, Any]:
        self.weight_version = version
        return {"success": True}

    def _flush(self) -> dict[str, Any]:
        if not self.flush_works:
            return {"success": False}
        self.flushed += 1
        return {"success": True}

    def _release(self, tags: list[str]) -> dict[str, Any]:
        if self.kind == "sglang" and not self.paused:
            raise ValueError("release_memory_occupation should be called only when server is idle")
        self.asleep |= set(tags)
        self.paused = True
        return {}

    def _take(self, tags: list[str]) -> dict[str, Any]:
        self.asleep -= set(tags)
        if self.kind == "vllm" and not self.asleep:
            self.paused = False
        return {}


@contextmanager
def running(*engines: StubEngine) -> Iterator[None]:
    """The engines' servers run inside the block."""
    try:
        for engine in engines:
            engine.start()
        yield
    finally:
        for engine in engines:
            engine.end()
        for engine in engines:
            engine.stop()
