# SPDX-License-Identifier: Apache-2.0
"""Inference endpoints of syncs: their identity, and their ranks in the sync world."""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparsecast.control.errors import ConflictError, UnknownEndpointError
from sparsecast.errors import UsageError

KINDS = ("sglang", "vllm")
SCHEMES = ("http", "https")
MAX_RANKS = 65536  # of a world: a layout can hold no more
MAX_ENDPOINTS = 4096

# Fields that only the control plane may set for engines.
RESERVED_OPTIONS = frozenset(
    {
        *("host", "port", "world_size", "rank_offset", "tensors", "ties", "version", "secret", "generation"),
        *("channels", "engine", "timeout", "needs_anchor", "release", "reach_timeout", "trainer"),
    }
)

_OPTION = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@\[\]-]{0,127}|\[[0-9a-f:.]+\]:[0-9]+")


def normalise_host(host: str) -> str:
    """Returns the canonical spelling of a host, by which hosts are compared: lower case, no brackets, no trailing dot,
    addresses in their shortest form.

    "localhost" becomes 127.0.0.1, and an IPv4 address in IPv6 form becomes the IPv4 address. Names are not resolved, so
    a name and its address count as two hosts. Raises `UsageError` if `host` is neither a name nor an address.
    """
    text = host.strip().lower()
    if text.startswith("[") and text.endswith("]"):
        return _normalise_address(text[1:-1], host, only_v6=True)
    text = text.removesuffix(".")
    if text == "localhost":
        return "127.0.0.1"
    labels = text.split(".")
    if ":" in text or labels[-1].isdigit():  # a name cannot end in a number: 127.1 and 2130706433 are no hosts
        return _normalise_address(text, host)
    if len(text) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UsageError(f"'{host}' is neither a host name nor an address (international names: their xn-- form)")
    return text


def _normalise_address(text: str, given: str, *, only_v6: bool = False) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise UsageError(f"'{given}' is not an IPv4 or IPv6 address") from None
    if only_v6 and address.version != 6:
        raise UsageError(f"'{given}': brackets are for IPv6 addresses")
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped if mapped is not None else address)


