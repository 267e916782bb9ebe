#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a wide-area network makes of a delta log, and of the star over TCP, beside dense copies over the same links.

    sudo bench/wan.py log TRACE          # a recorded trace (bench/traces), one version after another
    sudo bench/wan.py star               # needs the Python package on PYTHONPATH

`log`: for each link a bucket (SeaweedFS), a trainer beside it, and a reader behind the link (`sparsecast log follow`),
each a network namespace (tests/wan/network.py). After each version the same weights are downloaded whole from the same
bucket over the same link, by one GET on a new connection, without writing or checking them. `lag`: from when
the version's commit is in the bucket to when the reader has verified the version; `apply`: the part of it in which the
weights are written and verified; `dense`: of the GET. Medians over the versions.

`star`: rank 0 broadcasts --mib of bytes to a near host and two far ones, by the congestion controls in turns; the time
until all have them, for each round. The far links lose --loss percent of their packets.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests/wan")]

from network import Link, Network  # noqa: E402

from s3_server import sign  # noqa: E402

BUCKET_PROGRAM = REPOSITORY / "tests/wan/bucket.py"
LARGE_PACKETS = 9000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=REPOSITORY / "build/release/bin")
    commands = parser.add_subparsers(dest="command", required=True)
    log = commands.add_parser("log")
    log.add_argument("trace", type=pathlib.Path, help="directory of a checkpoint and sparse steps, by name in order")
    log.add_argument("--mbit", type=float, nargs="+", default=[100, 1000])
    log.add_argument("--round-trip", type=float, nargs="+", default=[40, 150], help="milliseconds")
    log.add_argument("--loss", type=float, default=0, help="percent of the packets on the reader's link")
    log.add_argument("--versions", type=int, default=8)
    star = commands.add_parser("star")
    star.add_argument("--congestion", nargs="+", default=["cubic", "bbr"])
    star.add_argument("--mib", type=int, default=16)
    star.add_argument("--round-trip", type=float, default=40, help="milliseconds")
    star.add_argument("--loss", type=float, default=0.1, help="percent")
    star.add_argument("--rounds", type=int, default=3)
    for name in ("dense", "appears"):  # On the hosts, by `log`.
        host = commands.add_parser(name)
        host.add_argument("endpoint")
        host.add_argument("path")
    rank = commands.add_parser("rank")  # On each host, by `star`.
    for name in ("host", "rank", "size", "congestion", "mib"):
        rank.add_argument(name)
    return parser.parse_args()


def run_dense(arguments):
    request = sign(arguments.endpoint, "GET", arguments.path)
    started = time.monotonic()
    with urllib.request.urlopen(request, timeout=600) as answer:
        size = len(answer.read())
    print(json.dumps({"bytes": size, "seconds": time.monotonic() - started}))


def run_appears(arguments):
    """Prints when the object is there."""
    while True:
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(sign(arguments.endpoint, "HEAD", arguments.path), timeout=60).close()
            print(json.dumps(time.time()))
            return
        time.sleep(0.005)


class Log:
    """One log behind one link: a trainer, a reader, and the dense object."""

    def __init__(self, arguments, network, environment, steps):
        self.sparsecast = arguments.bin / "sparsecast"
        self.network = network
        self.environment = environment
        self.bucket = environment["SPARSECAST_TEST_BUCKET"]
        self.steps = steps

    def run(self, host, *command, **more):
        done = subprocess.run(
            self.network.command(host, command), env=self.environment, capture_output=True, text=True, **more
        )
        if done.returncode != 0:
            sys.exit(f"wan.py: {' '.join(map(str, command))}: {done.stderr}")
        return json.loads(done.stdout)

    def measure(self, directory):
        """One row a version."""
        url = f"s3://{self.bucket}/log"
        endpoint = self.environment["AWS_ENDPOINT_URL_S3"]
        self.run(
            "trainer", self.sparsecast, "log", "init", url, self.steps[0], "--mirror", "mirror", "--json", cwd=directory
        )
        # The anchor's weights as an object of their own.
        put = [sys.executable, "-c", PUT, endpoint, f"/{self.bucket}/dense", self.steps[0]]
        self.run("trainer", *put)
        follow = [self.sparsecast, "log", "follow", url, directory / "reader", "--interval", "100ms", "--json"]
        reader = self.network.start("reader", follow, env=self.environment, stderr=subprocess.DEVNULL)
        try:
            reader.wait_for(lambda line: json.loads(line)["version"] == 0)
            return [self.version(directory, url, endpoint, reader, n) for n in range(1, len(self.steps))]
        finally:
            reader.end()

    def version(self, directory, url, endpoint, reader, n):
        publish = [self.sparsecast, "log", "publish", url, self.steps[n], "--mirror", "mirror", "--json"]
        commit = f"/{self.bucket}/log/commits/{n:010}"
        watch = self.network.start(
            "bucket", [sys.executable, __file__, "appears", endpoint, commit], env=self.environment
        )
        self.run("trainer", *publish, cwd=directory)
        began = json.loads(watch.wait_for(lambda line: True))
        watch.wait()
        report = json.loads(reader.wait_for(lambda line: json.loads(line)["version"] == n))
        dense = self.run("reader", sys.executable, __file__, "dense", endpoint, f"/{self.bucket}/dense")
        return {
            "bytes": report["bytes_read"],
            "lag_s": reader.heard - began,
            "apply_s": report["apply_seconds"],
            "dense_bytes": dense["bytes"],
            "dense_s": dense["seconds"],
        }


