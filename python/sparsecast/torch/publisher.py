# SPDX-License-Identifier: Apache-2.0
r"""Publisher of a torch trainer: sends the changes since the last publication to every engine.

idle --publish()--> publishing --verified--> idle      (the base is what the engines hold)
                          \--error--> the base stands; live: regroup(), log: publish() again
"""

from __future__ import annotations

import concurrent.futures
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Literal, overload

import torch
import torch.distributed as dist

from .._core import ShardedPublisher
from .._process import ProcessMark
from ..alarms import SyncAlarms
from ..errors import DeadlineError, UsageError
from ..transports import Log, Transport
from .layouts import gather_layout
from .live import LiveEnd
from .log import LogEnd
from .relayed import RelayedEnd, is_parted
from .report import PublishReport
from .shards import Dtypes, LocalShards, Rename, Source, WireDtype, shards_of
from .streams import cuda_device, use_device

#: Values of the ``detector`` argument of :class:`Publisher`.
DETECTORS = ("auto", "snapshot", "pinned", "fused_cast")


class Publisher:
    """Publishes the weights of a model over a world of ranks to engines, or to a delta log.

    ``source`` is a module, an iterable of (name, tensor), or :class:`LocalShards`. With DTensor parameters (FSDP2, 2-D
    meshes) every rank of the trainer makes a publisher over the same ``process_group`` (default: the world), and each
    compares its own shards: no parameter is ever gathered. To write a log, such ranks send their shards to a relay in a
    thread of rank 0 (:class:`sparsecast.relay.LogRelay`), which holds all tensors in host memory twice. ``rename`` maps
    names to those of the engines (a dict or a callable; None leaves a tensor out). ``wire_dtype`` is the dtype that
    engines hold if it differs from the parameters' dtype: fp32 masters are cast to bf16 on the way. ``dtypes`` says
    which integers are 4-bit numbers ({"*_packed": "I4X2"}; :func:`shards_of`); subscribers must be given the same.

    Weights are read where they lie. If a weight has got other memory (offloaded, ``p.data = ...``,
    ``load_state_dict(assign=True)``, a module replaced), the next publication raises UsageError, and a new publisher is
    needed. ``reassigned`` has patterns of names of tensors that get other memory at each step.

    ``detector`` says how changes are found. "auto" selects "fused_cast" for a log if every tensor is cast from fp32 to
    bf16 (the cast is the detection, and no other copy is kept), otherwise "snapshot" (a copy of what engines hold, on
    the device of the tensors); "pinned" keeps that copy in pinned host memory, for CUDA tensors over a world. Over a
    world, a snapshot is compared with the cast of fp32 masters while they are read: it is the only bf16 copy.

    ``objective`` says what the automatic choice of position codecs saves: "speed" (the default over a world), "size"
    (the default for a log; a third fewer bytes, which receivers decode on the host), or the rate of the slowest link
    ("100Mb/s").

    With an ``optimizer``, its steps are counted, and no step begins while a publication still reads the weights;
    ``publish_every=n`` publishes after every n-th step, without waiting for the engines. If such a publication fails,
    the next step, or publish(), raises its error. Call from one thread.

    Without a ``transport`` the publisher belongs to a control plane (:class:`sparsecast.control.PublisherSource`,
    :class:`~sparsecast.control.DistributedSource`), or regroup() is called with a transport before the first
    publication.
    """

    def __init__(
        self,
        source: Source | LocalShards,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        transport: Transport | None = None,
        detector: str = "auto",
        rename: Rename | None = None,
        wire_dtype: WireDtype | None = None,
        dtypes: Dtypes | None = None,
        process_group: dist.ProcessGroup | None = None,
        version: int = 0,
        publish_every: int | None = None,
        positions: str = "auto",
        values: str = "ulp",
        objective: str | None = None,
        threads: int = 1,
        unsent: tuple[str, ...] = (),
        report_tensors: bool = True,
        reassigned: Sequence[str] = (),
    ) -> None:
        if detector not in DETECTORS:
            raise UsageError(f"there is no detector '{detector}': {', '.join(DETECTORS)}")
        if publish_every is not None and (optimizer is None or publish_every < 1):
            raise UsageError("publish_every is a number of steps, of an optimizer that is given")
        # The publisher of a world casts fp32 masters itself; for a log they are cast here.
        self._shards = shards_of(
            source,
            rename=rename,
            wire_dtype=wire_dtype,
            dtypes=dtypes,
            cast=isinstance(transport, Log),
            reassigned=reassigned,
        )
        self._process = ProcessMark()
        self._step: int | None = None
        self._every = publish_every
        self._alarms = SyncAlarms()
        self._worker = concurrent.futures.ThreadPoolExecutor(
            1, "sparsecast-publish", use_device, (cuda_device(self._shards.tensors),)
        )
        self._in_flight: concurrent.futures.Future[PublishReport] | None = None
        self._reading = threading.Event()
        self._reading.set()  # Set: nobody reads the weights.
        encode: dict[str, Any] = {
            "positions": positions,
            "values": values,
            "objective": objective,
            "threads": threads,
        }
        with self._shards.counted():
            self._end: LiveEnd | LogEnd | RelayedEnd
            if isinstance(transport, Log) and is_parted(self._shards, process_group):
                self._end = RelayedEnd(
                    transport, self._shards, process_group, detector, version, encode, report_tensors
                )
            elif isinstance(transport, Log):
                self._end = LogEnd(transport, self._shards, detector, version, encode)
            else:
                layout = gather_layout(self._shards.layout, process_group)
                rank = dist.get_rank(process_group) if len(layout.ranks) > 1 else 0
                self._end = LiveEnd(
                    transport, self._shards, layout, rank, detector, version, encode, list(unsent), report_tensors
                )
        self._hooks: list[Any] = []
        if optimizer is not None:
            self._attach(optimizer)

    @property
    def version(self) -> int:
        """Newest version that every engine has verified (over a world), or that is durable (in a log)."""
        return self._end.version

    @property
    def digest(self) -> str:
        """State digest of the weights at ``version``, 32 hexadecimal digits."""
        return self._end.digest

    @property
    def layout(self) -> Any:
        """Layout (:class:`sparsecast.Layout`) of all ranks that publish together."""
        return self._end.layout

    @property
    def sharded(self) -> ShardedPublisher:
        """The :class:`sparsecast.ShardedPublisher` that publishes to the world. Raises UsageError with a log."""
        if not isinstance(self._end, LiveEnd):
            raise UsageError("a publisher to a log has no sharded publisher")
        return self._end.publisher

    def regroup(self, transport: Transport | None = None) -> None:
        """Meets the engines again: after a failure, and when an engine joins or leaves. Collective over trainer and
        engines.

        ``transport`` describes the new world (another size or generation); None means the previous one. The first
        publish() calls this method by itself. With a log the method does nothing, or raises UsageError for another
        transport.
        """
        self._process.require_here()
        self._settle()
        self._end.regroup(transport)

    @overload
    def publish(self, *, wait: Literal[True] = True, label: str = "") -> PublishReport: ...

    @overload
    def publish(self, *, wait: Literal[False], label: str = "") -> concurrent.futures.Future[PublishReport]: ...

    def publish(
        self, *, wait: bool = True, label: str = ""
    ) -> PublishReport | concurrent.futures.Future[PublishReport]:
        """Sends the current weights to every engine, or to the log. Collective over the ranks of the trainer, if there
        are several.

        With ``wait`` it returns the report when every engine has verified the new version (world), or when the version
        is durable (log). Without ``wait`` it returns a future of the report. Over a world, and with a log that several
        ranks write, the weights must not change until the future is done, or until the next optimizer step, which waits
        until they have been read. With a log that one rank writes, changes are detected and encoded during the call,
        and the weights may change when it returns; the future is for the upload, and there is one upload at a time.
        ``label`` is text for people in the record of a log.

        Waits for the previous publication first, and raises its error; nothing is published then, and the call may be
        repeated. A version that a log may or may not have got is then sent to it again, byte for byte, before the
        changes since.
        """
        self._process.require_here()
        self._settle()
        ready = self._end.order.mark()
        if wait:
            return self._run(label, ready)
        if isinstance(self._end, LogEnd):
            self._end.encode(self._step, label, ready)
            self._in_flight = self._worker.submit(self._upload, self._end, self._step)
        else:
            self._reading.clear()
            self._in_flight = self._worker.submit(self._run_in_background, label, ready)
        return self._in_flight

    def wait(self, timeout: float | None = None) -> PublishReport | None:
        """Waits for the publication in progress and returns its report; returns None if none is in progress. Raises the
        publication's error once, or DeadlineError (a TimeoutError) after ``timeout`` seconds.
        """
        self._process.require_here()
        future = self._in_flight
        if future is None:
            return None
        if not concurrent.futures.wait([future], timeout).done:
            raise DeadlineError(f"the publication was still under way after {timeout:g} s")
        self._in_flight = None
        return future.result()

    def close(self) -> None:
        """Waits for the publication in progress and removes the hooks from the optimizer; the publisher cannot be used
        afterwards. In a forked child it only removes the hooks.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if not self._process.is_here:
            return
        try:
            self._settle()
        finally:
            self._worker.shutdown(wait=True)
            self._end.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _run(self, label: str, ready: torch.cuda.Event | None) -> PublishReport:
        return self._looked_at(self._end.publish(self._step, label, ready, self._reading.set))

    def _upload(self, end: LogEnd, step: int | None) -> PublishReport:
        return self._looked_at(end.upload(step))

    def _looked_at(self, report: PublishReport) -> PublishReport:
        """Logs a warning if this publication differs much from those before it; returns the report."""
        seconds = report.seconds.get("wire", report.seconds.get("upload", 0.0))
        self._alarms.warn(report.version, report.wire_bytes, seconds, report.density)
        return report

    def _run_in_background(self, label: str, ready: torch.cuda.Event | None) -> PublishReport:
        try:
            return self._run(label, ready)
        finally:
            self._reading.set()

    def _settle(self) -> None:
        """Waits for the publication in progress, if there is one, and raises its error."""
        future, self._in_flight = self._in_flight, None
        if future is not None:
            future.result()

    def _attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Installs hooks in the optimizer that count its steps. They do not keep the publisher alive: if the optimizer
        outlives the publisher, the hooks do nothing.
        """
        this = weakref.ref(self)
        self._step = 0

        def before(*unused: object) -> None:
            publisher = this()
            if publisher is not None and publisher._process.is_here:
                publisher._before_step()

        def after(*unused: object) -> None:
            publisher = this()
            if publisher is not None and publisher._process.is_here:
                publisher._after_step()

        self._hooks = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]

    def _before_step(self) -> None:
        self._reading.wait()
        if self._in_flight is not None and self._in_flight.done():
            self._settle()

    def _after_step(self) -> None:
        assert self._step is not None
        self._step += 1
        if self._every is not None and self._step % self._every == 0:
            self.publish(wait=False)
