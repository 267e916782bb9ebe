# SPDX-License-Identifier: Apache-2.0
"""Trainer in the interface of vLLM that writes a delta log, which servers follow by themselves
(`SPARSECAST_FOLLOW`): no connection to a server is needed.

It is registered as trainer backend "sparsecast_log":

    info = LogTrainerInitInfo("s3://bucket/run", rank=rank)
    engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(model))
    ...
    engine.send_weights()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from sparsecast.engines.vllm.plugin import LOG_BACKEND, check_version
from sparsecast.engines.vllm.source import whole_tensors
from sparsecast.errors import UsageError
from sparsecast.torch import Log, PublishReport
from sparsecast.transports import AnyPath

from ._gathered import Rename, WireDtype, drain
from ._log_sync import LogOptions, LogSync


@dataclass
class LogTrainerInitInfo(TrainerInitInfo):
    """Settings of one trainer rank for sending weights to a delta log. All fields except `log` and `servers` have the
    meaning and the default that they have in `LogOptions`, but for `positions`.
    """

    backend: ClassVar[str] = LOG_BACKEND

    log: AnyPath | Log
    """Directory or "s3://bucket/prefix" of the log, or a `Log` with a signing key, a mirror or a timeout."""
    servers: tuple[str, ...] = ()
    """URLs of servers that follow the log and are told each version; more servers may follow the log without being named
    here.
    """
    durable: bool = True
    positions: str = "packed"
    """Encoding of positions: "packed", which servers with several workers can follow, or "auto", which is smaller."""
    wire_dtype: WireDtype | None = None
    rename: Rename | None = None
    wait: float = 240.0


class LogTrainerWeightTransferEngine(TrainerWeightTransferEngine[LogTrainerInitInfo]):
    """One trainer rank that sends weights to a delta log. Rank 0 keeps a copy of all weights in host memory and
    publishes; the other ranks only take part in the source's gathers.
    """

    init_info_cls = LogTrainerInitInfo

    def __init__(self, init_info: LogTrainerInitInfo, client: VLLMWeightSyncClient, source: WeightSource) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self.rank = init_info.rank  # vLLM 0.32 does not keep it.
        self._sync: LogSync | None = None
        if init_info.is_sender:
            options = LogOptions(
                log=init_info.log,
                durable=init_info.durable,
                positions=init_info.positions,
                wire_dtype=init_info.wire_dtype,
                rename=init_info.rename,
                wait=init_info.wait,
            )
            self._sync = LogSync(init_info.servers, options)
        self.last_report: PublishReport | None = None
        """Report of the last version that this rank has published; None without `durable`."""

    @classmethod
    def trainer_init(
        cls, init_info: LogTrainerInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> LogTrainerWeightTransferEngine:
        """Makes the engine of one trainer rank. `client`, which vLLM's interface asks for, is not used. On rank 0 waits
        until the named servers answer.

        Raises UsageError if `source` is None, or for a server that follows no log, and DeadlineError for a server that
        does not answer in time.
        """
        check_version()
        if source is None:
            raise UsageError("the backend publishes what a source yields: give it a WeightSource")
        engine = cls(init_info, client, source)
        if engine._sync is not None:
            engine._sync.check()
        return engine

    def send_weights(self) -> None:
        """Publishes what has changed since the last call; collective over the trainer. The first call begins the log, or
        continues a log that is there. Returns when the version is durable and the named servers serve it; without
        `durable`, when the changes are encoded.

        Rank 0 raises what `LogSync.send` raises; the next call sends all changes since the last version.
        """
        named = whole_tensors(self.source)
        if self._sync is None:
            drain(named)
        else:
            self.last_report = self._sync.send(named)

    def shutdown(self) -> None:
        """Waits for the version in progress and raises its error, if it failed. Servers keep their weights."""
        if self._sync is not None:
            self._sync.close()
