# SPDX-License-Identifier: Apache-2.0
"""The command. It ends with 0 if the server was never torn, paused or dead where nobody had killed it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import checkpoints
from .backends import find
from .harness import FAULTS, Harness, Outcome, Settings


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sparsecast.testing.weight_transfer", description=__doc__)
    parser.add_argument("--backend", default="sparsecast", help="name of the weight-transfer backend at the server")
    parser.add_argument(
        "--start", default="", metavar="MODULE:FUNCTION", help="how a trainer begins, for other backends"
    )
    parser.add_argument("--model", type=Path, help="checkpoint in safetensors files; default: a small one, made here")
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), default=list(FAULTS), help="default: all")
    parser.add_argument("--flag", action="append", default=[], help="a further argument of vllm serve: --flag=--x")
    parser.add_argument("--patience", type=float, default=30, help="seconds until a silent server counts as paused")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that the waits of a trainer may take")
    parser.add_argument(
        "--pause", default="", metavar="MODE", help="pause generation around updates: keep, wait, abort"
    )
    parser.add_argument("--tolerance", type=float, default=0, help="by which equal log probabilities may differ")
    parser.add_argument("--work", type=Path, help="directory for checkpoints and logs; default: one that is deleted")
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser.parse_args()


def row(outcome: Outcome) -> str:
    """Returns one line of the table."""
    answered = "-" if outcome.answered is None else f"{outcome.answered:.1f} s"
    told = outcome.trainer.replace("\n", " ").replace("|", "/")[:110]
    return f"| {outcome.fault} | **{outcome.verdict}** | {outcome.named} | {answered} | {outcome.healed} | {told} |"


def _run(arguments: argparse.Namespace, work: Path) -> dict[str, Any]:
    import torch
    import vllm

    settings = Settings(
        backend=arguments.backend,
        start=arguments.start,
        flags=arguments.flag,
        patience=arguments.patience,
        timeout=arguments.timeout,
        tolerance=arguments.tolerance,
        pause=arguments.pause,
    )
    first = arguments.model or checkpoints.make_model(work / "first")
    harness = Harness(settings, first, checkpoints.change(first, work / "second"), work)
    result: dict[str, Any] = {
        "backend": arguments.backend,
        "note": find(arguments.backend, arguments.start).note,
        "pause": arguments.pause,
        "date": time.strftime("%Y-%m-%d"),
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, CUDA: {torch.cuda.is_available()}",
        "outcomes": [],
    }
    try:
        result["good_sync"] = harness.good_sync()
        print(json.dumps(result["good_sync"]), flush=True)
        print(
            "| fault | serves | names | answers after | healed by | the trainer was told |\n|---|---|---|---|---|---|"
        )
        for fault in arguments.faults:
            outcome = harness.attempt(fault)
            if outcome is not None:
                result["outcomes"].append(dataclasses.asdict(outcome))
                print(row(outcome), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    finally:
        harness.close()
    return result


def main() -> int:
    arguments = _arguments()
    try:
        find(arguments.backend, arguments.start)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.work:
        arguments.work.mkdir(parents=True, exist_ok=True)
        result = _run(arguments, arguments.work)
    else:
        with tempfile.TemporaryDirectory() as directory:
            result = _run(arguments, Path(directory))
    bad = [
        one for one in result["outcomes"] if one["verdict"] not in ("old", "new") and one["fault"] != "server killed"
    ]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
