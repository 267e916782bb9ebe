#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a recorded bf16 run would send if its engine held 8 or 4 bits: densities and bytes a step, format by format.

    PYTHONPATH=build/release/python .venv/bin/python3 bench/low_bits.py TRACE...

A trace is a directory that sparsecast.record has written. Its matrices, but for --skip, are quantised at every version
(sparsecast.transforms), and the results are published by today's codec. Prints a Markdown table for each trace; figures
are means over the steps:

  elements, bytes, scales   shares that differ from the version before: of the codes, of the bytes that hold them (two
                            codes of 4 bits share one), and of the scales; global scales are counted as scales
  changes                   codes that differ
  packed, auto              bytes of a delta with these positions and the value codec that is best for the format
  empty                     bytes of a delta in which nothing changed
  entropy                   bytes of an ideal code of elements and scales, one by one: positions that are independent of
                            each other, and differences of codes, whose frequencies it knows
  of bf16                   `auto` beside that of the bf16 matrices
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from sparsecast import TensorTable
from sparsecast._core import Publisher
from sparsecast.buffers import PAIRS, describe, dtype_name
from sparsecast.record.bits import FLOATS, ulp_steps
from sparsecast.record.trace import Trace
from sparsecast.transforms import (
    FP8_CHANNELS,
    KEPT_BY_DEFAULT,
    MXFP4,
    MXFP8,
    NVFP4,
    QuantFormat,
    Quantize,
    Transforms,
    fp8_blocks,
    int4_groups,
)
from sparsecast.transforms.step import matches_any


@dataclasses.dataclass(frozen=True)
class Case:
    """A format, and what is done to it; bf16 without one."""

    fmt: QuantFormat | None = None
    keeps_global_scale: bool = False
    moves_greatest: bool = False  #: The greatest weight of every matrix moves by one bf16 ulp at each step.
    #: What the codec sees of 4-bit codes. "pairs": I4X2 or F4X2. "bytes": U8. "words": I32. "codes": each as a byte.
    sends: str = "pairs"


CASES = {
    "bf16": Case(),
    "fp8 blocks": Case(fp8_blocks()),
    "fp8 blocks, UE8M0": Case(fp8_blocks(rounding="power_up")),
    "fp8 channels": Case(FP8_CHANNELS),
    "MXFP8": Case(MXFP8),
    "MXFP4": Case(MXFP4),
    "NVFP4, global scale kept": Case(NVFP4, keeps_global_scale=True),
    "NVFP4, global scale anew": Case(NVFP4),
    "NVFP4, kept, greatest moves": Case(NVFP4, keeps_global_scale=True, moves_greatest=True),
    "NVFP4, anew, greatest moves": Case(NVFP4, moves_greatest=True),
    "int4, groups of 64": Case(int4_groups(64)),
    "int4, groups of 32": Case(int4_groups(32)),
    "MXFP4, as U8": Case(MXFP4, sends="bytes"),
    "NVFP4, global scale kept, as U8": Case(NVFP4, keeps_global_scale=True, sends="bytes"),
    "NVFP4, anew, greatest moves, as U8": Case(NVFP4, moves_greatest=True, sends="bytes"),
    "int4, groups of 64, as I32": Case(int4_groups(64), sends="words"),
    "int4, groups of 32, as I32": Case(int4_groups(32), sends="words"),
    "int4, groups of 32, as U8": Case(int4_groups(32), sends="bytes"),
    "MXFP4, a byte a code": Case(MXFP4, sends="codes"),
    "NVFP4, anew, greatest moves, a byte a code": Case(NVFP4, moves_greatest=True, sends="codes"),
    "int4, groups of 32, a byte a code": Case(int4_groups(32), sends="codes"),
}
CODECS = {
    (name, values): {"positions": positions, "values": values, **more}
    for name, positions, more in (("packed", "packed", {}), ("auto", "auto", {"objective": "size"}))
    for values in ("ulp", "xor", "raw")
}


