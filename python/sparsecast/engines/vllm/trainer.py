# SPDX-License-Identifier: Apache-2.0
"""Trainer counterpart in the interface of vLLM: drives a `ShardedPublisher` and the life cycle of vLLM together.

It is registered as trainer backend "sparsecast". Every rank of the trainer makes an engine; rank 0 talks to vLLM:

    info = SparsecastTrainerInitInfo(rank=rank)
    client = HTTPVLLMWeightSyncClient("http://...")
    engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(model))
    ...
    engine.send_weights()

With a `source` the engine makes the publisher; without a `source`, the init info brings a publisher that is ready, and
its layout.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from sparsecast.control.both_sides import BothSides
from sparsecast.control.loop import LoopThread
from sparsecast.control.publisher_source import Meeting
from sparsecast.engines.fence import new_trainer_name
from sparsecast.engines.release import own_release
from sparsecast.engines.vllm.join_pause import paused_join
from sparsecast.engines.vllm.meeting import Place, settle
from sparsecast.engines.vllm.plugin import BACKEND, check_version
from sparsecast.engines.vllm.source import SourceWeights, is_local, trainer_ranks
from sparsecast.engines.vllm.sync_client import SyncClientSteps
from sparsecast.errors import UsageError
from sparsecast.transports import Channels, World

if TYPE_CHECKING:
    from sparsecast import Layout, ShardedPublisher, ShardedReport
    from sparsecast.torch.streams import StreamOrder

_logger = logging.getLogger("vllm.sparsecast")


@dataclass
class SparsecastTrainerInitInfo(TrainerInitInfo):
    """Settings of one trainer rank for the transfer; except for `rank` they are the same on every rank. `for_workers`
    has the part of them that is sent to the engine.

    With a `WeightSource`, `rank` is enough if the client is vLLM's HTTP client and torch.distributed is initialised (or
    there is one rank): rank 0 asks the server for the number of its workers, and chooses the other values. Without a
    `WeightSource`, `publisher`, `layout` and all fields up to `engine_workers` are needed.
    """

    backend: ClassVar[str] = BACKEND

    publisher: ShardedPublisher | None = None
    layout: Layout | None = None
    """Layout of the whole trainer, whose table is sent to the engine."""
    host: str = ""
    """Host of rank 0 of this trainer, as the workers of the engine reach it; empty: its address on the way to them."""
    port: int = 0
    """Port where rank 0 listens; 0: a port that is free."""
    secret: str = field(default="", repr=False)
    """Empty: SPARSECAST_SECRET of the environment of rank 0, or else a random secret."""
    engine_workers: int = 0
    """Number of workers of the vLLM server, including data-parallel replicas; 0: the server is asked
    (`/get_world_size`).
    """
    generation: int = 0
    trainer: str = field(default_factory=new_trainer_name)
    """Name of this trainer at the engine, which refuses this trainer once a newer one has joined."""
    channels: Channels = "control"
    interface: str = ""
    engine: str = "vllm"
    engine_version: int = 0
    """Version of the checkpoint that the engine was started from."""
    proof: str = "checkpoint"
    send_secret: bool = True
    """Whether the secret is sent; if False, the workers have it in their environment (SPARSECAST_SECRET)."""
    may_miss: tuple[str, ...] = ()
    modes: dict[str, str] = field(default_factory=dict)
    draft: str = "follow"
    """Whether a draft model of the server follows ("follow") the tensors of it that the source has, or not ("keep")."""
    draft_prefix: str = ""
    """Prefix of the names of a draft that has files of its own at the server, and is trained here, too."""
    entry_bytes: int | None = None
    """Most bytes of a worker's device memory for decoded changes between staging and apply; None: a sixteenth of its
    weights."""
    timeout: float = 300.0
    needs_anchor: bool = False
    """Whether the engine is to be sent all weights at first: its own weights are not of the trainer's version."""
    version: int = 0
    """Version of the source's weights as they are now."""
    trainer_ranks: int | None = None
    """Number of trainer ranks; None: the size of the default process group, or as many as the source's metadata names.
    """
    wire_dtype: torch.dtype | None = None
    """dtype that the engine has instead of the source's, for floating-point tensors: bf16 where the source yields fp32.
    """
    ties: tuple[tuple[str, str], ...] = ()
    """Pairs (alias, original) of names that are one tensor at the source."""
    unsent: tuple[str, ...] = ()
    """Patterns of tensors that no engine needs."""
    copy: bool = False
    """Whether all tensors are copied in every pass: for weights that move between steps, at the price of a copy."""
    threads: int = 1

    def world_size(self) -> int:
        return len(self._layout().ranks) + self.engine_workers

    def world(self) -> World:
        return World(
            host=self.host,
            port=self.port,
            secret=self.secret,
            size=self.world_size(),
            generation=self.generation,
            channels=self.channels,
            interface=self.interface,
            timeout=self.timeout,
        )

    def for_workers(self) -> dict[str, object]:
        """Returns the init info for the engine's workers (`SparsecastInitInfo`), as JSON values."""
        layout = self._layout()
        return {
            "release": own_release(),
            "host": self.host,
            "port": self.port,
            "world_size": self.world_size(),
            "rank_offset": len(layout.ranks),
            "tensors": [[name, dtype, list(shape)] for name, dtype, shape in layout.table],
            "version": self.engine_version,
            "needs_anchor": self.needs_anchor,
            "ties": [list(tie) for tie in layout.ties],
            "secret": self.secret if self.send_secret else "",
            "generation": self.generation,
            "trainer": self.trainer,
            "channels": self.channels,
            "interface": self.interface,
            "engine": self.engine,
            "proof": self.proof,
            "may_miss": list(self.may_miss),
            "modes": dict(self.modes),
            # An older backend refuses the fields, which is better than a draft that stays behind.
            **({"draft": self.draft} if self.draft != "follow" else {}),
            **({"draft_prefix": self.draft_prefix} if self.draft_prefix else {}),
            **({"entry_bytes": self.entry_bytes} if self.entry_bytes is not None else {}),
            "timeout": self.timeout,
        }

    def _layout(self) -> Layout:
        if self.layout is None:
            raise UsageError("a ready publisher comes with its layout")
        return self.layout

    def _check(self) -> None:
        missing = [name for name in ("publisher", "layout", "host", "port", "secret") if not getattr(self, name)]
        if missing:
            raise UsageError(f"without a WeightSource the init info needs {', '.join(missing)}, too")


