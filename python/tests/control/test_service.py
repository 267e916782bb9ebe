# SPDX-License-Identifier: Apache-2.0
"""The HTTP service: tokens, wrong requests, one operation at a time, metrics, and what its OpenAPI promises."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stub_engines import StubEngine
from stub_source import StubSource

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

from sparsecast.control import ControlPlane, ControlService  # noqa: E402
from sparsecast.errors import UsageError  # noqa: E402

TOKEN = "a-token-for-tests-only"


@pytest.fixture
def service(plane: ControlPlane) -> Iterator[ControlService]:
    with ControlService(plane, port=0, token=TOKEN) as made:
        yield made


@pytest.fixture
def client(service: ControlService) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=service.url, headers=headers, trust_env=False, timeout=20) as made:
        yield made


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method.upper(), path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]


def resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    for choice in part.get("anyOf", []):
        if "$ref" in choice:
            return resolve(schema, choice)
    name = part.get("$ref", "").rpartition("/")[2]
    return schema["components"]["schemas"][name] if name else part


def body_of(schema: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any] | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return resolve(schema, content["schema"]) if content else None


def test_every_route_but_healthz_asks_for_the_token(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()
    found = operations(schema)
    assert len(found) >= 14
    bare = httpx.Client(base_url=client.base_url, trust_env=False)
    for method, path, _ in [*found, ("GET", "/openapi.json", {}), ("GET", "/nothing", {})]:
        for value in (None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"):
            headers = {} if value is None else {"Authorization": value}
            answer = bare.request(method, path, headers=headers)
            assert answer.status_code == (200 if path == "/healthz" else 401), (method, path, value)
            if path != "/healthz":
                assert answer.json()["error"]["code"] == "unauthenticated"
                assert answer.headers["www-authenticate"] == "Bearer"


def test_every_documented_route_answers_with_a_status_that_it_documents(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()
    query = {"host": "10.0.0.9", "port": "1"}
    for method, path, operation in operations(schema):
        answer = client.request(method, path, params=query if method == "DELETE" else None, json=None)
        assert str(answer.status_code) in operation["responses"], (method, path, answer.text)
        assert answer.status_code != 500


def test_wrong_types_and_unknown_fields_get_422_that_names_the_field(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()
    tried = 0
    for method, path, operation in operations(schema):
        body = body_of(schema, operation)
        if body is None:
            continue
        for wrong in (17, "x", [], {"no_such_field": 1}):
            answer = client.request(method, path, json=wrong)
            assert answer.status_code == 422 and "body" in answer.json()["error"]["message"], (path, wrong)
        for name in body["properties"]:
            answer = client.request(method, path, json={"host": "h", "port": 1, name: {"strange": [None]}})
            if name == "options":
                continue
            assert answer.status_code == 422, (path, name, answer.text)
            assert re.search(rf"body\.{name}", answer.json()["error"]["message"]), (path, name, answer.text)
            tried += 1
    assert tried > 25


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"host": "h", "port": "30000"}, "body.port: Input should be a valid integer"),
        ({"host": "h", "port": 0}, "body.port"),
        ({"host": "h", "port": 1, "world_size": 1.5}, "body.world_size"),
        ({"host": "h", "port": 1, "kind": "tgi"}, "body.kind: Input should be 'sglang' or 'vllm'"),
        ({"port": 1}, "body.host: Field required"),
    ],
)
def test_the_message_of_a_422_says_what_is_expected(client: httpx.Client, body: dict[str, Any], says: str) -> None:
    answer = client.post("/v1/endpoints", json=body)
    assert answer.status_code == 422 and says in answer.json()["error"]["message"]


def test_a_refused_request_does_not_repeat_the_token_in_it(client: httpx.Client) -> None:
    answer = client.post("/v1/endpoints", json={"host": "h", "port": "x", "token": "hush-hush"})
    assert answer.status_code == 422 and "hush-hush" not in answer.text
    answer = client.post("/v1/endpoints", json={"host": "h", "port": 1, "token": ["hush-hush"]})
    assert answer.status_code == 422 and "hush-hush" not in answer.text


def test_a_body_that_is_no_json_is_422(client: httpx.Client) -> None:
    answer = client.post("/v1/sync", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 422


def test_endpoints_are_added_once_listed_without_their_token_and_removed(client: httpx.Client) -> None:
    body = {"host": "GPU-7.", "port": 30000, "world_size": 8, "kind": "vllm", "token": "hush-hush"}
    first, second = client.post("/v1/endpoints", json=body), client.post("/v1/endpoints", json=body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["created"] and not second.json()["created"]
    answer = client.get("/v1/endpoints")
    assert [entry["host"] for entry in answer.json()["endpoints"]] == ["gpu-7"]
    assert "hush-hush" not in answer.text + first.text and answer.json()["endpoints"][0]["has_token"]
    conflict = client.post("/v1/endpoints", json={**body, "world_size": 4})
    assert conflict.status_code == 409 and "world_size 8, not 4" in conflict.json()["error"]["message"]
    assert client.delete("/v1/endpoints", params={"host": "gpu-7", "port": 30000}).json() == {"endpoints": []}
    assert client.delete("/v1/endpoints", params={"host": "gpu-7", "port": 30000}).status_code == 404


def test_a_wrong_host_is_a_400_that_quotes_it(client: httpx.Client) -> None:
    answer = client.post("/v1/endpoints", json={"host": "http://h", "port": 1})
    assert answer.status_code == 400 and "'http://h'" in answer.json()["error"]["message"]


def test_a_sync_over_http_reports_each_endpoint(client: httpx.Client, engines: list[StubEngine]) -> None:
    answer = client.post("/v1/sync", json={"pause": "retract", "sync_timeout": 19})
    report = answer.json()
    assert answer.status_code == 200 and report["result"] == "ok" and report["version"] == 1
    assert [each["version"] for each in report["endpoints"]] == [1, 1]
    assert report["source"]["sent_bytes"] == 1300 and engines[0].pause_modes == ["retract"]


def test_a_sync_that_fails_is_a_502_that_names_the_endpoint_and_who_is_where(
    client: httpx.Client, engines: list[StubEngine]
) -> None:
    engines[1].faults["apply"] = 500
    answer = client.post("/v1/sync")
    error = answer.json()["error"]
    assert answer.status_code == 502
    assert [(each["endpoint"], each["step"]) for each in error["failures"]] == [("vl", "apply")]
    assert error["report"]["result"] == "failed" and "trainer at 0; sg at 0, vl at 0" in error["message"]


def test_a_second_operation_gets_409_that_says_who_holds_it(
    client: httpx.Client, engines: list[StubEngine], source: StubSource
) -> None:
    source.before_commit = threading.Event()
    thread = threading.Thread(target=lambda: client.post("/v1/sync"))
    thread.start()
    while not client.get("/v1/status").json()["busy"]:
        time.sleep(0.01)
    try:
        for path in ("/v1/sync", "/v1/pause", "/v1/resume", "/v1/sleep", "/v1/wake"):
            answer = client.post(path)
            assert answer.status_code == 409 and answer.json()["error"]["code"] == "busy"
            assert re.search(r"sync for 127\.0\.0\.1:\d+, since", answer.json()["error"]["message"])
    finally:
        source.before_commit.set()
        thread.join(10)


def test_pause_resume_sleep_and_wake_reach_the_named_endpoints(client: httpx.Client, engines: list[StubEngine]) -> None:
    assert client.post("/v1/pause", json={"mode": "keep", "endpoints": ["sg"]}).status_code == 200
    assert engines[0].pause_modes == ["in_place"] and not engines[1].paused
    assert client.post("/v1/resume").status_code == 200 and not engines[0].paused
    assert client.post("/v1/sleep", json={"tags": ["kv_cache"], "endpoints": ["vl"]}).status_code == 200
    assert engines[1].asleep == {"kv_cache"} and not engines[0].asleep
    assert client.post("/v1/wake").status_code == 200 and not engines[1].asleep
    assert client.post("/v1/pause", json={"endpoints": ["nobody"]}).status_code == 404


def test_xorls_clients_find_their_routes(client: httpx.Client, engines: list[StubEngine], plane: ControlPlane) -> None:
    known = {"host": "localhost", "port": engines[0].port, "world_size": 2}
    plane.remove("127.0.0.1", engines[0].port)
    assert client.post("/api/v1/add_inference_endpoint", json=known).json()["created"]
    assert not client.post("/api/v1/add_inference_endpoint", json=known).json()["created"]
    wanted = {"master_address": "127.0.0.1", "master_port": 29611, "group_name": "g", "buffer_size_mb": 1024}
    answer = client.post("/api/v1/sync_inference_weights", json=wanted).json()
    assert answer["success"] and answer["result"] == "ok" and answer["ignored"] == ["group_name", "buffer_size_mb"]
    bodies = [body for _, path, _, body in engines[0].calls if path == "/init_weights_update_group"]
    assert bodies[0]["master_port"] == 29611
    assert client.post("/api/v1/remove_inference_endpoint", json=known).status_code == 200
    assert len(plane.endpoints()) == 1


def metric(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, f"no {name} in\n{text}"
    return float(found.group(1))


def test_metrics_count_syncs_bytes_seconds_lag_and_digest_failures(
    client: httpx.Client, engines: list[StubEngine], source: StubSource
) -> None:
    client.post("/v1/sync")
    engines[1].faults["apply"], engines[1].fault_text = 500, "other bytes [digest_mismatch]"
    client.post("/v1/sync")
    source.version = 3
    text = client.get("/metrics").text
    assert metric(text, 'sparsecast_syncs_total{result="ok"}') == 1
    assert metric(text, 'sparsecast_syncs_total{result="failed"}') == 1
    assert metric(text, "sparsecast_sent_bytes_total") == 1300
    assert metric(text, "sparsecast_density") == 0.01
    assert metric(text, 'sparsecast_trainer_seconds_sum{step="encode"}') == 0.002
    assert metric(text, 'sparsecast_trainer_seconds_sum{step="wire"}') == 0.003
    assert metric(text, 'sparsecast_pause_seconds_count{endpoint="sg"}') == 2
    assert metric(text, 'sparsecast_endpoint_lag_versions{endpoint="vl"}') == 2
    assert metric(text, 'sparsecast_digest_failures_total{endpoint="vl"}') == 1
    failure = 'sparsecast_endpoint_failures_total{code="digest_mismatch",endpoint="vl",step="apply"}'
    assert metric(text, failure) == 1
    assert metric(text, 'sparsecast_endpoint_state{endpoint="vl",state="unhealthy"}') == 1


def test_an_endpoint_that_was_removed_is_not_in_the_metrics_of_now(
    client: httpx.Client, engines: list[StubEngine], plane: ControlPlane
) -> None:
    client.post("/v1/sync")
    plane.remove("127.0.0.1", engines[0].port)
    assert 'sparsecast_endpoint_version{endpoint="sg"}' not in client.get("/metrics").text


def test_a_request_that_is_too_long_is_413_whether_it_says_its_length_or_not(client: httpx.Client) -> None:
    long = b'{"host": "' + b"h" * (2 << 20) + b'"}'
    headers = {"content-type": "application/json"}
    assert client.post("/v1/endpoints", content=long, headers=headers).status_code == 413

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(long), 1 << 16):
            yield long[start : start + (1 << 16)]

    with contextlib.suppress(httpx.TransportError):  # it may answer and close before all is sent
        assert client.post("/v1/endpoints", content=chunks(), headers=headers).status_code == 413


def test_a_token_is_made_and_printed_once_if_none_is_given(
    plane: ControlPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    with ControlService(plane, port=0) as service:
        token = capsys.readouterr().err.split()[-1]
        assert len(token) >= 40
        url = f"{service.url}/v1/status"
        assert httpx.get(url, headers={"Authorization": f"Bearer {token}"}, trust_env=False).status_code == 200
        assert httpx.get(url, trust_env=False).status_code == 401
    assert token not in capsys.readouterr().err


def test_a_token_file_is_made_for_its_owner_alone_and_used_again(plane: ControlPlane, tmp_path: Path) -> None:
    path = tmp_path / "token"
    old = os.umask(0)
    try:
        ControlService(plane, port=0, token_file=path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written = path.read_text()
    with ControlService(ControlPlane(StubSource(), host="10.0.0.1", port=1), port=0, token_file=path) as service:
        headers = {"Authorization": f"Bearer {written.strip()}"}
        assert httpx.get(f"{service.url}/v1/status", headers=headers, trust_env=False).status_code == 200
    assert path.read_text() == written


def test_a_token_file_that_others_can_read_is_refused(plane: ControlPlane, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o640)
    with pytest.raises(UsageError, match="can be read by others"):
        ControlService(plane, port=0, token_file=path)


@pytest.mark.parametrize(
    "options",
    [
        {"authentication": False, "host": "0.0.0.0"},
        {"authentication": False, "host": "gpu-7"},
        {"authentication": False, "token": TOKEN},
        {"token": "short"},
        {"token": TOKEN, "token_file": "x"},
    ],
)
def test_settings_that_would_leave_the_service_open_are_refused(plane: ControlPlane, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ControlService(plane, port=0, **options)


def test_without_a_token_this_machines_programs_may_call_and_web_pages_may_not(plane: ControlPlane) -> None:
    with ControlService(plane, port=0, authentication=False) as service:
        url = f"{service.url}/v1/status"
        assert httpx.get(url, trust_env=False).status_code == 200
        assert httpx.get(url, headers={"Origin": "https://evil.example"}, trust_env=False).status_code == 403
        assert httpx.get(url, headers={"Host": "evil.example"}, trust_env=False).status_code == 403


def test_a_taken_port_is_an_error_and_not_the_end_of_the_trainer(plane: ControlPlane) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="cannot listen"):
            ControlService(plane, port=taken.getsockname()[1], token=TOKEN).start()
