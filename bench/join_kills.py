# SPDX-License-Identifier: Apache-2.0
"""Kills trainers at random moments while they join a live server, and counts what the server does.

    python bench/join_kills.py [--kind vllm] [--trials 200] [--lease 4] [--seed 1]

Needs what python/tests/live needs (python/tests/requirements-live.txt or -sglang.txt) and the package on PYTHONPATH; on a
machine without a GPU, for SGLang, python/tests/live/without_gpu there, too. Each trainer seeds the server anew
(needs_anchor), and dies by SIGKILL up to `--span` seconds after it has begun to. Prints how many servers answered, how
long after the lease and the kill they took, and of those that were left half-written, which stay paused by design, that
the next trainer repaired them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import random
import sys
import tempfile
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "tests" / "live"))

from live_load import PROMPTS
from live_model import make_model
from live_servers import LiveServer, with_release
from live_trainer import POLICY, Trainer, endpoint

import sparsecast


def join(model: str, port: int, kind: str, lease: float, said: Connection) -> None:
    trainer = Trainer(Path(model), replace(POLICY, pause="keep", pause_lease=lease))
    trainer.plane.add(endpoint(port, kind=kind), needs_anchor=True)
    said.send("joins")
    trainer.plane.sync_now()
    said.send("joined")
    time.sleep(3600)


def is_whole(server: LiveServer) -> bool:
    if server.kind == "vllm":
        return all(state["is_whole"] for state in server.states())
    answer = server.post("/weights_checker", {"action": 'sparsecast:{"phase": "status"}'}, 60)
    return bool(json.loads(answer["message"])["is_whole"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--lease", type=float, default=4)
    parser.add_argument("--span", type=float, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers", "sparsecast.torch", "sparsecast.control", "live_trainer"])
    work = Path(tempfile.mkdtemp())
    model = make_model(work / "model", layers=4)
    packages = (with_release(work / "installed", sparsecast.__version__),) if options.kind == "sglang" else ()
    server = LiveServer(work, model, kind=options.kind, packages=packages).wait()
    waits, torn, late, joined = [], 0, 0, 0
    try:
        for trial in range(options.trials):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=join, args=(str(model), server.port, options.kind, options.lease, theirs), daemon=True
            )
            process.start()
            theirs.close()
            assert ours.recv() == "joins"
            time.sleep(chance.uniform(0, options.span))
            process.kill()
            process.join()
            killed = time.monotonic()
            with contextlib.suppress(EOFError):  # It had said no more.
                joined += ours.recv() == "joined"
            try:
                server.complete(PROMPTS[0], 2, options.lease + 12)
                waits.append(time.monotonic() - killed)
                late += waits[-1] > options.lease + 2
            except Exception as error:
                if is_whole(server):
                    raise RuntimeError(f"trial {trial}: whole weights, and it does not serve: {error}") from error
                torn += 1
            print(f"{trial + 1} trials: {len(waits)} served, {late} late, {torn} half-written", flush=True)
        print(f"{options.kind}: {options.trials} kills within {options.span} s of the join ({joined} had joined)")
        print(f"served on: {len(waits)}, of which later than lease + 2 s: {late}; longest {max(waits):.1f} s")
        print(f"half-written, paused until the next trainer, which seeded them: {torn}")
        fresh = Trainer(model)
        fresh.add(server, needs_anchor=True)
        assert fresh.plane.sync_now().result == "ok"
        fresh.close()
        server.complete(PROMPTS[0])
    finally:
        server.kill()


if __name__ == "__main__":
    main()
