#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time that an update spends in the engine's loader, by the mode in which tensors are updated.

    PYTHONPATH=build/release/python .venv/bin/python3 bench/modes.py [--mebibytes N] [--rounds N] [--changed SHARE]

A model of fused bf16 matrices of 16 MiB, each loaded from two tensors. For each mode: the copies get some new elements,
as an apply leaves them, and the model is brought up to date. Beside it, in the same turns, a load of all tensors. One
thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable

import torch

from sparsecast.buffers import bits_of
from sparsecast.engines.refresh.recompute import Recomputation, loader_steps
from sparsecast.engines.trace.loader import trace_loader

ROWS, COLUMNS = 2048, 4096


class Fused(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16), requires_grad=False)
            for _ in range(layers)
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            half, layer = name.split(".")
            self.weights[int(layer)].data.narrow(0, 0 if half == "up" else ROWS // 2, ROWS // 2).copy_(tensor)


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(mode: str, layers: int, rounds: int, changed: float) -> dict[str, float]:
    names = [f"{half}.{layer}" for layer in range(layers) for half in ("up", "gate")]
    tensors = {name: torch.randn(ROWS // 2, COLUMNS).bfloat16() for name in names}
    model = Fused(layers)
    model.load_weights(tensors.items())
    table = [(name, "BF16", (ROWS // 2, COLUMNS)) for name in names]
    traced = trace_loader(model, table, model.load_weights, modes={"*": mode})
    for _ in traced.filling(tensors.items()):
        pass
    steps = loader_steps(model, model.load_weights, traced)
    recomputation = Recomputation(model, steps, traced, load_weights=model.load_weights)
    proof = seconds(lambda: recomputation.prove(as_loaded=True))
    count = int(changed * ROWS // 2 * COLUMNS)
    taken: dict[str, list[float]] = {"update": [], "load": []}
    for _ in range(rounds):
        where = torch.randint(0, ROWS // 2 * COLUMNS, (count,))
        for copy in traced.shadows().values():
            bits_of(copy).view(-1)[where] ^= 1
        taken["update"].append(seconds(recomputation.run))
        taken["load"].append(seconds(lambda: model.load_weights(tensors.items())))
        model.load_weights(traced.shadows().items())
    return {"proof": proof, **{what: statistics.median(times) for what, times in taken.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=256, help="bytes of the model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--changed", type=float, default=0.01, help="share of the elements that an update changes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| mode | update | / load | proof |\n|---|---|---|---|")
    for mode in ("shadow", "nan_masked", "dense"):
        found = measure(mode, arguments.mebibytes // 16, arguments.rounds, arguments.changed)
        print(
            f"| `{mode}` | {found['update'] * 1e3:.0f} ms | {found['update'] / found['load']:.2f} | "
            f"{found['proof'] * 1e3:.0f} ms |"
        )


if __name__ == "__main__":
    main()