def codes_of(tensor: torch.Tensor, element: str | None) -> np.ndarray:
    """The codes of a tensor, one by one: nibbles of 4-bit elements; else the elements' bits."""
    flat = tensor.reshape(-1)
    if element in ("E2M1", "INT4"):
        both = flat.view(torch.uint8).numpy()
        return np.stack([both & 15, both >> 4], axis=-1).reshape(-1)
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]).numpy()


def differences(old: np.ndarray, new: np.ndarray, dtype: str, element: str | None) -> np.ndarray:
    """How far codes moved, in the order of the numbers that they mean."""
    if element == "E2M1":
        ranks = [np.where(bits & 8, -(bits & 7).astype(np.int64), bits & 7) for bits in (old, new)]
        return ranks[1] - ranks[0]
    if dtype in FLOATS and element != "INT4":
        width = f"u{old.itemsize}"
        return ulp_steps(old.view(width), new.view(width), dtype)
    return new.astype(np.int64) - old.astype(np.int64)


class Figures:
    """Sums over the steps of one format."""

    def __init__(self) -> None:
        self.changed: collections.Counter[str] = collections.Counter()
        self.total: collections.Counter[str] = collections.Counter()
        self.moves: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        self.position_bits = 0.0
        self.sent: collections.Counter[tuple[str, str]] = collections.Counter()
        self.empty = 0
        self.steps = 0

    def share(self, what: str) -> float:
        return 100 * self.changed[what] / self.total[what] if self.total[what] else 0.0

    def least(self, positions: str) -> tuple[float, str]:
        bytes_of = {values: self.sent[name, values] / self.steps for name, values in CODECS if name == positions}
        values = min(bytes_of, key=bytes_of.__getitem__)
        return bytes_of[values], values

    def entropy_bytes(self) -> float:
        bits = self.position_bits
        for moves in self.moves.values():
            counts = np.array(list(moves.values()), dtype=np.float64)
            bits -= float((counts * np.log2(counts / counts.sum())).sum())
        return bits / 8 / self.steps


def kind_of(name: str, base: str, fmt: QuantFormat | None) -> str:
    return "elements" if fmt is None or name == base + fmt.elements_suffix else "scales"


