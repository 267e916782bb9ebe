# SPDX-License-Identifier: Apache-2.0
"""`sparsecast-control`: endpoints and syncs of a running control service, from the shell.

Exit status: 0 done; 1 the service, an endpoint or the trainer failed; 2 wrong use, or the service was not reached.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import sys
from collections.abc import Sequence
from typing import Any

import httpx

from sparsecast.control.auth import check_token, token_of_file
from sparsecast.control.engine import MEMORY_TAGS
from sparsecast.errors import PeerFailedError, UsageError

DEFAULT_URL = "http://127.0.0.1:29700"
TOKEN_VARIABLE = "SPARSECAST_CONTROL_TOKEN"
MODES = ("abort", "wait", "keep", "retract")


class ServiceError(PeerFailedError):
    """Raised when the service answers with an error. `status` is the HTTP status, and `detail` the error object in the
    JSON of the answer (code, message, ...).
    """

    def __init__(self, status: int, detail: dict[str, Any]) -> None:
        super().__init__(str(detail.get("message", f"status {status}")), code=str(detail.get("code", "peer_failed")))
        self.status = status
        self.detail = detail


def parser() -> argparse.ArgumentParser:
    """Returns the argument parser of `sparsecast-control`."""
    top = argparse.ArgumentParser(prog="sparsecast-control", description="Client of a sparsecast control service.")
    top.add_argument("--url", default=DEFAULT_URL, help="of the service (default: %(default)s)")
    top.add_argument("--token-file", help=f"holds the service's token (else the variable {TOKEN_VARIABLE})")
    top.add_argument("--ca-file", help="certificates that an https service is verified with (default: the system's)")
    top.add_argument("--timeout", type=seconds, default=900.0, help="for the answer, in seconds (default: %(default)s)")
    top.add_argument("--json", action="store_true", help="print the service's JSON")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    status = commands.add_parser("status", help="who is at which version")
    status.add_argument("--probe", action="store_true", help="ask every server now")
    add = commands.add_parser("add", help="register an endpoint")
    _add_address(add)
    add.add_argument("--world-size", type=int, default=1, help="TP * PP * DP of the engine (default: 1)")
    add.add_argument("--kind", choices=("sglang", "vllm"), default="sglang")
    add.add_argument("--name", default="", help="in messages and metrics (default: HOST:PORT)")
    add.add_argument("--scheme", choices=("http", "https"), default="http")
    add.add_argument("--engine-token-file", help="holds the token that the engine's server asks for")
    add.add_argument("--needs-anchor", action="store_true", help="it holds other weights than the trainer began with")
    _add_address(commands.add_parser("remove", help="take an endpoint out"))
    sync = commands.add_parser("sync", help="bring every endpoint to the trainer's weights of now")
    sync.add_argument("--pause", choices=("none", *MODES), help="what becomes of requests in flight")
    sync.add_argument("--allow-missing", action="store_true", help="go on without endpoints that do not answer")
    sync.add_argument("--sync-timeout", type=seconds, help="seconds for the exchange")
    pause = commands.add_parser("pause", help="stop generation until it is resumed")
    pause.add_argument("--mode", choices=MODES, default="abort", help="what becomes of requests in flight")
    for each in (pause, commands.add_parser("resume", help="generate again")):
        each.add_argument("names", nargs="*", metavar="NAME", help="endpoints (default: all)")
    for name, text in (("sleep", "release device memory, aborting requests"), ("wake", "take released memory again")):
        memory = commands.add_parser(name, help=text)
        memory.add_argument("--tag", action="append", choices=MEMORY_TAGS, help="which (default: both)")
        memory.add_argument("names", nargs="*", metavar="NAME", help="endpoints (default: all)")
    return top


def _add_address(command: argparse.ArgumentParser) -> None:
    command.add_argument("host", metavar="HOST")
    command.add_argument("port", metavar="PORT", type=int)


def seconds(text: str) -> float:
    """Returns the value of an option that is a time in seconds. Raises ArgumentTypeError, for argparse, if it is not
    above 0 and at most 86400.
    """
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError("seconds, more than 0 and at most 86400")
    return value


def request_of(options: argparse.Namespace) -> tuple[str, str, dict[str, Any] | None, dict[str, Any]]:
    """Returns the HTTP call for the parsed options: (method, path, JSON body or None, query)."""
    command = options.command
    if command == "status":
        return "GET", "/v1/status", None, {"probe": "true" if options.probe else "false"}
    if command == "remove":
        return "DELETE", "/v1/endpoints", None, {"host": options.host, "port": options.port}
    if command == "add":
        fields = ("host", "port", "world_size", "kind", "name", "scheme", "needs_anchor")
        body = {name: getattr(options, name) for name in fields}
        if options.engine_token_file:
            body["token"] = token_of_file(options.engine_token_file)
        return "POST", "/v1/endpoints", body, {}
    if command == "sync":
        body = {"pause": options.pause, "sync_timeout": options.sync_timeout}
        body["allow_missing"] = True if options.allow_missing else None
    else:
        body = {"endpoints": options.names or None, "mode": getattr(options, "mode", None)}
        body["tags"] = getattr(options, "tag", None)
    return "POST", f"/v1/{command}", {name: value for name, value in body.items() if value is not None}, {}


def call(options: argparse.Namespace) -> dict[str, Any]:
    """Makes the HTTP call for the parsed options and returns the JSON of the answer. Raises `ServiceError` for an error
    of the service, and `UsageError` if the service cannot be reached.
    """
    method, path, body, query = request_of(options)
    token = token_of_file(options.token_file) if options.token_file else os.environ.get(TOKEN_VARIABLE, "")
    headers = {"Authorization": f"Bearer {check_token(token)}"} if token else {}
    try:
        verify = ssl.create_default_context(cafile=options.ca_file) if options.ca_file else True
        with httpx.Client(base_url=options.url, follow_redirects=False, trust_env=False, verify=verify) as client:
            answer = client.request(method, path, json=body, params=query, headers=headers, timeout=options.timeout)
    except httpx.TimeoutException:
        raise UsageError(f"{options.url} did not answer within {options.timeout:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise UsageError(f"{options.url}: {error}") from error
    try:
        value = answer.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{options.url}{path} is no control service: it answered {answer.status_code} without JSON")
    if answer.status_code >= 300:
        raise ServiceError(answer.status_code, value.get("error", {}))
    return value


def describe(command: str, answer: dict[str, Any]) -> str:
    """Returns the service's answer to a command as text for people to read."""
    if command == "sync":
        return _describe_sync(answer)
    if command == "add":
        what = "added" if answer["created"] else "was there already"
        return f"{answer['endpoint']['name']} {what}"
    lines = []
    if command == "status":
        lines.append(
            f"trainer at version {answer['version']}, generation {answer['generation']}; group: {answer['group']}"
        )
        if answer["busy"]:
            lines.append(f"busy: {answer['busy']}")
    for entry in answer["endpoints"]:
        lines.append(_describe_endpoint(entry))
    return "\n".join(lines) if lines else "no endpoints"


