# SPDX-License-Identifier: Apache-2.0
"""A rollout process: samples answers with the newest weights it has, while the next ones arrive."""

from __future__ import annotations

import argparse
import concurrent.futures
import time

import numpy as np
import torch
from exchange import SYNC_SECONDS, Setup, bits, connect, digest, receive, send
from model import LanguageModel, sample
from task import ANSWER_LENGTH, LENGTH, PROMPT_LENGTH, prompts, rewards

import sparsecast.torch

Batch = dict[str, np.ndarray]

NO_BATCH: Batch = {
    "sequences": np.empty((0, LENGTH), np.int64),
    "old": np.empty((0, ANSWER_LENGTH), np.float32),
    "rewards": np.empty(0, np.float32),
}


def generate(model: LanguageModel, args: argparse.Namespace, generator: torch.Generator) -> Batch:
    """``args.group`` answers to each of ``args.prompts`` prompts, judged."""
    asked = prompts(args.prompts, generator).repeat_interleave(args.group, dim=0)
    sequences, old = sample(model, asked, generator)
    judged = rewards(asked, sequences[:, PROMPT_LENGTH:])
    return {"sequences": sequences.numpy(), "old": old.numpy(), "rewards": judged.numpy()}


def follow(subscriber: sparsecast.torch.Subscriber, version: int) -> sparsecast.torch.UpdateReport:
    """From a log: brings the model to a version that the trainer has said to be durable."""
    deadline = time.monotonic() + SYNC_SECONDS
    while time.monotonic() < deadline:
        report = subscriber.update(version)
        if report.version >= version:
            return report
        time.sleep(0.02)
    raise TimeoutError(f"version {version} did not appear in the log")


def serve(rank: int, setup: Setup, args: argparse.Namespace) -> None:
    """Runs the rollout process of world rank ``rank`` from the first batch to the last version."""
    torch.set_num_threads(1)
    connection = connect(setup, rank)
    live = setup.transport != "log"
    generator = torch.Generator().manual_seed(args.seed + rank)
    model = LanguageModel().to(torch.bfloat16)  # Random: sparsecast brings the first weights too.
    begin = receive(connection)
    subscriber = sparsecast.torch.Subscriber(
        model, transport=setup.weights(rank), engine=f"rollout-{rank}", needs_anchor=live
    )
    if live:
        subscriber.regroup()
    else:
        follow(subscriber, int(begin["version"]))
    send(connection, **generate(model, args, generator))

    with concurrent.futures.ThreadPoolExecutor(1) as background:
        for step in range(1, args.steps + 1):
            arriving = background.submit(subscriber.receive) if live else None
            # The trainer works on the batch before; its new weights arrive in the background.
            batch = generate(model, args, generator) if step < args.steps else NO_BATCH
            if arriving is not None:
                arriving.result()
                update = subscriber.apply()
            published = receive(connection)
            if not live:
                update = follow(subscriber, int(published["version"]))
            own = digest(model)
            if (update.version, own) != (int(published["version"]), str(published["digest"])):
                raise SystemExit(
                    f"rollout {rank}: version {update.version} has digest {own}, not {published['digest']}"
                )
            send(connection, version=update.version, digest=own, pause=update.pause_seconds, **batch)
    send(connection, bits=bits(model))