class Held:
    """What an engine of one format holds, and the publishers that would send it, one a codec."""

    def __init__(self, case: Case, first: dict[str, torch.Tensor]) -> None:
        self.case, self.fmt, self.figures, self.versions = case, case.fmt, Figures(), 0
        fmt = case.fmt
        self.table = [(name, dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in first.items()]
        self.transforms: Transforms | None = None
        if fmt is not None:
            kept = None
            if case.keeps_global_scale:
                made = Transforms([Quantize(fmt, skip=())], self.table)
                kept = {name: float(made(name, tensor)[2][1]) for name, tensor in first.items()}
            self.transforms = Transforms([Quantize(fmt, skip=(), global_scales=kept)], self.table)
        self.results = list(self._run(first))
        self.codes: dict[str, np.ndarray] = {}
        sent = [(name, self._sent(base, name, tensor)) for base, name, tensor in self.results]
        table = TensorTable([(name, self._dtype(name, t), t.shape) for name, t in sent])
        self.publishers = {
            codec: Publisher(table, [describe(t) for _, t in sent], **options) for codec, options in CODECS.items()
        }
        self._publish(collections.Counter())
        self.before = [tensor.clone() for _, _, tensor in self.results]

    def _run(self, weights: dict[str, torch.Tensor]) -> Iterator[tuple[str, str, torch.Tensor]]:
        up = self.versions % 2
        self.versions += 1
        for name, weight in weights.items():
            if self.case.moves_greatest:
                weight = weight.clone()
                weight.view(torch.int16).view(-1)[weight.abs().argmax()] += up
            if self.transforms is None:
                yield name, name, weight
            else:
                for out, tensor, _ in self.transforms(name, weight):
                    yield name, out, tensor

    def _sent(self, base: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What the codec sees of a tensor: its own memory, or codes that step() keeps up to date."""
        if self.case.sends in ("pairs", "bytes") or kind_of(name, base, self.fmt) != "elements":
            return tensor
        if self.case.sends == "words":
            return tensor.view(torch.int32)
        assert self.fmt is not None
        self.codes[name] = codes_of(tensor, self.fmt.element)
        return torch.from_numpy(self.codes[name])

    def _dtype(self, name: str, tensor: torch.Tensor) -> str:
        """The dtype with which a tensor is sent: pairs as such where the case has it so."""
        of_results = {spec.name: spec.dtype for spec in self.transforms.specs} if self.transforms is not None else {}
        dtype = of_results.get(name, "")
        return dtype if dtype in PAIRS and self.case.sends == "pairs" else dtype_name(tensor.dtype)

    def step(self, weights: dict[str, torch.Tensor]) -> None:
        figures = self.figures
        found: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
        for (base, name, tensor), before in zip(self._run(weights), self.before, strict=True):
            kind = kind_of(name, base, self.fmt)
            element = self.fmt.element if self.fmt is not None and kind == "elements" else None
            old, new = codes_of(before, element), codes_of(tensor, element)
            moved = old != new
            if name in self.codes:
                np.copyto(self.codes[name], new)
            found[kind][0] += int(moved.sum())
            found[kind][1] += len(new)
            steps = differences(old[moved], new[moved], dtype_name(tensor.dtype), element)
            figures.moves[kind].update(
                dict(zip(*(a.tolist() for a in np.unique(steps, return_counts=True)), strict=True))
            )
            if kind == "elements":
                same = before.reshape(-1).view(torch.uint8) == tensor.reshape(-1).view(torch.uint8)
                figures.changed["bytes"] += int((~same).sum())
                figures.total["bytes"] += same.numel()
            before.copy_(tensor)
        for kind, (changed, total) in found.items():
            figures.changed[kind] += changed
            figures.total[kind] += total
            share = changed / total
            if 0 < share < 1:
                figures.position_bits -= total * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
        self._publish(figures.sent)
        figures.steps += 1

    def _publish(self, sent: collections.Counter[tuple[str, str]]) -> None:
        for codec, publisher in self.publishers.items():
            delta = publisher.publish()
            sent[codec] += delta.wire_bytes
            publisher.commit(delta.version)
            self.figures.empty = self.figures.empty or delta.wire_bytes


def measure(directory: str, skip: Sequence[str]) -> dict[str, Figures]:
    trace = Trace(directory)
    held: dict[str, Held] = {}
    for version in trace:
        names = [n for n, bits in version.weights.items() if bits.ndim == 2 and not matches_any(n, skip)]
        weights = {name: version.torch_tensor(name) for name in names}
        if not held:
            if not weights:
                sys.exit(f"low_bits.py: {directory}: no matrix is left to quantise")
            elements = sum(tensor.numel() for tensor in weights.values())
            print(f"{directory}: {len(trace) - 1} steps, {len(names)} matrices of {elements}")
            held = {title: Held(case, weights) for title, case in CASES.items()}
            continue
        for one in held.values():
            one.step(weights)
    return {title: one.figures for title, one in held.items()}


def report(measured: dict[str, Figures]) -> None:
    print("\n| format | changes | elements % | bytes % | scales % | packed | auto | empty | entropy | of bf16 |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    bf16, _ = measured["bf16"].least("auto")
    for title, figures in measured.items():
        packed, packed_values = figures.least("packed")
        auto, auto_values = figures.least("auto")
        changes = f"{figures.changed['elements'] / figures.steps:,.0f}"
        shares = [f"{figures.share(what):.3f}" for what in ("elements", "bytes", "scales")]
        if title == "bf16":
            shares[2] = "-"
        sizes = [f"{packed:,.0f} ({packed_values})", f"{auto:,.0f} ({auto_values})", f"{figures.empty:,}"]
        ends = [f"{figures.entropy_bytes():,.0f}", f"{auto / bf16:.3f}"]
        print(f"| {' | '.join([title, changes, *shares, *sizes, *ends])} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="+")
    parser.add_argument("--skip", nargs="*", default=list(KEPT_BY_DEFAULT), metavar="PATTERN", help="names left out")
    arguments = parser.parse_args()
    for directory in arguments.trace:
        report(measure(directory, arguments.skip))


if __name__ == "__main__":
    main()
