# SPDX-License-Identifier: Apache-2.0
"""Analysis of a trace as numbers, text, and a picture."""

from __future__ import annotations

import os
from typing import Any

from .statistics import Statistics
from .trace import Trace

#: Rows of the histogram of |ulp|: (smallest, largest) |ulp| of each.
_ULP_ROWS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 8), (9, 16), (17, None))

Report = dict[str, Any]


def analyse(directory: str | os.PathLike[str], *, encode: bool = True) -> Report:
    """Reads a trace and returns everything that ``sparsecast-record report --json`` prints (docs/record.md explains
    each figure).

    With ``encode`` the encoder of sparsecast also runs over the trace (packed positions, ulp values). Raises the errors
    of :class:`Trace`.
    """
    trace = Trace(directory)
    statistics = Statistics()
    encoder: _Encoder | None = None
    first: dict[str, str] = {}
    for version in trace:
        statistics.add(version)
        if not first:
            first = version.metadata
            encoder = _Encoder(version.weights, version.dtypes, version.number) if encode else None
        elif encoder is not None:
            encoder.step()
    report = _figures(statistics)
    report["directory"] = str(directory)
    report["optimizer"] = {key: first[key] for key in ("optimizer", "lr", "betas") if key in first}
    if encoder is not None:
        report["encoded"] = encoder.figures(statistics.changed)
    return report


class _Encoder:
    """Runs the encoder of sparsecast over a trace, and counts its bytes. The publisher reads the arrays of the trace,
    into which the trace writes one version after another.
    """

    def __init__(self, weights: dict[str, Any], dtypes: dict[str, str], version: int) -> None:
        from .. import Publisher, TensorTable, describe

        # Bits of a size are enough, but for ulp steps the sign matters: the dtype stands in the table.
        table = TensorTable([(name, dtypes[name], list(bits.shape)) for name, bits in weights.items()])
        memory = [describe(bits, dtype=dtypes[name]) for name, bits in weights.items()]
        self._publisher = Publisher(table, memory, version=version, positions="packed", values="ulp")
        self._bytes: list[int] = []

    def step(self) -> None:
        delta = self._publisher.publish()
        self._bytes.append(delta.wire_bytes)
        self._publisher.commit(delta.version)

    def figures(self, changed: int) -> Report:
        total = sum(self._bytes)
        return {
            "bytes": total,
            "bytes_per_change": total / changed if changed else None,
            "step_bytes": self._bytes,
        }


def _figures(statistics: Statistics) -> Report:
    changed = statistics.changed
    seen = statistics.elements * len(statistics.steps)
    return {
        "elements": statistics.elements,
        "steps": len(statistics.steps),
        "changed": changed,
        "density": changed / seen if seen else 0.0,
        "step_rows": [
            {"version": row.version, "changed": row.changed, "density": row.density, "lr": row.learning_rate}
            for row in statistics.steps
        ],
        "class_rows": _class_rows(statistics),
        "ulp_rows": _ulp_rows(statistics),
        "ulp_up_share": _share(sum(n for ulp, n in statistics.ulps.items() if ulp > 0), changed),
        "exponent_rows": [
            {"exponent": exponent, "seen": row.seen, "changed": row.changed, "p_change": row.changed / row.seen}
            for exponent, row in sorted(statistics.exponents.items())
            if row.seen
        ],
        "recurrence_rows": [
            {"lag": lag, "p_change": _share(again, of), "density": expected / of, "ratio": _share(again, expected)}
            for lag, (of, again, expected) in statistics.recurrence.items()
            if of
        ],
        "bits_per_change": _bits(statistics, changed),
    }


def _class_rows(statistics: Statistics) -> list[Report]:
    return [
        {
            "class": kind,
            "elements": row.elements,
            "changed": row.changed,
            "density": _share(row.changed, row.elements * len(statistics.steps)),
            "row_dispersion": row.dispersion("row"),
            "column_dispersion": row.dispersion("column"),
        }
        for kind, row in sorted(statistics.classes.items())
    ]


