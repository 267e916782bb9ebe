# SPDX-License-Identifier: Apache-2.0
"""The routes of the control service."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from sparsecast.control import schemas
from sparsecast.control.errors import BusyError, ConflictError, UnknownEndpointError
from sparsecast.control.metrics import ControlMetrics
from sparsecast.control.plane import ControlPlane
from sparsecast.control.report import SyncError
from sparsecast.errors import Error, UsageError

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": schemas.ErrorOut, "description": "The request cannot be right; the message says why."},
    401: {"model": schemas.ErrorOut, "description": "No token, or another one."},
    404: {"model": schemas.ErrorOut, "description": "No such endpoint, or no such route."},
    409: {"model": schemas.ErrorOut, "description": "Another operation is in progress, or the endpoint is another."},
    413: {"model": schemas.ErrorOut, "description": "The request is too long."},
    422: {"model": schemas.ErrorOut, "description": "A field is missing, unknown, or of a wrong type."},
    502: {"model": schemas.ErrorOut, "description": "An endpoint or the trainer failed; the error names it."},
}


def build_app(plane: ControlPlane, metrics: ControlMetrics) -> FastAPI:
    """Returns the HTTP application with all routes of the service, without authentication: `ControlService`
    adds that.
    """
    app = FastAPI(
        title="sparsecast control plane",
        version="1",
        description="Inference endpoints of a trainer, and syncs of weights to them.",
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        responses=_ERRORS,
    )
    _use_bearer_in_openapi(app)
    _add_service_routes(app, plane, metrics)
    _add_endpoint_routes(app, plane)
    _add_operation_routes(app, plane)
    _add_xorl_routes(app, plane)
    app.add_exception_handler(RequestValidationError, _refuse_fields)
    app.add_exception_handler(HTTPException, _refuse_route)
    app.add_exception_handler(Error, _report_error)
    return app


def _caller(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client is not None else "an HTTP client"


def _entry(plane: ControlPlane, host: str, port: int) -> dict[str, Any]:
    for entry in plane.endpoints():
        if (entry["host"], entry["port"]) == (host, port):
            return entry
    raise UnknownEndpointError(f"endpoint {host}:{port} was removed meanwhile")


def _add_service_routes(app: FastAPI, plane: ControlPlane, metrics: ControlMetrics) -> None:
    @app.get("/healthz", response_model=schemas.HealthOut, summary="Whether the service runs; needs no token")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/status", response_model=schemas.StatusOut, summary="Who is at which version")
    def status(
        probe: Annotated[bool, Query(description="Ask every server now, instead of telling what is known.")] = False,
    ) -> dict[str, Any]:
        return plane.status(probe=probe)

    @app.get("/metrics", response_class=PlainTextResponse, summary="Prometheus metrics")
    def metrics_text() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_endpoint_routes(app: FastAPI, plane: ControlPlane) -> None:
    @app.get("/v1/endpoints", response_model=schemas.EndpointsOut, summary="All endpoints, as they are known")
    def endpoints() -> dict[str, Any]:
        return {"endpoints": plane.endpoints()}

    @app.post(
        "/v1/endpoints",
        response_model=schemas.AddedOut,
        status_code=201,
        responses={200: {"model": schemas.AddedOut, "description": "It was registered already."}},
        summary="Register an endpoint for the syncs to come",
    )
    def add(body: schemas.EndpointIn, response: Response) -> dict[str, Any]:
        endpoint = body.endpoint()
        created = plane.add(endpoint, needs_anchor=body.needs_anchor)
        response.status_code = 201 if created else 200
        return {"created": created, "endpoint": _entry(plane, *endpoint.key)}

    @app.delete("/v1/endpoints", response_model=schemas.EndpointsOut, summary="Take an endpoint out; the others answer")
    def remove(
        host: Annotated[str, Query(max_length=255)], port: Annotated[int, Query(ge=1, le=65535)]
    ) -> dict[str, Any]:
        plane.remove(host, port)
        return {"endpoints": plane.endpoints()}


def _add_operation_routes(app: FastAPI, plane: ControlPlane) -> None:
    @app.post("/v1/sync", response_model=schemas.SyncOut, summary="Bring every endpoint to the weights of now")
    def sync(request: Request, body: schemas.SyncIn | None = None) -> dict[str, Any]:
        policy = body.policy(plane.policy) if body is not None else None
        return plane.sync_now(policy, by=_caller(request)).to_dict()

    @app.post("/v1/pause", response_model=schemas.DoneOut, summary="Stop generation until it is resumed")
    def pause(request: Request, body: schemas.PauseIn | None = None) -> dict[str, Any]:
        given = body if body is not None else schemas.PauseIn()
        plane.pause(given.mode, given.endpoints, by=_caller(request))
        return {"endpoints": plane.endpoints()}

    @app.post("/v1/resume", response_model=schemas.DoneOut, summary="Generate again")
    def resume(request: Request, body: schemas.ResumeIn | None = None) -> dict[str, Any]:
        plane.resume(body.endpoints if body is not None else None, by=_caller(request))
        return {"endpoints": plane.endpoints()}

    @app.post("/v1/sleep", response_model=schemas.DoneOut, summary="Release device memory, aborting requests")
    def sleep(request: Request, body: schemas.MemoryIn | None = None) -> dict[str, Any]:
        given = body if body is not None else schemas.MemoryIn()
        plane.sleep(given.tags, given.endpoints, by=_caller(request))
        return {"endpoints": plane.endpoints()}

    @app.post("/v1/wake", response_model=schemas.DoneOut, summary="Take released memory again")
    def wake(request: Request, body: schemas.MemoryIn | None = None) -> dict[str, Any]:
        given = body if body is not None else schemas.MemoryIn()
        plane.wake(given.tags, given.endpoints, by=_caller(request))
        return {"endpoints": plane.endpoints()}


def _add_xorl_routes(app: FastAPI, plane: ControlPlane) -> None:
    @app.post("/api/v1/add_inference_endpoint", response_model=schemas.AddedOut, summary="As xorl: an SGLang endpoint")
    def add_inference_endpoint(body: schemas.XorlEndpointIn) -> dict[str, Any]:
        endpoint = schemas.EndpointIn(host=body.host, port=body.port, world_size=body.world_size).endpoint()
        return {"created": plane.add(endpoint), "endpoint": _entry(plane, *endpoint.key)}

    @app.post("/api/v1/remove_inference_endpoint", response_model=schemas.EndpointsOut, summary="As xorl")
    def remove_inference_endpoint(body: schemas.XorlEndpointOut) -> dict[str, Any]:
        plane.remove(body.host, body.port)
        return {"endpoints": plane.endpoints()}

    @app.post("/api/v1/sync_inference_weights", response_model=schemas.XorlSyncOut, summary="As xorl: sync and wait")
    def sync_inference_weights(request: Request, body: schemas.XorlSyncIn | None = None) -> dict[str, Any]:
        given = body if body is not None else schemas.XorlSyncIn()
        if (given.master_address is None) != (given.master_port is None):
            raise UsageError("master_address and master_port go together")
        if given.master_address is not None and given.master_port is not None:
            plane.meet_at(given.master_address, given.master_port)
        report = plane.sync_now(by=_caller(request))
        ignored = [name for name in ("group_name", "buffer_size_mb") if getattr(given, name) is not None]
        return {**report.to_dict(), "success": report.result == "ok", "ignored": ignored}


def _use_bearer_in_openapi(app: FastAPI) -> None:
    made = app.openapi

    def openapi() -> dict[str, Any]:
        schema = made()
        schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
        schema["paths"]["/healthz"]["get"]["security"] = []
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _refuse_fields(request: Request, error: Exception) -> JSONResponse:
    """Answers 422 and says which fields are wrong and why, without repeating the request: it may hold a token."""
    assert isinstance(error, RequestValidationError)
    sentences = [f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors()[:16]]
    return _error(422, "usage", "; ".join(sentences))


def _refuse_route(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, "usage", f"{request.method} {request.url.path}: {error.detail}")


def _report_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Error)
    if isinstance(error, SyncError):
        failures = [
            {"endpoint": each.endpoint, "step": each.step, "code": each.code, "message": each.message}
            for each in error.failures
        ]
        report = error.report.to_dict() if error.report is not None else None
        return _error(502, error.code, str(error), failures=failures, report=report)
    if isinstance(error, BusyError):
        return _error(409, "busy", str(error))
    if isinstance(error, UnknownEndpointError):
        return _error(404, error.code, str(error))
    if isinstance(error, ConflictError):
        return _error(409, error.code, str(error))
    return _error(400 if isinstance(error, UsageError) else 502, error.code, str(error))


def _error(status: int, code: str, message: str, **more: Any) -> JSONResponse:
    detail = {"code": code, "message": message, **{name: value for name, value in more.items() if value is not None}}
    return JSONResponse({"error": detail}, status_code=status)
