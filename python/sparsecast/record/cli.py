# SPDX-License-Identifier: Apache-2.0
"""The command ``sparsecast-record`` (also ``sparsecast record``): analyses traces, and makes real ones."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from ..errors import Error, IoError, UsageError

_EXIT_USAGE, _EXIT_BAD_INPUT, _EXIT_IO = 2, 3, 4  # As of the command sparsecast.


def main(arguments: list[str] | None = None) -> int:
    """Runs the command with these arguments (None: the arguments of the process). Returns the exit code: 0 for success,
    2 for wrong use, 3 for bad input, 4 for an error of the operating system.
    """
    options = _parser().parse_args(arguments)
    try:
        return _report(options) if options.command == "report" else _train(options)
    except Error as error:
        print(f"sparsecast-record: {error} [{error.code}]", file=sys.stderr)
        return (
            _EXIT_USAGE
            if isinstance(error, UsageError)
            else _EXIT_IO
            if isinstance(error, IoError)
            else _EXIT_BAD_INPUT
        )
    except OSError as error:
        print(f"sparsecast-record: {error} [io]", file=sys.stderr)
        return _EXIT_IO


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("sparsecast-record", description="Traces of training: what changes, step by step.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    report = commands.add_parser("report", help="analyse traces: density, ulps, exponents, recurrence, clusters, bytes")
    report.add_argument("directories", nargs="+", metavar="DIR", help="a directory with step_NNNNNN.safetensors")
    report.add_argument("--json", action="store_true", help="one JSON object (of several DIRs: a list) on stdout")
    report.add_argument("--plot", metavar="FILE", help="also draw a picture (.png, .svg; needs matplotlib)")
    report.add_argument("--no-encode", action="store_true", help="leave out what sparsecast's encoder makes of it")
    train = commands.add_parser(
        "train",
        help="pretrain a small model on Python's documentation strings, fine-tune it, and record that",
    )
    train.add_argument("-o", "--output", required=True, type=pathlib.Path, metavar="DIR", help="gets a trace a rate")
    train.add_argument("--learning-rate", nargs="+", type=float, default=[1e-6, 3e-6, 1e-5], metavar="RATE")
    train.add_argument(
        "--optimizer", choices=("adamw", "muon", "sgd"), default="adamw", help="of the fine-tuning (adamw)"
    )
    train.add_argument("--steps", type=int, default=30, help="recorded steps of each rate (30)")
    train.add_argument("--skip", type=int, default=12, help="fine-tuning steps before the anchor (12)")
    train.add_argument("--pretrain-steps", type=int, default=1200, help="0: DIR/pretrained.safetensors must be there")
    train.add_argument("--from-rounded", action="store_true", help="masters begin as the bf16 weights, not as fp32")
    train.add_argument("--batch", type=int, default=16, help="sequences a step (16)")
    train.add_argument("--width", type=int, default=256, help="of the model (256: 2.5 million parameters)")
    train.add_argument("--layers", type=int, default=3)
    train.add_argument("--seed", type=int, default=0)
    return parser


def _report(options: argparse.Namespace) -> int:
    from .report import analyse, as_text

    reports = [analyse(directory, encode=not options.no_encode) for directory in options.directories]
    if options.plot:
        from .plot import draw

        draw(reports, options.plot)
    if options.json:
        print(json.dumps(reports if len(reports) > 1 else reports[0]))
    else:
        print("\n".join(as_text(report) for report in reports), end="")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _train(options: argparse.Namespace) -> int:
    if options.steps < 1 or options.skip < 0 or options.pretrain_steps < 0 or min(options.learning_rate) <= 0:
        raise UsageError("steps and rates are positive, skip and pretrain-steps not negative")
    from .training import FineTuning, Size, fine_tune, pretrained

    size = Size(width=options.width, layers=options.layers)
    options.output.mkdir(parents=True, exist_ok=True)
    model = pretrained(
        options.output / "pretrained.safetensors", size, options.pretrain_steps, seed=options.seed, say=_say
    )
    for rate in options.learning_rate:
        named = "" if options.optimizer == "adamw" else f"{options.optimizer}-"
        directory = options.output / f"{named}lr{rate:g}{'-rounded' if options.from_rounded else ''}"
        run = FineTuning(
            rate,
            options.steps,
            options.skip,
            options.batch,
            seed=options.seed + 1,
            from_rounded=options.from_rounded,
            optimizer=options.optimizer,
        )
        fine_tune(model, size, run, directory, say=_say)
        print(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
