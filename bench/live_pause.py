# SPDX-License-Identifier: Apache-2.0
"""Measures the pause of a live vLLM server on this machine's CPUs, in parts, under load.

    python bench/live_pause.py [--steps 20] [--in-flight 8] [--layers 4]

Needs what python/tests/live needs (python/tests/requirements-live.txt) and the package on PYTHONPATH. Prints a table of
medians for each pause mode: the calls as the control plane sees them, and what the worker itself took for the apply and
its verification. The rest is HTTP, vLLM's own work, and the step in flight that each call waits for.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "tests" / "live"))

from live_load import Load
from live_model import make_model
from live_servers import LiveServer
from live_trainer import POLICY, Trainer

CALLS = ("pause", "apply", "finish", "flush", "resume")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp())
    model = make_model(work / "model", layers=options.layers)
    server = LiveServer(work, model).wait()
    trainer = Trainer(model)
    try:
        trainer.add(server)
        trainer.plane.sync_now()
        print("milliseconds, medians of", options.steps, "syncs;", options.in_flight, "requests in flight")
        print(f"{'mode':8} {'changed':>9} {'bytes':>9}", *(f"{name:>8}" for name in ("paused", *CALLS, "worker")))
        for pause in ("keep", "retract", "none"):
            rows = []
            load = Load([server], options.in_flight)
            with load.running():
                for _ in range(options.steps):
                    report = trainer.sync(replace(POLICY, pause=pause))
                    endpoint = report.endpoints[0]
                    seconds = [endpoint.pause_seconds, *(endpoint.calls.get(name, 0.0) for name in CALLS)]
                    seconds.append(server.states()[0]["pause_seconds"])
                    rows.append([report.source["changed"], report.source["sent_bytes"], *(1000 * s for s in seconds)])
            assert not load.failures, load.failures[:3]
            changed, sent, *times = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"{pause:8} {changed:9.0f} {sent:9.0f}", *(f"{value:8.2f}" for value in times), flush=True)
    finally:
        trainer.close()
        server.kill()


if __name__ == "__main__":
    main()
