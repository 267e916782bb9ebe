#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What dtypes of two 4-bit numbers a byte save on a recorded trace, beside the same bytes as U8: whole deltas and values.

    PYTHONPATH=build/release/python bench/pairs.py TRACE [--every 1,6,30] [--steps 12]

The matrices of each version are quantised: `int4` symmetric, a bf16 scale for 32 weights of a row (I4X2); `nvfp4` e2m1, an
e4m3 scale for 16 weights and an fp32 one for the matrix (F4X2). Scales are those of the first version (frozen) or of each
one; they are not sent. "bits/value" is what a delta has beyond one of the same places whose values take a bit each, the
sign. "entropy" is that of the two steps of a byte, over all deltas. Scales have their own dtypes, and are not counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

import sparsecast as sc
from sparsecast.record.trace import Trace

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Quantiser = Callable[[Floats, "Floats | None"], tuple[Bytes, Floats]]

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def packed(codes: Bytes) -> Bytes:
    return codes[:, 0::2] | codes[:, 1::2] << 4


def int4(weights: Floats, scales: Floats | None) -> tuple[Bytes, Floats]:
    groups = weights.reshape(len(weights), -1, 32)
    if scales is None:
        most = np.maximum(np.abs(groups).max(-1, keepdims=True) / 7, np.float32(1e-12))
        scales = torch.from_numpy(most).bfloat16().float().numpy()
    codes = np.clip(np.rint(groups / scales), -8, 7).astype(np.int8).view(np.uint8) & 15
    return packed(codes.reshape(weights.shape)), scales


def nvfp4(weights: Floats, scales: Floats | None) -> tuple[Bytes, Floats]:
    groups = weights.reshape(len(weights), -1, 16)
    if scales is None:
        whole = np.abs(weights).max() / (6 * 448)
        parts = torch.from_numpy(np.abs(groups).max(-1, keepdims=True) / 6 / whole).to(torch.float8_e4m3fn).float()
        scales = np.maximum(parts.numpy(), np.float32(2**-9)) * whole
    values = groups / scales
    middles = (FP4[1:] + FP4[:-1]) / 2
    low, high = (np.searchsorted(middles, np.abs(values), side=side) for side in ("left", "right"))
    # A value in the middle goes to the even code.
    codes = np.where(low % 2 == 0, low, high).astype(np.uint8) | np.signbit(values).astype(np.uint8) << 3
    return packed(codes.reshape(weights.shape)), scales


def versions(trace: str, every: int, quantise: Quantiser, frozen: bool) -> Iterator[dict[str, Bytes]]:
    first: dict[str, Floats] = {}
    for number, version in enumerate(Trace(trace)):
        if number % every:
            continue
        state = {}
        for name, bits in version.weights.items():
            if version.dtypes[name] == "BF16" and bits.ndim == 2 and bits.shape[1] % 32 == 0:
                weights = (bits.astype(np.uint32) << 16).view(np.float32)
                state[name], scales = quantise(weights, first.get(name) if frozen else None)
                first.setdefault(name, scales)
        yield state


def delta_bytes(dtype: str, old: dict[str, Bytes], new: dict[str, Bytes]) -> int:
    live = [bits.copy() for bits in old.values()]
    table = sc.TensorTable([(name, dtype, bits.shape) for name, bits in old.items()])
    publisher = sc.Publisher(table, [sc.describe(bits) for bits in live], block_changes=4096)
    for bits, change in zip(live, new.values(), strict=True):
        bits[:] = change
    return publisher.publish().wire_bytes


def steps(dtype: str, old: Bytes, new: Bytes) -> npt.NDArray[np.int64]:
    """Both steps of each byte that changed, modulo 16, as one number."""
    changed = old != new

    def ordered(half: Bytes) -> npt.NDArray[np.int64]:
        return (np.where(half & 8, half ^ 15, half | 8) if dtype == "F4X2" else half).astype(np.int64)

    low, high = ((ordered(new[changed] >> s & 15) - ordered(old[changed] >> s & 15)) & 15 for s in (0, 4))
    return low | high << 4


def measure(trace: str, every: int, most: int, quantise: Quantiser, dtype: str, frozen: bool) -> str:
    totals = {"U8": 0, dtype: 0}
    changed = deltas = signs_alone = elements = 0
    counts = np.zeros(256, np.int64)
    before: dict[str, Bytes] | None = None
    for state in versions(trace, every, quantise, frozen):
        if before is not None and deltas < most:
            for name in totals:
                totals[name] += delta_bytes(name, before, state)
            nothing = {name: np.zeros_like(bits) for name, bits in state.items()}
            ones = {name: (before[name] != bits).astype(np.uint8) for name, bits in state.items()}
            signs_alone += delta_bytes("U8", nothing, ones)
            changed += sum(int(bits.sum()) for bits in ones.values())
            elements += sum(bits.size for bits in ones.values())
            for name, bits in state.items():
                counts += np.bincount(steps(dtype, before[name], bits), minlength=256)
            deltas += 1
        before = state
    shares = counts[counts > 0] / max(changed, 1)
    bits = {name: 8 * (total - signs_alone) / changed + 1 for name, total in totals.items()}
    return (
        f"{every} | {changed / deltas:.0f} | {changed / elements:.3%} | {totals['U8'] / deltas:.0f} | "
        f"{totals[dtype] / deltas:.0f} | {totals[dtype] / totals['U8']:.3f} | {bits['U8']:.2f} | {bits[dtype]:.2f} | "
        f"{-(shares * np.log2(shares)).sum():.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--every", default="1,6,30", help="steps of training between two versions")
    parser.add_argument("--steps", type=int, default=12, help="at most so many deltas")
    arguments = parser.parse_args()
    print("| quantiser | scales | steps | bytes changed | of all | U8 B | pairs B | ratio | U8 bits/value | ", end="")
    print("pairs bits/value | entropy |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for name, quantise, dtype in (("int4", int4, "I4X2"), ("nvfp4", nvfp4, "F4X2")):
        for frozen in (True, False):
            for every in map(int, arguments.every.split(",")):
                row = measure(arguments.trace, every, arguments.steps, quantise, dtype, frozen)
                print(f"| {name} | {'frozen' if frozen else 'recomputed'} | {row} |")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
