# SPDX-License-Identifier: Apache-2.0
"""Keeps the adapters of one server at the newest versions of their logs, beside that server.

waiting for log and description --first version--> served --new version, or the server has lost it--> served
"""

from __future__ import annotations

import functools
import os
import pathlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .. import _core
from ..errors import Error, IncompleteError, UsageError
from ..transports import AnyPath, Log, keep_paths, path_text
from .adapter import AdapterSpec
from .engines import AdapterServer
from .receiver import AdapterReceiver, AdapterUpdate

#: Codes of errors that pass by themselves: the server is being started again, the store or the network is away.
PASSING = frozenset({"io", "timeout", "peer_failed", "incomplete"})


@dataclass(frozen=True)
class AdapterStream:
    """An adapter to follow: its delta log, and the path of the file with its description (``AdapterSpec.save``)."""

    log: Log
    description: AnyPath

    def __post_init__(self) -> None:
        keep_paths(self, "description")


class AdapterFollower:
    """Follows the logs of several adapters, and makes one server load their newest versions.

    ``directory`` is where versions are written for the server, which must see it under the same path; it also keeps the
    version that was last seen in each log, so that a follower that is started again does not go back to an older
    version. ``base`` has the shapes of the base checkpoint's tensors by name, to refuse adapters that do not fit it
    (None: no check). ``threads`` is the number of CPU threads. The server keeps its adapters when the follower ends.
    ``say`` is called with sentences for people: what the follower waits for, and that the wait is over.
    """

    def __init__(
        self,
        server: AdapterServer,
        directory: str | os.PathLike[str],
        streams: Sequence[AdapterStream],
        *,
        base: dict[str, tuple[int, ...]] | None = None,
        threads: int = 1,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        if not streams:
            raise UsageError("there is no adapter to follow")
        self._server = server
        self._directory = pathlib.Path(directory)
        self._receiver = AdapterReceiver(server, directory, base=base)
        self._streams = list(streams)
        self._names: dict[AdapterStream, str] = {}
        self._threads = threads
        self._say = say
        self._waiting: dict[str, Error] = {}

    @property
    def versions(self) -> dict[str, int]:
        """The version of each adapter that the server has loaded, by the adapter's name."""
        return self._receiver.versions

    @property
    def waiting(self) -> list[str]:
        """What the follower waits for: problems that pass by themselves."""
        return [str(error) for error in self._waiting.values()]

    def step(self) -> list[AdapterUpdate]:
        """Brings every adapter to the newest version of its log, and loads the adapters again that a restarted server
        has lost.

        Returns the updates that the server has loaded. Problems that pass by themselves (a log or a description that
        does not exist yet, a store or server that does not answer) are reported to ``say`` and left to the next step.
        Raises every other error.
        """
        updates: list[AdapterUpdate] = []
        if self._patiently(self._server.name, self._restore) is None:
            return updates
        for stream in self._streams:
            updates += self._patiently(stream.log.place, functools.partial(self._advance, stream)) or []
        return updates

    def run(self, stop: threading.Event, interval: float, report: Callable[[AdapterUpdate], None]) -> None:
        """Calls :meth:`step` every ``interval`` seconds until ``stop`` is set, which also ends a pause between steps.
        ``report`` is called with each update.
        """
        while not stop.is_set():
            for update in self.step():
                report(update)
            stop.wait(interval)

    def _restore(self) -> list[AdapterUpdate]:
        for name in self._receiver.restore(self._server.served()):
            self._say(f"adapter '{name}': the server no longer had it; version {self.versions[name]} is loaded again")
        return []

    def _advance(self, stream: AdapterStream) -> list[AdapterUpdate]:
        name = self._names.get(stream)
        if name is not None:
            update = self._receiver.update(name)
        else:
            if not pathlib.Path(stream.description).exists():
                raise IncompleteError("there is no description yet", path_text(stream.description))
            if _core.log_head(stream.log.location, list(stream.log.trusted_keys), stream.log.timeout) is None:
                raise IncompleteError("there is no log here yet", stream.log.place)
            spec = AdapterSpec.load(stream.description)
            state = self._directory / ".seen" / spec.name
            state.mkdir(parents=True, exist_ok=True)
            update = self._receiver.add(spec, replace(stream.log, state=state), threads=self._threads)
            self._names[stream] = spec.name
        return [update] if update.load_seconds > 0 else []

    def _patiently(self, of: str, work: Callable[[], list[AdapterUpdate]]) -> list[AdapterUpdate] | None:
        """Returns the result of ``work``, or None if it failed for a reason that passes by itself. Such a reason is
        reported to ``say`` once; ``of`` names the server or log that it concerns.
        """
        try:
            done = work()
        except Error as error:
            if error.code not in PASSING:
                raise
            before = self._waiting.get(of)
            if before is None or before.code != error.code:
                self._say(f"{error}: waiting")
            self._waiting[of] = error
            return None
        if self._waiting.pop(of, None):
            self._say(f"{of}: goes on")
        return done
