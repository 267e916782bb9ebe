# SPDX-License-Identifier: Apache-2.0
"""One sync, step by step.

    health      every endpoint answers, is awake and as large as it was said to be
    regroup     if the members are not those of the last group, or it broke: engines and trainer meet; new ones are
                seeded
    exchange    engines receive in the background while the trainer publishes        (generation goes on)
                pause, apply                                                          (nothing is generated)
    conclude    name the version, flush, resume

The trainer's calls run on the thread that asked for the sync, the engines' on the fleet's loop. Until the apply
begins a failure changes nothing: every engine still serves what it did. After that the group decides: all of it is at
the new version, or all of it undoes the apply. In either case every engine that was paused is resumed, but for two:
one that says that its bytes are wrong ("dirty"), and one whose seeding failed in the middle.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sparsecast.control.both_sides import BothSides, Stopped
from sparsecast.control.endpoints import place
from sparsecast.control.engine import KV_CACHE, RANKS_SHARE, WEIGHTS, PauseMode
from sparsecast.control.errors import DIRTY_CODES, EndpointError
from sparsecast.control.fleet import Engine, Fleet, mark_failed, on_each, refuse_mode
from sparsecast.control.group import Group
from sparsecast.control.lease import LeaseKeeper
from sparsecast.control.policy import SyncPolicy
from sparsecast.control.report import EndpointReport, State, SyncError, SyncReport, source_figures
from sparsecast.control.world import SourceReport, SyncSource, WorldSpec
from sparsecast.errors import UsageError

_UNKNOWN_OUTCOME = frozenset({"timeout", "io"})  # no answer: the engine may have done the step or not
_TIDY_CALLS = 3  # most calls to an engine after a phase: cancel or finish, flush, resume


class SyncRound:
    """One sync of the trainer with all engines of `fleet`. Call `run` once."""

    def __init__(self, source: SyncSource, fleet: Fleet, group: Group, policy: SyncPolicy) -> None:
        self._source = source
        self._fleet = fleet
        self._group = group
        self._policy = policy
        self._sides = BothSides(getattr(source, "abort", None), fleet.loop)
        self._failures = self._sides.failures
        self._engines: list[Engine] = []
        self._left_out: list[Engine] = []
        self._reports: dict[str, EndpointReport] = {}
        self._receiving: set[str] = set()
        self._applying: set[str] = set()
        self._paused_at: dict[str, float] = {}
        self._leases = LeaseKeeper(policy.pause_lease, policy.call_timeout)
        self._report = SyncReport("failed", source.version, fleet.registry.generation)

    def run(self) -> SyncReport:
        """Runs the sync and returns its report. Raises `SyncError`, which holds the report, if an endpoint or the
        trainer failed; `UsageError` if no endpoint is registered, or an engine does not support the pause mode.
        """
        started = time.monotonic()
        try:
            self._check_health()
            self._regroup_if_needed()
            self._exchange()
        except Stopped:
            pass
        finally:
            self._fleet.loop.call(self._leases.stop)  # An engine that could not be resumed resumes by itself.
        self._report.seconds = time.monotonic() - started
        return self._outcome()

    # health

    def _check_health(self) -> None:
        engines = self._fleet.engines()
        if not engines:
            raise UsageError("no endpoint is registered: there is nobody to sync with")
        refuse_mode(engines, self._policy.pause)
        self._reports = {engine.name: EndpointReport(engine.name) for engine in engines}
        failed = self._fleet.loop.run(on_each(engines, "health", self._look_at))
        self._failures.update(failed)
        self._left_out = [engine for engine in engines if engine.name in failed]
        self._engines = [engine for engine in engines if engine.name not in failed]
        if failed and not (self._policy.allow_missing and self._engines):
            raise Stopped

    async def _look_at(self, engine: Engine) -> None:
        record = engine.record
        if WEIGHTS in record.asleep:
            raise EndpointError(engine.name, "health", "the memory of its weights is released: wake it", code="usage")
        if record.state is State.FENCED:
            message = (
                "another trainer has taken it over, and this one leaves it alone: remove it here, or end the other"
            )
            raise EndpointError(engine.name, "health", message, code="fenced")
        status = await engine.client.health(self._policy.health_timeout)
        expected = engine.endpoint.world_size
        if status.world_size is not None and status.world_size != expected:
            message = f"it was registered with world_size {expected}, and the server says {status.world_size}"
            raise EndpointError(engine.name, "health", message, code="usage")
        if status.paused is False and not record.asleep:
            # It resumed by its lease, or was started again: nobody holds its pause any more.
            record.paused = record.held = False
        if record.version is not None and status.version != record.version:
            # The server was restarted, or updated by somebody else: it is no longer a member of our group.
            record.version = None
            record.state = State.JOINING
            self._group.break_up(f"{engine.name} is not at the version that it had")
        if record.state is State.UNHEALTHY:
            record.state = State.JOINING
            self._group.break_up(f"{engine.name} had failed")

    # regroup

    def _regroup_if_needed(self) -> None:
        anchored = frozenset(engine.name for engine in self._engines if engine.record.needs_anchor)
        if self._group.is_of(self._engines) and not anchored:
            self._report.generation = self._group.generation
            return
        started = time.monotonic()
        placements = place([engine.endpoint for engine in self._engines], self._source.ranks)
        seconds = self._policy.join_timeout
        world = self._group.world(self._source, placements, anchored, seconds * RANKS_SHARE, self._policy.pause_lease)
        seeded = [engine for engine in self._engines if self._is_to_be_seeded(engine)]
        self._report.regrouped = True
        self._report.generation = world.generation
        joined = self._sides.run(
            self._join_all(world, seeded, time.monotonic() + seconds), lambda: self._source.regroup(world), seconds
        )
        self._report.regroup_seconds = time.monotonic() - started
        if not joined:
            untouched = getattr(self._source, "met", True) is False
            for engine in seeded if not untouched else ():
                engine.record.needs_anchor = True  # it may have been seeded in part, and must not serve
            self._fleet.loop.run(self._resume(self._engines, untouched=untouched))
            raise Stopped
        self._group.stands(self._engines)
        for engine in self._engines:
            engine.record.needs_anchor = engine.record.in_doubt = False
            engine.record.version = self._source.version
            engine.record.state = State.READY

    def _is_to_be_seeded(self, engine: Engine) -> bool:
        record = engine.record
        version = record.version if record.version is not None else engine.endpoint.start_version
        return record.needs_anchor or version != self._source.version

    async def _join_all(self, world: WorldSpec, seeded: list[Engine], until: float) -> None:
        placements = {placement.endpoint.name: placement for placement in world.placements}

        async def join(engine: Engine) -> None:
            self._reports[engine.name].rank_offset = placements[engine.name].rank_offset
            if engine.name in world.anchored:
                # Members of a group trust their weights; only an engine that joins again is told that it has none.
                await engine.client.leave(until - time.monotonic())
            await engine.client.join(world, placements[engine.name], until - time.monotonic())

        # An anchor is written as it arrives: meanwhile the engine holds torn weights.
        await self._pause_all(seeded, until)
        await self._sides.phase("join", self._engines, join, until)

    # exchange

    def _exchange(self) -> None:
        results: list[SourceReport] = []
        seconds = self._policy.sync_timeout
        for engine in self._engines:
            engine.record.state = State.UPDATING
        done = self._sides.run(
            self._receive_and_apply(self._source.version, time.monotonic() + seconds),
            lambda: results.append(self._source.sync(seconds * RANKS_SHARE)),
            seconds + _TIDY_CALLS * self._policy.call_timeout,
        )
        if not done:
            self._group.break_up("a sync failed")
        updated: list[Engine] = []
        if results:
            self._report.source = source_figures(results[0])
            updated = [each for each in self._engines if each.name in self._applying - set(self._failures)]
            self._fleet.loop.run(self._conclude(updated, results[0].version))
        if not done:
            self._fleet.loop.run(self._tidy_up([engine for engine in self._engines if engine not in updated]))
            raise Stopped

    async def _receive_and_apply(self, base_version: int, until: float) -> None:
        async def receive(engine: Engine) -> None:
            self._receiving.add(engine.name)
            await engine.client.receive(base_version, until - time.monotonic())

        async def staged(engine: Engine) -> None:
            started = time.monotonic()
            await engine.client.staged(until - started)
            self._reports[engine.name].stage_seconds = time.monotonic() - started

        async def apply(engine: Engine) -> None:
            started = time.monotonic()
            self._applying.add(engine.name)
            with self._timed(engine, "apply"):
                await engine.client.apply(base_version, until - started)
            self._reports[engine.name].apply_seconds = time.monotonic() - started

        try:
            await self._sides.phase("receive", self._engines, receive, until)
            await self._sides.phase("staged", self._engines, staged, until)
            await self._pause_all(self._engines, until)
        except Stopped:
            # The trainer may notice only at its deadline; the engines need not wait for it.
            await self._tidy_up(self._engines)
            raise
        try:
            await self._sides.last_phase("apply", self._engines, apply)
        except Stopped:
            # An engine whose apply failed by itself holds the version before. All others wait for the decision of the
            # trainer.
            said = {name for name, error in self._failures.items() if error.code not in _UNKNOWN_OUTCOME}
            await self._tidy_up([engine for engine in self._engines if engine.name in said])
            raise

    async def _pause_all(self, engines: list[Engine], until: float) -> None:
        async def pause(engine: Engine) -> None:
            self._reports[engine.name].lease = await self._leases.take(engine)
            self._paused_at[engine.name] = time.monotonic()
            engine.record.paused = True  # before the answer: without one the server may have stopped all the same
            draining = self._policy.pause is PauseMode.WAIT
            left = until - time.monotonic()
            with self._timed(engine, "pause"):
                seconds = left if draining else min(left, self._policy.call_timeout)
                await engine.client.pause(self._policy.pause, seconds)

        if self._policy.pause is not PauseMode.NONE:
            # Whatever a sync before has left: only its own pause, with a lease, or somebody's hold is one to rely on.
            unpaused = [each for each in engines if each.name not in self._paused_at and not each.record.held]
            await self._sides.phase("pause", [each for each in unpaused if not each.record.asleep], pause, until)

    # the end

    async def _conclude(self, engines: list[Engine], version: int) -> None:
        """Ends the sync for `engines`, which have verified `version`: tells each its version, has it flush its caches
        if the policy says so, and resumes it.
        The engines stay at `version`, even if one of these calls fails.
        """

        async def finish(engine: Engine) -> None:
            with self._timed(engine, "finish"):
                await engine.client.finish(version, self._policy.call_timeout)

        for engine in engines:
            engine.record.version, engine.record.state = version, State.READY
        failed = await on_each(engines, "finish", finish)
        if failed:
            self._group.break_up("an update was not closed")
        self._failures.update(failed)
        for name, error in (await on_each(engines, "flush", self._flush)).items():
            self._failures.setdefault(name, error)
        await self._resume(engines)

    async def _flush(self, engine: Engine) -> None:
        if not self._policy.flush_cache or KV_CACHE in engine.record.asleep:
            return
        report = self._reports[engine.name]
        report.cache_flushed = False
        try:
            with self._timed(engine, "flush"):
                await engine.client.flush(self._policy.pause, self._policy.call_timeout)
        except EndpointError as error:
            requests_hold_it = self._policy.pause in (PauseMode.NONE, PauseMode.KEEP)
            if not requests_hold_it or error.code in _UNKNOWN_OUTCOME:
                raise
            return
        report.cache_flushed = True

    async def _tidy_up(self, engines: list[Engine]) -> None:
        async def cancel(engine: Engine) -> None:
            await engine.client.cancel(self._policy.call_timeout)

        begun = [engine for engine in engines if engine.name in self._receiving]
        self._receiving -= {engine.name for engine in begun}
        # Later failures are consequences of earlier ones, and the next regroup starts anew.
        await on_each(begun, "cancel", cancel)
        for engine in engines:
            error = self._failures.get(engine.name)
            if error is not None and error.code in DIRTY_CODES:
                engine.record.needs_anchor = True
        await self._resume(engines)

    async def _resume(self, engines: list[Engine], *, untouched: bool = False) -> None:
        """Resumes the engines in `engines` that are paused, except engines that `ControlPlane.pause` has paused, that
        are asleep, or whose weights are not usable.

        untouched  whether this sync has written nothing. Then engines that need an anchor are resumed as well, with the
                   weights that they had when they were paused.
        """

        async def resume(engine: Engine) -> None:
            with self._timed(engine, "resume"):
                await engine.client.resume(self._policy.call_timeout)
            engine.record.paused = False
            if engine.name in self._paused_at:
                self._reports[engine.name].pause_seconds = time.monotonic() - self._paused_at.pop(engine.name)

        ours = [each for each in engines if each.record.paused and not each.record.held and not each.record.asleep]
        fit = [engine for engine in ours if untouched or not engine.record.needs_anchor]
        for name, error in (await on_each(fit, "resume", resume)).items():
            self._failures.setdefault(name, error)
        await on_each(
            [each for each in ours if not each.record.paused or each not in fit], "lease", self._leases.release
        )
        for engine in ours:
            self._reports[engine.name].left_paused = engine.record.paused

    # the report

    @contextmanager
    def _timed(self, engine: Engine, step: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._reports[engine.name].calls[step] = time.monotonic() - started

    def _outcome(self) -> SyncReport:
        report = self._report
        report.version = self._source.version
        for engine in [*self._engines, *self._left_out]:
            self._close_record(engine)
        report.endpoints = [self._reports[name] for name in sorted(self._reports)]
        left_out = {engine.name for engine in self._left_out}
        trainer = self._sides.trainer_failure
        if report.source and trainer is None and not set(self._failures) - left_out:
            report.result = "partial" if left_out else "ok"
            return report
        failures = list(self._failures.values())
        causes = [error for error in failures if not error.echo] or failures
        sentences = [str(error) for error in causes]
        if trainer is not None and not any(sentence in str(trainer) for sentence in sentences):
            sentences.append(f"trainer: {trainer or type(trainer).__name__}")
        report.error = "; ".join(sentences)
        if trainer is not None and not isinstance(trainer, Exception):
            raise trainer  # somebody interrupts the process
        message = f"the sync failed: {report.error}. Now: {report.who_is_where()}"
        raise SyncError(message, causes, report) from trainer

    def _close_record(self, engine: Engine) -> None:
        record, entry = engine.record, self._reports[engine.name]
        error = self._failures.get(engine.name)
        if record.state is State.UPDATING:  # it did not finish
            record.state = State.READY
            record.in_doubt = engine.name in self._applying and (error is None or error.code in _UNKNOWN_OUTCOME)
        if error is None:
            record.error = ""
        else:
            mark_failed(engine, error)
            entry.error, entry.step, entry.code = error.message, error.step, error.code
        if record.asleep:
            record.state = State.ASLEEP
        entry.version, entry.state, entry.in_doubt = record.version, record.state.value, record.in_doubt