PUT = f"""
import sys
sys.path.insert(0, {str(REPOSITORY / "tests")!r})
from s3_server import sign, succeeds
print("true" if succeeds(sign(sys.argv[1], "PUT", sys.argv[2], open(sys.argv[3], "rb").read())) else "false")
"""


def run_log(arguments):
    steps = sorted(path.resolve() for path in arguments.trace.glob("*.safetensors"))[: arguments.versions + 1]
    if len(steps) < 2:
        sys.exit(f"{arguments.trace}: no trace of several steps")
    names = ["Mb/s", "RTT ms", "bytes", "of dense", "lag s", "apply s", "dense s", "dense/lag"]
    print("".join(f"{name:>12}" for name in names))
    for mbit in arguments.mbit:
        for round_trip in arguments.round_trip:
            links = {
                "bucket": Link(),
                "trainer": Link(),
                "reader": Link(mbit=mbit, delay_ms=round_trip / 2, loss_percent=arguments.loss),
            }
            with contextlib.ExitStack() as stack:
                network = stack.enter_context(Network(arguments.bin / "wide_area_link", links, mtu=LARGE_PACKETS))
                bucket = network.start("bucket", [sys.executable, BUCKET_PROGRAM, network.address("bucket")])
                stack.callback(bucket.end)
                environment = json.loads(bucket.wait_for(lambda line: line.startswith("{")))
                log = Log(arguments, network, {**os.environ, **environment}, steps)
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sparsecast_wan_"))
                found = log.measure(pathlib.Path(directory))
            middle = {key: statistics.median(row[key] for row in found) for key in found[0]}
            print(
                f"{mbit:>12g}{round_trip:>12g}{middle['bytes']:>12.0f}"
                f"{middle['dense_bytes'] / middle['bytes']:>11.1f}x{middle['lag_s']:>12.3f}{middle['apply_s']:>12.3f}"
                f"{middle['dense_s']:>12.3f}{middle['dense_s'] / middle['lag_s']:>12.1f}",
                flush=True,
            )


def run_rank(arguments):
    import sparsecast

    rank, size, mib = int(arguments.rank), int(arguments.size), int(arguments.mib)
    group = sparsecast.meet(
        arguments.host,
        29400,
        rank=rank,
        size=size,
        secret="of this benchmark alone",
        congestion=arguments.congestion,
        timeout=60,
    )
    group.all_gather(b"", 60)
    started = time.monotonic()
    group.broadcast(bytes(mib << 20) if rank == 0 else b"", 600)
    group.all_gather(b"", 600)
    if rank == 0:
        print(time.monotonic() - started)


def run_star(arguments):
    far = Link(mbit=1000, delay_ms=arguments.round_trip / 2, loss_percent=arguments.loss)
    links = {"hub": Link(mbit=1000), "near": Link(mbit=1000), "far1": far, "far2": far}
    print(f"{'round':>8}" + "".join(f"{name + ' s':>12}" for name in arguments.congestion))
    with Network(arguments.bin / "wide_area_link", links) as network:
        for n in range(arguments.rounds):
            seconds = []
            for congestion in arguments.congestion:
                place = [network.address("hub")]
                programs = [
                    network.start(
                        host,
                        [sys.executable, __file__, "rank", *place, rank, len(links), congestion, arguments.mib],
                        env=dict(os.environ),
                    )
                    for rank, host in enumerate(links)
                ]
                seconds.append(float(programs[0].wait_for(lambda line: True, 600)))
                for program in programs:
                    program.wait()
            print(f"{n + 1:>8}" + "".join(f"{s:>12.2f}" for s in seconds), flush=True)


def main():
    arguments = parse_arguments()
    {"log": run_log, "star": run_star, "dense": run_dense, "appears": run_appears, "rank": run_rank}[arguments.command](
        arguments
    )


if __name__ == "__main__":
    main()
