# SPDX-License-Identifier: Apache-2.0
"""What this example has in common with trl_bucket: the checkpoint, TRL's trainer, and its arguments."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import torch
from task import demonstrate, is_sorted, prompts, tokenizer, untrained
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

QUESTIONS = [f"{digits}>" for digits in ("592013", "000000", "987654", "112233", "407218")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of the model, of TRL, and of what is written at the end."""
    parser.add_argument("--steps", type=int, default=100, help="of GRPO (default: 100)")
    parser.add_argument("--supervised-steps", type=int, default=250, help="of the supervised phase (default: 250)")
    parser.add_argument("--prompts", type=int, default=16, help="a step (default: 16)")
    parser.add_argument("--group", type=int, default=8, help="answers to each prompt (default: 8)")
    parser.add_argument("--lr", type=float, default=1e-5, help="of GRPO (default: 1e-5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", metavar="FILE", help="draw the table; .svg or .png (needs matplotlib)")
    parser.add_argument("--json", metavar="FILE", help="write the table")


def begin(seed: int) -> None:
    """Makes runs alike: one thread of torch, the seed, no progress bars in the output."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(seed)


def write_table(rows: Sequence[Any], path: str) -> None:
    """Writes rows, which are dataclasses, as JSON."""
    pathlib.Path(path).write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")


def make_model(directory: pathlib.Path, supervised_steps: int, seed: int) -> None:
    """Writes the checkpoint that trainer and servers start from, in bf16."""
    words = tokenizer()
    model = untrained(words)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    demonstrate(model, words, supervised_steps, seed)
    model.to(torch.bfloat16).save_pretrained(directory)
    words.save_pretrained(directory)


def grpo_trainer(
    start: pathlib.Path, output: pathlib.Path, url: str, args: argparse.Namespace, *callbacks: TrainerCallback
) -> GRPOTrainer:
    """Returns TRL's trainer, which generates at the server `url`."""
    trainer = GRPOTrainer(
        model=str(start),
        reward_funcs=is_sorted,
        train_dataset=prompts(4096, args.seed),
        callbacks=list(callbacks),
        args=GRPOConfig(
            output_dir=str(output),
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
    return trainer


def save(trainer: GRPOTrainer, directory: pathlib.Path) -> None:
    """Writes the trainer's weights as the checkpoint that a fresh server loads."""
    trainer.model.to(torch.bfloat16).save_pretrained(directory)
    trainer.processing_class.save_pretrained(directory)
