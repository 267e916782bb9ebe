# SPDX-License-Identifier: Apache-2.0
"""What a trainer asks of its vLLM server, and agrees on with its own ranks, before they all meet."""

from __future__ import annotations

import json
import os
import secrets
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sparsecast.errors import IoError, PeerFailedError, UsageError
from sparsecast.transports import address_facing, free_port

_CALL_SECONDS = 30.0


@dataclass
class Place:
    """The place where trainer and engine meet (host, port and secret), and the number of workers of the engine. An
    empty field or 0 is not known yet.
    """

    host: str
    port: int
    secret: str
    engine_workers: int

    @property
    def complete(self) -> bool:
        return bool(self.host and self.port and self.secret and self.engine_workers)


def settle(place: Place, client: Any, rank: int, ranks: int) -> Place:
    """Returns `place` with its missing fields filled in by rank 0, which asks the server behind `client` or chooses a
    value.

    `rank` is this rank of the trainer's `ranks`. If there are several ranks and a field is missing, the call is
    collective over the default process group of torch.distributed. Raises UsageError naming the fields that cannot be
    found out, IoError if the server does not answer, and PeerFailedError on the other ranks if rank 0 has failed.
    """
    if place.complete:
        return place
    if ranks == 1:
        return _completed(place, client)
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        missing = ", ".join(name for name, value in asdict(place).items() if not value)
        raise UsageError(f"a trainer of {ranks} ranks without a torch.distributed process group must be told {missing}")
    failure: BaseException | None = None
    said = ""
    if rank == 0:
        try:
            said = json.dumps(asdict(_completed(place, client)))
        except BaseException as error:
            failure = error
            said = json.dumps({"failed": f"{type(error).__name__}: {error}"})
    fields = json.loads(_from_rank_0(said))
    if failure is not None:
        raise failure
    if "failed" in fields:
        raise PeerFailedError(f"rank 0 of the trainer failed: {fields['failed']}")
    return Place(**fields)


def _completed(place: Place, client: Any) -> Place:
    return Place(
        place.host or _own_address(client),
        place.port or free_port(),
        place.secret or os.environ.get("SPARSECAST_SECRET") or secrets.token_urlsafe(32),
        place.engine_workers or _world_size(client),
    )


def _from_rank_0(text: str) -> str:
    import torch.distributed as dist

    from sparsecast.torch.layouts import collective_device

    raw = text.encode()
    device = collective_device(None)
    length = torch.tensor([len(raw)], dtype=torch.int64, device=device)
    dist.broadcast(length, src=0)
    buffer = torch.zeros(int(length.item()), dtype=torch.uint8, device=device)
    if raw:
        buffer.copy_(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
    dist.broadcast(buffer, src=0)
    return bytes(buffer.cpu().tolist()).decode()


def base_url(client: Any) -> str | None:
    """Returns the address of the server behind vLLM's HTTP client, or None for other clients."""
    url = getattr(client, "base_url", None)
    return url.rstrip("/") if isinstance(url, str) else None


def _world_size(client: Any) -> int:
    ask = getattr(client, "get_world_size", None)
    base = base_url(client)
    if callable(ask):
        answer: Any = ask()
    elif base is not None:
        answer = call(f"{base}/get_world_size").get("world_size")
    else:
        raise UsageError(f"{type(client).__name__} cannot be asked for the number of workers: give engine_workers")
    if not isinstance(answer, int) or isinstance(answer, bool) or answer < 1:
        raise UsageError(f"the server says that it has {answer!r} workers: give engine_workers")
    return answer


def worker_states(client: Any) -> list[str] | None:
    """Returns the state of every worker. Returns None if the workers cannot be asked, because `client` is no HTTP
    client or the server has no worker extension.
    """
    base = base_url(client)
    statuses = worker_statuses(base) if base is not None else None
    if not statuses:
        return None
    return [str(one.get("state")) if isinstance(one, dict) else "unknown" for one in statuses]


def worker_statuses(base: str) -> list[Any] | None:
    """Returns the status of every worker of the server at `base`, as the server has answered it; None if the workers
    cannot be asked.
    """
    try:
        results = call(f"{base}/collective_rpc", {"method": "sparsecast_status"}).get("results")
    except IoError:
        return None
    return results if isinstance(results, list) else None


def call(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Gets `url`, or posts `body` as JSON. Returns the JSON object of the answer, or an empty one if the JSON is
    something else. Raises IoError if there is no answer in time, or an error, or no JSON in it.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_CALL_SECONDS) as answer:  # noqa: S310
            parsed = json.loads(answer.read(1 << 20))
    except (OSError, ValueError) as error:
        raise IoError(f"{url}: {error}") from error
    return parsed if isinstance(parsed, dict) else {}


def _own_address(client: Any) -> str:
    """Returns the address of this machine from which its packets to the server start. Raises UsageError if the client
    does not know the server's address, and IoError if the server's machine cannot be reached.
    """
    base = base_url(client)
    url = urllib.parse.urlsplit(base) if base is not None else None
    if url is None or not url.hostname:
        raise UsageError(f"give host: where the workers behind {type(client).__name__} reach this trainer is not known")
    try:
        return address_facing(url.hostname, url.port or 80)
    except OSError as error:
        raise IoError(f"{base}: {error}; give host") from error
