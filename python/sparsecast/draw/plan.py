# SPDX-License-Identifier: Apache-2.0
"""Draws a fan-out plan, from ``sparsecast plan --json``: the flow of bytes, and the schedule over time."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Any

from .fields import Fields
from .flow import Bands, Box, draw_flow, group_colour

#: Maximum number of boxes in each column of the flow, and of groups with labels in the schedule.
_MOST_BOXES = 40
_PHASES = ("detect", "encode", "wire", "verify", "agree", "apply", "vote")


class PlanPicture:
    """Picture of a plan in two panels. The constructor reads all fields of the document, and raises UsageError if one
    is missing or wrong; drawing raises no error about the document.
    """

    def __init__(self, document: Fields) -> None:
        trainer = document.fields("trainer")
        self.trainer = trainer.text("name")
        self.files = [os.path.basename(row.text("file")) for row in [trainer, *document.rows("engines")]]
        self.delta_bytes = document.number("delta_bytes")
        self.sync_seconds = document.number("sync_seconds")
        self.pause_seconds = document.number("pause_seconds")
        phases = document.fields("phases")
        self.phases = [(name, phases.number(f"{name}_seconds")) for name in _PHASES]
        rows = document.rows("ranks")
        self.participant = {row.count("rank"): row.text("participant") for row in rows}
        self.node = {row.count("rank"): row.text("node") for row in rows}
        self.groups = len(document.rows("groups"))
        self._read_routes(document)
        self.transfers: dict[int, list[tuple[float, float]]] = defaultdict(list)  # Group -> (start, length) of each.
        for row in document.rows("transfers"):
            start, end = row.number("start_seconds"), row.number("end_seconds")
            self.transfers[row.count("group", below=self.groups)].append((start, max(0.0, end - start)))

    def _read_routes(self, document: Fields) -> None:
        """Adds up, from the routes of the plan, the bytes that each rank sends into each group (``sent``) and receives
        from it (``received``).
        """
        share = document.fields("model").number("wire_bytes_per_byte")
        self.sent: Bands = defaultdict(float)  # By (rank, group).
        self.received: Bands = defaultdict(float)  # By (group, rank).
        for row in document.rows("routes"):
            source, group = row.count("source"), row.count("group", below=self.groups)
            if source not in self.participant or not self._trains(source):
                raise row.refuse("source", "is no rank of the trainer")
            # A rank that holds two copies gets the bytes once.
            ranks = {rank for rank, _ in row.pairs("destinations")}
            if any(rank not in self.participant or self._trains(rank) for rank in ranks):
                raise row.refuse("destinations", "has a rank that is no engine's")
            self.sent[source, group] += row.number("dense_bytes") * share
            for rank in ranks:
                self.received[group, rank] += row.number("dense_bytes") * share

    def draw(self, figure: Any) -> None:
        from matplotlib.ticker import EngFormatter

        size, time = EngFormatter("B", places=1), EngFormatter("s", places=1)
        senders = self._boxes_of(sorted({rank for rank, _ in self.sent}))
        receivers = self._boxes_of([rank for rank in sorted(self.participant) if not self._trains(rank)])
        sender_of, receiver_of = _box_of(senders), _box_of(receivers)
        groups = self._boxes_of_groups(sender_of, receiver_of)
        group_of = _box_of(groups)
        sent: Bands = defaultdict(float)
        received: Bands = defaultdict(float)
        for (rank, group), count in self.sent.items():
            sent[sender_of[rank], group_of[group]] += count
        for (group, rank), count in self.received.items():
            received[group_of[group], receiver_of[rank]] += count / len(receivers[receiver_of[rank]])
        columns = (
            [Box(f"{self._name(ranks)}: {size(_sum(sent, 0, i))}") for i, ranks in enumerate(senders)],
            [Box(f"{_named('group', g)}: {size(_sum(sent, 1, i))}", "", group_colour(i)) for i, g in enumerate(groups)],
            [Box(f"{self._name(ranks)}: {size(_sum(received, 1, i))}") for i, ranks in enumerate(receivers)],
        )
        before = ""
        for box, ranks in zip(columns[0] + columns[2], senders + receivers, strict=True):
            if self.participant[ranks[0]] != before:
                before = box.heading = self.participant[ranks[0]]

        heights = [max(4.0, 0.3 * max(map(len, columns))), min(8.0, 1.5 + 0.16 * self.groups)]
        figure.set_size_inches(13, sum(heights) + 1)
        above, below = figure.subplots(2, 1, height_ratios=heights)
        engines = f"{len(self.files) - 1} of {self.files[1]}" if len(self.files) > 1 else "no engine"
        figure.suptitle(
            f"{self.files[0]} to {engines}\n{size(self.delta_bytes)} a sync, in {time(self.sync_seconds)}, of which "
            f"the engines pause for {time(self.pause_seconds)} (predicted)",
            fontsize=11,
        )
        words = "Left, the bytes that leave each sender, once; right, those that one rank of a box gets for itself."
        silent = sum(map(self._trains, self.participant)) - len(sender_of)
        words += f" {silent} trainer ranks send nothing: others hold the same." if silent else ""
        above.set_title(words, fontsize=8, loc="left")
        draw_flow(above, columns, (sent, received))
        self._draw_schedule(below, groups)

    def _trains(self, rank: int) -> bool:
        return self.participant[rank] == self.trainer

    def _name(self, ranks: list[int]) -> str:
        nodes = {self.node[rank] for rank in ranks}
        node = nodes.pop() if len(nodes) == 1 else ""
        return f"{node}: {_named('rank', ranks)}" if node else _named("rank", ranks)

    def _boxes_of(self, ranks: list[int]) -> list[list[int]]:
        """Returns the ranks in each box of a column. There is a box for each rank; if these are too many, for each
        node; then for each participant, if there are several; and at last for several consecutive nodes.
        """
        participants = [self.participant[rank] for rank in ranks]
        nodes = [f"{self.participant[rank]} {self.node[rank] or rank}" for rank in ranks]
        place = {node: i for i, node in enumerate(dict.fromkeys(nodes))}
        in_a_row = [place[node] * _MOST_BOXES // len(place) for node in nodes]
        for keys in (ranks, nodes, participants if len(set(participants)) > 1 else ranks):
            boxes = _cluster(ranks, keys)
            if len(boxes) <= _MOST_BOXES:
                return boxes
        return _cluster(ranks, in_a_row)

    def _boxes_of_groups(self, sender_of: dict[int, int], receiver_of: dict[int, int]) -> list[list[int]]:
        """Returns the groups in each box of the middle column. Groups between the same boxes share one. If there are
        too many boxes, the groups that carry the fewest bytes share the last one.
        """
        ends: list[set[tuple[str, int]]] = [set() for _ in range(self.groups)]
        carried, weighted = [0.0] * self.groups, [0.0] * self.groups
        for (rank, group), count in self.sent.items():
            ends[group].add(("from", sender_of[rank]))
            carried[group] += count
            weighted[group] += count * sender_of[rank]
        for group, rank in self.received:
            ends[group].add(("to", receiver_of[rank]))
        boxes = _cluster(list(range(self.groups)), map(frozenset, ends))
        if len(boxes) > _MOST_BOXES:
            boxes.sort(key=lambda groups: -sum(carried[group] for group in groups))
            boxes[_MOST_BOXES - 1 :] = [sorted(sum(boxes[_MOST_BOXES - 1 :], []))]

        def middle(groups: list[int]) -> float:
            """Returns the mean number of the sender box from which the bytes of ``groups`` come, weighted by bytes.
            Boxes in this order have the fewest crossings of bands.
            """
            return sum(weighted[group] for group in groups) / (sum(carried[group] for group in groups) or 1)

        return sorted(boxes, key=middle)

    def _draw_schedule(self, panel: Any, boxes: list[list[int]]) -> None:
        """Draws the panel of the schedule: the phases, the pause, and a row for each group, in the order and the
        colours of the flow.
        """
        from matplotlib.ticker import EngFormatter

        whole = max(self.sync_seconds, sum(seconds for _, seconds in self.phases)) or 1.0
        high = max(1.0, self.groups / _MOST_BOXES)  # Of the row of phases, in rows of groups.
        start = 0.0
        for i, (name, seconds) in enumerate(self.phases):
            panel.broken_barh([(start, seconds)], (-2 * high, high), facecolors="0.72" if i % 2 else "0.82")
            if seconds > 0.008 * whole * len(name):  # Else the name does not fit.
                panel.text(start + seconds / 2, -1.5 * high, name, fontsize=8, ha="center", va="center")
            start += seconds
        panel.broken_barh([(start - self.pause_seconds, self.pause_seconds)], (-0.8 * high, 0.5 * high), facecolors="r")
        groups = [(group, group_colour(i)) for i, members in enumerate(boxes) for group in members]
        for row, (group, colour) in enumerate(groups):
            panel.broken_barh(self.transfers[group], (row + 0.1, 0.8), color=colour, linewidth=0.3)
        labels = {-1.5 * high: "phases", -0.55 * high: "pause"}
        if len(groups) <= _MOST_BOXES:
            labels |= {row + 0.5: f"group {group}" for row, (group, _) in enumerate(groups)}
        else:
            panel.set_ylabel(f"{len(groups)} groups, in the order above", fontsize=8)
        panel.set_yticks(list(labels), list(labels.values()), fontsize=7)
        panel.set_ylim(len(groups), -2 * high)
        panel.set_xlim(0, whole * 1.005)
        panel.xaxis.set_major_formatter(EngFormatter("s"))
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
        panel.set_title("The phases of a sync, and when each group is busy", fontsize=10, loc="left")


def _cluster(members: list[int], keys: Iterable[Hashable]) -> list[list[int]]:
    """Returns the members in lists of those with equal keys, in the order in which each key first appears."""
    clusters: dict[Hashable, list[int]] = defaultdict(list)
    for member, key in zip(members, keys, strict=True):
        clusters[key].append(member)
    return list(clusters.values())


def _box_of(boxes: list[list[int]]) -> dict[int, int]:
    return {member: i for i, members in enumerate(boxes) for member in members}


def _sum(bands: Bands, end: int, box: int) -> float:
    return sum(count for ends, count in bands.items() if ends[end] == box)


def _named(what: str, members: list[int]) -> str:
    """Returns a label for members: "rank 3", "ranks 0-7", or "4 ranks, 0 to 12" if some in between are missing."""
    first, last = min(members), max(members)
    if first == last:
        return f"{what} {first}"
    return f"{what}s {first}-{last}" if last - first < len(members) else f"{len(members)} {what}s, {first} to {last}"
