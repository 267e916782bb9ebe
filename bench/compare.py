#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two records of one benchmark and says which rows of B became worse than in A beyond their noise.

    bench/compare.py A.json B.json [--threshold 0.05]

Records are what codec_bench, sparsecast_perf, cuda_bench and interop_bench write with --json (schema: bench/README.md).
Rows are matched by name. A row that has a baseline is compared by its ratio to the baseline of the same run; other rows
by their values, if both records come from the same machine. Exact rows (bytes) are compared by value everywhere.
Exit status: 0 nothing is worse, 1 something is, 2 a file cannot be read or the two cannot be compared.
"""

import argparse
import json
import math
import sys

SCHEMA = 1
# Generated weights differ in a few last bits from one C library to another, and so do their sizes.
EXACT_FLOOR = 0.001
MACHINE = ("cpu", "cores", "gpu")


class BadRecord(Exception):
    """A file that is no record; the message names the file and the field."""


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def field(where, table, name, kind, optional=None):
    """Returns table[name], which must be of `kind`: "number", "numbers" or a type. `optional` stands for a missing one."""
    if name not in table:
        if optional is not None:
            return optional
        raise BadRecord(f"{where}: the field '{name}' is missing")
    value = table[name]
    if kind == "number":
        good = is_number(value)
    elif kind == "numbers":
        good = isinstance(value, list) and all(map(is_number, value))
    else:
        good = isinstance(value, kind)
    if not good:
        expected = (
            kind if isinstance(kind, str) else {dict: "object", list: "list", str: "string", bool: "boolean"}[kind]
        )
        raise BadRecord(f"{where}: the field '{name}' should be a {expected}, and is {json.dumps(value)[:60]}")
    return value


def check_row(where, row):
    """Returns the row with all optional fields filled in."""
    name = field(where, row, "name", str)
    where = f"{where} ('{name}')"
    better = field(where, row, "better", str)
    if better not in ("lower", "higher"):
        raise BadRecord(f'{where}: the field \'better\' should be "lower" or "higher", and is "{better}"')
    return {
        "name": name,
        "unit": field(where, row, "unit", str),
        "better": better,
        "value": field(where, row, "value", "number"),
        "exact": field(where, row, "exact", bool, False),
        "statistic": field(where, row, "statistic", str, "median"),
        "baseline": field(where, row, "baseline", str, ""),
        "ratio": field(where, row, "ratio", "number") if "baseline" in row else None,
        "samples": field(where, row, "samples", "numbers", []),
        "ratio_samples": field(where, row, "ratio_samples", "numbers", []),
        "stddev": field(where, row, "stddev", "number", 0),
        "range": [field(where, row, end, "number") for end in ("min", "max")] if "min" in row or "max" in row else [],
    }


def load(path):
    """Returns the record in the file, with "rows" by name. Raises BadRecord."""
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
    except OSError as error:
        raise BadRecord(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{path}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise BadRecord(f"{path}: not a record: the whole file should be an object")
    schema = field(path, record, "schema", "number")
    if schema != SCHEMA:
        raise BadRecord(f"{path}: the field 'schema' is {schema}; this program reads schema {SCHEMA}")
    field(path, record, "command", list, [])
    for name, kind in (("benchmark", str), ("commit", str), ("time", str), ("machine", dict), ("versions", dict)):
        field(path, record, name, kind)
    record["rows"] = {}
    for i, row in enumerate(field(path, record, "results", list)):
        where = f"{path}: results[{i}]"
        if not isinstance(row, dict):
            raise BadRecord(f"{where} should be an object, and is {json.dumps(row)[:60]}")
        row = check_row(where, row)
        if row["name"] in record["rows"]:
            raise BadRecord(f"{where}: the field 'name' repeats '{row['name']}'")
        record["rows"][row["name"]] = row
    return record


def quantile(ordered, share):
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def spread(samples):
    """Returns the interquartile range as a share of the median; the whole range where there are fewer than four."""
    if len(samples) < 2:
        return 0.0
    ordered = sorted(samples)
    middle = abs(quantile(ordered, 0.5))
    width = quantile(ordered, 0.75) - quantile(ordered, 0.25) if len(ordered) >= 4 else ordered[-1] - ordered[0]
    return width / middle if middle else 0.0


def value_noise(row):
    """Returns the noise of the row's value as a share of it, from what the row tells: samples, deviation or range."""
    if row["samples"] and row["statistic"] == "least":
        ordered = sorted(row["samples"])
        return quantile(ordered, 0.5) / ordered[0] - 1 if ordered[0] > 0 else 0.0
    if row["samples"]:
        return spread(row["samples"])
    scale = abs(row["value"])
    if not scale:
        return 0.0
    if row["stddev"]:
        return 1.349 * row["stddev"] / scale  # The interquartile range of a normal distribution.
    return (row["range"][1] - row["range"][0]) / scale if row["range"] else 0.0


def ratio_noise(row, rows):
    """Returns the noise of the row's ratio. Rounds that were measured in turns share their disturbances."""
    if row["ratio_samples"]:
        return spread(row["ratio_samples"])
    baseline = rows.get(row["baseline"])
    return math.hypot(value_noise(row), value_noise(baseline) if baseline else 0.0)


