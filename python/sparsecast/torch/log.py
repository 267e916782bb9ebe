# SPDX-License-Identifier: Apache-2.0
"""The delta log transport of a torch publisher: one rank that holds its tensors whole, on the host or on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _core
from ..buffers import describe
from ..errors import UnsupportedError, UsageError
from ..transports import Log, Transport
from .report import PublishReport
from .shards import LocalShards, WholeTensors, whole_tensors
from .streams import StreamOrder


class ToLog:
    """Base of the two ends of a publisher that write a log: knows the newest version that is in the log, and its
    digest.
    """

    def __init__(self, log: Log, version: int) -> None:
        self._log = log
        self._version, self._digest = version, ""

    @property
    def version(self) -> int:
        return self._version

    @property
    def digest(self) -> str:
        return self._digest

    def regroup(self, transport: Transport | None) -> None:
        if transport is not None and transport != self._log:
            raise UsageError("a publisher to a log stays with it")


class LogEnd(ToLog):
    """The part of a :class:`Publisher` that publishes to a delta log from one rank. Creates the log with the current
    weights if there is none yet.
    """

    def __init__(
        self,
        log: Log,
        shards: LocalShards,
        detector: str,
        version: int,
        encode: dict[str, Any],
    ) -> None:
        if not _core.has_log:
            raise UnsupportedError("this build of sparsecast has no delta logs (libsodium was not found)")
        super().__init__(log, version)
        self.layout = shards.layout
        self._shards = shards
        whole = whole_tensors(shards, "a log")
        self.order = StreamOrder(whole.tensors)
        self.order.catch_up()
        self._memory = [describe(tensor) for tensor in whole.tensors]
        self._table = _core.TensorTable(whole.specs)
        chosen, masters = self._detector(detector, whole)
        if _core.log_head(log.location, list(log.trusted_keys), log.timeout) is None:
            if not log.mirror:
                raise UsageError("a log that is to begin here needs a mirror: a path for its first anchor")
            with self.order.behind(None):
                on_host = [tensor.cpu() for tensor in whole.tensors]  # Once: the first anchor holds all of them.
            _core.create_log(
                log.location,
                self._table,
                [describe(tensor) for tensor in on_host],
                anchor_path=log.mirror,
                version=version,
                key=log.key,
                threads=encode["threads"],
                timeout=log.timeout,
            )
        self._publisher = _core.LogPublisher(
            log.location,
            self._table,
            self._memory,
            detector=chosen,
            masters=masters,
            key=log.key,
            trusted_keys=list(log.trusted_keys),
            mirror=log.mirror,
            deadline=log.timeout,
            stream=self.order.number,
            **encode,
        )
        self._version = self._publisher.version
        self._digest = self._publisher.digest

    def publish(
        self, step: int | None, label: str, ready: torch.cuda.Event | None, weights_read: Callable[[], None]
    ) -> PublishReport:
        self.encode(step, label, ready)
        weights_read()
        return self.upload(step)

    def encode(self, step: int | None, label: str, ready: torch.cuda.Event | None) -> None:
        """Detects and encodes the changes, and starts their upload. The weights may change when the call returns.
        ``ready`` is an event after which the weights can be read (None: now); ``label``, or else the number ``step``,
        goes into the log's record.

        A publication whose upload failed is first repeated, byte for byte; if that fails again, its error is raised,
        and nothing is encoded.
        """
        with self.order.behind(ready):
            if self._fused:
                self._shards.check()
            else:
                self._shards.refresh()
        self._publisher.publish(label or (f"step {step}" if step is not None else ""))

    def upload(self, step: int | None) -> PublishReport:
        """Waits until the publication that :meth:`encode` began is durable in the log, and returns its report."""
        done = self._publisher.wait(self._log.timeout)
        self._version, self._digest = done.version, done.digest
        return PublishReport(
            version=done.version,
            step=step,
            elements=done.elements,
            changed=done.changed,
            wire_bytes=done.wire_bytes,
            dense_bytes=self._table.nbytes,
            digest=done.digest,
            seconds={"encode": done.encode_seconds, "upload": done.upload_seconds},
        )

    def close(self) -> None:
        """Waits until anchors and merged deltas are durable in the log, but not longer than the time-out of the log."""
        self._publisher.wait_maintenance(self._log.timeout)
        del self._publisher

    def _detector(self, wanted: str, whole: WholeTensors) -> tuple[str, list[Any] | None]:
        castable = all(
            master is not None and master.dtype == torch.float32 and tensor.dtype == torch.bfloat16
            for master, tensor in zip(whole.masters, whole.tensors, strict=True)
        )
        if wanted == "pinned" and self.order.number == 0:
            raise UsageError("the detector 'pinned' is for tensors on a CUDA device")
        if wanted == "fused_cast" and not castable:
            raise UsageError(
                "the detector 'fused_cast' needs fp32 parameters and wire_dtype=torch.bfloat16 for all of them"
            )
        stays = self._shards.prepare is None and self._shards.look_again is None
        self._fused = castable and stays and wanted in ("auto", "fused_cast")
        if not self._fused:
            return ("pinned" if wanted == "pinned" else "snapshot"), None
        return "fused_cast", [describe(master) for master in whole.masters if master is not None]
