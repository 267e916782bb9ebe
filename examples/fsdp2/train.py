# SPDX-License-Identifier: Apache-2.0
"""FSDP2 to an engine: every rank publishes its own shards, no parameter is gathered, and every bit arrives.

    python train.py                 4 ranks (gloo), fully_shard over all of them, 20 AdamW steps
    python train.py --tp 2          the same on a mesh of 2 (data, FSDP2) x 2 (tensor parallel)

One more process is the engine: the plain model in bf16, which begins with random weights and is seeded when it meets
the trainer. After each publish() the trainer's state is gathered *for the check*, and the engine compares every bit.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import secrets
import socket
import tempfile
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import sparsecast.torch
from sparsecast.transports import World

WAIT_SECONDS = 120.0
VOCABULARY, WIDTH, HIDDEN, BLOCKS = 53, 46, 102, 2  # No dimension is divisible by 4.


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return x + y


class Model(nn.Module):
    """Next-token prediction; the output layer is tied to the embedding, and ``scales`` has fewer rows than ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.scales = nn.Parameter(torch.ones(3, 1))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.05)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x * self.scales.mean())
        return logits


def parallelize(model: Model, ranks: int, tp: int) -> None:
    """In place: the blocks' linear layers over the tensor parallel ranks, then everything over the others."""
    mesh = init_device_mesh("cpu", (ranks // tp, tp), mesh_dim_names=("dp", "tp"))
    if tp > 1:
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    # Masters stay fp32, forward and backward see bf16, as the engine does.
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)


def gathered_bits(model: nn.Module) -> bytes:
    """The state as an engine must hold it. Collective, and gathers every parameter: for the check only."""
    bits = []
    for name, tensor in sorted(model.state_dict().items()):
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        bits.append(name.encode() + full.detach().to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    return b"".join(bits)


def train(rank: int, args: argparse.Namespace, world: World, store: str, check: Connection) -> None:
    """One rank of the trainer."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.ranks)
    torch.manual_seed(1)
    model = Model()
    parallelize(model, args.ranks, args.tp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    publisher = sparsecast.torch.Publisher(model, optimizer, transport=world, wire_dtype=torch.bfloat16)
    publisher.regroup()  # Meets the engine, and seeds it with the weights as they are now.
    if rank == 0:
        print("step    loss  density  wire bytes  dense bytes  collectives in publish()")
    generator = torch.Generator().manual_seed(100 + rank // args.tp)  # The ranks of one tp group see the same tokens.
    for step in range(1, args.steps + 1):
        tokens = torch.randint(VOCABULARY // 4, (8, 17), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        with CommDebugMode() as published:
            report = publisher.publish()
        with CommDebugMode() as gathered:
            bits = gathered_bits(model)
        if published.get_total_counts() != 0:
            raise SystemExit(f"rank {rank}: publish() ran collectives: {dict(published.get_comm_counts())}")
        if gathered.get_total_counts() == 0:
            raise SystemExit("the counter does not see the check's own all-gathers: it verifies nothing")

        sums = torch.tensor(report.totals())
        dist.all_reduce(sums)
        if rank == 0:
            elements, changed, wire, dense = sums.tolist()
            counted = published.get_total_counts()
            print(f"{step:4} {loss.item():7.3f} {changed / elements:8.3%} {wire:11} {dense:12} {counted:25}")
            check.send_bytes(bits)
    publisher.close()
    dist.destroy_process_group()


def serve(args: argparse.Namespace, world: World, check: Connection) -> None:
    """The engine: a plain model whose weights follow, in place."""
    torch.manual_seed(2)
    model = Model().to(torch.bfloat16).eval()
    subscriber = sparsecast.torch.Subscriber(model, transport=world, needs_anchor=True)
    for step in range(1, args.steps + 1):
        version = subscriber.update().version
        if not check.poll(WAIT_SECONDS):
            raise SystemExit(f"step {step}: the trainer's state to compare with did not come")
        if check.recv_bytes() != gathered_bits(model):
            raise SystemExit(f"step {step}: version {version} is not what the trainer holds")
    subscriber.audit()
    print(f"engine: bit-identical after each of {args.steps} steps")


def start(
    index: int, args: argparse.Namespace, world: World, store: str, checks: tuple[Connection, Connection]
) -> None:
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # The check's gathers need not be fast.
    if index < args.ranks:
        train(index, args, world, store, checks[0])
    else:
        serve(args, dataclasses.replace(world, rank_offset=args.ranks), checks[1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="of the trainer (default: 4)")
    parser.add_argument("--tp", type=int, default=1, help="tensor parallel ranks among them (default: 1)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--port", type=int, default=0, help="where all meet, on this machine (default: a free one)")
    args = parser.parse_args()
    if args.tp < 1 or args.ranks % args.tp:
        parser.error(f"--ranks {args.ranks} cannot be cut into groups of --tp {args.tp}")
    world = World(
        "127.0.0.1", args.port or free_port(), secrets.token_hex(32), size=args.ranks + 1, timeout=WAIT_SECONDS
    )
    with tempfile.TemporaryDirectory() as scratch:
        checks = mp.get_context("spawn").Pipe()
        mp.spawn(start, (args, world, os.path.join(scratch, "store"), checks), nprocs=args.ranks + 1)


if __name__ == "__main__":
    main()
