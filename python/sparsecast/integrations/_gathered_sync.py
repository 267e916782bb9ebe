# SPDX-License-Identifier: Apache-2.0
"""Sends gathered weights from rank 0 of a trainer to servers, by the control plane."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from sparsecast.control import (
    ControlPlane,
    Endpoint,
    EndpointError,
    PauseMode,
    PublisherSource,
    SyncError,
    SyncPolicy,
    SyncReport,
)
from sparsecast.control.errors import DIGEST_CODES
from sparsecast.errors import Error, UsageError
from sparsecast.transports import address_facing, free_port

from ._gathered import GatheredWeights, Rename, WireDtype, drain
from ._vllm_server import VllmServer, endpoint_of, look_at

First = Literal["auto", "verify", "seed"]
_FIRSTS = ("auto", "verify", "seed")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SyncOptions:
    """Options of syncs from a trainer to servers.

    host        address of this machine that the servers reach; empty: the address that faces the first server.
    port        port on which rank 0 listens while ranks meet; 0: a free port.
    channels    transport that carries weights: "control" (TCP), "nccl" or "mpi".
    policy      what happens to requests in flight, and all deadlines (docs/control.md). "retract" by default: requests
                go on after the update, and their KV cache is computed again with the new weights.
    wire_dtype  dtype of the weights at the servers, or a function of (name, tensor). None: the dtype of the server;
                fp32 masters are cast to it, and other floating-point tensors must have it already.
    rename      names at the servers, where they differ: a dict or a function; None leaves a tensor out.
    may_miss    patterns (fnmatch) of parameters of vLLM that the trainer does not send, such as frozen ones.
    first       what the first sync does with the weights that a server was started from: "verify" compares digests, and
                fails if they differ; "seed" sends all weights; "auto" verifies, and seeds if they differ.
    wait        seconds to wait for the servers to come up.
    on_report   function that is called with the report of every sync, failed ones included; it must not raise.
    """

    host: str = ""
    port: int = 0
    channels: str = "control"
    policy: SyncPolicy = SyncPolicy(pause=PauseMode.RETRACT)
    wire_dtype: WireDtype | None = None
    rename: Rename | None = None
    may_miss: Sequence[str] = ()
    first: First = "auto"
    wait: float = 240.0
    on_report: Callable[[SyncReport], None] | None = None

    def __post_init__(self) -> None:
        if self.first not in _FIRSTS:
            raise UsageError(f"first is {self.first!r}, not one of {', '.join(_FIRSTS)}")


class GatheredSync:
    """Copies gathered weights and syncs them to servers through a control plane. Used from one thread.

    servers   URLs of vLLM servers, or endpoints of the control plane (SGLang servers, servers with a token).
    """

    def __init__(self, servers: str | Endpoint | Iterable[str | Endpoint], options: SyncOptions) -> None:
        given = [servers] if isinstance(servers, (str, Endpoint)) else list(servers)
        if not given:
            raise UsageError("there are no servers to send weights to")
        self._endpoints = [each if isinstance(each, Endpoint) else endpoint_of(each) for each in given]
        self._options = options
        self._servers: list[VllmServer] = []
        self._weights = GatheredWeights(self._dtype_of, options.rename)
        self._plane: ControlPlane | None = None
        self._checked = False  # since the last `close`
        self._synced = False  # ever

    def check(self) -> None:
        """Waits until every vLLM server answers. Raises DeadlineError for a server that does not answer in time, and
        UsageError or UnsupportedError for a server that cannot take weights (`look_at`).
        """
        endpoints = []
        self._servers = []
        for endpoint in self._endpoints:
            if endpoint.kind == "vllm":
                server = look_at(endpoint, self._options.wait)
                self._servers.append(server)
                options = {**endpoint.options}
                if self._options.may_miss:
                    options["may_miss"] = list(self._options.may_miss)
                endpoint = replace(endpoint, world_size=server.world_size, options=options)
            endpoints.append(endpoint)
        self._endpoints = endpoints
        self._checked = True

    def send(self, named: Iterable[tuple[str, torch.Tensor]], *, complete: bool = True) -> SyncReport:
        """Copies the weights of `named` and brings every server to them. Returns the report when all servers have
        verified them.

        complete   whether `named` must contain all weights, once their names are known.

        Raises UsageError for names, shapes or dtypes that do not fit, and SyncError, whose message says what to do, if
        a server failed. After an error, the servers still serve the weights that they had, and the next call makes a
        new group with them.
        """
        self.collect(named, complete=complete)
        return self.sync()

    def collect(self, named: Iterable[tuple[str, torch.Tensor]], *, complete: bool = True) -> None:
        """Copies the weights of `named` without sending them; the next `sync` sends them. The first call also checks
        the servers. `complete` is as for `send`.
        """
        iterator = iter(named)
        try:
            if not self._checked:
                self.check()
        except BaseException:
            drain(iterator)
            raise
        self._weights.take(iterator, complete=complete)

    @property
    def knows_all(self) -> bool:
        """Whether the names of all weights are known."""
        return self._weights.sealed

    def sync(self) -> SyncReport:
        """Sends the changes of all weights since the last sync, after `collect` has copied them. Returns the report
        when all servers have verified the weights. Raises UsageError if there are no weights, and SyncError if a server
        failed.
        """
        self._weights.seal()
        plane = self._made_plane()
        try:
            report = plane.sync_now()
        except SyncError as error:
            if self._synced or self._options.first != "auto" or not _of_other_weights(error):
                raise _with_cure(error, self._synced) from error
            logger.warning("a server was started from other weights than the trainer's: all weights are sent to it")
            report = self._seed(plane)
        self._synced = True
        return report

    def close(self) -> None:
        """Tells the servers to leave the group, and closes all connections. The servers keep their weights.

        A later `send` makes a new group; if a sync has succeeded before, it sends all weights.
        """
        plane, self._plane = self._plane, None
        self._checked = False
        if plane is None:
            return
        for endpoint in self._endpoints:
            with contextlib.suppress(Error):
                plane.remove(endpoint.host, endpoint.port)
        plane.close()

    def _seed(self, plane: ControlPlane) -> SyncReport:
        for endpoint in self._endpoints:
            plane.add(endpoint, needs_anchor=True)
        try:
            return plane.sync_now()
        except SyncError as error:
            raise _with_cure(error, self._synced) from error

    def _made_plane(self) -> ControlPlane:
        if self._plane is None:
            options = self._options
            self._plane = ControlPlane(
                source_of(self._weights.tensors),
                host=options.host or facing(self._endpoints),
                port=options.port or free_port(),
                channels=options.channels,
                policy=options.policy,
            )
            if options.on_report is not None:
                self._plane.observe(options.on_report)
            updated = {server.url for server in self._servers if server.updated}
            for endpoint in self._endpoints:
                # Weights that somebody has sent to the server are not those that a run begins with.
                updated_before = options.first == "auto" and endpoint.url in updated
                seed = options.first == "seed" or self._synced or updated_before
                self._plane.add(endpoint, needs_anchor=seed)
        return self._plane

    def _dtype_of(self, name: str, tensor: torch.Tensor) -> torch.dtype | None:
        wanted = self._options.wire_dtype
        if wanted is not None:
            return wanted(name, tensor) if callable(wanted) else wanted
        if not tensor.is_floating_point() or not self._servers:
            return None
        server = self._servers[0]
        held: torch.dtype | None = getattr(torch, server.dtype, None)
        if held not in (tensor.dtype, torch.bfloat16, torch.float16) or tensor.dtype not in (held, torch.float32):
            sent = str(tensor.dtype).removeprefix("torch.")
            raise UsageError(
                f"the server at {server.url} serves in {server.dtype}, and the trainer's '{name}' is {sent}: start the "
                f"server with --dtype {sent}, load the trainer's model in float32 or {server.dtype} (`dtype` in "
                "model_init_kwargs), or say wire_dtype"
            )
        return held


def source_of(tensors: dict[str, torch.Tensor]) -> PublisherSource:
    """Returns the trainer's side of a control plane for tensors, by name. Their memory must stay at its address."""
    from sparsecast.torch import Publisher

    return PublisherSource(Publisher(list(tensors.items())))


