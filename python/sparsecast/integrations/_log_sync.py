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

from sparsecast.control import Endpoint
from sparsecast.control.followers import ask_followers
from sparsecast.torch import Log, Publisher, PublishReport
from sparsecast.transports import AnyPath

from ._gathered import GatheredWeights, Rename, WireDtype, drain
from ._log_end import open_publisher, with_scratch
from ._vllm_server import endpoint_of, look_at_follower


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Options for sending weights to a delta log.

    log         directory or "s3://bucket/prefix" of the log, or a `Log` with a signing key, a mirror or a timeout. A
                new log begins with the first weights; an existing log goes on from its newest version. Without a
                mirror, a temporary one is made, as large as the weights.
    durable     True: a send returns when the version is durable and the named servers serve it. False: it returns when
                the changes are encoded; the next send, or `close`, waits for the rest and raises its error.
    positions   encoding of positions, as for `sparsecast.torch.Publisher`: "packed" if servers with several workers
                follow the log, else "auto".
    wire_dtype  dtype of the weights in the log, or a function of (name, tensor). None: bf16 for fp32 tensors, and the
                dtype of the tensor otherwise.
    rename      names in the log, where they differ: a dict or a function; None leaves a tensor out.
    wait        seconds to wait for the named servers to come up.
    on_report   function that is called with the report of every version, once the version is in the log and at the
                named servers. With durable=False another thread calls it. It must not raise. If servers are named,
                `seconds` in the report also has "serve": the time until they had the version.
    """

    log: AnyPath | Log
    durable: bool = True
    positions: str = "auto"
    wire_dtype: WireDtype | None = None
    rename: Rename | None = None
    wait: float = 240.0
    on_report: Callable[[PublishReport], None] | None = None


class LogSync:
    """Publishes gathered weights to a log, and tells the named servers the number of each version. Used from one
    thread.

    servers   URLs or endpoints of servers that follow the log and are told each version; more servers may follow the
              log without being named here.
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
        """Waits until the named servers answer. Raises DeadlineError for a server that does not answer in time, and
        UsageError for one that follows no log (`look_at_follower`).
        """
        for endpoint in self._endpoints:
            look_at_follower(endpoint, self._options.wait)

    @property
    def knows_all(self) -> bool:
        """Whether the names of all weights are known."""
        return self._weights.sealed

    def send(self, named: Iterable[tuple[str, torch.Tensor]], *, complete: bool = True) -> PublishReport | None:
        """Copies the weights of `named` and publishes what changed.

        complete   whether `named` must contain all weights, once their names are known.

        Returns the report, or None without `durable`. Raises first the error of the previous send, if that was not
        raised yet. Then it raises UsageError for names, shapes or dtypes that do not fit, the errors of the log, and
        EndpointError for a server that does not serve the version in time, although the version is in the log. After an
        error, the next call sends all changes since the last version.
        """
        self.collect(named, complete=complete)
        return self.sync()

    def collect(self, named: Iterable[tuple[str, torch.Tensor]], *, complete: bool = True) -> None:
        """Copies the weights of `named` without publishing them; the next `sync` publishes them. `complete` is as for
        `send`. Raises the error of the previous send, if that was not raised yet.
        """
        iterator = iter(named)
        try:
            self._settle()
        except BaseException:
            drain(iterator)
            raise
        self._weights.take(iterator, complete=complete)

    def sync(self) -> PublishReport | None:
        """Publishes the changes of all weights since the last sync, after `collect` has copied them. Returns and raises
        what `send` does.
        """
        self._settle()
        self._weights.seal()
        if self._publisher is None:
            self._publisher = self._begin()
        self._publisher.publish(wait=False)
        self._in_flight = self._teller.submit(self._finish, self._publisher)
        return self._settle() if self._options.durable else None

    def close(self) -> None:
        """Waits for the version in progress and closes the publisher; raises the error of that version, if it failed.
        The servers keep their weights. A later `send` continues the log.
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
        """Waits for the version in progress. Returns its report, or raises its error; returns None if no version is in
        progress.
        """
        future, self._in_flight = self._in_flight, None
        return future.result() if future is not None else None

    def _finish(self, publisher: Publisher) -> PublishReport:
        """Waits until the version in progress is durable, tells it to the servers, and returns its report. Runs in the
        thread of `_teller`; until it has ended, no other thread uses the publisher.
        """
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
        """Tells the named servers the number `version`, and returns when all of them serve it or a newer version."""
        wanted, seconds = {"at_least": version}, self._log().timeout
        await ask_followers(self._endpoints, "/sparsecast/version", wanted, step="version", timeout=seconds)

    def _log(self) -> Log:
        log = self._options.log
        return log if isinstance(log, Log) else Log(log)

    def _begin(self) -> Publisher:
        """Makes the publisher. A new log begins with the present weights; an existing log is continued from its newest
        version.
        """
        log = self._log()
        if not log.mirror or not log.state:
            self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="sparsecast-log-")
            log = with_scratch(log, pathlib.Path(self._scratch.name))
        return open_publisher(log, self._weights.tensors, positions=self._options.positions)


def _served_dtype(name: str, tensor: torch.Tensor) -> torch.dtype | None:
    """Returns bf16 for fp32 tensors (masters), because engines serve them in bf16; None, which keeps the dtype, for all
    others.
    """
    del name
    return torch.bfloat16 if tensor.dtype == torch.float32 else None
