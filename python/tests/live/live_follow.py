# SPDX-License-Identifier: Apache-2.0
"""A delta log, live servers that follow it, and one that loads what the log has from checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers
from conftest import Start
from live_load import Load, probe, reload
from live_servers import NO_TLS, LiveServer

from sparsecast.control import Endpoint, take_together
from sparsecast.torch import Publisher
from sparsecast.transports import Log

SECONDS = 60.0
TWO_IN_FLIGHT = 4  # Requests to two workers on two processors.


class Follower:
    """A trainer that publishes to a directory, and a server that follows it."""

    def __init__(self, start: Start, model: Path, work: Path, kind: str = "vllm", positions: str = "auto") -> None:
        self.start, self.model, self.work, self.kind = start, model, work, kind
        self.trainer = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        log = Log(work / "log", mirror=work / "mirror.safetensors")
        self.publisher = Publisher(self.trainer, transport=log, wire_dtype=torch.bfloat16, positions=positions)
        self.server: LiveServer

    def follow(self, *flags: str, port: int = 0, ranks: int = 1, cut: str = "tensor", **variables: str) -> LiveServer:
        state = {"SPARSECAST_FOLLOW_STATE": str(self.work / "state"), "SPARSECAST_FOLLOW_INTERVAL": "0.2"}
        options = {"kind": self.kind, "port": port, "ranks": ranks, "cut": cut, "follows": str(self.work / "log")}
        return self.start(self.model, *flags, variables={**state, **variables}, **options)

    def tell(self, location: str) -> None:
        """Tells the server, which was started for a trainer, to follow this log."""
        info = {"follow": location, "follow_state": str(self.work / "state"), "follow_interval": 0.2}
        self.server.post("/init_weight_transfer_engine", {"init_info": info})

    def publish(self) -> int:
        with torch.no_grad():
            for parameter in self.trainer.parameters():
                parameter.view(-1)[self.publisher.version % 7 :: 50] *= 1.25
        return self.publisher.publish().version

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(self.server.url + "/sparsecast/follow", timeout=60, verify=NO_TLS).json()
        return answer

    def reach(self, version: int, timeout: float = SECONDS) -> httpx.Response:
        body = {"at_least": version, "timeout": timeout}
        return httpx.post(self.server.url + "/sparsecast/version", json=body, timeout=timeout + 30, verify=NO_TLS)

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while not holds(status := self.status()):
            assert time.monotonic() < end, f"{json.dumps(status, indent=1)}\n{self.server.log()}"
            time.sleep(0.05)
        return status

    def expect_newest(self, version: int) -> None:
        """Fails unless the server is at this version, the newest, came there without an anchor, and serves."""
        status = self.status()
        worker = status["workers"][0]
        assert (worker["version"], worker["head"], worker["lag"], worker["state"]) == (version, version, 0, "ready")
        assert not status["error"] and not status["paused"] and worker["reseeded"] == 0

    def save(self) -> Path:
        """Saves the trainer's weights as a checkpoint."""
        directory = self.work / f"checkpoint-{self.publisher.version}"
        state = {name: tensor.to(torch.bfloat16) for name, tensor in self.trainer.state_dict().items()}
        self.trainer.save_pretrained(directory, state_dict=state)
        (directory / "config.json").write_text((self.model / "config.json").read_text())
        return directory

    def expect_two_workers_hold_their_parts(self) -> None:
        """Follows two versions with requests in flight; fails unless both workers hold them, and the server answers what
        it answers after loading the newest one from a checkpoint by itself.
        """
        self.until(lambda now: now["served"] == self.publisher.version)
        load = Load([self.server], TWO_IN_FLIGHT)
        with load.running():
            for _ in range(2):
                version = self.publish()
                assert self.reach(version).json() == {"version": version}
        assert not load.failures and set(load.reasons) <= {"length"}
        workers = self.status()["workers"]
        assert [(one["rank"], one["state"], one["is_whole"]) for one in workers] == [(r, "ready", True) for r in (0, 1)]
        if self.kind == "vllm":
            self.sleep_and_wake()
        self.forget_caches()
        now = probe(self.server)
        reload(self.server, self.save())
        assert probe(self.server) == now

    def expect_kills_survived(self, **options: Any) -> None:
        """Kills the server, which takes versions when it is told to and has two workers, while it fetches a version, when
        it has staged it, while it is told to take it, and when it serves it. Fails unless the server, each time started
        again on the checkpoint that it began with, comes to the newest version by itself, and at last answers what it
        answers after loading that version from a checkpoint.
        """
        for seconds in (0.1, 0.3):
            self.publish()
            time.sleep(seconds)
            self.start_again(**options)
        self.publish()
        self.until(lambda now: all(one["state"] == "staged" for one in now["workers"]))
        self.start_again(**options)
        for seconds in (0.002, 0.01, 0.05):
            version = self.publish()
            self.until(lambda now: all(one["state"] == "staged" for one in now["workers"]))
            with contextlib.suppress(httpx.TransportError):
                httpx.post(self.server.url + "/sparsecast/version", json={"at_least": version}, timeout=seconds)
            self.start_again(**options)
        self.start_again(**options)
        self.forget_caches()
        now = probe(self.server)
        reload(self.server, self.save())
        assert probe(self.server) == now

    def start_again(self, **options: Any) -> None:
        """Kills the server and starts it again; fails unless all workers come to the newest version."""
        self.server.kill()
        self.server = self.follow(port=self.server.port, **options).wait()
        version = self.publisher.version
        assert self.reach(version).json() == {"version": version}
        status = self.until(lambda now: all(one["state"] == "ready" for one in now["workers"]))
        assert not status["paused"] and all(one["is_whole"] for one in status["workers"])

    def sleep_and_wake(self) -> None:
        """Publishes a version while the server sleeps; fails unless the server serves that version afterwards."""
        httpx.post(self.server.url + "/sleep", params={"level": 2}, timeout=60).raise_for_status()
        assert {one["state"] for one in self.status()["workers"]} == {"asleep"}
        assert "released" in httpx.get(self.server.url + "/sparsecast/ready", timeout=60).text
        version = self.publish()
        httpx.post(self.server.url + "/wake_up", timeout=60).raise_for_status()
        assert self.reach(version).json() == {"version": version}

    def forget_caches(self) -> None:
        self.server.post("/flush_cache" if self.kind == "sglang" else "/reset_prefix_cache")

    def close(self) -> None:
        self.publisher.close()
        self.server.kill()


