# SPDX-License-Identifier: Apache-2.0
"""TRL's GRPOTrainer, a live vLLM server on the CPU, and only the weights that changed between them.

    python train.py --plot run.png

The program makes a small model, starts `vllm serve` on it, trains with TRL, and compares the server with a fresh one on
the checkpoint that it saved.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import tempfile
import time

import torch
from report import HEADER, Row, plot
from server import probe, serving
from task import demonstrate, is_sorted, prompts, tokenizer, untrained
from transformers import PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

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


def make_model(directory: pathlib.Path, args: argparse.Namespace) -> PreTrainedTokenizerFast:
    """Writes the checkpoint that trainer and server start from, in bf16."""
    words = tokenizer()
    model = untrained(words)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    demonstrate(model, words, args.supervised_steps, args.seed)
    model.to(torch.bfloat16).save_pretrained(directory)
    words.save_pretrained(directory)
    return words


def train(start: pathlib.Path, saved: pathlib.Path, url: str, args: argparse.Namespace) -> list[Row]:
    """The RL run; the checkpoint at its end goes to `saved`."""
    table = Table()
    with sparsecast.integrations.trl.enable(on_report=table.on_report):  # the whole difference to plain TRL
        trainer = GRPOTrainer(
            model=str(start),
            reward_funcs=is_sorted,
            train_dataset=prompts(4096, args.seed),
            callbacks=[table],
            args=GRPOConfig(
                output_dir=str(saved.parent / "trl"),
                use_vllm=True,
                vllm_mode="server",
                vllm_server_base_url=url,
                vllm_group_port=args.port + 1,
                model_init_kwargs={"dtype": "float32"},
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                per_device_train_batch_size=args.prompts * args.group,
                num_generations=args.group,
                max_completion_length=8,
                max_steps=args.steps,
                learning_rate=args.lr,
                lr_scheduler_type="constant",
                beta=0.0,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                log_completions=False,
                seed=args.seed,
            ),
        )
        trainer.remove_callback(PrinterCallback)
        print(HEADER)
        trainer.train()
        trainer.vllm_generation.sync_weights()  # the last step's, too
        table.end()
        trainer.vllm_generation.vllm_client.close_communicator()
    trainer.model.to(torch.bfloat16).save_pretrained(saved)
    trainer.processing_class.save_pretrained(saved)
    return table.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="of GRPO (default: 100)")
    parser.add_argument("--supervised-steps", type=int, default=250, help="of the supervised phase (default: 250)")
    parser.add_argument("--prompts", type=int, default=16, help="a step (default: 16)")
    parser.add_argument("--group", type=int, default=8, help="answers to each prompt (default: 8)")
    parser.add_argument("--lr", type=float, default=1e-5, help="of GRPO (default: 1e-5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=8000, help="of the server; ranks meet at the next (default: 8000)")
    parser.add_argument("--plot", metavar="FILE", help="draw the table; .svg or .png (needs matplotlib)")
    parser.add_argument("--json", metavar="FILE", help="write the table")
    args = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    questions = [f"{digits}>" for digits in ("592013", "000000", "987654", "112233", "407218")]
    with tempfile.TemporaryDirectory(prefix="sparsecast-trl-") as directory:
        work = pathlib.Path(directory)
        start, saved = work / "start", work / "saved"
        make_model(start, args)
        with serving(start, args.port, work / "server.log") as url:
            print(f"vLLM serves at {url}", flush=True)
            began = time.monotonic()
            rows = train(start, saved, url, args)
            print(f"{args.steps} steps in {time.monotonic() - began:.0f} s", flush=True)
            updated = probe(url, questions)
        with serving(saved, args.port, work / "fresh.log") as url:
            fresh = probe(url, questions)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    if args.plot:
        plot(rows, args.plot)
    if updated != fresh:
        raise SystemExit("the server that was updated answers otherwise than a fresh one on the saved checkpoint")
    print(f"the logprobs of {len(questions)} prompts are those of a fresh server on the saved checkpoint")


if __name__ == "__main__":
    main()