def _describe_endpoint(entry: dict[str, Any]) -> str:
    version = "no version" if entry["version"] is None else f"version {entry['version']}"
    notes = [entry["state"]]
    if entry["paused"]:
        notes.append("paused")
    if entry["in_doubt"]:
        notes.append("in doubt")
    if entry["needs_anchor"]:
        notes.append("needs an anchor")
    if entry.get("lag"):
        notes.append(f"{entry['lag']} behind")
    if entry.get("answers") is not None:
        notes.append("answers" if entry["answers"] else f"does not answer: {entry['problem']}")
    line = f"{entry['name']}  {entry['kind']} x{entry['world_size']}  {version}  {', '.join(notes)}"
    return f"{line}\n  {entry['error']}" if entry["error"] else line


def _describe_sync(answer: dict[str, Any]) -> str:
    figures = answer["source"]
    parts = [f"{answer['result']}: version {answer['version']} in {answer['seconds']:.3f} s"]
    if "density" in figures:
        parts.append(f"density {figures['density']:.4%}")
    if "sent_bytes" in figures:
        parts.append(f"{figures['sent_bytes']} bytes")
    lines = [", ".join(parts)]
    for each in answer["endpoints"]:
        where = "no version" if each["version"] is None else f"version {each['version']}"
        lines.append(
            f"  {each['name']}  {where}  paused {each['pause_seconds']:.3f} s"
            + (f"  {each['error']}" if each["error"] else "")
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments (None: the arguments of the process), and returns its exit status."""
    options = parser().parse_args(arguments)
    try:
        answer = call(options)
    except ServiceError as error:
        if options.json:
            print(json.dumps({"error": error.detail}, indent=2))
        print(f"sparsecast-control: {error.message} [{error.code}]", file=sys.stderr)
        return 1
    except UsageError as error:
        print(f"sparsecast-control: {error} [{error.code}]", file=sys.stderr)
        return 2
    print(json.dumps(answer, indent=2) if options.json else describe(options.command, answer))
    return 0
