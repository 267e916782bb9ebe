# SPDX-License-Identifier: Apache-2.0
"""Draws a delta log by version: density, bytes, and the ways to catch up, from ``sparsecast log status --json``."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .fields import Fields

_DENSITY, _BYTES, _ANCHOR, _READER = "#1d6fb8", "#3a9d8f", "#b3541e", "#8a3ffc"
#: Maximum number of rows of merged deltas, and of readers; those that are furthest behind are drawn.
_MOST_ROWS = 40


class LogPicture:
    """Picture of a log in three panels. The constructor reads all fields of the document, and raises UsageError if one
    is missing or wrong; drawing raises no error about the document.
    """

    def __init__(self, document: Fields) -> None:
        rows = document.rows("version_rows")
        if not rows:
            raise document.refuse("version_rows", "is empty")
        self.versions = [row.count("version") for row in rows]
        self.first, self.last = min(self.versions), max(self.versions)
        kinds = [row.text("kind") for row in rows]
        epochs = [row.count("epoch") for row in rows]
        densities = [row.number("density") for row in rows]
        # Only a delta has a density; the line is broken where there is none.
        self.densities = [d if kind == "delta" else None for d, kind in zip(densities, kinds, strict=True)]
        self.bytes = [row.number("delta_bytes") for row in rows]
        self.events = [
            (version, "keys" if kind == "keys" else f"epoch {epoch}")
            for version, kind, epoch in zip(self.versions, kinds, epochs, strict=True)
            if kind in ("keys", "takeover")
        ]
        self.anchors = [row.count("version") for row in document.rows("anchor_rows")]
        self.merged: dict[int, list[int]] = defaultdict(list)  # Span -> the versions before the merged deltas.
        for row in document.rows("merged_rows"):
            before = row.count("from")
            if row.count("to") <= before:
                raise row.refuse("to", "is not after from")
            self.merged[row.count("to") - before].append(before)
        self.readers = [(row.text("name"), row.count("version")) for row in document.rows("lease_rows")]
        self.head = f"{document.text('log')}: version {document.count('version')}, epoch {document.count('epoch')}"
        self.total_bytes = document.number("total_bytes")

    def draw(self, figure: Any) -> None:
        from matplotlib.ticker import EngFormatter

        rows = 1 + min(len(self.merged), _MOST_ROWS) + min(len(self.readers), _MOST_ROWS)
        figure.set_size_inches(11, 5 + 0.25 * rows)
        density, size, ways = figure.subplots(3, 1, sharex=True, height_ratios=[2.4, 1.6, 0.4 + 0.25 * rows])
        figure.suptitle(f"{self.head}; {EngFormatter('B', places=1)(self.total_bytes)} in all", fontsize=11)
        self._draw_density(density)
        self._draw_bytes(size)
        self._draw_ways(ways)

    def _draw_density(self, panel: Any) -> None:
        from matplotlib.ticker import PercentFormatter

        nothing = float("nan")
        shares = [nothing if density is None else density for density in self.densities]
        panel.plot(self.versions, shares, color=_DENSITY, marker="o", markersize=3 if len(shares) < 100 else 1)
        panel.set_ylim(0, max((density or 0 for density in self.densities), default=0) * 1.08 or 1)
        panel.yaxis.set_major_formatter(PercentFormatter(1))
        for version, words in self.events:
            panel.axvline(version, color="gray", linestyle=":", linewidth=1)
            panel.text(version, 0.97, f" {words}", transform=panel.get_xaxis_transform(), fontsize=8, va="top")
        _entitle(panel, "Density: changed elements of all elements")

    def _draw_bytes(self, panel: Any) -> None:
        from matplotlib.ticker import EngFormatter

        width = min(22, 450 / (self.last - self.first + 1))
        panel.vlines(self.versions, 0, self.bytes, colors=_BYTES, linewidth=width)
        panel.set_ylim(0, max(self.bytes) * 1.08 or 1)
        panel.yaxis.set_major_formatter(EngFormatter("B"))
        _entitle(panel, "Bytes of each version's delta")

    def _draw_ways(self, panel: Any) -> None:
        """Draws the panel of the ways to catch up: a row of anchors, a row for each span of merged deltas, and one for
        each reader.
        """
        from matplotlib.ticker import MaxNLocator

        labels = ["anchors"]
        anchors = [version for version in self.anchors if self.first <= version <= self.last]
        panel.plot(anchors, [0] * len(anchors), linestyle="", marker="D", color=_ANCHOR)
        for span, befores in sorted(self.merged.items())[:_MOST_ROWS]:
            # A merged delta covers the versions after the one that it starts from; those before the panel are cut off.
            bars = [(max(before, self.first - 1) + 0.54, before + span + 0.46) for before in befores]
            bars = [(begin, end - begin) for begin, end in bars if begin < end <= self.last + 1]
            panel.broken_barh(bars, (len(labels) - 0.2, 0.4), facecolors=_BYTES, alpha=0.65)
            labels.append(f"{span} versions in one")
        for name, version in sorted(self.readers, key=lambda reader: reader[1])[:_MOST_ROWS]:
            at = min(max(version, self.first), self.last)
            panel.plot([at, self.last], [len(labels)] * 2, color=_READER, alpha=0.35, linewidth=3)
            panel.plot([at], [len(labels)], marker="o", color=_READER)
            labels.append(name if len(name) <= 24 else f"...{name[-21:]}")
        panel.set_yticks(range(len(labels)), labels, fontsize=8)
        panel.set_ylim(len(labels) - 0.5, -0.5)
        panel.set_xlim(self.first - 0.6, self.last + 0.6)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_xlabel("version")
        _entitle(panel, "Ways to catch up, and how far readers are behind")


def _entitle(panel: Any, title: str) -> None:
    panel.set_title(title, fontsize=10, loc="left")
    panel.grid(alpha=0.3)
    panel.set_axisbelow(True)
