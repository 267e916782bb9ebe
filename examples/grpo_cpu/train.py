# SPDX-License-Identifier: Apache-2.0
"""GRPO on a CPU: one trainer, two rollout processes, and only the weights that changed between them.

    python train.py                                   over TCP, live
    python train.py --transport log                   through a delta log in a directory
    python train.py --transport nccl                  over NCCL, where there is a GPU
    mpirun -n 3 python train.py --transport mpi       over MPI

A character-level transformer (fp32 masters in the trainer, bf16 in the rollout processes) first learns to sort digits
from demonstrations of which most are wrong, then by reinforcement, from its own answers that a checker has judged.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from multiprocessing.connection import Connection, Listener

import numpy as np
import torch
import torch.multiprocessing as mp
from exchange import ROLLOUTS, WAIT_SECONDS, Setup, accept, bits, digest, listen, receive, send
from model import LanguageModel, log_probabilities
from report import Row, header, plot
from rollout import serve
from task import demonstrations
from torch.nn.utils import clip_grad_norm_

import sparsecast
import sparsecast.torch

WRONG_DEMONSTRATIONS = 0.7
CLIP = 0.2


def pretrain(model: LanguageModel, args: argparse.Namespace) -> None:
    """The supervised phase."""
    generator = torch.Generator().manual_seed(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=args.pretrain_steps)
    for step in range(1, args.pretrain_steps + 1):
        loss = -log_probabilities(model, demonstrations(128, WRONG_DEMONSTRATIONS, generator)).mean()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0 or step == args.pretrain_steps:
            print(f"pretraining: step {step}, loss {loss.item():.3f}", flush=True)


def advantages(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """Each answer against the others to the same prompt: (r - mean) / standard deviation, one column."""
    groups = rewards.view(-1, group)
    relative = (groups - groups.mean(dim=1, keepdim=True)) / (groups.std(dim=1, keepdim=True) + 1e-4)
    return relative.view(-1, 1)


def improve(
    model: LanguageModel,
    reference: LanguageModel,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, torch.Tensor],
    args: argparse.Namespace,
    generator: torch.Generator,
) -> None:
    """One GRPO step, of two minibatches: clipped ratios against the rollouts' own (bf16) probabilities."""
    better = advantages(batch["rewards"], args.group)
    for part in torch.randperm(len(better), generator=generator).chunk(2):
        now = log_probabilities(model, batch["sequences"][part])
        ratio = (now - batch["old"][part]).exp()
        loss = -torch.min(ratio * better[part], ratio.clamp(1 - CLIP, 1 + CLIP) * better[part]).mean()
        if args.kl > 0:
            with torch.no_grad():
                away = log_probabilities(reference, batch["sequences"][part]) - now.detach()
            away = away + now.detach() - now
            loss = loss + args.kl * (away.exp() - away - 1).mean()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def joined(messages: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """The rollout processes' batches as one."""
    return {
        name: torch.from_numpy(np.concatenate([message[name] for message in messages]))
        for name in ("sequences", "old", "rewards")
    }


def train(setup: Setup, listener: Listener, args: argparse.Namespace) -> list[Row]:
    """The trainer, from the first demonstration to the last comparison."""
    connections = accept(listener)
    torch.set_num_threads(1)  # As the rollout processes: three of them share the machine, and runs can be repeated.
    torch.manual_seed(args.seed)
    model = LanguageModel()
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {ROLLOUTS} rollout processes, {setup.transport}")
    pretrain(model, args)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator().manual_seed(args.seed)
    with sparsecast.torch.Publisher(
        model, optimizer, transport=setup.weights(0), wire_dtype=torch.bfloat16
    ) as publisher:
        for connection in connections:
            send(connection, version=publisher.version)
        publisher.regroup()  # Live: meets the rollout processes, and seeds them.
        rows = []
        print(header())
        batch = joined([receive(connection) for connection in connections])
        for step in range(1, args.steps + 1):
            improve(model, reference, optimizer, batch, args, generator)
            reward = batch["rewards"].mean().item()
            report = publisher.publish()
            for connection in connections:
                send(connection, version=report.version, digest=report.digest)
            replies = [receive(connection) for connection in connections]
            digests = {report.digest, digest(model), *(str(reply["digest"]) for reply in replies)}
            if len(digests) != 1:
                raise SystemExit(f"step {step}: digests differ: {digests}")
            pause = max(float(reply["pause"]) for reply in replies)
            rows.append(Row(step, reward, report.density, report.wire_bytes, report.dense_bytes, pause, report.digest))
            print(rows[-1], flush=True)
            batch = joined(replies)
        compare(model, connections)
    return rows


def compare(model: LanguageModel, connections: list[Connection]) -> None:
    """Every bit of every rollout process's weights."""
    own = bits(model)
    for rank, connection in enumerate(connections, 1):
        theirs = receive(connection)["bits"]
        if not np.array_equal(theirs, own):
            raise SystemExit(f"rollout {rank}: {np.count_nonzero(theirs != own)} weights differ from the trainer's")
    print(f"bit-identical: {len(connections)} rollout processes hold the trainer's weights, cast to bf16", flush=True)


def run_here(args: argparse.Namespace, directory: str) -> list[Row]:
    """The trainer in this process, the rollouts in children of it."""
    setup, listener = listen(args.transport, directory)
    context = mp.get_context("spawn")
    children = [context.Process(target=serve, args=(rank, setup, args), daemon=True) for rank in range(1, 1 + ROLLOUTS)]
    for child in children:
        child.start()
    rows = train(setup, listener, args)
    for child in children:
        child.join(WAIT_SECONDS)
        if child.exitcode != 0:
            raise SystemExit(f"a rollout process ended with {child.exitcode}")
    return rows


def run_under_mpi(args: argparse.Namespace) -> list[Row]:
    """One of three processes of mpirun; rank 0 is the trainer, and tells the others where to send batches."""
    channel = sparsecast.mpi_channel()
    if channel.size != 1 + ROLLOUTS:
        raise SystemExit(f"--transport mpi needs 'mpirun -n {1 + ROLLOUTS}', not -n {channel.size}")
    if channel.rank > 0:
        serve(channel.rank, Setup.from_json(channel.broadcast(b"", WAIT_SECONDS)), args)
        return []
    setup, listener = listen(args.transport, "")
    channel.broadcast(setup.to_json(), WAIT_SECONDS)
    return train(setup, listener, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", choices=("tcp", "nccl", "mpi", "log"), default="tcp", help="of the weights")
    parser.add_argument("--steps", type=int, default=40, help="of GRPO (default: 40)")
    parser.add_argument("--pretrain-steps", type=int, default=250, help="of the supervised phase (default: 250)")
    parser.add_argument("--prompts", type=int, default=16, help="per step and rollout process (default: 16)")
    parser.add_argument("--group", type=int, default=8, help="answers to each prompt (default: 8)")
    parser.add_argument("--lr", type=float, default=2e-5, help="of GRPO (default: 2e-5)")
    parser.add_argument("--kl", type=float, default=0.0, help="weight of the distance to the reference (default: 0)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="hardly any supervised phase: shows that it runs, no more")
    parser.add_argument("--plot", metavar="PNG", help="reward, density and bytes of each step (needs matplotlib)")
    args = parser.parse_args()
    if args.group < 2 or min(args.steps, args.prompts, args.pretrain_steps) < 1:
        parser.error("--group must be at least 2, --steps, --prompts and --pretrain-steps at least 1")
    if args.transport == "nccl" and not (sparsecast.has_nccl and torch.cuda.is_available()):
        parser.error("--transport nccl needs a CUDA device, and sparsecast built with NCCL")
    if args.quick:
        args.pretrain_steps, args.prompts = 50, 4
    if args.transport == "mpi":
        rows = run_under_mpi(args)
    else:
        with tempfile.TemporaryDirectory() as directory:
            rows = run_here(args, directory)
    if args.plot and rows:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
