# SPDX-License-Identifier: Apache-2.0
"""Leads a server and its trainers through one good sync and then through faults, and says what the server serves."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import subprocess
import sys
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any

from . import checkpoints
from .backends import Backend, find
from .memory import DevicePeak, forget_peak, little_memory, status
from .server import Server
from .trainer import Order
from .verdicts import Verdict, distance, which

_READY_SECONDS = 900.0

FAULTS = {
    "killed after start_weight_update": "SIGKILL of the trainer when the server has begun the update",
    "killed at half of the bytes": "SIGKILL of the trainer in the middle of the transfer",
    "killed in update_weights": "SIGKILL of the trainer 10 ms after it has called update_weights",
    "killed before finish_weight_update": "SIGKILL of the trainer when all is sent and applied",
    "killed in the join": "SIGKILL of a restarted trainer in the middle of the weights that it sends to join",
    "cut at half of the bytes": "all TCP connections of the trainer end, and no new one can be made",
    "stalled at half of the bytes": "nothing more comes from the trainer, in silence; the server is asked meanwhile",
    "flipped at half of the bytes": "one bit on the wire",
    "flipped at the end of the bytes": "one bit of the 16th byte before the last that the good sync sent",
    "out of memory": "the worker may allocate half of what the good sync took",
    "name unknown": "the update has a tensor that the model does not have",
    "name missing": "the update lacks a tensor of the model",
    "server killed": "SIGKILL of all processes of the server 20 ms after the trainer has begun to send",
}


@dataclasses.dataclass
class Settings:
    """What the user has asked for."""

    backend: str
    start: str
    flags: list[str]
    patience: float
    """Seconds after which a server that does not answer counts as paused."""
    timeout: float
    """Seconds that the trainer's waits may take."""
    tolerance: float
    pause: str
    """Mode of /pause around every update; empty: generation is not paused."""


@dataclasses.dataclass
class Outcome:
    """What came of one fault."""

    fault: str
    verdict: Verdict
    named: str
    """Whether the version that the server names is the "old" or the "new" one, or what it names else."""
    answered: float | None
    """Seconds from the fault to the first answer; None: none came."""
    trainer: str
    """What the trainer was told: an error, "no error", or "killed"."""
    healed: str
    """What it took to bring the server to the new weights."""


class TrainerProcess:
    """A trainer (`trainer`) in a process of its own."""

    def __init__(self, order: Order, log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sparsecast.testing.weight_transfer.trainer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self._write(json.dumps(dataclasses.asdict(order)))

    def hear(self, timeout: float) -> dict[str, Any]:
        """Returns what it says next: the event "killed" if it is gone, "silent" after `timeout` seconds."""
        try:
            return self._said.get(timeout=timeout)
        except queue.Empty:
            return {"event": "silent", "error": f"still in the call after {timeout:g} s"}

    def go(self) -> None:
        """Lets a trainer that has joined go on."""
        self._write("")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))
        self._said.put({"event": "killed"})


