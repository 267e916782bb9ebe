#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/compare.py on made-up records: what it calls slower, and what it says of files that are none.

tests/bench_compare_test.py [unittest arguments]
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

COMPARE = pathlib.Path(__file__).resolve().parent.parent / "bench" / "compare.py"
ONE_MACHINE = {"cpu": "Some CPU", "cores": 2, "memory_bytes": 1 << 30, "os": "Some OS", "gpu": None}


def row(name, value, **more):
    return {"name": name, "unit": "ms", "better": "lower", "value": value, **more}


def around(value, width):
    """Five samples whose interquartile range is `width` of their median, `value`."""
    return [value * (1 + width * step / 2) for step in (-2, -1, 0, 1, 2)]


def record(*rows, **more):
    return {
        "schema": 1,
        "benchmark": "codec_bench",
        "command": ["codec_bench"],
        "time": "2026-11-22T12:00:00Z",
        "commit": "abc1234",
        "cuda_hash": "0",
        "machine": ONE_MACHINE,
        "versions": {"zstd": "1.5.4"},
        "results": list(rows),
        **more,
    }


class CompareTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def file(self, name, content):
        path = self.directory / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    def compare(self, a, b, *arguments):
        """Returns exit status and output of A against B, each a record or a file's text."""
        run = subprocess.run(
            [sys.executable, COMPARE, self.file("A.json", a), self.file("B.json", b), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertNotIn("Traceback", run.stderr)
        return run.returncode, run.stdout + run.stderr

    def rows_under(self, title, output):
        """Names of the rows in one of the tables."""
        for block in output.split("\n\n"):
            head, *lines = block.splitlines()
            if head.startswith(title):
                return [line.split()[0] for line in lines]
        return []

    def expect(self, title, a, b, *arguments):
        """The only row that A and B have is found in that table."""
        status, output = self.compare(a, b, *arguments)
        self.assertEqual(self.rows_under(title, output), ["x"], output)
        self.assertEqual(status, 1 if title == "SLOWER" else 0, output)
        return output


class Noise(CompareTest):
    def test_a_record_equals_itself(self):
        rows = row("x", 2, samples=around(2, 0.02)), row("y", 1, exact=True)
        status, output = self.compare(record(*rows), record(*rows))
        self.assertEqual((status, self.rows_under("The same", output)), (0, ["x", "y"]))
        self.assertIn("2 rows compared: 0 slower, 0 faster, 2 the same", output)

    def test_a_change_within_the_threshold_is_noise(self):
        self.expect("The same", record(row("x", 1)), record(row("x", 1.04)))
        self.expect("SLOWER", record(row("x", 1)), record(row("x", 1.06)))
        self.expect("SLOWER", record(row("x", 1)), record(row("x", 1.04)), "--threshold", 0.03)
        self.expect("The same", record(row("x", 1)), record(row("x", 1.06)), "--threshold", 0.1)

    def test_a_change_within_the_samples_spread_is_noise(self):
        quiet, loud = around(1, 0.01), around(1, 0.4)
        slower = [1.2 * sample for sample in quiet]
        self.expect("SLOWER", record(row("x", 1, samples=quiet)), record(row("x", 1.2, samples=slower)))
        self.expect("The same", record(row("x", 1, samples=loud)), record(row("x", 1.2, samples=slower)))
        self.expect(
            "The same",
            record(row("x", 1, samples=quiet)),
            record(row("x", 1.2, samples=[1.2 * sample for sample in loud])),
        )

    def test_one_outlier_among_many_samples_is_no_noise(self):
        samples = [1.0] * 8 + [50.0]
        self.expect("SLOWER", record(row("x", 1, samples=samples)), record(row("x", 1.1, samples=[1.1] * 9)))

    def test_the_least_of_many_is_as_noisy_as_the_lower_half(self):
        samples = [1.0, 1.01, 1.02, 1.03, 5.0, 6.0, 7.0]
        old, new = row("x", 1, samples=samples, statistic="least"), row("x", 1.1, statistic="least")
        self.expect("SLOWER", record(old), record(new))
        self.expect("The same", record({**old, "statistic": "median"}), record(new))

    def test_deviation_and_range_count_without_samples(self):
        self.expect("The same", record(row("x", 1, stddev=0.2)), record(row("x", 1.2)))
        self.expect("The same", record(row("x", 1, min=0.9, max=1.2)), record(row("x", 1.2)))

    def test_bytes_have_no_noise(self):
        old = row("x", 1.3, exact=True, unit="B/change")
        self.expect("SLOWER", record(old), record({**old, "value": 1.304}))
        self.expect("Faster", record(old), record({**old, "value": 1.296}))
        self.expect("The same", record(old), record({**old, "value": 1.3001}))

    def test_what_was_zero_and_is_not_became_worse(self):
        old = row("x", 0, exact=True)
        output = self.expect("SLOWER", record(old), record({**old, "value": 3}))
        self.assertIn("from 0", output)
        self.expect("Faster", record({**old, "value": 3}), record(old))
        self.expect("The same", record(old), record(old))


class Direction(CompareTest):
    def test_lower_times_are_better(self):
        self.expect("SLOWER", record(row("x", 1)), record(row("x", 2)))
        self.expect("Faster", record(row("x", 2)), record(row("x", 1)))

    def test_higher_speeds_are_better(self):
        speed = {"better": "higher", "unit": "GB/s"}
        self.expect("SLOWER", record(row("x", 2, **speed)), record(row("x", 1, **speed)))
        self.expect("Faster", record(row("x", 1, **speed)), record(row("x", 2, **speed)))


class Baselines(CompareTest):
    def test_ratios_are_compared_where_there_are_some(self):
        def of(scan, encode):
            return record(
                row("scan", scan),
                row("x", encode, baseline="scan", ratio=encode / scan),
                machine={**ONE_MACHINE, "cpu": f"CPU of {scan}"},
            )

        # Everything takes twice the time on the other machine.
        status, output = self.compare(of(1, 3), of(2, 6))
        self.assertEqual((status, self.rows_under("The same", output)), (0, ["x"]))
        self.assertEqual(self.rows_under("Not compared", output), ["scan"])
        self.assertIn("The machines differ (cpu CPU of 1 / CPU of 2)", output)
        status, output = self.compare(of(1, 3), of(2, 9))
        self.assertEqual((status, self.rows_under("SLOWER", output)), (1, ["x"]))

    def test_values_are_compared_on_one_machine_only(self):
        self.expect("SLOWER", record(row("x", 1)), record(row("x", 2)))
        other = record(row("x", 2), row("size", 9, exact=True), machine={**ONE_MACHINE, "gpu": "Some GPU"})
        status, output = self.compare(record(row("x", 1), row("size", 9, exact=True)), other)
        self.assertEqual((status, self.rows_under("Not compared", output)), (0, ["x"]))
        self.assertEqual(self.rows_under("The same", output), ["size"])

    def test_rounds_that_were_measured_in_turns_share_their_noise(self):
        # The machine's speed varies by a factor of two; the ratio stays.
        scan = [1.0, 2.0, 1.5, 1.2, 1.8]

        def of(factor, paired):
            encode = [factor * sample for sample in scan]
            ratios = {"ratio_samples": [factor] * 5} if paired else {}
            return record(
                row("scan", 1.5, samples=scan),
                row("x", 1.5 * factor, samples=encode, baseline="scan", ratio=factor, **ratios),
            )

        status, output = self.compare(of(3, True), of(3.5, True))
        self.assertEqual((status, self.rows_under("SLOWER", output)), (1, ["x"]))
        status, output = self.compare(of(3, False), of(3.5, False))
        self.assertEqual((status, self.rows_under("The same", output)), (0, ["scan", "x"]))


class RowsThatDoNotMatch(CompareTest):
    def test_missing_rows_are_named(self):
        status, output = self.compare(record(row("x", 1), row("gone", 1)), record(row("x", 1), row("new", 1)))
        self.assertEqual(status, 0)
        self.assertEqual(self.rows_under("Only in A", output), ["gone"])
        self.assertEqual(self.rows_under("Only in B", output), ["new"])

    def test_rows_of_other_units_are_not_compared(self):
        status, output = self.compare(record(row("x", 1), row("y", 1)), record(row("x", 9, unit="s"), row("y", 1)))
        self.assertEqual((status, self.rows_under("Not compared", output)), (0, ["x"]))

    def test_other_versions_are_told(self):
        _, output = self.compare(record(row("x", 1)), record(row("x", 1), versions={"zstd": "1.5.7"}))
        self.assertIn("The versions differ: zstd 1.5.4 / 1.5.7.", output)

    def test_other_arguments_are_told_but_not_other_files(self):
        def run(*command):
            return record(row("x", 1), command=["codec_bench", *command])

        _, output = self.compare(run("--mib", "2", "--json", "a"), run("--mib", "2", "--json=b"))
        self.assertNotIn("arguments", output)
        _, output = self.compare(run("--mib", "2"), run("--json", "b"))
        self.assertIn("The arguments differ: --mib 2 / none.", output)

    def test_records_without_a_common_row_cannot_be_compared(self):
        status, output = self.compare(record(row("x", 1)), record(row("y", 1)))
        self.assertEqual(status, 2)
        self.assertIn("no row that can be compared", output)


class BadFiles(CompareTest):
    def expect_error(self, b, *parts):
        status, output = self.compare(record(row("x", 1)), b)
        self.assertEqual(status, 2, output)
        for part in ("B.json", *parts):
            self.assertIn(part, output)

    def test_a_file_that_is_not_json_is_named(self):
        for garbage in ("", "{", "\0\1", "[" * 200000, "[1, 2]", "null"):
            self.expect_error(garbage, "not ")

    def test_a_missing_file_is_named(self):
        run = subprocess.run(
            [sys.executable, COMPARE, self.directory / "nowhere.json", self.directory / "nowhere.json"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(run.returncode, 2)
        self.assertIn("nowhere.json: No such file", run.stderr)

    def test_another_schema_is_told(self):
        self.expect_error(record(row("x", 1), schema=2), "'schema' is 2", "reads schema 1")

    def test_another_benchmark_is_told(self):
        self.expect_error(record(row("x", 1), benchmark="cuda_bench"), "'benchmark' is 'cuda_bench'", "'codec_bench'")

    def test_missing_and_wrong_fields_are_named(self):
        for name in ("schema", "benchmark", "commit", "time", "machine", "versions", "results"):
            whole = record(row("x", 1))
            del whole[name]
            self.expect_error(whole, f"'{name}' is missing")
            self.expect_error({**whole, name: False}, f"'{name}'")
        for name in ("name", "unit", "better", "value"):
            one = row("x", 1)
            del one[name]
            self.expect_error(record(row("w", 1), one), "results[1]", f"'{name}' is missing")
        for wrong in (
            {"value": "1"},
            {"value": True},
            {"value": None},
            {"better": "faster"},
            {"samples": [1, "2"]},
            {"exact": 1},
            {"baseline": "y", "ratio": None},
            {"stddev": []},
        ):
            name = list(wrong)[-1]
            self.expect_error(record(row("x", 1) | wrong), "results[0] ('x')", f"'{name}'")
        self.expect_error(record(row("x", 1), "y"), "results[1]")
        self.expect_error(record(row("x", 1), row("x", 2)), "results[1]", "repeats 'x'")

    def test_numbers_that_are_none_are_refused(self):
        self.expect_error(json.dumps(record(row("x", 1))).replace('"value": 1', '"value": NaN'), "'value'")

    def test_wrong_arguments_are_refused(self):
        for threshold in ("-1", "much", "nan"):
            status, output = self.compare(record(row("x", 1)), record(row("x", 1)), "--threshold", threshold)
            self.assertEqual(status, 2)
            self.assertIn("--threshold", output)


if __name__ == "__main__":
    unittest.main()
