# SPDX-License-Identifier: Apache-2.0
"""A trainer for tests: the collective that its ranks and the engines' take part in, without weights."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from sparsecast.control import WorldSpec
from sparsecast.errors import DeadlineError, PeerFailedError


class Collective:
    """What the ranks of a group do together, without weights: meet, and agree on a version."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.expected: set[str] = set()
        self.joined: set[str] = set()
        self.applied: set[str] = set()
        self.met = False
        self.committed = False
        self.failure = ""

    def wait(self, ready: Any, timeout: float, what: str) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.failure or ready(), timeout):
                raise DeadlineError(f"{what} did not come until the deadline")
            if self.failure:
                raise PeerFailedError(self.failure)

    def put(self, **values: Any) -> None:
        with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def arrive(self, where: str, name: str) -> None:
        with self.changed:
            getattr(self, where).add(name)
            self.changed.notify_all()


@dataclass
class StubReport:
    version: int
    density: float = 0.01
    changed: int = 1000
    sent_bytes: int = 1300
    encode_seconds: float = 0.002
    wire_seconds: float = 0.003
    apply_seconds: float = 0.001
    total_seconds: float = 0.01


class StubSource:
    """The trainer's side. `fails` raises at "regroup" or "sync"."""

    def __init__(self, *, ranks: int = 2, version: int = 0) -> None:
        self.ranks = ranks
        self.version = version
        self.collective = Collective()
        self.tensors = [("w", "BF16", [4, 2]), ("lm_head", "BF16", [2])]
        self.ties = [("lm_head", "w")]
        self.worlds: list[WorldSpec] = []
        self.fails = ""
        self.aborted: list[str] = []
        self.threads: list[str] = []
        self.before_commit: threading.Event | None = None
        self.density = 0.01

    def regroup(self, world: WorldSpec) -> None:
        self.worlds.append(world)
        self.threads.append(threading.current_thread().name)
        names = {placement.endpoint.name for placement in world.placements}
        self.collective.put(expected=names, failure="", met=False)
        if self.fails == "regroup":
            self.collective.put(failure="the trainer is out of memory")
            raise RuntimeError("the trainer is out of memory")
        try:
            self.collective.wait(lambda: self.collective.joined >= names, world.timeout, "an engine")
        finally:
            self.collective.put(joined=set(), met=not self.collective.failure)

    def sync(self, timeout: float) -> StubReport:
        collective = self.collective
        collective.put(committed=False, applied=set(), failure="")
        if self.fails == "sync":
            collective.put(failure="the trainer is out of memory")
            raise RuntimeError("the trainer is out of memory")
        try:
            collective.wait(lambda: collective.applied >= collective.expected, timeout, "an engine's apply")
        except DeadlineError as error:
            collective.put(failure=f"the trainer gave up: {error}")
            raise
        if self.before_commit is not None:
            self.before_commit.wait(timeout)
        self.version += 1
        collective.put(committed=True)
        return StubReport(self.version, self.density)

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)
        self.collective.put(failure=reason)
