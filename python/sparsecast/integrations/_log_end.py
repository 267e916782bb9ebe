# SPDX-License-Identifier: Apache-2.0
"""One rank's end of a delta log: a publisher that begins a log or continues one, and a subscriber."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from sparsecast import _core
from sparsecast.errors import UsageError, WrongBaseError
from sparsecast.torch import Log, Publisher, PublishReport, Subscriber
from sparsecast.transports import AnyPath

_OPTIONS = ("location", "key", "trusted_keys", "mirror", "timeout")


def log_of(option: AnyPath | Log | Mapping[str, Any], option_name: str) -> Log:
    """Returns the log that an option of a framework describes: a location, a `Log`, or a mapping of the fields
    `location`, `key`, `trusted_keys`, `mirror` and `timeout` of a `Log`. Raises UsageError, which names the option, for
    another field, or if there is no location.
    """
    if isinstance(option, Log):
        return option
    fields: dict[str, Any] = dict(option) if isinstance(option, Mapping) else {"location": option}
    unknown = [name for name in fields if name not in _OPTIONS]
    if unknown or not fields.get("location"):
        wrong = f"has no field {unknown[0]!r}" if unknown else "names no location"
        raise UsageError(f"{option_name} {wrong}: it is a location, or a mapping with {', '.join(_OPTIONS)}")
    return Log(**{**fields, "trusted_keys": tuple(fields.get("trusted_keys", ()))})


def with_scratch(log: Log, directory: pathlib.Path) -> Log:
    """Returns `log` with its mirror and its state in `directory`, unless it says itself where they are."""
    return replace(log, mirror=log.mirror or directory / "mirror.safetensors", state=log.state or directory / "state")


def open_publisher(log: Log, tensors: Mapping[str, torch.Tensor], **options: Any) -> Publisher:
    """Returns a publisher of `tensors`, by name, in host memory; `options` are those of a `Publisher`. A new log begins
    with their present values. Of a log that exists, the newest version is read first, so that the next version is the
    way from it to the present values. `log` needs a mirror and a state. Raises TableMismatchError for a log of other
    tensors, and the errors of the log.
    """
    if _core.log_head(log.location, list(log.trusted_keys), log.timeout) is None:
        return Publisher(tensors.items(), transport=log, **options)
    now = {name: tensor.clone() for name, tensor in tensors.items()}
    try:
        Subscriber(tensors.items(), transport=log).update()
        return Publisher(tensors.items(), transport=log, **options)
    finally:
        for name, tensor in now.items():
            tensors[name].copy_(tensor)


class LogEnd:
    """One rank's end of a delta log over tensors in host memory: the sender publishes, a rollout worker follows. The
    tensors of the first call are those of every later one, at the same addresses.

    positions   encoding of positions, as for `sparsecast.torch.Publisher`.
    threads     number of threads that encode and decode.
    """

    def __init__(self, log: Log, positions: str, threads: int) -> None:
        self._log = log
        self._positions = positions
        self._threads = threads
        self._scratch = tempfile.TemporaryDirectory(prefix="sparsecast-log-", ignore_cleanup_errors=True)
        self._publisher: Publisher | None = None
        self._subscriber: Subscriber | None = None
        self.label = ""
        """Text for people in the record of the next version."""

    def publish(self, tensors: Mapping[str, torch.Tensor]) -> PublishReport:
        """Publishes the tensors, and returns the report when the version is durable. The first call raises what
        `open_publisher` raises, and every call the errors of the log.
        """
        if self._publisher is None:
            log = with_scratch(self._log, pathlib.Path(self._scratch.name))
            self._publisher = open_publisher(log, tensors, positions=self._positions, threads=self._threads)
        return self._publisher.publish(label=self.label)

    def update(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Brings the tensors to `version` in place and verifies all of them. The first call reads an anchor. Raises the
        errors of the log, and WrongBaseError if the log has another version in place of this one.
        """
        if self._subscriber is None:
            log = replace(self._log, key=None, mirror="", state=self._scratch.name)
            self._subscriber = Subscriber(tensors.items(), transport=log, threads=self._threads, audit_versions=1)
        held = self._subscriber.update(version).version
        if held != version:
            raise WrongBaseError(
                f"it leads to version {held}, and the trainer has published {version}", self._log.place
            )

    def close(self) -> None:
        """Closes the publisher, if there is one, and removes its temporary files."""
        publisher, self._publisher, self._subscriber = self._publisher, None, None
        try:
            if publisher is not None:
                publisher.close()
        finally:
            self._scratch.cleanup()
