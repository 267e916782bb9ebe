#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins what gpu_check.sh has left in --raw to results.json and table.txt in --out, and prints the table: steps, then
the ratios that the device backend is held to. Exit code 0 when every step passed or was skipped with a reason, and no
step failed; goals that are missed are shown, not failed: they are for people to look at."""

import argparse
import csv
import json
import pathlib
import re
import sys


def load(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def rows_of(record, phase, what=None, percent=None):
    """Rows of a benchmark's record; `what` is a part of the weights' name."""
    return [
        row
        for row in (record or {}).get("rows", [])
        if row["phase"] == phase
        and (what is None or what in row["what"])
        and (percent is None or abs(row["percent"] - percent) < 1e-9)
    ]


def first(rows):
    return rows[0] if rows else None


def goals(bench, torch):
    """(what, measured, goal as text, met) of what bf16 at 1 % is held to; measured is None where a row is missing."""
    out = []

    def goal(what, value, text, met):
        out.append((what, value, text, value is not None and met(value)))

    encode = first(rows_of(bench, "detect+encode", "BF16", 1))
    cast = first(rows_of(bench, "fused cast", "BF16", 1))
    apply = first(rows_of(bench, "apply", "BF16", 1))
    goal("detect+encode, % of copy", encode and encode.get("percent_of_copy"), ">= 90", lambda v: v >= 90)
    goal("fused cast over plain cast", cast and cast.get("over_plain"), "<= 1.1", lambda v: v <= 1.1)
    goal("apply over its sectors' floor", apply and apply.get("times_floor"), "<= 1.5", lambda v: v <= 1.5)
    # The plainest kernels with the same accesses, in the same run (docs/gpu.md, "What the figures decide").
    for phase, ceiling, most in (("detect+encode/detect", "scan by 4", 1.09), ("apply", "scatter", 1.3)):
        mine = first(rows_of(bench, phase, "BF16", 1))
        other = first([row for row in rows_of(bench, ceiling, "BF16", 1) if mine and row["what"] == mine["what"]])
        ratio = mine["device_ms"] / other["device_ms"] if mine and other and other["device_ms"] else None
        goal(f"{phase} over {ceiling}", ratio, f"<= {most}", lambda v, most=most: v <= most)
    for phase, theirs, least in (("detect+encode", "encode", 10), ("apply", "apply", 5)):
        mine = first(rows_of(bench, phase, "BF16", 1))
        other = first([row for row in rows_of(torch, theirs, "BF16", 1) if mine and row["what"] == mine["what"]])
        ratio = other["device_ms"] / mine["device_ms"] if mine and other and mine["device_ms"] else None
        goal(f"torch over {phase}", ratio, f">= {least}", lambda v, least=least: v >= least)
    return out


def variants(raw):
    """Device times at 1 % bf16 of every record, for choosing parameters."""
    lines = []
    for path in sorted(raw.glob("bench*.json")):
        record = load(path)
        times = []
        for phase in ("detect+encode", "detect+encode/detect", "detect+encode/encode", "fused cast", "apply"):
            row = first([row for row in rows_of(record, phase, "BF16", 1) if "x 64 K" not in row["what"]])
            times.append(f"{row['device_ms']:9.3f}" if row and row["device_ms"] else "        -")
        lines.append(f"{path.stem:<18}" + " ".join(times))
    return lines


def profile(path):
    """Figures of one launch from a table of `ncu --page raw`: names, units, values; {} where it is not such a table."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if len(row) > 2]
    if len(rows) < 3:
        return {}
    return {name: value for name, value in zip(rows[0], rows[2], strict=False) if name and value}


STALLED = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")


def describe_profile(name, figures):
    """One line: time, bytes, instructions, and the three most frequent reasons why warps wait."""

    def number(metric):
        try:
            return float(figures[metric].replace(",", ""))
        except (KeyError, ValueError):
            return None

    stalls = {match[1]: number(metric) for metric in figures if (match := STALLED.fullmatch(metric))}
    stalls = {reason: value for reason, value in stalls.items() if value is not None and reason != "selected"}
    most = sorted(stalls, key=stalls.get, reverse=True)[:3]
    parts = [f"{name:<8}"]
    for label, metric in (
        ("time", "gpu__time_duration.sum"),
        ("read", "dram__bytes_read.sum"),
        ("written", "dram__bytes_write.sum"),
        ("warp instructions", "smsp__inst_executed.sum"),
        ("warps active %", "sm__warps_active.avg.pct_of_peak_sustained_active"),
        ("L2 hits %", "lts__t_sector_hit_rate.pct"),
    ):
        value = number(metric)
        parts.append(f"{label} {'-' if value is None else format(value, '.4g')}")
    return ", ".join(parts) + "; waits: " + (", ".join(f"{reason} {stalls[reason]:.2g}" for reason in most) or "-")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--raw", "--out"):
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--sources", default="unknown")
    arguments = parser.parse_args()
    raw = arguments.raw

    steps = []
    for line in (raw / "steps.tsv").read_text(encoding="utf-8").splitlines():
        stage, name, outcome, seconds, note = line.split("\t")
        steps.append({"stage": stage, "step": name, "outcome": outcome, "seconds": int(seconds), "note": note})
    benches = {path.stem: load(path) for path in sorted(raw.glob("bench*.json"))}
    profiles = {path.stem.removeprefix("ncu_"): profile(path) for path in sorted(raw.glob("ncu_*.csv"))}
    torch = load(raw / "torch.json")
    machine = load(raw / "machine.json") or {}
    smi = (raw / "smi.txt").read_text(encoding="utf-8") if (raw / "smi.txt").exists() else ""
    reached = goals(benches.get("bench"), torch)

    # The second line is that of the first device: name, driver, clocks.
    smi_fields = [field.strip() for field in (smi.splitlines() + ["", ""])[1].split(",")]
    driver = smi_fields[1] if len(smi_fields) > 1 else "unknown"
    record = {
        "commit": arguments.commit,
        "sources": arguments.sources,
        "machine": machine,
        "driver": driver,
        "smi": smi,
        "steps": steps,
        "goals": [dict(zip(("what", "measured", "goal", "met"), goal, strict=True)) for goal in reached],
        "benches": benches,
        "profiles": profiles,
        "torch": torch,
    }
    (arguments.out / "results.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    lines = [
        f"commit   {arguments.commit}",
        f"cuda/    sha256 {arguments.sources}",
        f"device   {machine.get('device') or smi_fields[0] or 'none'}, driver {driver}, for CUDA "
        f"{machine.get('driver_version', '-')}",
        "",
    ]
    lines += [
        f"{step['stage']:<9} {step['step']:<32} {step['outcome']:<7} {step['seconds']:>5} s  {step['note']}".rstrip()
        for step in steps
    ]
    if benches:
        lines += ["", "bf16, 1 %                            measured  goal"]
        lines += [
            f"{what:<36} {'-' if value is None else format(value, '.3g'):>8}  {text:<9} {'met' if met else 'MISSED'}"
            for what, value, text, met in reached
        ]
        lines += ["", "ms               detect+encode    detect    encode fused cast     apply"] + variants(raw)
    if profiles:
        lines += ["", "ncu, in its units"] + [describe_profile(*item) for item in profiles.items()]
    text = "\n".join(lines) + "\n"
    (arguments.out / "table.txt").write_text(text, encoding="utf-8")
    print("\n" + text, end="")
    return 1 if any(step["outcome"] == "FAIL" for step in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
