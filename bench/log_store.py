#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a delta log on an object store costs, end to end: a recorded trace published to a bucket, and followers.

For each of --positions a log of its own: its first version with an anchor, then each step of the trace by `sparsecast
log publish` with a mirror (and so merged deltas), and after each of them one `sparsecast log pull` a follower, all at
the same time. The server is SeaweedFS on this machine (tests/s3_server.py). In the end the checkpoints of publisher and
followers must have one digest, and `sparsecast log verify` must find nothing wrong. Bytes are those of the objects, and
what followers read, records included; the anchor is counted apart. Seconds are sums over the versions, of whole
commands with their start.

  bench/log_store.py TRACE [--command build/release/bin/sparsecast] [--positions packed,auto] [--followers 2]
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests"))

from s3_server import S3Server  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path, help="directory of a checkpoint and sparse steps, by name in order")
    parser.add_argument("--command", default=str(REPOSITORY / "build/release/bin/sparsecast"))
    parser.add_argument("--positions", default="packed,auto", help="one log each, comma-separated")
    parser.add_argument("--followers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.steps = sorted(arguments.trace.glob("*.safetensors"))
    if len(arguments.steps) < 2:
        parser.error(f"{arguments.trace}: no trace of several steps")
    return arguments


class Command:
    """The program in a directory of its own, with the server's variables."""

    def __init__(self, program, directory, variables):
        self.program = str(pathlib.Path(program).resolve())
        self.directory = directory
        self.environment = {**os.environ, **variables}

    def __call__(self, *arguments):
        """The JSON of one command, and its seconds; an error ends the program."""
        started = time.monotonic()
        done = subprocess.run(
            [self.program, *map(str, arguments), "--json"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"log_store.py: {' '.join(map(str, arguments))}: {done.stderr}")
        return json.loads(done.stdout), time.monotonic() - started


def run_log(run, url, steps, positions, followers):
    """One row of results."""
    row = {"positions": positions, "publish_s": 0.0, "pull_s": 0.0, "follower_bytes": 0}
    run("log", "init", url, steps[0], "--mirror", "mirror")
    engines = [f"engine-{n}" for n in range(followers)]

    def pull(engine):
        return run("log", "pull", url, engine, "--lease", engine)

    with concurrent.futures.ThreadPoolExecutor(followers) as pool:
        row["first_bytes"] = max(report["bytes_read"] for report, _ in pool.map(pull, engines))
        for step in steps[1:]:
            row["publish_s"] += run("log", "publish", url, step, "--mirror", "mirror", "--positions", positions)[1]
            pulls = list(pool.map(pull, engines))
            row["follower_bytes"] += max(report["bytes_read"] for report, _ in pulls)
            row["pull_s"] += sum(seconds for _, seconds in pulls) / followers
    status, _ = run("log", "status", url)
    row["stored"] = status
    digests = {run("digest", name)[0]["digest"] for name in ["mirror", *engines]}
    if digests != {status["digest"]}:
        sys.exit(f"log_store.py: digests differ: {digests} and {status['digest']}")
    run("log", "verify", url)
    return row


def main():
    arguments = parse_arguments()
    rows = []
    with S3Server() as server:
        bucket = server.environment["SPARSECAST_TEST_BUCKET"]
        for positions in arguments.positions.split(","):
            with tempfile.TemporaryDirectory(prefix="sparsecast_log_store_") as directory:
                run = Command(arguments.command, directory, server.environment)
                steps = [step.resolve() for step in arguments.steps]
                rows.append(run_log(run, f"s3://{bucket}/{positions}", steps, positions, arguments.followers))
    kinds = ("deltas", "merged", "anchors", "records")
    names = [*kinds, "first pull", "a follower", "publish s", "pull s"]
    print(f"{'positions':<10}" + "".join(f"{name:>12}" for name in names))
    for row in rows:
        sizes = [*(row["stored"][kind]["bytes"] for kind in kinds), row["first_bytes"], row["follower_bytes"]]
        print(
            f"{row['positions']:<10}"
            + "".join(f"{size:>12}" for size in sizes)
            + f"{row['publish_s']:>12.2f}{row['pull_s']:>12.2f}"
        )


if __name__ == "__main__":
    main()