class Scene(Follower):
    """A server that takes versions when it is told to, and a stock server that loads checkpoints."""

    def __init__(self, start: Start, model: Path, work: Path, kind: str = "vllm") -> None:
        super().__init__(start, model, work, kind)
        self.server = self.follow(SPARSECAST_FOLLOW_AT="told", SPARSECAST_FOLLOW_PAUSE="retract")
        self.stock = start(model, kind=kind, plugged=False)
        self.server.wait()
        self.stock.wait()

    def expected(self) -> str:
        """The logprobs of the trainer's weights, saved as a checkpoint and loaded by the stock server itself."""
        reload(self.stock, self.save())
        return probe(self.stock)

    def take_at(self, rule: str) -> None:
        httpx.post(self.server.url + "/sparsecast/at", json={"at": rule}, timeout=60, verify=NO_TLS).raise_for_status()

    def expect_rules_hold(self) -> None:
        """Has the server, which serves the newest version, take the next ones by each rule, with requests in flight."""
        first = self.publisher.version
        load = Load([self.server], TWO_IN_FLIGHT)
        with load.running():
            self.take_at(f"pinned:{first + 1}")
            self.publish()
            self.publish()
            self.until(lambda now: (now["served"], now["newest"]) == (first + 1, first + 2))
            self.take_at("behind:1")
            last = self.publish()
            self.until(lambda now: (now["served"], now["newest"]) == (first + 2, last))
            self.take_at("told")
            asyncio.run(take_together([Endpoint("127.0.0.1", self.server.port, kind=self.kind)], last))
            assert self.status()["served"] == last
        assert not load.failures and set(load.reasons) <= {"length"}

    def close(self) -> None:
        super().close()
        self.stock.kill()
