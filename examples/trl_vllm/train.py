# SPDX-License-Identifier: Apache-2.0
"""TRL's GRPOTrainer, a live vLLM server on the CPU, and only the weights that changed between them.

    python train.py --plot run.png

The program makes a small model, starts `vllm serve` on it, trains with TRL, and compares the server with a fresh one on
the checkpoint that it saved.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import tempfile
import time

from common import QUESTIONS, add_arguments, begin, grpo_trainer, make_model, save, write_table
from report import HEADER, Row, plot
from server import probe, serving
from transformers import TrainerCallback

import sparsecast.integrations.trl
from sparsecast.control import SyncReport


class Table(TrainerCallback):
    """Prints a row for every sync, once the reward of what was sampled with it is known."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._waiting: Row | None = None

    def on_report(self, report: SyncReport) -> None:
        """Called by sparsecast after every sync."""
        if report.result == "ok":
            self._print(None)
            self._waiting = Row.of(len(self.rows), report.to_dict())

    def on_log(self, args: object, state: object, control: object, logs: dict[str, float], **others: object) -> None:
        """Called by TRL after every step."""
        if "reward" in logs:
            self._print(logs["reward"])

    def end(self) -> None:
        """Prints the last row, with which nothing was sampled."""
        self._print(None)

    def _print(self, reward: float | None) -> None:
        if self._waiting is not None:
            self.rows.append(dataclasses.replace(self._waiting, reward=reward))
            self._waiting = None
            print(self.rows[-1], flush=True)


def train(start: pathlib.Path, saved: pathlib.Path, url: str, args: argparse.Namespace) -> list[Row]:
    """The RL run; the checkpoint at its end goes to `saved`."""
    table = Table()
    with sparsecast.integrations.trl.enable(on_report=table.on_report):  # the whole difference to plain TRL
        trainer = grpo_trainer(start, saved.parent / "trl", url, args, table)
        print(HEADER)
        trainer.train()
        trainer.vllm_generation.sync_weights()  # the last step's, too
        table.end()
        trainer.vllm_generation.vllm_client.close_communicator()
    save(trainer, saved)
    return table.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--port", type=int, default=8000, help="of the server; ranks meet at the next (default: 8000)")
    args = parser.parse_args()
    begin(args.seed)
    with tempfile.TemporaryDirectory(prefix="sparsecast-trl-") as directory:
        work = pathlib.Path(directory)
        start, saved = work / "start", work / "saved"
        make_model(start, args.supervised_steps, args.seed)
        with serving(start, args.port, work / "server.log") as url:
            print(f"vLLM serves at {url}", flush=True)
            began = time.monotonic()
            rows = train(start, saved, url, args)
            print(f"{args.steps} steps in {time.monotonic() - began:.0f} s", flush=True)
            updated = probe(url, QUESTIONS)
        with serving(saved, args.port, work / "fresh.log") as url:
            fresh = probe(url, QUESTIONS)
    if args.json:
        write_table(rows, args.json)
    if args.plot:
        plot(rows, args.plot)
    if updated != fresh:
        raise SystemExit("the server that was updated answers otherwise than a fresh one on the saved checkpoint")
    print(f"the logprobs of {len(QUESTIONS)} prompts are those of a fresh server on the saved checkpoint")


if __name__ == "__main__":
    main()
