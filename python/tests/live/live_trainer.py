# SPDX-License-Identifier: Apache-2.0
"""A torch trainer with a control plane. As a program it dies by SIGKILL at a step of a server's.

live_trainer.py MODEL SERVER_PORT STEP PAUSE LEASE

STEP: in its second sync: receive, staged, pause, apply (in the middle), applied; while it joins: leave, unmet (after the
server has been told to join, and before rank 0 listens).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from live_servers import LiveServer, free_port

from sparsecast.control import ControlPlane, Endpoint, PublisherSource, SyncPolicy
from sparsecast.control.report import SyncReport
from sparsecast.torch import Publisher

# Servers and other tests share the cores: an answer may take long, and that is no fault.
POLICY = SyncPolicy(
    pause="keep", health_timeout=120, join_timeout=240, sync_timeout=240, call_timeout=120, pause_lease=60
)


class Trainer:
    """AdamW on fp32 masters of the model at `directory`; bf16 travels."""

    def __init__(self, directory: Path, policy: SyncPolicy = POLICY, *, seed: int = 0) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.directory = directory
        self.model = self.load(directory)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.publisher = Publisher(self.model, self._optimizer, wire_dtype=torch.bfloat16)
        self.plane = ControlPlane(PublisherSource(self.publisher), host="127.0.0.1", port=free_port(), policy=policy)

    def load(self, directory: Path) -> torch.nn.Module:
        return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def add(self, server: LiveServer, *, needs_anchor: bool = False, **more: Any) -> None:
        self.plane.add(endpoint(server.port, server.ranks, server.kind, **more), needs_anchor=needs_anchor)

    def step(self) -> None:
        """One optimizer step on random tokens."""
        tokens = torch.randint(3, self.model.config.vocab_size, (4, 32))
        self.model(input_ids=tokens, labels=tokens).loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def sync(self, policy: SyncPolicy | None = None) -> SyncReport:
        self.step()
        return self.plane.sync_now(policy)

    def save(self, directory: Path) -> Path:
        """Writes a bf16 checkpoint as any server loads it."""
        state = {name: tensor.to(torch.bfloat16) for name, tensor in self.model.state_dict().items()}
        self.model.save_pretrained(directory, state_dict=state)
        config = transformers.AutoConfig.from_pretrained(directory)
        config.dtype = "bfloat16"
        config.save_pretrained(directory)
        transformers.AutoTokenizer.from_pretrained(self.directory).save_pretrained(directory)
        return directory

    def close(self) -> None:
        self.plane.close()
        self.publisher.close()


def endpoint(port: int, ranks: int = 1, kind: str = "vllm", **more: Any) -> Endpoint:
    return Endpoint("127.0.0.1", port, world_size=ranks, kind=kind, name=f"{kind}-{port}", **more)


def _die() -> None:
    print("dying", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(step: str, client: Any) -> None:
    call = "apply" if step == "applied" else step
    original = getattr(client, call)

    async def last(self: Any, *arguments: Any) -> Any:
        if step == "apply":
            threading.Timer(float(os.environ["LIVE_DIE_AFTER"]) / 1000, _die).start()
        result = await original(self, *arguments)
        _die()
        return result

    setattr(client, call, last)


def _die_unmet(trainer: Trainer) -> None:
    def regroup(transport: object = None) -> None:
        time.sleep(1)  # The server is on its way.
        _die()

    trainer.publisher.regroup = regroup  # type: ignore[method-assign]


def main() -> None:
    from sparsecast.control.sglang import SglangClient
    from sparsecast.control.vllm import VllmClient

    model, port, step, pause, lease = sys.argv[1:6]
    kind = sys.argv[6] if len(sys.argv) > 6 else "vllm"
    policy = replace(POLICY, pause=pause, pause_lease=float(lease))
    trainer = Trainer(Path(model), policy, seed=7)
    trainer.plane.add(endpoint(int(port), kind=kind), needs_anchor=True)
    client = {"vllm": VllmClient, "sglang": SglangClient}[kind]
    if step == "leave":
        _die_at(step, client)
    elif step == "unmet":
        _die_unmet(trainer)
    trainer.plane.sync_now()
    print(f"joined at version {trainer.publisher.version}", flush=True)
    _die_at(step, client)
    trainer.sync()
    print("still alive", flush=True)


if __name__ == "__main__":
    main()
