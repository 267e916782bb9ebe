# SPDX-License-Identifier: Apache-2.0
"""Draws a flow: three columns of boxes, and between them bands as thick as what travels there."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from typing import Any

#: What the band between two boxes carries, by (index in a column, index in the next column).
Bands = dict[tuple[int, int], float]

#: Left sides of the columns, and the width of a box, as shares of the panel's width.
_LEFT, _WIDTH = (0.22, 0.495, 0.77), 0.01
#: Heights in lines of text: of the gap between boxes, of a heading, and the smallest of a box and of a band.
_GAP, _HEADING, _LEAST_BOX, _LEAST_BAND = 0.3, 1.0, 0.7, 0.03


@dataclass
class Box:
    """One box of a column, with its label and its colour, and a heading above it (empty: none)."""

    label: str
    heading: str = ""
    colour: str | tuple[float, float, float] = "#55555a"


def group_colour(i: int) -> tuple[float, float, float]:
    """Returns the colour (red, green, blue) of box number ``i`` in the middle column. Steps of the golden angle keep
    the colours of neighbours apart.
    """
    return colorsys.hls_to_rgb((210 + 137.508 * i) % 360 / 360, 0.5, 0.6)


def draw_flow(panel: Any, columns: tuple[list[Box], list[Box], list[Box]], halves: tuple[Bands, Bands]) -> None:
    """Draws three columns of boxes, and the bands between them. ``halves`` has the bands from the left to the middle
    column, and from the middle to the right column. A band has the colour of its box in the middle column.
    """
    lines = max(16.0, 1.2 * max(map(len, columns)))
    thick = [_as_lines(bands, lines) for bands in halves]
    places = []
    for number, column in enumerate(columns):
        heights = [0.0] * len(column)
        for i in range(len(column)):
            leaving = sum(height for ends, height in thick[number].items() if ends[0] == i) if number < 2 else 0
            entering = sum(height for ends, height in thick[number - 1].items() if ends[1] == i) if number else 0
            heights[i] = max(_LEAST_BOX, leaving, entering)
        places.append(_stack(column, heights))
    whole = max(1.0, *(end for _, _, end in places))

    panel.set_axis_off()
    panel.set_xlim(0, 1)
    panel.set_ylim(whole, 0)
    tops = [[top + (whole - end) / 2 for top in of_column] for of_column, _, end in places]
    for number, bands in enumerate(thick):
        leave, enter = list(tops[number]), list(tops[number + 1])
        for (i, k), height in sorted(bands.items()):
            colour = columns[1][i if number else k].colour
            _draw_band(panel, (_LEFT[number] + _WIDTH, leave[i]), (_LEFT[number + 1], enter[k]), height, colour)
            leave[i] += height
            enter[k] += height
    for number, column in enumerate(columns):
        for box, top, height in zip(column, tops[number], places[number][1], strict=True):
            _draw_box(panel, box, _LEFT[number], top, height, on_the_left=number == 0)


def _as_lines(bands: Bands, lines: float) -> Bands:
    """Returns the bands with heights in lines of text instead of amounts. The heights of all bands add up to about
    ``lines``.
    """
    whole = sum(bands.values()) or 1.0
    return {ends: max(_LEAST_BAND, lines * amount / whole) for ends, amount in bands.items()}


def _stack(column: list[Box], heights: list[float]) -> tuple[list[float], list[float], float]:
    """Places boxes one below the other. Returns their tops, their heights, and the end of the column, in lines
    of text.
    """
    tops, end = [], 0.0
    for box, height in zip(column, heights, strict=True):
        end += _HEADING if box.heading else 0
        tops.append(end)
        end += height + _GAP
    return tops, heights, end


def _draw_band(panel: Any, start: tuple[float, float], end: tuple[float, float], height: float, colour: Any) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    (x0, y0), (x1, y1), middle = start, end, (start[0] + end[0]) / 2
    upper = [(x0, y0), (middle, y0), (middle, y1), (x1, y1)]
    lower = [(x1, y1 + height), (middle, y1 + height), (middle, y0 + height), (x0, y0 + height), (x0, y0)]
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    panel.add_patch(PathPatch(Path(upper + lower, codes), facecolor=colour, alpha=0.4, linewidth=0))


def _draw_box(panel: Any, box: Box, x: float, top: float, height: float, on_the_left: bool) -> None:
    from matplotlib.patches import Rectangle

    panel.add_patch(Rectangle((x, top), _WIDTH, height, facecolor=box.colour))
    at, align = (x - 0.006, "right") if on_the_left else (x + _WIDTH + 0.006, "left")
    panel.text(at, top + height / 2, box.label, fontsize=8, ha=align, va="center")
    panel.text(at, top - 0.15, box.heading, fontsize=8, fontweight="bold", ha=align, va="bottom")