def facing(endpoints: Sequence[Endpoint]) -> str:
    """Returns the address of this machine from which the first server on another machine is reached; 127.0.0.1 if all
    servers are on this machine.
    """
    for endpoint in endpoints:
        with contextlib.suppress(OSError):
            address = address_facing(endpoint.host, endpoint.port)
            if address not in ("127.0.0.1", "::1"):
                return address
    return "127.0.0.1"


def _of_other_weights(error: SyncError) -> bool:
    return any(failure.code in DIGEST_CODES and failure.step == "join" for failure in error.failures)


def _with_cure(error: SyncError, synced: bool) -> SyncError:
    cures = dict.fromkeys(cure for failure in error.failures if (cure := _cure(failure, synced)))
    if not cures:
        return error
    return SyncError(f"{error.message}. What to do: {'; '.join(cures)}", error.failures, error.report)


def _cure(failure: EndpointError, synced: bool) -> str:
    if failure.step == "health" and failure.code in ("io", "timeout"):
        return (
            f"see the log of the server {failure.endpoint} and start it again; the next sync sends it all weights"
            if synced
            else f"start the server {failure.endpoint}"
        )
    if failure.code in DIGEST_CODES and failure.step == "join":
        return "start the server from the model that the trainer starts from, or say first='seed'"
    if failure.step == "join" and failure.code == "usage":
        return "map the trainer's names to the server's with rename, and name parameters that are not sent in may_miss"
    if failure.step == "join" and failure.code == "unsupported":
        return "this model or dtype cannot be patched in place: docs/engines.md says which, and --dtype sets the dtype"
    return ""
