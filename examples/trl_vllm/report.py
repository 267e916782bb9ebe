# SPDX-License-Identifier: Apache-2.0
"""The table and the plot."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

HEADER = "step  reward  density    bytes    dense  ratio  pause ms  sync ms  encode ms  apply ms"


@dataclasses.dataclass(frozen=True)
class Row:
    """One sync, and the reward of the answers that were sampled with the weights of it."""

    step: int  # of the optimizer: the weights are those after so many
    density: float  # changed bf16 weights over all
    wire_bytes: int
    dense_bytes: int
    pause_seconds: float  # as the control plane measured it, with HTTP
    sync_seconds: float
    encode_seconds: float
    apply_seconds: float
    reward: float | None = None  # None: nothing was sampled with them

    @classmethod
    def of(cls, step: int, report: dict[str, Any]) -> Row:
        """The figures of a report of the control plane."""
        source, (endpoint,) = report["source"], report["endpoints"]
        return cls(
            step,
            source["density"],
            source["sent_bytes"],
            source["dense_bytes"],
            endpoint["pause_seconds"],
            report["seconds"],
            source["encode_seconds"],
            endpoint["apply_seconds"],
        )

    def __str__(self) -> str:
        reward = "      -" if self.reward is None else f"{self.reward:7.3f}"
        return (
            f"{self.step:4} {reward} {self.density:8.3%} {self.wire_bytes:8} {self.dense_bytes:8} "
            f"{self.dense_bytes / self.wire_bytes:6.1f} {1e3 * self.pause_seconds:9.1f} {1e3 * self.sync_seconds:8.1f} "
            f"{1e3 * self.encode_seconds:10.1f} {1e3 * self.apply_seconds:9.1f}"
        )


def draw_training(reward: Any, density: Any, rows: Sequence[Any]) -> None:
    """Draws the reward and the density by step, for rows with these fields, into two panels of matplotlib."""
    sampled = [row for row in rows if row.reward is not None]
    reward.plot([row.step for row in sampled], [row.reward for row in sampled])
    reward.set_ylabel("reward")
    reward.set_ylim(0, 1)
    later = rows[1:]  # The first one changes nothing.
    density.plot([row.step for row in later], [100 * row.density for row in later])
    density.set_ylabel("changed weights, %")
    density.set_ylim(bottom=0)


def plot(rows: list[Row], path: str) -> None:
    """Reward, density, bytes and pause by step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter

    figure, ((reward, density), (sizes, pause)) = pyplot.subplots(
        2, 2, sharex=True, figsize=(9, 6), layout="constrained"
    )
    steps = [row.step for row in rows]
    draw_training(reward, density, rows)
    later = rows[1:]  # The first sync only compares.
    sizes.plot([row.step for row in later], [row.wire_bytes for row in later], label="sent")
    sizes.plot(steps, [row.dense_bytes for row in rows], label="all weights", linestyle="--")
    sizes.set_ylabel("bytes")
    sizes.set_yscale("log")
    sizes.set_ylim(
        10 ** int(math.log10(min(row.wire_bytes for row in later))), 2 * max(row.dense_bytes for row in rows)
    )
    sizes.yaxis.set_minor_formatter(NullFormatter())
    sizes.legend()
    pause.plot([row.step for row in later], [1e3 * row.pause_seconds for row in later])
    pause.set_ylabel("pause, ms")
    pause.set_ylim(bottom=0)
    for panel in (sizes, pause):
        panel.set_xlabel("optimizer step")
    for panel in (reward, density, sizes, pause):
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
