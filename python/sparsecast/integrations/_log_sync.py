# SPDX-License-Identifier: Apache-2.0
"""Publishes gathered weights from rank 0 of a trainer to a delta log, which servers follow by themselves."""

from __future__ import annotations

import asyncio
import concurrent.futures
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from sparsecast import _core
from sparsecast.control import Endpoint
from sparsecast.control.http import HttpCaller
from sparsecast.torch import Log, Publisher, PublishReport, Subscriber
from sparsecast.transports import AnyPath

from ._gathered import GatheredWeights, Rename, WireDtype, drain
from ._vllm_server import endpoint_of, look_at_follower

_ANSWER_SECONDS = 5.0  # for the way to a server and back, beyond the time that the server itself waits


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Options of weights that are sent to a log.

    log         directory or "s3://bucket/prefix" of the log, or a `Log` with a signing key, a mirror or a timeout. It
                begins with the first weights, or goes on from its newest version. Without a mirror there is a temporary
                one, as large as the weights.
    durable     a send returns when the version is durable, and the servers that are named serve it. Otherwise it
                returns when the changes are encoded; the next send, or the end, waits for the rest and raises its
                error.
    positions   as for `sparsecast.torch.Publisher`: "packed" where servers of several workers follow.
    wire_dtype  dtype of the weights in the log, or a function of (name, tensor). By default bf16 for fp32 tensors.
    rename      names in the log, where they differ: a dict or a function; None leaves a tensor out.
    wait        seconds to wait for the named servers to come up.
    on_report   called with the report of every version that is in the log and at the servers that are named; with
                durable=False in another thread. It must not raise. `seconds` has "serve", too: until these servers,
                if there are any, had the version.
    """

    log: AnyPath | Log
    durable: bool = True
    positions: str = "auto"
    wire_dtype: WireDtype | None = None
    rename: Rename | None = None
    wait: float = 240.0
    on_report: Callable[[PublishReport], None] | None = None


class LogSync:
    """A log, and the servers that are told the number of each version. Used from one thread.

    servers   URLs or endpoints of servers that follow the log; the others that do are nobody's business here.
    """

    def __init__(self, servers: Sequence[str | Endpoint], options: LogOptions) -> None:
        self._endpoints = [each if isinstance(each, Endpoint) else endpoint_of(each) for each in servers]
        self._options = options
        self._weights = GatheredWeights(options.wire_dtype or _served_dtype, options.rename)
        self._publisher: Publisher | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._teller = concurrent.futures.ThreadPoolExecutor(1, "sparsecast-log")
        self._in_flight: concurrent.futures.Future[PublishReport] | None = None

    def check(self) -> None:
        """Waits for the servers that are named. Raises what `look_at_follower` raises for one that follows no log."""
        for endpoint in self._endpoints:
            look_at_follower(endpoint, self._options.wait)

    @property
    def knows_all(self) -> bool:
        """Whether the names of all weights are known."""
        return self._weights.sealed

    def send(self, named: Iterable[tuple[str, torch.Tensor]], *, complete: bool = True) -> PublishReport | None:
        """Copies the weights and publishes what changed.

        complete   as for `GatheredWeights.take`.

        Returns the report, or None without `durable`. Raises first the error of the send before, if it was not raised;
        then UsageError for names, shapes or dtypes that do not fit, the errors of the log, and EndpointError for a
        server that did not get to the version, which is in the log then. The next call sends all changes since.
        """
        self.collect(named, complete=complete)
        return self.sync()

    def collect(self, named: Iterable[tuple[str, torch.Tensor]], *, complete: bool = True) -> None:
        """Copies weights without publishing them, which `sync` does."""
        iterator = iter(named)
        try:
            self._settle()
        except BaseException:
            drain(iterator)
            raise
        self._weights.take(iterator, complete=complete)

    def sync(self) -> PublishReport | None:
        """Publishes what changed since the last sync (see `send`). `collect` comes before."""
        self._settle()
        self._weights.seal()
        if self._publisher is None:
            self._publisher = self._begin()
        self._publisher.publish(wait=False)
        self._in_flight = self._teller.submit(self._finish, self._publisher)
        return self._settle() if self._options.durable else None

    def close(self) -> None:
        """Waits for the version in progress and ends the publisher; servers stay as they are. Raises the error of that
        version. A later `send` goes on with the log.
        """
        publisher, self._publisher = self._publisher, None
        scratch, self._scratch = self._scratch, None
        try:
            self._settle()
        finally:
            try:
                if publisher is not None:
                    publisher.close()
            finally:
                if scratch is not None:
                    scratch.cleanup()

    def _settle(self) -> PublishReport | None:
        """Waits for the version in progress, if there is one; returns its report, or raises its error."""
        future, self._in_flight = self._in_flight, None
        return future.result() if future is not None else None

    def _finish(self, publisher: Publisher) -> PublishReport:
        """Runs in the other thread; until it has ended, this one leaves the publisher alone."""
        report = publisher.wait()
        assert report is not None
        if self._endpoints:
            begin = time.perf_counter()
            asyncio.run(self._tell(report.version))
            report = replace(report, seconds={**report.seconds, "serve": time.perf_counter() - begin})
        if self._options.on_report is not None:
            self._options.on_report(report)
        return report

    async def _tell(self, version: int) -> None:
        """Tells the servers the number, and returns when all serve it or a newer one."""
        seconds = self._log().timeout

        async def tell(endpoint: Endpoint) -> None:
            caller = HttpCaller(endpoint)
            wanted = {"at_least": version, "timeout": seconds}
            try:
                await caller.call(
                    "POST", "/sparsecast/version", step="version", timeout=seconds + _ANSWER_SECONDS, json=wanted
                )
            finally:
                await caller.close()

        failures = await asyncio.gather(*map(tell, self._endpoints), return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    def _log(self) -> Log:
        log = self._options.log
        return log if isinstance(log, Log) else Log(log)

    def _begin(self) -> Publisher:
        """Makes the publisher: its log begins with the weights, or is gone on with from its newest version."""
        log = self._log()
        if not log.mirror or not log.state:
            self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="sparsecast-log-")
            own = pathlib.Path(self._scratch.name)
            log = replace(log, mirror=log.mirror or own / "mirror.safetensors", state=log.state or own / "state")
        tensors = self._weights.tensors
        positions = self._options.positions
        if _core.log_head(log.location, list(log.trusted_keys), log.timeout) is None:
            return Publisher(tensors.items(), transport=log, positions=positions)
        # A publisher begins with what the log holds; the next version is the way from there to these weights.
        now = {name: tensor.clone() for name, tensor in tensors.items()}
        try:
            Subscriber(tensors.items(), transport=log).update()
            return Publisher(tensors.items(), transport=log, positions=positions)
        finally:
            for name, tensor in now.items():
                tensors[name].copy_(tensor)


def _served_dtype(name: str, tensor: torch.Tensor) -> torch.dtype | None:
    """bf16 for fp32 masters, which is what engines serve them in; any other dtype stays."""
    del name
    return torch.bfloat16 if tensor.dtype == torch.float32 else None
