# SPDX-License-Identifier: Apache-2.0
"""The table and the plot."""

from __future__ import annotations

import dataclasses

from report import draw_training

HEADER = "step version  reward  density    bytes  ratio  encode ms  upload ms  serve ms  pause ms  other serves  lag"


@dataclasses.dataclass(frozen=True)
class Row:
    """One version of the log, and the reward of the answers that were sampled with its weights."""

    step: int  # of the optimizer: the weights are those after so many
    version: int
    density: float  # changed bf16 weights over all
    wire_bytes: int
    dense_bytes: int
    encode_seconds: float
    upload_seconds: float  # of delta and commit
    serve_seconds: float  # from the commit until the generating server said that it served the version
    committed: float  # time.monotonic()
    pause_seconds: float  # of the generating server
    other: int | None  # what the other server served when the next version came; None: it was not there
    reward: float | None = None  # None: nothing was sampled with them
    # Known at the end: from the commit until a look at the other server found the version or a newer one, and its pause.
    other_seconds: float | None = None
    other_pause_seconds: float | None = None

    def __str__(self) -> str:
        reward = "      -" if self.reward is None else f"{self.reward:7.3f}"
        serves = f"{self.other:13}  {self.version - self.other:3}" if self.other is not None else "            -    -"
        return (
            f"{self.step:4} {self.version:7} {reward} {self.density:8.3%} {self.wire_bytes:8} "
            f"{self.dense_bytes / self.wire_bytes:6.1f} {1e3 * self.encode_seconds:10.1f} "
            f"{1e3 * self.upload_seconds:10.1f} {1e3 * self.serve_seconds:9.1f} {1e3 * self.pause_seconds:9.1f} {serves}"
        )


def plot(rows: list[Row], path: str) -> None:
    """Reward, density, bytes, lag and pause by step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(3, 2, sharex=True, figsize=(9, 8), layout="constrained")
    (reward, density), (sizes, pause), (seconds, versions) = panels
    steps = [row.step for row in rows]
    draw_training(reward, density, rows)
    later = rows[1:]  # The first version changes nothing.
    sizes.plot([row.step for row in later], [row.wire_bytes for row in later], label="delta in the bucket")
    sizes.plot(steps, [row.dense_bytes for row in rows], label="all weights", linestyle="--")
    sizes.set_ylabel("bytes")
    sizes.set_yscale("log")
    sizes.set_ylim(1e5, 1e7)
    sizes.legend()
    pause.plot(steps, [1e3 * row.pause_seconds for row in rows], label="generating server")
    there = [row for row in rows if row.other is not None and row.other_pause_seconds is not None]
    pause.plot([r.step for r in there], [1e3 * (r.other_pause_seconds or 0) for r in there], ".", label="other server")
    pause.set_ylabel("pause, ms")
    pause.set_ylim(bottom=0)
    pause.legend()
    seconds.plot(steps, [row.serve_seconds for row in rows])
    reached = [row for row in rows if row.other_seconds is not None]
    seconds.plot([row.step for row in reached], [row.other_seconds for row in reached], ".")
    seconds.set_ylabel("from commit to served, s")
    seconds.set_yscale("log")  # Colours as above.
    behind = [float("nan") if row.other is None else row.version - row.other for row in rows]
    versions.plot(steps, behind, ".", color="C1")
    for step in [row.step for row in rows if row.other is None]:
        versions.axvspan(step - 0.5, step + 0.5, color="0.85", linewidth=0)
    versions.set_ylabel("versions behind (grey: not there)")
    versions.set_ylim(-0.5, 1.5 + max((row.version - row.other for row in rows if row.other is not None), default=0))
    for panel in (seconds, versions):
        panel.set_xlabel("optimizer step")
    for panel in panels.flat:
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