def compare_row(a, b, rows_a, rows_b, same_machine, threshold):
    """Returns (outcome, kind, figure in A, figure in B, change for the worse as a share, noise); outcome is "slower",
    "faster", "same" or "not compared". A positive change is worse."""
    if a["unit"] != b["unit"] or a["better"] != b["better"]:
        return "not compared", "another unit", None, None, 0.0, 0.0
    if a["exact"] and b["exact"]:
        kind, old, new, noise = "value", a["value"], b["value"], EXACT_FLOOR
    elif a["ratio"] is not None and b["ratio"] is not None and a["baseline"] == b["baseline"]:
        kind, old, new = "ratio", a["ratio"], b["ratio"]
        noise = max(threshold, math.hypot(ratio_noise(a, rows_a), ratio_noise(b, rows_b)))
    elif same_machine:
        kind, old, new = "value", a["value"], b["value"]
        noise = max(threshold, math.hypot(value_noise(a), value_noise(b)))
    else:
        return "not compared", "another machine", a["value"], b["value"], 0.0, 0.0
    better, worse = (old, new) if a["better"] == "lower" else (new, old)
    # Twice the time and half the speed are the same change.
    change = worse / better - 1 if better else (0.0 if worse == better else math.inf)
    back = better / worse - 1 if worse else (0.0 if worse == better else math.inf)
    outcome = "slower" if change > noise else "faster" if back > noise else "same"
    return outcome, kind, old, new, change, noise


def describe(label, record):
    machine = record["machine"]
    where = ", ".join(str(machine[key]) for key in ("cpu", "gpu") if machine.get(key))
    return f"{label}  {record['benchmark']}  commit {record['commit']}  {record['time']}  {where}"


def arguments_of(record):
    """Returns the command's arguments without the program and without --json FILE, which measure nothing."""
    words = [str(word) for word in record.get("command", [])[1:]]
    if "--json" in words:
        at = words.index("--json")
        del words[at : at + 2]
    return " ".join(word for word in words if not word.startswith("--json="))


def differences(a, b, keys):
    return [f"{key} {a.get(key, '-')} / {b.get(key, '-')}" for key in keys if a.get(key) != b.get(key)]


def below(baseline, name):
    """Returns the baseline's name without the parts before the last "/" that both names begin with."""
    folder = name.rpartition("/")[0] + "/"
    return baseline.removeprefix(folder)


def figure(value):
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def percent(change):
    return f"{100 * change:+.1f} %" if math.isfinite(change) else "from 0"


def print_rows(title, lines):
    if not lines:
        return
    print(f"\n{title}: {len(lines)}")
    width = max(len(name) for name, *_ in lines)
    for name, *columns in lines:
        print(f"  {name:<{width}}  " + "  ".join(columns))


def compare(a, b, threshold):
    """Prints the comparison; returns the exit status."""
    print(describe("A", a))
    print(describe("B", b))
    other_machine = differences(a["machine"], b["machine"], MACHINE)
    if other_machine:
        print(f"The machines differ ({'; '.join(other_machine)}): only ratios and exact rows are compared.")
    other_versions = differences(a["versions"], b["versions"], sorted({*a["versions"], *b["versions"]}))
    if other_versions:
        print(f"The versions differ: {'; '.join(other_versions)}.")

    if arguments_of(a) != arguments_of(b):
        print(f"The arguments differ: {arguments_of(a) or 'none'} / {arguments_of(b) or 'none'}.")

    found = {"slower": [], "faster": [], "same": [], "not compared": []}
    for name, old_row in a["rows"].items():
        if name not in b["rows"]:
            continue
        outcome, kind, old, new, change, noise = compare_row(
            old_row, b["rows"][name], a["rows"], b["rows"], not other_machine, threshold
        )
        if outcome == "not compared":
            line = (name, kind)
        else:
            unit = "of " + below(old_row["baseline"], name) if kind == "ratio" else old_row["unit"]
            grown = new / old - 1 if old else (math.inf if new else 0.0)
            line = (
                name,
                f"{figure(old):>9} -> {figure(new):>9}",
                f"{percent(grown):>9}",
                f"noise {100 * noise:.1f} %",
                unit,
            )
        found[outcome].append((change, line))
    print_rows("SLOWER, larger or otherwise worse", [line for _, line in sorted(found["slower"], reverse=True)])
    print_rows("Faster, smaller or otherwise better", [line for _, line in sorted(found["faster"])])
    print_rows("The same within the noise", [line for _, line in found["same"]])
    print_rows("Not compared", [line for _, line in found["not compared"]])
    print_rows("Only in A", [(name,) for name in a["rows"] if name not in b["rows"]])
    print_rows("Only in B", [(name,) for name in b["rows"] if name not in a["rows"]])
    compared = sum(len(found[outcome]) for outcome in ("slower", "faster", "same"))
    print(
        f"\n{compared} rows compared: {len(found['slower'])} slower, {len(found['faster'])} faster, "
        f"{len(found['same'])} the same"
    )
    if not compared:
        print("compare.py: the two records have no row that can be compared", file=sys.stderr)
        return 2
    return 1 if found["slower"] else 0


def share(text):
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A.json", help="the record before")
    parser.add_argument("b", metavar="B.json", help="the record after")
    parser.add_argument(
        "--threshold",
        type=share,
        default=0.05,
        help="changes up to this share are noise, whatever the samples say (default: 0.05)",
    )
    arguments = parser.parse_args()
    try:
        a, b = load(arguments.a), load(arguments.b)
        if a["benchmark"] != b["benchmark"]:
            raise BadRecord(
                f"{arguments.b}: the field 'benchmark' is '{b['benchmark']}', and that of {arguments.a} is "
                f"'{a['benchmark']}'"
            )
    except BadRecord as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    return compare(a, b, arguments.threshold)


if __name__ == "__main__":
    sys.exit(main())
