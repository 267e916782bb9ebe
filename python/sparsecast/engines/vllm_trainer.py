# SPDX-License-Identifier: Apache-2.0
"""Trainer counterpart in the interface of vLLM: drives a `ShardedPublisher` and the life cycle of vLLM together.

It is registered as trainer backend "sparsecast". Every rank of the trainer makes one; rank 0 talks to vLLM:

    info = SparsecastTrainerInitInfo(publisher, layout, host, port, secret, engine_workers=2, rank=0)
    engine = WeightTransferTrainerFactory.trainer_init(info, client=HTTPVLLMWeightSyncClient("http://..."))
    ...
    engine.send_weights()
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from sparsecast.engines.vllm_plugin import BACKEND
from sparsecast.errors import DeadlineError, UsageError
from sparsecast.transports import Channels

if TYPE_CHECKING:
    from sparsecast import Layout, ShardedPublisher, ShardedReport

_POLL_SECONDS = 0.01


@dataclass
class SparsecastTrainerInitInfo(TrainerInitInfo):
    """Publisher of one trainer rank, and where the world meets. It is not sent to anyone as it is."""

    backend: ClassVar[str] = BACKEND

    publisher: ShardedPublisher
    layout: Layout
    """Layout of the whole trainer, whose table is sent to the engine."""
    host: str
    """Host of rank 0 of this trainer, as the workers of the engine reach it."""
    port: int
    secret: str = field(repr=False)
    engine_workers: int
    """Number of workers of the vLLM server, including data-parallel replicas (`/get_world_size`)."""
    generation: int = 0
    channels: Channels = "control"
    interface: str = ""
    engine: str = "vllm"
    engine_version: int = 0
    """Version of the checkpoint that the engine was started from."""
    proof: str = "checkpoint"
    send_secret: bool = True
    """Whether the secret is sent; if False, the workers have it in their environment (SPARSECAST_SECRET)."""
    may_miss: tuple[str, ...] = ()
    timeout: float = 300.0

    def world_size(self) -> int:
        return len(self.layout.ranks) + self.engine_workers

    def for_workers(self) -> dict[str, object]:
        """Returns the JSON of `SparsecastInitInfo`."""
        table = self.layout.table
        return {
            "host": self.host,
            "port": self.port,
            "world_size": self.world_size(),
            "rank_offset": len(self.layout.ranks),
            "tensors": [[name, dtype, list(shape)] for name, dtype, shape in (table[i] for i in range(len(table)))],
            "version": self.engine_version,
            "ties": [list(tie) for tie in self.layout.ties],
            "secret": self.secret if self.send_secret else "",
            "generation": self.generation,
            "channels": self.channels,
            "interface": self.interface,
            "engine": self.engine,
            "proof": self.proof,
            "may_miss": list(self.may_miss),
            "timeout": self.timeout,
        }


class SparsecastTrainerWeightTransferEngine(TrainerWeightTransferEngine[SparsecastTrainerInitInfo]):
    """One trainer rank. There is no `WeightSource`: the publisher has the memory of the shards of the rank."""

    init_info_cls = SparsecastTrainerInitInfo

    def __init__(self, init_info: SparsecastTrainerInitInfo, client: VLLMWeightSyncClient) -> None:
        super().__init__(client=client, source=None, is_sender=init_info.is_sender, rank=init_info.rank)
        self._publisher = init_info.publisher
        self._timeout = init_info.timeout
        self._rpc = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sparsecast-vllm")
        self.last_report: ShardedReport | None = None

    @classmethod
    def trainer_init(
        cls,
        init_info: SparsecastTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> SparsecastTrainerWeightTransferEngine:
        """Brings the workers of the engine into the group at the version of the trainer; collective over the trainer."""
        from sparsecast import meet

        if source is not None:
            raise UsageError("the sparsecast backend takes no WeightSource: its publisher has the weights")
        engine = cls(init_info, client)
        told = engine._call(lambda: client.init_weight_transfer_engine(init_info.for_workers()))
        try:
            world = meet(
                init_info.host,
                init_info.port,
                rank=init_info.rank,
                size=init_info.world_size(),
                secret=init_info.secret,
                generation=init_info.generation,
                interface=init_info.interface,
                timeout=init_info.timeout,
            )
            engine._publisher.regroup(world, channels=init_info.channels, timeout=init_info.timeout)
        except BaseException as error:
            _raise_cause(told, error)
        if told is not None:
            told.result(init_info.timeout)
        return engine

    def send_weights(self, staged: Callable[[], bool] | None = None) -> None:
        """Sends the changes to the engine and returns when every worker has verified them; collective over the trainer.

        A worker generates nothing during update_weights. With `staged`, a function that calls sparsecast_status on the
        workers (`/collective_rpc`), update_weights is called only once they have the version, and the pause is only the
        apply. The version becomes the weight_version of vLLM. `last_report` has the numbers.
        """
        if self.is_sender:
            self.client.start_weight_update()
        base_version = self._publisher.version
        applied = self._call(lambda: self._update(base_version, staged))
        try:
            self.last_report = self._publisher.sync(self._timeout)
        except BaseException as error:
            _raise_cause(applied, error)
        if applied is not None:
            applied.result(self._timeout)
            self.client.finish_weight_update(str(self._publisher.version))

    def shutdown(self) -> None:
        """Ends the thread that calls vLLM; the publisher still belongs to the caller."""
        self._rpc.shutdown(wait=False, cancel_futures=True)

    def _update(self, base_version: int, staged: Callable[[], bool] | None) -> None:
        deadline = time.monotonic() + self._timeout
        while staged is not None and not staged():
            if time.monotonic() > deadline:
                raise DeadlineError(f"the engine has not staged the next version within {self._timeout} s")
            time.sleep(_POLL_SECONDS)
        self.client.update_weights({"base_version": base_version})

    def _call(self, rpc: Callable[[], None]) -> Future[None] | None:
        """On the sender, calls vLLM beside the work of the trainer itself, since either waits for the other."""
        return self._rpc.submit(rpc) if self.is_sender else None


def _raise_cause(call: Future[None] | None, error: BaseException) -> None:
    """Raises the error of the engine if its call failed, which says more than that the group broke."""
    if call is not None and call.done() and call.exception() is not None:
        raise error from call.exception()
    raise error
