# SPDX-License-Identifier: Apache-2.0
"""How a server follows a delta log: the variables of its environment, and what its workers are told of them.

SPARSECAST_FOLLOW           location of the log: a directory, or s3://bucket/prefix; the server follows if it is set
SPARSECAST_FOLLOW_STATE     directory of this server alone, for fetched objects and what it has seen of the log
SPARSECAST_FOLLOW_KEYS      trusted public keys ("ed25519:...") with commas between them; none: any log is believed
SPARSECAST_FOLLOW_INTERVAL  seconds between two looks at the log (default 1)
SPARSECAST_FOLLOW_PAUSE     what becomes of requests in flight: keep (default), retract, wait or abort
SPARSECAST_FOLLOW_AT        when a version is taken: once (default: at once), told (when the server is told to), behind:K
                            (when it would be more than K versions behind), or pinned:N (none that is newer than N)
SPARSECAST_FOLLOW_DRAFT     the draft model: follow (default: if the log has its tensors) or keep (it stays as it is)
SPARSECAST_FOLLOW_DRAFT_PREFIX  what stands in the log before the names of a draft model with files of its own
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from sparsecast.errors import UsageError
from sparsecast.transports import Log

VARIABLE = "SPARSECAST_FOLLOW"
PAUSES = ("keep", "retract", "wait", "abort")
DRAFTS = ("follow", "keep")

FollowStep = Literal["follow", "status", "apply", "drop"]
"""A step in which the process of the HTTP server leads the workers (`LedEngine.ask`)."""

_FIELDS = (
    "follow",
    *(f"follow_{name}" for name in ("state", "keys", "interval", "pause", "at", "draft", "draft_prefix")),
)
_NEWS = "news"


@dataclasses.dataclass(frozen=True)
class When:
    """When a server takes a version that it has staged."""

    kind: Literal["once", "told", "behind", "pinned"]
    """once: as soon as it is staged; told: when the server is told to; behind: when the server would be more than
    `number` versions behind the newest one; pinned: as soon as it is staged, but none that is newer than `number`.
    """
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> When:
        """Returns the value of "once", "told", "behind:K" or "pinned:N". Raises UsageError for any other text."""
        found = re.fullmatch(r"(once|told)|(behind|pinned):([0-9]{1,19})", text, re.ASCII)
        if found is None:
            raise UsageError(f"{VARIABLE}_AT: {text!r} is none of once, told, behind:K, pinned:N (K and N are numbers)")
        kind = cast(Literal["once", "told", "behind", "pinned"], found[1] or found[2])
        return cls(kind, int(found[3] or 0))

    def __str__(self) -> str:
        return self.kind if self.kind in ("once", "told") else f"{self.kind}:{self.number}"


@dataclasses.dataclass(frozen=True)
class FollowSettings:
    """The settings with which a server follows a delta log. Raises UsageError if `interval`, `pause`, `at` or
    `draft` has a wrong value.

    `location` is the place of the log: a directory, or s3://bucket/prefix. `state` is a directory of this server alone,
    for fetched objects and what it has seen of the log. `keys` are the public keys of trusted publishers
    ("ed25519:..."); without keys any log is believed. `interval` is the time between two looks at the log, in seconds.
    `pause` says what becomes of requests in flight during a write: keep, retract, wait or abort. `at` says when a
    version is taken: "once", "told", "behind:K" or "pinned:N" (`When`). `draft` says what becomes of a draft model:
    "follow" if the log has its tensors, or "keep". `draft_prefix` stands in the log before the names of a draft with
    files of its own.
    """

    location: str
    state: str
    keys: tuple[str, ...] = ()
    interval: float = 1.0
    pause: str = "keep"
    at: str = "once"
    draft: str = "follow"
    draft_prefix: str = ""

    def __post_init__(self) -> None:
        if not self.interval > 0:
            raise UsageError(f"{VARIABLE}_INTERVAL: {self.interval} s is not positive")
        if self.pause not in PAUSES:
            raise UsageError(f"{VARIABLE}_PAUSE: {self.pause!r} is none of {', '.join(PAUSES)}")
        When.parse(self.at)
        if self.draft not in DRAFTS:
            raise UsageError(f"{VARIABLE}_DRAFT: {self.draft!r} is none of {', '.join(DRAFTS)}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], server: str) -> FollowSettings | None:
        """Returns the settings in the variables SPARSECAST_FOLLOW... of `environment`; None if they name no log to
        follow. `server` is a name that no other server of this machine has; it makes the default state directory
        unique. Raises UsageError naming a variable with a wrong value.
        """
        location = environment.get(VARIABLE, "")
        if not location:
            return None
        interval = environment.get(f"{VARIABLE}_INTERVAL", "") or "1"
        try:
            seconds = float(interval)
        except ValueError:
            raise UsageError(f"{VARIABLE}_INTERVAL: {interval!r} is no number of seconds") from None
        keys = environment.get(f"{VARIABLE}_KEYS", "").replace(",", " ").split()
        state = environment.get(f"{VARIABLE}_STATE", "") or _default_state(environment, server, location)
        pause = environment.get(f"{VARIABLE}_PAUSE", "") or "keep"
        at = environment.get(f"{VARIABLE}_AT", "") or "once"
        draft = environment.get(f"{VARIABLE}_DRAFT", "") or "follow"
        draft_prefix = environment.get(f"{VARIABLE}_DRAFT_PREFIX", "")
        return cls(location, state, tuple(keys), seconds, pause, at, draft, draft_prefix)

    @classmethod
    def from_init_info(
        cls, info: Mapping[str, Any], environment: Mapping[str, str], server: str
    ) -> FollowSettings | None:
        """Returns the settings in `info`, the JSON object with which an engine's transfer of weights begins; None if it
        names no log in its field "follow". The fields "follow_state", "follow_keys" and so on stand for the variables
        SPARSECAST_FOLLOW_STATE, SPARSECAST_FOLLOW_KEYS, ..., and `environment` has the rest. Raises UsageError for other
        fields, and naming a variable with a wrong value.
        """
        if "follow" not in info:
            return None
        variables = {}
        for name, value in info.items():
            if name not in _FIELDS:
                raise UsageError(f"{name}: with 'follow' there can only be {', '.join(_FIELDS[1:])}")
            variables[f"SPARSECAST_{name.upper()}"] = ",".join(value) if isinstance(value, list) else str(value)
        settings = cls.from_environment({**environment, **variables}, server)
        if settings is None:
            raise UsageError("follow: no location of a log")
        return settings

    def for_worker(self) -> dict[str, Any]:
        """Returns the settings that a worker needs (location, state, keys, interval, and those of drafts), as JSON
        values.
        """
        return {
            "location": self.location,
            "state": self.state,
            "keys": list(self.keys),
            "interval": self.interval,
            "draft": self.draft,
            "draft_prefix": self.draft_prefix,
        }

    def news(self) -> list[str]:
        """Returns the texts that the workers have last written with `write_news`: one for each replica whose state
        directory is on this machine. A text that has changed means that there is something to ask the workers about.
        """
        texts = []
        with contextlib.suppress(OSError):  # The directory, or a file, may be gone by now.
            for file in sorted(pathlib.Path(self.state).glob(f"replica-*/{_NEWS}")):
                texts.append(file.read_text(encoding="utf-8", errors="replace"))
        return texts


def write_news(state: str, text: str) -> None:
    """Writes `text` into the state directory `state` of a replica, where `FollowSettings.news` reads it. If the file
    cannot be written, because the disk is full, for example, nothing is raised.
    """
    with contextlib.suppress(OSError):
        pathlib.Path(state, _NEWS).write_text(text, encoding="utf-8")


def log_of_worker(settings: Mapping[str, Any], replica: int) -> Log:
    """Returns the log that a worker of this replica follows, from the result of `FollowSettings.for_worker`. Each
    replica of the server has a state directory of its own.
    """
    state = pathlib.Path(settings["state"], f"replica-{replica}")
    return Log(settings["location"], trusted_keys=tuple(settings["keys"]), state=state)


def _default_state(environment: Mapping[str, str], server: str, location: str) -> str:
    cache = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    log = hashlib.sha256(location.encode()).hexdigest()[:16]
    return str(pathlib.Path(cache, "sparsecast", "follow", f"{server}-{log}"))
