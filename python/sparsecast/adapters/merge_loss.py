# SPDX-License-Identifier: Apache-2.0
"""What merging an adapter into the base weights would lose: bf16 has 8 bits for the sum of a weight and a small change.

python -m sparsecast.adapters.merge_loss BASE ADAPTER [--since EARLIER] [--json]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ..errors import Error, UsageError
from .adapter import Adapter

_ROWS_OF_ELEMENTS = 1 << 24  # Number of elements that are in fp32 at one time.


@dataclass
class MergeLoss:
    """Figures of one module, or of all modules. "delta" is ``scale * B @ A``, and "applied" what the merge adds to the
    base. If an earlier version of the adapter is given, "delta" is the later delta minus the earlier one, and
    "applied" the later merge minus the earlier one.
    """

    module: str
    elements: int = 0
    moving: int = 0  #: Elements whose delta is not 0.
    lost: int = 0  #: Moving elements whose merged value is the value before.
    delta_squares: float = 0.0  #: Sum of the squares of delta.
    error_squares: float = 0.0  #: Sum of the squares of (applied - delta).

    @property
    def lost_share(self) -> float:
        """Share, from 0 to 1, of the moving elements whose value the merge does not change."""
        return self.lost / self.moving if self.moving else 0.0

    @property
    def relative_error(self) -> float:
        """Norm of (applied - delta) over the norm of delta; 0 if delta is 0."""
        return float((self.error_squares / self.delta_squares) ** 0.5) if self.delta_squares else 0.0

    def add(self, other: MergeLoss) -> None:
        """Adds the figures of ``other``, which are of another module, to this object."""
        self.elements += other.elements
        self.moving += other.moving
        self.lost += other.lost
        self.delta_squares += other.delta_squares
        self.error_squares += other.error_squares

    def to_json(self) -> dict[str, str | int | float]:
        """Returns the figures as JSON values: the counts, the lost share and the relative error, without the sums of
        squares.
        """
        return {
            "module": self.module,
            "elements": self.elements,
            "moving": self.moving,
            "lost": self.lost,
            "lost_share": self.lost_share,
            "relative_error": self.relative_error,
        }


def merge_loss(
    adapter: Adapter, base: Iterable[tuple[str, torch.Tensor]], *, since: Adapter | None = None
) -> list[MergeLoss]:
    """Returns the figures of every module of the adapter, followed by their sum as module "".

    ``base`` yields (name, tensor) of the base model: weights ``[out, in]`` of a floating dtype, usually bf16, and other
    tensors, which are passed over. A merge is ``(W + scale * B @ A)`` of the original base, summed in fp32 and cast to
    the dtype of W. ``since`` is an earlier version of the adapter (:class:`MergeLoss`). Nothing is written. Raises
    UsageError for a module without a weight, for a weight of another shape, and if ``since`` has other modules.
    """
    modules = adapter.spec().pairs()
    if since is not None and since.spec().pairs().keys() != modules.keys():
        raise UsageError("the two versions have different modules", f"adapter '{adapter.name}'")
    figures: list[MergeLoss] = []
    total = MergeLoss("")
    for name, weight in base:
        module = name.removesuffix(".weight")
        if module == name or module not in modules:
            continue
        a, b = modules.pop(module)
        if tuple(weight.shape) != (b[0], a[1]) or not weight.is_floating_point():
            words = f"B @ A is {[b[0], a[1]]}, and the base has {weight.dtype} {list(weight.shape)}"
            raise UsageError(words, f"adapter '{adapter.name}', module '{module}'")
        figures.append(_of_module(module, weight.detach(), adapter, since))
        total.add(figures[-1])
    if modules:
        raise UsageError("the base has no weight of it", f"adapter '{adapter.name}', module '{next(iter(modules))}'")
    return [*figures, total]


def _of_module(module: str, weight: torch.Tensor, adapter: Adapter, since: Adapter | None) -> MergeLoss:
    found = MergeLoss(module, elements=weight.numel())
    rows = max(1, _ROWS_OF_ELEMENTS // max(1, weight.shape[1]))
    for begin in range(0, weight.shape[0], rows):
        part = slice(begin, begin + rows)
        base = weight[part]
        whole = base.float()
        delta = _delta(adapter, module, part)
        merged = (whole + delta).to(base.dtype)
        before = base
        if since is not None:
            earlier = _delta(since, module, part)
            before = (whole + earlier).to(base.dtype)
            delta = delta - earlier
        moving = delta != 0
        found.moving += int(moving.sum())
        found.lost += int((moving & (merged == before)).sum())
        error = merged.double() - before.double() - delta.double()
        found.delta_squares += float(delta.double().square().sum())
        found.error_squares += float(error.square().sum())
    return found


def _delta(adapter: Adapter, module: str, rows: slice) -> torch.Tensor:
    prefix = f"base_model.model.{module}.lora_"
    a, b = adapter.tensors[f"{prefix}A.weight"], adapter.tensors[f"{prefix}B.weight"]
    return (b.detach()[rows].float() @ a.detach().float()) * adapter.spec().scale(module)


def _weights(directory: pathlib.Path) -> Iterator[tuple[str, torch.Tensor]]:
    from safetensors import safe_open

    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise UsageError("there are no safetensors files", str(directory))
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # It is no dict.
                yield name, opened.get_tensor(name)


def main(arguments: list[str] | None = None) -> int:
    """Prints the figures for a base model and an adapter in directories. Returns 0, or 2 after an error, which is
    printed.
    """
    parser = argparse.ArgumentParser("python -m sparsecast.adapters.merge_loss", description=__doc__.split("\n")[0])
    parser.add_argument("base", type=pathlib.Path, help="directory of the base model's safetensors files")
    parser.add_argument("adapter", type=pathlib.Path, help="directory of the adapter, as PEFT saves it")
    parser.add_argument("--since", type=pathlib.Path, help="an earlier version: the loss of the step from it")
    parser.add_argument("--json", action="store_true", help="one JSON object a module, the sum last")
    chosen = parser.parse_args(arguments)
    try:
        since = Adapter.from_directory(chosen.since) if chosen.since else None
        figures = merge_loss(Adapter.from_directory(chosen.adapter), _weights(chosen.base), since=since)
    except Error as error:
        print(f"{parser.prog}: {error} [{error.code}]", file=sys.stderr)
        return 2
    if not chosen.json:
        print(f"{'elements':>12} {'lost':>8} {'rel. error':>10}  module")
    for each in figures:
        if chosen.json:
            print(json.dumps(each.to_json()))
        else:
            module = each.module or "all"
            print(f"{each.elements:>12} {each.lost_share:>8.2%} {each.relative_error:>10.3g}  {module}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