class SparsecastTrainerWeightTransferEngine(TrainerWeightTransferEngine[SparsecastTrainerInitInfo]):
    """One trainer rank that sends weights to a vLLM server. `trainer_init` makes it, on every rank; all methods are
    collective over the trainer.
    """

    init_info_cls = SparsecastTrainerInitInfo

    def __init__(
        self,
        init_info: SparsecastTrainerInitInfo,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
        weights: SourceWeights | None = None,
        order: StreamOrder | None = None,
    ) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self.rank = init_info.rank  # vLLM 0.32 does not keep it.
        if init_info.publisher is None:
            raise UsageError("the engine has no publisher")
        self._info = init_info
        self._publisher = init_info.publisher
        self._weights = weights
        self._order = order
        self._server = SyncClientSteps(client, init_info.engine)
        self._loop = LoopThread("sparsecast-vllm") if init_info.is_sender else None
        self._meeting: Meeting | None = None
        self._failed = False
        self.last_report: ShardedReport | None = None

    @classmethod
    def trainer_init(
        cls,
        init_info: SparsecastTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> SparsecastTrainerWeightTransferEngine:
        """Makes the engine of this trainer rank, and brings the workers of the vLLM server into the group at the
        version of the trainer; collective over the trainer.

        With a `source`, its weights are published. With `iter_local`, each rank publishes the pieces that it holds, and
        nothing is gathered; without it, the source yields whole tensors, each of which one rank publishes. Raises
        UsageError for a source or fields that do not fit, PeerFailedError with the engine's own refusal as its cause,
        and what `ShardedPublisher.regroup` raises.
        """
        check_version()
        if source is None:
            init_info._check()
            engine = cls(init_info, client)
        elif init_info.publisher is not None or init_info.layout is not None:
            raise UsageError("give a WeightSource or a ready publisher, not both")
        else:
            engine = cls._of_source(init_info, client, source)
        engine._connect()
        return engine

    def reconnect(self) -> None:
        """Brings the workers into a new group, after any failure, and after the server was started again."""
        self._info = dataclasses.replace(self._info, generation=self._info.generation + 1, needs_anchor=False)
        self._connect()

    def send_weights(self, staged: Callable[[], bool] | None = None) -> None:
        """Sends the changes to the engine and returns when every worker has verified them; collective over the trainer.

        Workers generate nothing during update_weights. It is therefore called only once `staged` returns True, which
        says that the workers have the version, so that the pause is only the apply. If `staged` is None, the workers
        are asked through vLLM's HTTP client, if they have the worker extension; otherwise update_weights also waits for
        the transfer. The version becomes the weight_version of vLLM, and `last_report` has the numbers. After an error
        call `reconnect`, which brings all workers to the trainer's version again.
        """
        meeting = self._meeting
        if self._failed or meeting is None:
            raise UsageError("the last transfer failed, or the group was left: reconnect() comes first")
        try:
            self._send(meeting, staged)
        except BaseException as error:
            self._failed = True
            meeting.abort(f"rank {self.rank} of the trainer failed: {error}")
            raise

    def shutdown(self) -> None:
        """Leaves the group. A publisher that was made from a source cannot be used afterwards; a publisher that the
        caller brought still belongs to the caller.
        """
        if self._loop is not None:
            self._loop.close()
        if self._weights is not None and self._meeting is not None:
            self._meeting.abort(f"rank {self.rank} of the trainer has left")
            self._meeting = None

    # -- inside ------------------------------------------------------------------------------------------------------

    @classmethod
    def _of_source(
        cls, info: SparsecastTrainerInitInfo, client: VLLMWeightSyncClient, source: WeightSource
    ) -> SparsecastTrainerWeightTransferEngine:
        from sparsecast import ShardedPublisher, describe
        from sparsecast.torch.streams import StreamOrder

        ranks = trainer_ranks(source) if info.trainer_ranks is None else info.trainer_ranks
        if not 0 <= info.rank < ranks:
            raise UsageError(f"rank {info.rank} is none of {ranks} trainer ranks (trainer_ranks)")
        if not info.send_secret and not (info.secret or os.environ.get("SPARSECAST_SECRET")):
            raise UsageError("send_secret=False needs a secret that the workers have, too")
        weights = SourceWeights(source, info.rank, ranks, wire_dtype=info.wire_dtype, ties=info.ties, copy=info.copy)
        if not is_local(source) and ranks > 1:
            _logger.warning(
                "%s has no iter_local: every transfer gathers all weights, and this rank keeps %d tensors whole",
                type(source).__name__,
                len(weights.tensors),
            )
        elif weights.copied and not info.copy:
            _logger.info("%d tensors (%d bytes) are copied before each transfer", weights.copied, weights.copied_bytes)
        place = settle(Place(info.host, info.port, info.secret, info.engine_workers), client, info.rank, ranks)
        order = StreamOrder(weights.tensors)
        publisher = ShardedPublisher(
            weights.layout,
            info.rank,
            [describe(tensor) for tensor in weights.tensors],
            version=info.version,
            threads=info.threads,
            unsent=list(info.unsent),
            masters=weights.has_masters,
            stream=order.number,
        )
        filled = dataclasses.replace(
            info,
            publisher=publisher,
            layout=weights.layout,
            host=place.host,
            port=place.port,
            secret=place.secret,
            engine_workers=place.engine_workers,
        )
        return cls(filled, client, source, weights, order)

    def _connect(self) -> None:
        info, server = self._info, self._server
        self._refresh()
        if self._failed and self._loop is not None:
            with contextlib.suppress(Exception):  # vLLM has no update open.
                self._loop.run(server.cancel(info.timeout))
        self._meeting = meeting = Meeting(info.world())

        async def join(sides: BothSides, until: float) -> None:
            await sides.phase("join", [server], lambda each: each.join(info.for_workers(), _left(until)), until)

        def meet() -> None:
            self._publisher.regroup(meeting.open(info.rank), channels=info.channels, timeout=info.timeout)

        with paused_join(self.client) if self._loop is not None else contextlib.nullcontext():
            self._run(meeting, join, meet)
        self._failed = False

    def _send(self, meeting: Meeting, staged: Callable[[], bool] | None) -> None:
        timeout, server = self._info.timeout, self._server
        self._refresh()  # Before the engine is told: what is wrong here is said without it.
        base_version = self._publisher.version
        server.is_staged = staged

        async def update(sides: BothSides, until: float) -> None:
            await sides.phase("receive", [server], lambda each: each.receive(base_version, _left(until)), until)
            await sides.phase("staged", [server], lambda each: each.staged(_left(until)), until)
            await sides.phase("apply", [server], lambda each: each.apply(base_version, _left(until)), until)

        def publish() -> None:
            self.last_report = self._publisher.sync(timeout)

        self._run(meeting, update, publish)
        if self._loop is not None:
            self._loop.run(server.finish(self._publisher.version, timeout))

    def _run(
        self,
        meeting: Meeting,
        engine_side: Callable[[BothSides, float], Coroutine[Any, Any, None]],
        trainer_side: Callable[[], None],
    ) -> None:
        """Runs the trainer's side on this rank and, on the rank that talks to vLLM, the engine's side at the same time.
        Raises the failure of the trainer, with the failure of the engine, which says more, as its cause; or the failure
        of the engine alone.
        """
        if self._loop is None:
            trainer_side()
            return
        sides = BothSides(lambda reason: meeting.abort(f"the engine failed: {reason}"), self._loop)
        timeout = self._info.timeout
        if sides.run(engine_side(sides, time.monotonic() + timeout), trainer_side, timeout):
            return
        failure = sides.failures.get(self._server.name)
        if sides.trainer_failure is None:
            assert failure is not None
            raise failure
        if failure is not None and not failure.echo:
            raise sides.trainer_failure from failure
        raise sides.trainer_failure

    def _refresh(self) -> None:
        if self._weights is not None:
            self._weights.refresh()
            assert self._order is not None
            self._order.catch_up()


def _left(until: float) -> float:
    return until - time.monotonic()