class Harness:
    """Tries a backend on two checkpoints, the second of which differs from the first in all tensors."""

    def __init__(self, settings: Settings, first: Path, second: Path, work: Path) -> None:
        self._settings = settings
        self._backend: Backend = find(settings.backend, settings.start)
        self._work = work
        self._vocabulary = checkpoints.vocabulary(first)
        self._checkpoints = [first, second]
        self._bytes = checkpoints.size(first)
        self._number = 0
        self._sent = 0
        self._grown = 0
        self._workers = 1
        self._version = 0
        self._restarted = False
        self._now = 0  # Which of the checkpoints the server has.
        self._probes: list[list[float]] = []
        self.server: Server | None = None

    def good_sync(self) -> dict[str, Any]:
        """Takes probes of servers that were started on each checkpoint, brings the second of these servers from one to
        the other, and returns the figures of that sync. Raises RuntimeError if its weights are not the new ones then.
        """
        self._serve(1)
        assert self.server is not None
        other = self.server.probe(self._settings.timeout)
        if distance(other, self.server.probe(self._settings.timeout)) > self._settings.tolerance:
            raise RuntimeError("the server's log probabilities are not the same twice: give a --tolerance")
        self._serve(0)
        self._probes = [self.server.probe(self._settings.timeout), other]
        which(other, old=self._probes[0], new=other, tolerance=self._settings.tolerance)
        worker = self.server.worker()
        trainer, said = self._join("none")
        if said["event"] == "joined":
            before = status(worker)
            forget_peak(worker)
            device = DevicePeak(worker)
            device.begin()
            trainer.go()
            said = trainer.hear(2 * self._settings.timeout)
            on_device = device.end()
        trainer.kill()
        if said["event"] != "done":
            raise RuntimeError(f"the sync without a fault failed: {said}\n{self.server.said()}")
        after = status(worker)
        self._sent, self._grown = said["bytes"], max(0, after["VmHWM"] - before["VmRSS"])
        self._arrive("the sync without a fault")
        return {
            "weights_bytes": self._bytes,
            "sent_bytes": self._sent,
            "seconds": round(said["seconds"], 3),
            "worker_rss_before_bytes": before["VmRSS"],
            "worker_peak_bytes": after["VmHWM"],
            "peak_growth_bytes": self._grown,
            "growth_of_weights": round(self._grown / self._bytes, 4),
            **on_device,
        }

    def attempt(self, fault: str) -> Outcome | None:
        """Tries one fault, and heals the server. Returns None where the backend has nothing of the kind."""
        if fault == "killed in the join" and not self._backend.seeds:
            return None
        if self.server is None or not self.server.lives:
            self._serve(self._now)
        server = self.server
        assert server is not None
        trainer, said = self._join(fault)
        begin = time.monotonic()
        if said["event"] == "joined":
            said, begin = self._send(trainer, fault)
        verdict, named, answered = self._look(server, begin)
        trainer.kill()
        told = {"done": "no error", "killed": "killed", "stalled": "asked while it stood still"}.get(
            said["event"], said.get("error", said["event"])
        )
        outcome = Outcome(fault, verdict, named, answered, told, "")
        outcome.healed = self._heal(verdict)
        return outcome

    def close(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server = None

    def _send(self, trainer: TrainerProcess, fault: str) -> tuple[dict[str, Any], float]:
        """Lets a trainer send. Returns what it says of it, and the time of the fault or of the end."""
        assert self.server is not None
        patience = self._settings.timeout * 2
        with contextlib.ExitStack() as stack:
            if fault == "out of memory":
                stack.enter_context(little_memory(self.server.worker(), self._grown // 2))
            trainer.go()
            if fault == "server killed":
                time.sleep(0.02)
                self.server.kill()
            said = trainer.hear(patience)
        return said, time.monotonic()

    def _look(self, server: Server, begin: float) -> tuple[Verdict, str, float | None]:
        """Returns the verdict about a server, the version that it names, and the seconds until it answered."""
        until = begin + self._settings.patience
        while time.monotonic() < until and server.lives:
            try:
                probe = server.probe(max(1.0, until - time.monotonic()))
            except urllib.error.HTTPError:
                time.sleep(0.5)
                continue
            except OSError:
                continue
            answered = time.monotonic() - begin
            verdict = which(probe, self._probes[self._now], self._probes[1 - self._now], self._settings.tolerance)
            return verdict, self._named(server), round(answered, 1)
        with contextlib.suppress(OSError):
            if server.lives:
                server.ask("/health", timeout=5)
                return "paused", self._named(server), None
        return "dead", "-", None

    def _named(self, server: Server) -> str:
        version = server.version()
        return {str(self._version): "old", str(self._version + 1): "new"}.get(version, version)

    def _heal(self, verdict: Verdict) -> str:
        """Brings the server to the new checkpoint: by the next trainer, after an end of the update by hand if need be,
        or by a start. Returns which of these it took.
        """
        assert self.server is not None
        ways = [] if verdict == "dead" else ["next sync", "second sync", "finish by hand"]
        for way in ways:
            if way == "finish by hand":
                with contextlib.suppress(OSError):
                    self.server.ask("/finish_weight_update", {}, timeout=self._settings.timeout)
            trainer, said = self._join("none")
            if said["event"] == "joined":
                trainer.go()
                said = trainer.hear(2 * self._settings.timeout)
            trainer.kill()
            if said["event"] == "done":
                with contextlib.suppress(RuntimeError):
                    self._arrive(way)
                    return way
        self._now = 1 - self._now
        self._serve(self._now)
        return "restart"

    def _arrive(self, way: str) -> None:
        assert self.server is not None
        verdict, _, _ = self._look(self.server, time.monotonic())
        if verdict != "new":
            raise RuntimeError(f"{way}: the server is {verdict}, and the trainer was told of no error")
        self._now = 1 - self._now
        self._version += 1

    def _join(self, fault: str) -> tuple[TrainerProcess, dict[str, Any]]:
        assert self.server is not None
        byte = self._sent - 16 if fault.endswith("at the end of the bytes") else self._sent // 2
        # Weights that the server has already would not show that it has only half of them.
        first = 1 - self._now if fault == "killed in the join" else self._now
        order = Order(
            backend=self._settings.backend,
            start=self._settings.start,
            url=self.server.url,
            workers=self._workers,
            base=str(self._checkpoints[first]),
            target=str(self._checkpoints[1 - self._now]),
            restarted=self._restarted,
            version=self._version,
            timeout=self._settings.timeout,
            pause=self._settings.pause,
            fault=fault,
            byte=self._bytes // 2 if fault == "killed in the join" else byte,
        )
        trainer = TrainerProcess(order, self._work / "trainers.log")
        self._restarted = True
        said = trainer.hear(_READY_SECONDS)
        return trainer, trainer.hear(2 * self._settings.timeout) if said["event"] == "ready" else said

    def _serve(self, which_one: int) -> None:
        """Starts a server on a checkpoint, in the place of the one that runs."""
        self.close()
        self._number += 1
        self._now, self._restarted = which_one, False
        flags = [*self._backend.flags, *self._settings.flags]
        flags += ["--weight-transfer-config", json.dumps({"backend": self._settings.backend})]
        self.server = Server(
            self._checkpoints[which_one],
            self._vocabulary,
            flags,
            dict(self._backend.variables),
            self._work / f"server-{self._number}.log",
        ).wait()
        self._workers = self.server.workers()
