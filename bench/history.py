#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a codec with a memory of earlier deltas would save on a recorded trace: bits a change, beside one without.

Nothing of this is in the wire format, where a delta needs its base and nothing else. The program says what that costs
on your own run (`sparsecast.record`), whose answer may differ from that of the small models measured in results/.

Bits are entropies: what ideal codes take that know how many elements, and how many changes, each class has. Classes:
  exponent    the exponent of the old weight: what `context` uses
  last k      the exponent, and when an element last changed, if in the k deltas before; for signs also its direction
  rank R      for signs: which way a product of factors of row and column points, learnt from the deltas before
Averages over the versions after --skip deltas, from which alone the predictors learn. Tensors of integers are left out.

  bench/history.py TRACE [--last 1,4,8] [--rank 4] [--skip 8]
"""

import argparse
import collections
import sys

import numpy as np

try:
    from sparsecast.record.bits import FLOATS, exponents, ulp_steps
    from sparsecast.record.trace import Change, Trace
except ImportError as error:
    sys.exit(f"history.py: {error}; it needs the sparsecast package and numpy")

NEVER = 255
PASSES = 4
CONFIDENCES = 16
NOTHING = np.zeros(0, dtype=np.int64)


def entropy_bits(counts):
    """Bits in all to tell apart `counts[class, symbol]` symbols whose classes are known."""
    counts = np.asarray(counts, dtype=np.float64)
    totals = counts.sum(axis=-1, keepdims=True)
    shares = np.divide(counts, totals, out=np.ones_like(counts), where=counts > 0)
    return float(-(counts * np.log2(shares)).sum())


class SignFactors:
    """Factors of the rows and columns of a matrix whose products say which way its elements move.

    Learnt from each delta by a few passes over its changes; sums commute, so both ends could keep equal ones.
    """

    def __init__(self, rows, columns, rank, seed):
        random = np.random.default_rng(seed)
        self.sides = [random.normal(0, 0.2, (lines, rank)) for lines in (rows, columns)]

    def products(self, places):
        rows, columns = self.sides
        return (rows[places[0]] * columns[places[1]]).sum(axis=1)

    def learn(self, places, up):
        rank = self.sides[0].shape[1]
        weights = [2.0 + np.bincount(at, minlength=len(s)) for at, s in zip(places, self.sides, strict=True)]
        for _ in range(PASSES):
            error = up - np.clip(self.products(places), -1, 1)
            sizes = [rank * float((side * side).mean()) + 0.05 for side in self.sides]
            steps = []
            for side, (mine, other) in enumerate(((0, 1), (1, 0))):
                pull = error[:, None] * self.sides[other][places[other]]
                lines = len(self.sides[mine])
                sums = [np.bincount(places[mine], weights=pull[:, r], minlength=lines) for r in range(rank)]
                steps.append(0.5 * np.stack(sums, axis=1) / weights[side][:, None] / sizes[other])
            for side, step in zip(self.sides, steps, strict=True):
                side += step


class Memory:
    """What is remembered of one tensor: when each element last changed, in deltas, and which way."""

    def __init__(self, shape, rank, seed):
        size = int(np.prod(shape))
        self.age = np.full(size, NEVER, dtype=np.uint8)
        self.up = np.zeros(size, dtype=bool)
        matrix = len(shape) >= 2 and min(shape[0], size // max(shape[0], 1)) > 1
        self.columns = size // shape[0] if matrix else 0
        self.factors = SignFactors(shape[0], self.columns, rank, seed) if matrix else None

    def places(self, indices):
        return indices // self.columns, indices % self.columns

    def add(self, indices, up):
        self.age += self.age < NEVER
        self.age[indices] = 1
        self.up[indices] = up
        if self.factors is not None and len(indices) > 0:
            self.factors.learn(self.places(indices), np.where(up, 1.0, -1.0))


class Tally:
    """Counts of one version by class, over all tensors."""

    def __init__(self):
        self.counts = collections.defaultdict(lambda: np.zeros(0, dtype=np.int64))

    def add(self, what, classes, symbols, number):
        """Counts `symbols` below `number` in `classes`."""
        found = np.bincount(np.asarray(classes, dtype=np.int64) * number + symbols)
        size = -(-max(len(found), len(self.counts[what])) // number) * number
        total = np.zeros(size, dtype=np.int64)
        total[: len(found)] += found
        total[: len(self.counts[what])] += self.counts[what]
        self.counts[what] = total

    def bits(self, what, number):
        return entropy_bits(self.counts[what].reshape(-1, number))


def add_tensor(tally, memory, old, change, dtype, lasts):
    """Counts one tensor of a version; `old` are its bits before, all of them."""
    steps = ulp_steps(change.old, change.new, dtype)
    up = steps > 0
    lowest = FLOATS[dtype].bias
    keys = exponents(old, dtype) + lowest
    changed = np.zeros(len(old), dtype=np.int64)
    changed[change.indices] = 1
    tally.add("position", keys, changed, 2)
    here = keys[change.indices]
    tally.add("size", here, np.minimum(np.abs(steps), 255), 256)
    for k in lasts:
        age = np.where(memory.age <= k, memory.age, 0).astype(np.int64)
        tally.add(("position", k), keys * (k + 1) + age, changed, 2)
        state = age[change.indices] * 2 + memory.up[change.indices]
        tally.add(("sign", k), here * (2 * k + 2) + np.where(age[change.indices] > 0, state, 0), up, 2)
    product = np.zeros(len(up))
    if memory.factors is not None:
        product = memory.factors.products(memory.places(change.indices))
    confidence = np.minimum(np.abs(product) * 8, CONFIDENCES - 1).astype(np.int64)
    tally.add("sign", confidence, (product > 0) == up, 2)
    age = memory.age[change.indices]
    recent = np.where(age <= max(lasts), 1 + np.digitize(age, [2, 5]) * 2 + memory.up[change.indices], 0)
    guess = confidence // (CONFIDENCES // 4) * 2 + (product > 0)
    tally.add(("sign", "both"), (here * 7 + recent) * 8 + guess, up, 2)


def measure(directory, lasts, rank, skip):
    """Returns the number of changes that were measured, and bits in all by what they say."""
    memories = {}
    held = {}
    bits = collections.Counter()
    changes = 0
    for number, version in enumerate(Trace(directory)):
        floating = [name for name, dtype in version.dtypes.items() if dtype in FLOATS]
        if number == 0:
            for seed, name in enumerate(floating):
                memories[name] = Memory(version.weights[name].shape, rank, seed)
                held[name] = version.weights[name].reshape(-1).copy()
            continue
        tally = Tally()
        for name in floating:
            old = held[name]
            change = version.changes.get(name, Change(NOTHING, old[:0], old[:0]))
            if number > skip:
                add_tensor(tally, memories[name], old, change, version.dtypes[name], lasts)
                changes += len(change.indices)
            memories[name].add(change.indices, ulp_steps(change.old, change.new, version.dtypes[name]) > 0)
            old[change.indices] = change.new
        if number > skip:
            bits.update({what: tally.bits(what, 256 if what == "size" else 2) for what in list(tally.counts)})
    return changes, bits


def report(directory, changes, bits, lasts, rank):
    size = bits["size"] / changes
    plain = bits["position"] / changes
    rows = [("exponent", plain, 1.0)]
    rows += [(f"last {k}", bits["position", k] / changes, bits["sign", k] / changes) for k in lasts]
    rows += [(f"rank {rank}", plain, bits["sign"] / changes)]
    longest = max(lasts)
    rows += [(f"last {longest} and rank {rank}", bits["position", longest] / changes, bits["sign", "both"] / changes)]
    print(f"{directory}: {changes} changes; bits a change; distances take {size:.3f} in every row")
    print(f"{'known':20} {'position':>9} {'sign':>7} {'in all':>8} {'bytes':>7} {'saved %':>8}")
    whole = plain + 1.0 + size
    for name, position, sign in rows:
        total = position + sign + size
        print(f"{name:20} {position:9.3f} {sign:7.3f} {total:8.3f} {total / 8:7.3f} {100 * (1 - total / whole):8.1f}")


def numbers(text):
    found = [int(part) for part in text.split(",")]
    if not found or min(found) < 1 or max(found) >= NEVER:
        raise argparse.ArgumentTypeError(f"numbers from 1 to {NEVER - 1}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="+", help="a directory that sparsecast.record has written")
    parser.add_argument("--last", type=numbers, default=[1, 4, 8], metavar="K,...", help="deltas that are remembered")
    parser.add_argument("--rank", type=int, default=4, help="factors of each row and column")
    parser.add_argument("--skip", type=int, default=8, help="deltas to learn from before the first that counts")
    arguments = parser.parse_args()
    for directory in arguments.trace:
        changes, bits = measure(directory, arguments.last, arguments.rank, arguments.skip)
        if changes == 0:
            sys.exit(f"history.py: {directory}: nothing changes after the first {arguments.skip} deltas")
        report(directory, changes, bits, arguments.last, arguments.rank)


if __name__ == "__main__":
    main()
