# SPDX-License-Identifier: Apache-2.0
"""The table and the plot."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    """One GRPO step."""

    step: int
    reward: float  # mean of the batch that was trained on
    density: float  # changed bf16 weights over all
    wire_bytes: int
    dense_bytes: int
    pause_seconds: float  # the longer one of the rollout processes
    digest: str  # the same on all processes

    def __str__(self) -> str:
        return (
            f"{self.step:4} {self.reward:7.3f} {self.density:8.3%} {self.wire_bytes:8} {self.dense_bytes:8} "
            f"{self.dense_bytes / self.wire_bytes:6.1f} {1e3 * self.pause_seconds:9.1f}  {self.digest[-8:]}"
        )


def header() -> str:
    return "step  reward  density    bytes    dense  ratio  pause ms  digest"


def plot(rows: list[Row], path: str) -> None:
    """Reward, density and bytes over the steps, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, sharex=True, figsize=(7, 7), layout="constrained")
    steps = [row.step for row in rows]
    axes[0].plot(steps, [row.reward for row in rows])
    axes[0].set_ylabel("reward")
    axes[0].set_ylim(0, 1)
    axes[1].plot(steps, [100 * row.density for row in rows])
    axes[1].set_ylabel("changed weights, %")
    axes[1].set_ylim(bottom=0)
    axes[2].plot(steps, [row.wire_bytes for row in rows], label="sparse")
    axes[2].plot(steps, [row.dense_bytes for row in rows], label="dense", linestyle="--")
    axes[2].set_ylabel("bytes per sync")
    axes[2].set_yscale("log")
    axes[2].legend()
    axes[2].set_xlabel("GRPO step")
    for one in axes:
        one.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
