# SPDX-License-Identifier: Apache-2.0
"""`python -m sparsecast.adapters follow`: keeps the adapters of a vLLM or SGLang server at the newest versions of logs.

Exit status: 0 stopped by a signal, or done (--once); 1 an error that needs a person; 2 wrong use.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import threading
from collections.abc import Sequence
from urllib.parse import urlsplit

from sparsecast.control.auth import token_of_file
from sparsecast.control.cli import seconds
from sparsecast.control.endpoints import Endpoint
from sparsecast.errors import Error, UsageError
from sparsecast.transports import Log

from .engines import SglangServer, VllmServer
from .follow import AdapterFollower, AdapterStream
from .receiver import AdapterUpdate, checkpoint_shapes

PROGRAM = "python -m sparsecast.adapters"


def parser() -> argparse.ArgumentParser:
    """Returns the argument parser of the command."""
    top = argparse.ArgumentParser(prog=PROGRAM, description="LoRA adapters of a running server (docs/adapters.md).")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    follow = commands.add_parser("follow", help="keep a server's adapters at the newest versions of their logs")
    follow.add_argument("server", metavar="URL", help="of the server, http://HOST:PORT")
    follow.add_argument("logs", metavar="LOG", nargs="+", help="of an adapter: a directory or s3://bucket/prefix")
    follow.add_argument("--kind", choices=("vllm", "sglang"), default="vllm", help="of the server (default: vllm)")
    follow.add_argument(
        "--directory", required=True, help="where versions are written, which the server sees under the same path"
    )
    follow.add_argument(
        "--description",
        action="append",
        metavar="FILE",
        help="an adapter's, as its trainer wrote it; once for each LOG, in their order (default: LOG.json)",
    )
    follow.add_argument("--base", help="directory of the base checkpoint: refuse adapters that do not fit it")
    follow.add_argument("--trust", action="append", default=[], metavar="KEY", help="public key that signs the logs")
    follow.add_argument("--lease", default="", metavar="NAME", help="keep from gc what this reader needs")
    follow.add_argument("--engine-token-file", help="holds the token that the server asks for")
    follow.add_argument("--interval", type=seconds, default=2.0, help="seconds between looks (default: %(default)s)")
    follow.add_argument("--timeout", type=seconds, default=120.0, help="of a call, in seconds (default: %(default)s)")
    follow.add_argument("--threads", type=int, default=1, help="for decoding and verifying (default: 1)")
    follow.add_argument("--once", action="store_true", help="stop at what is newest now")
    follow.add_argument("--json", action="store_true", help="one JSON object for each version")
    return top


def follower_of(options: argparse.Namespace) -> AdapterFollower:
    """Returns the follower that the options describe. Raises UsageError for options that cannot be right."""
    parts = urlsplit(options.server)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None or parts.path not in ("", "/"):
        raise UsageError(f"'{options.server}' is not http://HOST:PORT")
    token = token_of_file(options.engine_token_file) if options.engine_token_file else ""
    endpoint = Endpoint(parts.hostname, port, kind=options.kind, scheme=parts.scheme, token=token)
    server = (VllmServer if options.kind == "vllm" else SglangServer)(endpoint, timeout=options.timeout)
    return AdapterFollower(
        server,
        options.directory,
        _streams(options),
        base=checkpoint_shapes(options.base) if options.base else None,
        threads=options.threads,
        say=lambda sentence: print(f"{PROGRAM}: {sentence}", file=sys.stderr, flush=True),
    )


def _streams(options: argparse.Namespace) -> list[AdapterStream]:
    if options.description and len(options.description) != len(options.logs):
        raise UsageError(f"there are {len(options.logs)} logs and {len(options.description)} descriptions")
    if not options.description and (remote := [log for log in options.logs if "://" in log]):
        raise UsageError(f"say where the description of {remote[0]} is: --description FILE")
    if len(set(options.logs)) != len(options.logs):
        raise UsageError("a log is named twice")
    files = options.description or [f"{log.rstrip('/')}.json" for log in options.logs]
    common = {"trusted_keys": tuple(options.trust), "lease": options.lease, "timeout": options.timeout}
    return [AdapterStream(Log(log, **common), file) for log, file in zip(options.logs, files, strict=True)]


def describe(update: AdapterUpdate) -> str:
    """Returns one line of text about an update, for people to read."""
    return (
        f"adapter '{update.name}': version {update.version}, {update.received_bytes} bytes read, "
        f"loaded in {update.load_seconds:.3f} s, {update.total_seconds:.3f} s in all"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments (None: the arguments of the process), and returns its exit status."""
    options = parser().parse_args(arguments)

    def report(update: AdapterUpdate) -> None:
        line = json.dumps(dataclasses.asdict(update), default=str) if options.json else describe(update)
        print(line, flush=True)

    stop = threading.Event()
    try:
        follower = follower_of(options)
    except Error as error:
        print(f"{PROGRAM}: {error} [{error.code}]", file=sys.stderr)
        return 2
    try:
        if options.once:
            for update in follower.step():
                report(update)
            missing = len(options.logs) - len(follower.versions)
            return 1 if missing else 0
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *unused: stop.set())
        follower.run(stop, options.interval, report)
    except Error as error:
        print(f"{PROGRAM}: {error} [{error.code}]", file=sys.stderr)
        return 1
    except OSError as error:  # Of --directory: no room, no permission.
        print(f"{PROGRAM}: {error} [io]", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
