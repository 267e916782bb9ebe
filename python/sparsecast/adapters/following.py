# SPDX-License-Identifier: Apache-2.0
"""A server that follows the logs of its adapters by itself: settings, and the threads in the process of its HTTP server.

SPARSECAST_FOLLOW_ADAPTERS  logs of adapters, with commas between them. After a log comes =FILE, the description that its
                            trainer has written (`AdapterSpec.save`); without it, the file is LOG.json
SPARSECAST_FOLLOW_STATE, SPARSECAST_FOLLOW_KEYS, SPARSECAST_FOLLOW_INTERVAL  as for a log of weights (`follow_settings`)
"""

from __future__ import annotations

import hashlib
import logging
import pathlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..engines.follow_settings import VARIABLE as LOG_VARIABLE
from ..engines.follow_settings import FollowSettings
from ..errors import Error, UsageError
from ..transports import Log
from .engines import AdapterServer
from .follow import AdapterFollower, AdapterStream
from .receiver import AdapterUpdate, checkpoint_shapes

VARIABLE = f"{LOG_VARIABLE}_ADAPTERS"

_LONGEST_INTERVAL = 60.0


@dataclass(frozen=True)
class AdapterSettings:
    """The adapters that a server follows. ``directory`` belongs to this server alone; its engine must see it under the
    same path. ``interval`` is the time between two looks at a log, in seconds.
    """

    streams: tuple[AdapterStream, ...]
    directory: str
    interval: float

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], server: str) -> AdapterSettings | None:
        """Returns the settings in the variables of ``environment``; None if they name no log of an adapter. ``server``
        is a name that no other server of this machine has. Raises UsageError naming a variable with a wrong value.
        """
        entries = [entry.strip() for entry in environment.get(VARIABLE, "").split(",") if entry.strip()]
        if not entries:
            return None
        location = environment.get(LOG_VARIABLE) or "adapters"
        common = FollowSettings.from_environment({**environment, LOG_VARIABLE: location}, server)
        assert common is not None
        streams: dict[str, AdapterStream] = {}
        for entry in entries:
            log, _, description = entry.partition("=")
            if not description and "://" in log:
                raise UsageError(f"{VARIABLE}: say where the description of {log} is: {log}=FILE")
            if log in streams:
                raise UsageError(f"{VARIABLE}: {log} is named twice")
            file = description or f"{log.rstrip('/')}.json"
            streams[log] = AdapterStream(Log(log, trusted_keys=common.keys), file)
        return cls(tuple(streams.values()), str(pathlib.Path(common.state, "adapters")), common.interval)


class AdapterFollowing:
    """Keeps the adapters of ``server`` at the newest versions of their logs, each in a thread of its own, so that what
    is wrong with one adapter does not hold up the others.

    ``model`` is the directory or name of the base model; adapters that do not fit the checkpoint in a directory are
    refused. ``log`` is a logger that the server shows to its operator. ``stop`` ends the threads; the server keeps its
    adapters.
    """

    def __init__(self, server: AdapterServer, settings: AdapterSettings, model: str, log: logging.Logger) -> None:
        self._log = log
        self._interval = settings.interval
        self._stop = threading.Event()
        base: dict[str, tuple[int, ...]] | None = None
        if any(pathlib.Path(model).glob("*.safetensors")):
            base = checkpoint_shapes(model)
        self._followers: dict[AdapterStream, AdapterFollower] = {}
        self._errors: dict[AdapterStream, str] = {}
        for stream in settings.streams:
            # Two followers need two directories.
            directory = pathlib.Path(settings.directory, hashlib.sha256(stream.log.place.encode()).hexdigest()[:16])
            self._followers[stream] = AdapterFollower(server, directory, [stream], base=base, say=self._say)

    def start(self) -> None:
        """Starts the threads. They end with ``stop``, or with the process."""
        for stream in self._followers:
            thread = threading.Thread(target=self._run, args=(stream,), name="sparsecast-adapter", daemon=True)
            thread.start()

    def stop(self) -> None:
        """Lets the threads end after the step that they are in."""
        self._stop.set()

    def status(self) -> list[dict[str, Any]]:
        """Returns, for each log, its location, the name of the adapter and the version that the server has loaded (None
        until then), and what is wrong (empty if nothing is), as JSON values.
        """
        found = []
        for stream, follower in self._followers.items():
            name, version = next(iter(follower.versions.items()), (None, None))
            error = self._errors.get(stream, "") or "; ".join(follower.waiting)
            found.append({"log": stream.log.place, "name": name, "version": version, "error": error})
        return found

    def _run(self, stream: AdapterStream) -> None:
        follower, wait = self._followers[stream], self._interval
        while not self._stop.is_set():
            try:
                for update in follower.step():
                    self._tell(update)
                self._errors[stream] = ""
                wait = self._interval
            except Exception as error:  # The server goes on with the adapters that it has, and says so.
                words = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
                if words != self._errors.get(stream):
                    self._log.warning("sparsecast: following %s: %s", stream.log.place, words)
                self._errors[stream] = words
                wait = min(2 * wait, max(_LONGEST_INTERVAL, self._interval))
            self._stop.wait(wait)

    def _tell(self, update: AdapterUpdate) -> None:
        self._log.info("sparsecast: adapter '%s' is at version %d", update.name, update.version)

    def _say(self, sentence: str) -> None:
        self._log.warning("sparsecast: %s", sentence)
