# SPDX-License-Identifier: Apache-2.0
"""Subscriber for plain torch models: updates weights in place and verifies them."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from .. import _core
from .._core import ControlChannel, ShardedSubscriber
from .._process import ProcessMark
from ..buffers import describe
from ..errors import UnsupportedError, UsageError
from ..transports import Log, Transport
from .layouts import gather_layout
from .loader_source import LoaderSource
from .shards import Dtypes, LocalShards, Rename, Source, shards_of, whole_tensors
from .streams import StreamOrder


@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """Report of one update on this rank. ``pause_seconds`` is the time in which weights were written, and
    ``total_seconds`` the time of the whole update.
    """

    version: int
    changed: int  #: Changed elements that were applied; from a log they are not counted (0).
    received_bytes: int
    pause_seconds: float
    total_seconds: float
    deltas: int = 1  #: Number of deltas that were applied.
    reseeded: bool = False  #: Whether all weights were replaced, from an anchor.


class Subscriber:
    """Keeps the weights of a torch model at the versions of the trainer, over a world of ranks or from a delta log.

    ``source`` is a module, an iterable of (name, tensor), :class:`LocalShards`, or a :class:`LoaderSource` for a model
    that keeps its weights in another form than the trainer. With DTensor parameters each rank makes a subscriber over
    the same ``process_group``. ``rename`` maps names to those of the trainer, and ``dtypes`` says which integers are
    4-bit numbers, both as in :func:`shards_of`. ``engine`` is the name of the engine in the world.

    Over a world, ``needs_anchor`` says that the memory holds no version yet and gets all weights when the group meets;
    otherwise it must hold ``version``. From a log, the memory is brought to the newest version whatever it holds.
    ``pause(True)`` is called before weights are written and ``pause(False)`` when they are verified, in the thread of
    update() or apply(). For weights on a device, ``entry_bytes`` is the most bytes of device memory that hold decoded
    changes between receive() and apply(); None means a sixteenth of the weights.

    From a log, a part of the weights is read again after each version: all of them within ``audit_versions`` versions
    (0: none), each time for at most ``audit_time`` seconds on average (0: no limit). Over a world, only a call of
    ``sharded.audit_next()`` does so.

    Weights are written where they were at construction: regroup(), receive(), apply(), update() and audit() raise
    UsageError, and write nothing, if the model has a weight elsewhere, or is gone. Call from one thread, except
    receive(), which may run in another.
    """

    def __init__(
        self,
        source: Source | LocalShards | LoaderSource,
        *,
        transport: Transport,
        engine: str = "engine",
        rename: Rename | None = None,
        dtypes: Dtypes | None = None,
        process_group: dist.ProcessGroup | None = None,
        version: int = 0,
        needs_anchor: bool = False,
        pause: Callable[[bool], None] | None = None,
        threads: int = 1,
        audit_versions: int = 64,
        audit_time: float = 0.0,
        entry_bytes: int | None = None,
    ) -> None:
        self._loader = source if isinstance(source, LoaderSource) else None
        # Whether the copies of the LoaderSource have been loaded into the model.
        self._is_loaded = self._loader is None or self._loader.is_filled
        self._shards = shards_of(
            source.shards if isinstance(source, LoaderSource) else source, rename=rename, dtypes=dtypes
        )
        self._transport = transport
        self._pause = pause or (lambda paused: None)
        self._met = False
        self._world: ControlChannel | None = None
        self._process = ProcessMark()
        self._follower: Any = None
        with self._shards.counted():
            if isinstance(transport, Log):
                self._follow(transport, threads, audit_versions, audit_time)
                return
            if self._loader is not None and self._loader.holds_copies and not (needs_anchor or self._loader.is_filled):
                raise UsageError(
                    "copies of tensors that are not patched in place are empty: give LoaderSource the checkpoint that the "
                    "model was loaded from, or let the trainer send everything (needs_anchor)"
                )
            layout = gather_layout(self._shards.layout, process_group)
            self._rank = dist.get_rank(process_group) if len(layout.ranks) > 1 else 0
            self._order = StreamOrder(self._shards.tensors)
            self.sharded = ShardedSubscriber(
                engine,
                layout,
                self._rank,
                self._loader.memories() if self._loader is not None else [describe(t) for t in self._shards.tensors],
                version=version,
                needs_anchor=needs_anchor,
                threads=threads,
                audit_versions=audit_versions,
                audit_time=audit_time,
                stream=self._order.number,
                entry_bytes=entry_bytes,
            )

    @property
    def version(self) -> int | None:
        """Version that the weights hold, and that has been verified. None if it is not known yet, or if the copies of a
        LoaderSource have not been loaded into the model, or only in part: the next update() then loads everything
        again.
        """
        if not self._is_loaded:
            return None
        if self._follower is not None:
            version: int | None = self._follower.version
            return version
        return self.sharded.version

    def regroup(self, transport: Transport | None = None) -> None:
        """Meets trainer and engines again, over the world that ``transport`` describes (None: the previous one). The
        first receive() or update() calls this method by itself. Does nothing with a log.
        """
        self._process.require_here()
        if isinstance(self._transport, Log):
            return
        if isinstance(transport, Log):
            raise UsageError("a live subscriber cannot go on with a log")
        self._transport = transport or self._transport
        assert not isinstance(self._transport, Log)
        self._met = False
        self._world = self._transport.open(self._rank)
        self._check()
        self._order.catch_up()  # An anchor is written after earlier reads of the weights.
        self.sharded.regroup(self._world, channels=self._transport.channels, timeout=self._transport.timeout)
        self._load()
        self._met = True

    def receive(self) -> None:
        """Stages the next version while the model is in use; only reads the weights. Collective with publish() of the
        trainer; call apply() next.

        Only for a world: raises UsageError with a log.
        """
        if self._follower is not None:
            raise UsageError("a log is followed by update(), which fetches ahead by itself")
        if not self._met:
            self.regroup()
        self._check()
        try:
            self.sharded.receive(self._transport.timeout)
        except BaseException:
            self._met = False
            raise

    def apply(self) -> UpdateReport:
        """Writes the staged version, verifies it, and waits for the decision of all ranks: the work of the pause. Only
        for a world: raises UsageError with a log.

        With a LoaderSource, its loader then loads the tensors that are not patched in place. If that fails, DirtyError
        is raised: all ranks are at the new version, but the model's weights are not, until regroup() or the next update
        has loaded them again.
        """
        if self._follower is not None:
            raise UsageError("a log is followed by update()")
        begin = time.perf_counter()
        self._pause(True)
        try:
            self._check()
            self._order.catch_up()  # Weights are written after earlier reads.
            try:
                done = self.sharded.apply(self._transport.timeout)
            except BaseException:
                self._met = False
                raise
            finally:  # Also after a failure: copies and weights are then of the version before, or of one in doubt.
                self._load()
        finally:
            self._pause(False)
        return UpdateReport(
            done.version, done.applied, done.received_bytes, time.perf_counter() - begin, done.total_seconds
        )

    def update(self, version: int | None = None) -> UpdateReport:
        """Updates the weights and returns the report. Over a world, the update is to the next version, by receive() and
        apply(), and ``version`` must be None. From a log, it is to ``version``, or to the newest version if that is
        None.
        """
        if self._follower is None:
            if version is not None:
                raise UsageError("a live subscriber takes the versions as they come")
            self.receive()
            return self.apply()
        begin = time.perf_counter()
        self._check()
        done = self._follower.step(version)
        if not self._is_loaded:  # The copies held that version already: the follower has written nothing.
            self._pause_follower(True)
            self._pause_follower(False)
        return UpdateReport(
            done.version,
            0,
            done.bytes_read,
            done.apply_seconds,
            time.perf_counter() - begin,
            deltas=done.applied,
            reseeded=done.reseeded,
        )

    def audit(self) -> None:
        """Reads every byte of the weights again. Raises DirtyError naming a tensor whose bytes are not those of its
        version. Only for a world: raises UsageError with a log, whose follower audits by itself.
        """
        if self._follower is not None:
            raise UsageError("a follower audits a slice after every version by itself")
        self._check()
        self.sharded.audit()
        if self._loader is not None:
            self._loader.audit()

    def modes(self) -> dict[str, Any]:
        """Returns, as JSON values, the number of tensors that are patched in place and, with a LoaderSource, the names
        of the other tensors by mode, with the reasons (:meth:`LoaderSource.report`).
        """
        if self._loader is None:
            return {"in_place": len(self._shards.tensors)}
        return self._loader.report()

    def _check(self) -> None:
        """Raises UsageError if the model's weights lie in other memory than the memory that is about to be written; the
        other ranks of a world then fail with the same message.
        """
        try:
            self._shards.check()
        except UsageError as error:
            self._met = False
            if self._world is not None:
                self._world.abort(str(error))
            raise

    def _load(self) -> None:
        """Makes the loader of a LoaderSource load the copies into the model. Does nothing for another source."""
        if self._loader is None:
            return
        self._is_loaded = False
        self._loader.load()
        self._is_loaded = True

    def _pause_follower(self, paused: bool) -> None:
        """Called by the follower of a log before each apply (``paused`` is True) and after it (False). The follower
        keeps an exception raised here until its step has ended.
        """
        try:
            if not paused:
                self._load()
        finally:
            self._pause(paused)
        if paused:
            self._order.catch_up()  # Weights are written after earlier reads.

    def _follow(self, log: Log, threads: int, audit_versions: int, audit_time: float) -> None:
        if not _core.has_log:
            raise UnsupportedError("this build of sparsecast has no delta logs (libsodium was not found)")
        if not log.state:
            raise UsageError("a reader of a log needs Log(state=...): a directory of its own")
        scratch = pathlib.Path(log.state) / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        whole = whole_tensors(self._shards, "a log")
        self._order = StreamOrder(whole.tensors)
        self._follower = _core.LogFollower(
            log.location,
            _core.TensorTable(whole.specs),
            [describe(tensor) for tensor in whole.tensors],
            state_path=pathlib.Path(log.state) / "follower",
            scratch=scratch,
            trusted_keys=list(log.trusted_keys),
            lease=log.lease,
            threads=threads,
            audit_versions=audit_versions,
            audit_time=audit_time,
            pause=self._pause_follower,
            timeout=log.timeout,
            stream=self._order.number,
        )
