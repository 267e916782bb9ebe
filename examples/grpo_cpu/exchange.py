# SPDX-License-Identifier: Apache-2.0
"""How the example's processes find each other, and what they tell each other beside the weights.

Weights go through sparsecast only. Batches and confirmations are arrays in numpy's format, never pickles, over an
authenticated local connection from each rollout process to the trainer.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import queue
import secrets
import socket
import threading
from multiprocessing.connection import Client, Connection, Listener

import numpy as np
import torch
from torch import nn

import sparsecast
from sparsecast.transports import Log, Mpi, Transport, World

WAIT_SECONDS = 600.0  # For what another process computes; the trainer's supervised phase is the longest.
SYNC_SECONDS = 120.0  # For another process to be there, and for weights.
ROLLOUTS = 2


@dataclasses.dataclass(frozen=True)
class Setup:
    """All that a rollout process must know to take part. It holds secrets."""

    transport: str  # "tcp", "nccl", "mpi" or "log"
    port: int  # where the world meets ("tcp", "nccl")
    directory: str  # of the log ("log")
    address: tuple[str, int]  # of the trainer's listener, for batches
    secret: str

    def weights(self, rank: int) -> Transport:
        """The way of the weights for the trainer (rank 0) or a rollout process (rank 1, 2)."""
        if self.transport == "mpi":
            return Mpi(timeout=SYNC_SECONDS)
        if self.transport == "log":
            state = os.path.join(self.directory, f"rank-{rank}")
            return Log(os.path.join(self.directory, "log"), mirror=f"{state}.safetensors", state=state)
        world = World("127.0.0.1", self.port, self.secret, 1 + ROLLOUTS, rank_offset=rank, timeout=SYNC_SECONDS)
        if self.transport == "nccl":
            # NCCL takes ranks of one host that share a GPU for a mistake; here it is one machine with one GPU.
            os.environ.setdefault("NCCL_HOSTID", f"rank-{rank}")
            return dataclasses.replace(world, channels="nccl")
        return world

    def to_json(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Setup:
        fields = json.loads(text)
        return cls(**{**fields, "address": tuple(fields["address"])})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def listen(transport: str, directory: str) -> tuple[Setup, Listener]:
    """The trainer's side: a setup with fresh secrets, and the listener it names."""
    secret = secrets.token_hex(32)
    listener = Listener(("127.0.0.1", 0), authkey=secret.encode())
    host, port = listener.address
    return Setup(transport, free_port(), directory, (str(host), int(port)), secret), listener


def connect(setup: Setup, rank: int) -> Connection:
    """A rollout process's side."""
    connection: Connection = Client(setup.address, authkey=setup.secret.encode())
    send(connection, rank=rank)
    return connection


def accept(listener: Listener) -> list[Connection]:
    """Connections of all rollout processes, in order of rank. queue.Empty when one does not come."""
    arrived: queue.Queue[Connection] = queue.Queue()

    def answer() -> None:  # accept() knows no deadline: it waits in a thread that nobody waits for.
        for _ in range(ROLLOUTS):
            arrived.put(listener.accept())

    threading.Thread(target=answer, daemon=True).start()
    found: dict[int, Connection] = {}
    while len(found) < ROLLOUTS:
        connection = arrived.get(timeout=SYNC_SECONDS)
        found[int(receive(connection)["rank"])] = connection
    return [found[rank] for rank in sorted(found)]


def send(connection: Connection, **values: object) -> None:
    """Numbers, strings and arrays, by name."""
    message = io.BytesIO()
    np.savez(message, allow_pickle=False, **{name: np.asarray(value) for name, value in values.items()})
    connection.send_bytes(message.getvalue())


def receive(connection: Connection) -> dict[str, np.ndarray]:
    """What send() was given, as arrays. TimeoutError when nothing comes, EOFError when the other end has gone."""
    if not connection.poll(WAIT_SECONDS):
        raise TimeoutError(f"nothing came within {WAIT_SECONDS:.0f} s")
    with np.load(io.BytesIO(connection.recv_bytes()), allow_pickle=False) as message:
        return {name: message[name] for name in message.files}


def bf16(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The weights as engines hold them, by name."""
    return [(name, tensor.detach().to(torch.bfloat16)) for name, tensor in sorted(model.named_parameters())]


def bits(model: nn.Module) -> np.ndarray:
    """All bf16 weights of a model, one after another, as integers."""
    return torch.cat([tensor.flatten() for _, tensor in bf16(model)]).view(torch.int16).numpy()


def digest(model: nn.Module) -> str:
    """State digest of a model's bf16 weights, read anew from its memory."""
    weights = bf16(model)
    table = sparsecast.TensorTable([(name, "BF16", tuple(tensor.shape)) for name, tensor in weights])
    return sparsecast.digest(table, [sparsecast.describe(tensor) for _, tensor in weights])
