# SPDX-License-Identifier: Apache-2.0
"""One of two gloo ranks that write one log, of DTensors and of a tensor that both hold. Rank 0 also breaks the log.

    log_ranks.py RANK PORT DIRECTORY

Prints the version and the digest after each publication, and the errors.
"""

from __future__ import annotations

import datetime
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from sparsecast.errors import Error
from sparsecast.torch import Log, Publisher

RANKS = 2
ROWS, COLUMNS = 33, 40
TIMEOUT = 30.0


def weights(step: int) -> dict[str, torch.Tensor]:
    """All tensors after a step, the same wherever they are computed."""
    generator = torch.Generator().manual_seed(1)
    full = {"rows": torch.randn(ROWS, COLUMNS, generator=generator), "columns": torch.randn(6, 8, generator=generator)}
    full["one"], full["both"] = torch.randn(1, 16, generator=generator), torch.zeros(7)
    for number in range(1, step + 1):
        full["rows"].view(-1)[number % 13 :: 13] += 1
        full["columns"][:, number % 8] -= 1
        full["one"][0, number] += 1
        full["both"][number % 7] = number
    return full


def main() -> None:
    rank, port, directory = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (RANKS,))
    placements = {"rows": Shard(0), "columns": Shard(1), "one": Shard(0), "both": Replicate()}
    full = weights(0)
    live = {name: distribute_tensor(full[name], mesh, [place]) for name, place in placements.items()}

    def train(step: int) -> None:
        for name, tensor in weights(step).items():
            moved: DTensor = distribute_tensor(tensor, mesh, [placements[name]])
            live[name].to_local().copy_(moved.to_local())

    def say(publisher: Publisher) -> None:
        print(publisher.version, publisher.digest, flush=True)

    log = Log(directory / "log", mirror=directory / "mirror.safetensors", timeout=TIMEOUT)
    with Publisher(live.items(), transport=log, wire_dtype=torch.bfloat16) as publisher:
        say(publisher)
        train(1)
        report = publisher.publish()
        assert 0 < report.changed < report.elements and report.version == publisher.version
        say(publisher)
        train(2)
        publisher.publish(wait=False).result(TIMEOUT)
        say(publisher)
        train(3)
        if rank == 0:
            (directory / "log").rename(directory / "away")
            (directory / "log").write_text("no directory")
        dist.barrier()
        try:
            publisher.publish()
        except Error as error:
            print(f"{type(error).__name__}: {error.message}", flush=True)
        dist.barrier()
        if rank == 0:
            (directory / "log").unlink()
            (directory / "away").rename(directory / "log")
        dist.barrier()
        train(4)
        publisher.publish()
        say(publisher)
    train(5)  # The next run does not begin where the log ends.
    with Publisher(live.items(), transport=log, wire_dtype=torch.bfloat16) as publisher:
        train(6)
        publisher.publish()
        say(publisher)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