def _ulp_rows(statistics: Statistics) -> list[Report]:
    rows = []
    for least, most in _ULP_ROWS:
        count = sum(n for ulp, n in statistics.ulps.items() if abs(ulp) >= least and (most is None or abs(ulp) <= most))
        rows.append({"least": least, "most": most, "count": count, "share": _share(count, statistics.changed)})
    return rows


def _bits(statistics: Statistics, changed: int) -> Report:
    if not changed:
        return {}
    values = statistics.ulp_entropy()
    positions = sum(row.bits for row in statistics.steps) / changed
    by_tensor = sum(row.bits_by_tensor for row in statistics.steps) / changed
    by_exponent = sum(row.bits_by_exponent for row in statistics.steps) / changed
    return {
        "positions": positions,
        "positions_by_tensor": by_tensor,
        "positions_by_exponent": by_exponent,
        "ulp": values,
        "bytes_in_all": (positions + values) / 8,
        "bytes_in_all_by_exponent": (by_exponent + values) / 8,
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def as_text(report: Report) -> str:
    """Returns the report as a few tables for people to read."""
    densities = [row["density"] for row in report["step_rows"]]
    optimizer = ", ".join(f"{key} {value}" for key, value in report["optimizer"].items())
    lines = [
        f"{report['directory']}: {report['elements']} elements, {report['steps']} steps"
        + (f", {optimizer}" if optimizer else ""),
        f"density {100 * report['density']:.3f} % a step"
        + (f" ({100 * min(densities):.3f} to {100 * max(densities):.3f})" if densities else ""),
        "",
        f"{'class':<12}{'elements':>12}{'density %':>12}{'row disp.':>12}{'col. disp.':>12}",
    ]
    for row in report["class_rows"]:
        density = row["density"]
        lines.append(
            f"{row['class']:<12}{row['elements']:>12}{_number(density and 100 * density, '.3f'):>12}"
            f"{_number(row['row_dispersion'], '.1f'):>12}{_number(row['column_dispersion'], '.1f'):>12}"
        )
    lines += ["", f"{'|ulp|':<12}{'share %':>12}"]
    for row in report["ulp_rows"]:
        span = f"{row['least']}" if row["most"] == row["least"] else f"{row['least']}-{row['most'] or ''}"
        lines.append(f"{span:<12}{_number(row['share'] and 100 * row['share'], '.3f'):>12}")
    lines += ["", f"{'old weight':<12}{'of all %':>12}{'p(change) %':>12}"]
    seen = sum(row["seen"] for row in report["exponent_rows"])
    for row in report["exponent_rows"]:
        if row["changed"] or row["seen"] > seen / 1000:
            lines.append(f"2^{row['exponent']:<10}{100 * row['seen'] / seen:>12.3f}{100 * row['p_change']:>12.3f}")
    lines += ["", f"{'steps later':<12}{'p(again) %':>12}{'x density':>12}"]
    for row in report["recurrence_rows"]:
        again = row["p_change"]
        lines.append(f"{row['lag']:<12}{_number(again and 100 * again, '.3f'):>12}{_number(row['ratio'], '.1f'):>12}")
    lines += ["", *_cost_lines(report)]
    return "\n".join(lines) + "\n"


def _cost_lines(report: Report) -> list[str]:
    bits = report["bits_per_change"]
    if not bits:
        return ["nothing changed"]
    knowing = (
        f"knowing the tensor {bits['positions_by_tensor']:.2f}, the old exponent {bits['positions_by_exponent']:.2f}"
    )
    by_exponent = f"knowing the old exponent {bits['bytes_in_all_by_exponent']:.3f}"
    lines = [
        f"bits a change: positions {bits['positions']:.2f} ({knowing}), ulp {bits['ulp']:.2f}",
        f"bytes a change: {bits['bytes_in_all']:.3f} ({by_exponent})",
    ]
    if "encoded" in report:
        lines.append(f"bytes a change, encoded (packed, ulp): {report['encoded']['bytes_per_change']:.3f}")
    return lines
