# SPDX-License-Identifier: Apache-2.0
"""Draws reports; needs matplotlib."""

from __future__ import annotations

import os
from typing import Any

from ..errors import UnsupportedError
from .report import Report


def draw(reports: list[Report], path: str | os.PathLike[str]) -> None:
    """Draws the reports into the file ``path``: four panels with a line for each report. The panels are the density by
    step, the share of changes by size in ulps, the probability of a change by exponent, and the recurrence of changes.

    The suffix of ``path`` selects the format. Raises UnsupportedError without matplotlib.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError("a plot needs the package matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(9, 6.5), dpi=80, layout="constrained")
    for report in reports:
        _draw_one(panels, report, report["optimizer"].get("lr") or os.path.basename(str(report["directory"])))
    titles = (
        "changed a step (%)",
        "share of changes by |ulp|",
        "p(change | exponent of the old weight)",
        "p(changes again k steps later) / density",
    )
    labels = ("version", "|ulp| (least of the row)", "exponent", "k")
    for panel, title, label in zip(panels.flat, titles, labels, strict=True):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    panels[0, 0].legend(fontsize=8, title="learning rate")
    for panel in (panels[0, 1], panels[1, 0]):
        panel.set_yscale("log")
    figure.savefig(path)
    pyplot.close(figure)


def _draw_one(panels: Any, report: Report, label: str) -> None:
    rows = report["step_rows"]
    panels[0, 0].plot([row["version"] for row in rows], [100 * row["density"] for row in rows], label=label)
    ulps = [row for row in report["ulp_rows"] if row["count"]]
    panels[0, 1].plot([row["least"] for row in ulps], [row["share"] for row in ulps], marker="o")
    # Exponents with few weights are noise.
    exponents = [row for row in report["exponent_rows"] if row["changed"] and row["seen"] >= report["elements"] / 1e4]
    panels[1, 0].plot([row["exponent"] for row in exponents], [row["p_change"] for row in exponents], marker=".")
    again = report["recurrence_rows"]
    panels[1, 1].plot([row["lag"] for row in again], [row["ratio"] for row in again], marker=".")