@dataclass(frozen=True)
class Endpoint:
    """An inference server that holds one engine.

    host, port     where its HTTP server answers; together they identify it (`normalise_host`).
    world_size     number of ranks of the engine that hold weights: TP * PP * DP.
    kind           "sglang" or "vllm".
    name           name of the engine in the sync world, in messages and metrics. Unique. "host:port" if empty.
    scheme         "http" or "https".
    start_version  version number, as the trainer counts, of the weights that the server was started with; 0: the
                   weights that the trainer began with.
    options        further fields of the join request, for sparsecast in the engine (vLLM: "proof", "may_miss",
                   "interface", "draft_prefix").
    token          bearer token that the server asks for (its API or admin key); empty: none is sent. Never shown.
    """

    host: str
    port: int
    world_size: int = 1
    kind: str = "sglang"
    name: str = ""
    scheme: str = "http"
    start_version: int = 0
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", normalise_host(self.host))
        _check_int("port", self.port, 1, 65535)
        _check_int("world_size", self.world_size, 1, MAX_RANKS)
        _check_int("start_version", self.start_version, 0, 2**63 - 1)
        if strange := [name for name in self.options if not _OPTION.fullmatch(name) or name in RESERVED_OPTIONS]:
            raise UsageError(f"options has {strange[0]!r}, which is not for callers to set")
        if self.kind not in KINDS:
            raise UsageError(f"kind is '{self.kind}', not one of {', '.join(KINDS)}")
        if self.scheme not in SCHEMES:
            raise UsageError(f"scheme is '{self.scheme}', not one of {', '.join(SCHEMES)}")
        if not self.name:
            object.__setattr__(self, "name", self.address)
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"name '{self.name}': letters, digits and ._:@- only, at most 128")
        if any(not 33 <= ord(character) <= 126 for character in self.token):
            raise UsageError("the token has blanks, line ends or other characters that no header can carry")

    @property
    def key(self) -> tuple[str, int]:
        """(host, port), which identifies the endpoint."""
        return (self.host, self.port)

    @property
    def address(self) -> str:
        """The address as "host:port"; an IPv6 host is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """URL of the server, without a trailing slash; the paths of routes are appended to it."""
        return f"{self.scheme}://{self.address}"


def _check_int(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} is {value!r}, not a whole number from {low} to {high}")


@dataclass(frozen=True)
class Placement:
    """Ranks of an endpoint in the sync world: [rank_offset, rank_offset + endpoint.world_size)."""

    endpoint: Endpoint
    rank_offset: int


def place(endpoints: Iterable[Endpoint], trainer_ranks: int) -> list[Placement]:
    """Returns the ranks of every endpoint in a sync world. The trainer has ranks 0 to `trainer_ranks - 1`; the
    endpoints follow, ordered by (host, port).

    The order in which endpoints were added does not matter: everyone who knows the members knows the ranks.
    """
    _check_int("trainer_ranks", trainer_ranks, 1, MAX_RANKS)
    placements = []
    offset = trainer_ranks
    for endpoint in sorted(endpoints, key=lambda each: each.key):
        placements.append(Placement(endpoint, offset))
        offset += endpoint.world_size
    return placements


class Registry:
    """Set of endpoints, one for each (host, port). Thread-safe.

    `generation` is the number of the present membership: every `add` of a new endpoint, `remove` and `renew` increases
    it by one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoints: dict[tuple[str, int], Endpoint] = {}
        self._generation = 0

    @property
    def generation(self) -> int:
        with self._lock:
            return self._generation

    def renew(self) -> int:
        """Starts a new generation with the same members, for a group that is made again after a failure, and returns
        its number.
        """
        with self._lock:
            self._generation += 1
            return self._generation

    def add(self, endpoint: Endpoint) -> bool:
        """Adds `endpoint` and returns True. Returns False if its (host, port) is registered already: then only the
        token is replaced.

        Raises `ConflictError` if its (host, port) is registered with other attributes than the token, or its name for
        another (host, port); `UsageError` if there are MAX_ENDPOINTS endpoints already.
        """
        with self._lock:
            present = self._endpoints.get(endpoint.key)
            if present is not None:
                self._refuse_difference(present, endpoint)
                self._endpoints[endpoint.key] = endpoint
                return False
            for other in self._endpoints.values():
                if other.name == endpoint.name:
                    raise ConflictError(f"the name '{endpoint.name}' is taken by {other.address}")
            if len(self._endpoints) >= MAX_ENDPOINTS:
                raise UsageError(f"there are {MAX_ENDPOINTS} endpoints already")
            self._endpoints[endpoint.key] = endpoint
            self._generation += 1
            return True

    @staticmethod
    def _refuse_difference(present: Endpoint, wanted: Endpoint) -> None:
        if replace(present, token="") == replace(wanted, token=""):
            return
        differing = [
            f"{name} {getattr(present, name)!r}, not {getattr(wanted, name)!r}"
            for name in ("world_size", "kind", "name", "scheme", "start_version", "options")
            if getattr(present, name) != getattr(wanted, name)
        ]
        raise ConflictError(f"{present.address} is registered with {'; '.join(differing)}: remove it first")

    def remove(self, host: str, port: int) -> Endpoint:
        """Removes the endpoint with this (host, port) and returns it. Raises `UnknownEndpointError` if there is
        none.
        """
        with self._lock:
            endpoint = self._endpoints.pop((normalise_host(host), port), None)
            if endpoint is None:
                raise UnknownEndpointError(f"no endpoint {host}:{port}; there are: {self._names()}")
            self._generation += 1
            return endpoint

    def find(self, name: str) -> Endpoint:
        """Returns the endpoint with this name. Raises `UnknownEndpointError` if there is none."""
        with self._lock:
            for endpoint in self._endpoints.values():
                if endpoint.name == name:
                    return endpoint
            raise UnknownEndpointError(f"no endpoint is named '{name}'; there are: {self._names()}")

    def _names(self) -> str:
        names = sorted(endpoint.name for endpoint in self._endpoints.values())
        return ", ".join(names[:16]) + (", ..." if len(names) > 16 else "") if names else "none"

    def members(self) -> list[Endpoint]:
        """Returns all endpoints, ordered by (host, port)."""
        with self._lock:
            return sorted(self._endpoints.values(), key=lambda each: each.key)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.members())

    def __len__(self) -> int:
        with self._lock:
            return len(self._endpoints)
