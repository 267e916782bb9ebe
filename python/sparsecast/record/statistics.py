# SPDX-License-Identifier: Apache-2.0
"""Counts what changes in a trace, and how regularly, in one pass over its versions."""

from __future__ import annotations

import collections
import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .bits import FLOATS, exponents, ulp_steps
from .trace import Change, Version

#: Largest distance in steps at which recurrence of changes is counted.
LAGS = 8

_CLASSES = (
    ("expert", r"expert"),
    ("norm", r"norm|(^|\.)(ln|n)(_?\w|\d)?\.(weight|bias)$"),
    ("bias", r"bias$"),
    ("embedding", r"emb|wte|wpe|(^|\.)positions?\.|^[ep]\."),
    ("head", r"(^|\.)(lm_)?head\.|^h\.weight$"),
    ("attention", r"att|qkv|(^|\.)[qkvo](_proj)?\."),
    ("mlp", r"mlp|ffn|fc|(^|\.)(gate|up|down|dn)(_proj)?\."),
)


def tensor_class(name: str) -> str:
    """Returns the part of a model to which a tensor belongs ("attention", "mlp", ...), guessed from its name; "other"
    if the name does not tell.
    """
    return next((kind for kind, pattern in _CLASSES if re.search(pattern, name)), "other")


def entropy(counts: npt.NDArray[Any] | list[int]) -> float:
    """Returns the entropy, in bits per symbol, of a stream in which each symbol occurs as often as ``counts`` says; 0
    if empty.
    """
    shares = np.asarray([count for count in counts if count], dtype=np.float64)
    if not len(shares):
        return 0.0
    shares /= shares.sum()
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def position_bits(elements: int, changed: int) -> float:
    """Returns the number of bits needed to say which ``changed`` of ``elements`` elements changed, if all are equally
    likely to change: n H(p), with n elements and the entropy H of the share p that changed.
    """
    return elements * entropy([changed, elements - changed])


@dataclass
class StepRow:
    """Figures of one version. ``bits`` is the number of bits that the positions of its changes need if every element is
    equally likely to change. ``bits_by_tensor`` is this number if only the elements of the same tensor are equally
    likely to change, and ``bits_by_exponent`` if only the elements with the same exponent are.
    """

    version: int
    changed: int
    density: float
    learning_rate: str
    bits: float = 0.0
    bits_by_tensor: float = 0.0
    bits_by_exponent: float = 0.0


@dataclass
class ClassRow:
    """Figures of one tensor class: the number of its elements, and of their changes in all steps. ``dispersions`` has,
    by axis, (index of dispersion, number of changes) for each step and matrix in which it is defined
    (:func:`dispersion`).
    """

    elements: int = 0
    changed: int = 0
    dispersions: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: {"row": [], "column": []})

    def dispersion(self, axis: str) -> float | None:
        """Returns the mean index of dispersion along an axis ("row" or "column") over steps and tensors, weighted by
        changes; None if no matrix changed.
        """
        weights = sum(weight for _, weight in self.dispersions[axis])
        return sum(value * weight for value, weight in self.dispersions[axis]) / weights if weights else None


@dataclass
class Exponent:
    """Counts, over all steps, of the weights that had a certain exponent before the step: ``seen`` counts all of them,
    ``changed`` those that changed in the step.
    """

    seen: int = 0
    changed: int = 0


class Statistics:
    """Counts over a trace. Call :meth:`add` with every version in order, including the first."""

    def __init__(self) -> None:
        self.elements = 0
        self.steps: list[StepRow] = []
        self.classes: dict[str, ClassRow] = collections.defaultdict(ClassRow)
        self.ulps: collections.Counter[int] = collections.Counter()
        self.exponents: dict[int, Exponent] = collections.defaultdict(Exponent)
        #: By distance in steps, three counts: the changes for which the trace has a step at this distance, the elements
        #: of them that change again in that step, and the number to expect by chance from the density of that step.
        self.recurrence = {lag: [0, 0, 0.0] for lag in range(1, LAGS + 1)}
        self._present: collections.Counter[int] | None = None  # Exponent -> weights that have it now.
        self._recent: collections.deque[dict[str, npt.NDArray[np.int64]]] = collections.deque(maxlen=LAGS)

    def add(self, version: Version) -> None:
        """Adds the changes of a version to the counts; the first version has none, and only defines the elements."""
        if self._present is None:
            self._begin(version)
            return
        changed = sum(len(change.indices) for change in version.changes.values())
        row = StepRow(
            version.number, changed, changed / self.elements if self.elements else 0.0, version.metadata.get("lr", "")
        )
        row.bits = position_bits(self.elements, changed)
        row.bits_by_exponent = self._add_exponents(version)
        for name, change in version.changes.items():
            count = len(change.indices)
            row.bits_by_tensor += position_bits(version.weights[name].size, count)
            kind = self.classes[tensor_class(name)]
            kind.changed += count
            self._add_dispersion(kind, version.weights[name].shape, change.indices)
            steps, counts = np.unique(ulp_steps(change.old, change.new, version.dtypes[name]), return_counts=True)
            self.ulps.update(dict(zip(steps.tolist(), counts.tolist(), strict=True)))
        self._add_recurrence(version)
        self.steps.append(row)

    @property
    def changed(self) -> int:
        """Number of changed elements, summed over all steps."""
        return sum(row.changed for row in self.steps)

    def ulp_entropy(self) -> float:
        """Returns the entropy of the signed distances in ulps, in bits per changed element."""
        return entropy(list(self.ulps.values()))

    def _begin(self, version: Version) -> None:
        self._present = collections.Counter()
        for name, bits in version.weights.items():
            self.elements += bits.size
            self.classes[tensor_class(name)].elements += bits.size
            if version.dtypes[name] in FLOATS:
                self._present.update(_histogram(exponents(bits.reshape(-1), version.dtypes[name])))

    def _add_exponents(self, version: Version) -> float:
        """Counts changes by the exponent before the step. Returns the number of bits that the positions of the changes
        need if all elements with the same exponent are equally likely to change.
        """
        old: collections.Counter[int] = collections.Counter()
        new: collections.Counter[int] = collections.Counter()
        other = 0
        for name, change in version.changes.items():
            if version.dtypes[name] not in FLOATS:
                other += len(change.indices)
                continue
            old.update(_histogram(exponents(change.old, version.dtypes[name])))
            new.update(_histogram(exponents(change.new, version.dtypes[name])))
        present = self._present
        assert present is not None
        bits = position_bits(self.elements - sum(present.values()), other)
        for exponent, seen in present.items():
            self.exponents[exponent].seen += seen
            self.exponents[exponent].changed += old[exponent]
            bits += position_bits(seen, old[exponent])
        present.subtract(old)
        present.update(new)
        return bits

    def _add_dispersion(self, kind: ClassRow, shape: tuple[int, ...], indices: npt.NDArray[np.int64]) -> None:
        if len(shape) < 2:
            return
        rows, columns = shape[0], math.prod(shape[1:])
        for axis, lines, groups in (("row", rows, indices // columns), ("column", columns, indices % columns)):
            value = dispersion(np.bincount(groups, minlength=lines), rows * columns // lines)
            if value is not None:
                kind.dispersions[axis].append((value, len(indices)))

    def _add_recurrence(self, version: Version) -> None:
        now = {name: change.indices for name, change in version.changes.items()}
        marks = {name: _marked(version.weights[name].size, change) for name, change in version.changes.items()}
        density = sum(len(indices) for indices in now.values()) / self.elements if self.elements else 0.0
        for lag, before in enumerate(reversed(self._recent), start=1):
            counts = self.recurrence[lag]
            for name, indices in before.items():
                counts[0] += len(indices)
                counts[2] += len(indices) * density
                if name in marks:
                    counts[1] += int(marks[name][indices].sum())
        self._recent.append(now)


def dispersion(counts: npt.NDArray[Any], cells: int) -> float | None:
    """Returns the index of dispersion of the changes over rows (or columns): the variance of ``counts``, divided by the
    variance of a binomial distribution. It is 1 for uniform changes, and more for clusters.

    ``counts`` has the number of changes in each row (or column) of ``cells`` elements. Returns None if the index is
    undefined: if there are fewer than two rows, or if no element or every element changed.
    """
    lines = len(counts)
    total = int(counts.sum())
    if lines < 2 or total in (0, lines * cells):
        return None
    share = total / (lines * cells)
    # The total is fixed, so lines compete for it: the factor makes the expected value exactly 1.
    expected = cells * share * (1 - share) * (lines * cells) / (lines * cells - 1)
    return float(counts.var(ddof=1)) / expected


def _histogram(values: npt.NDArray[np.int64]) -> dict[int, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _marked(size: int, change: Change) -> npt.NDArray[np.bool_]:
    marks = np.zeros(size, np.bool_)
    marks[change.indices] = True
    return marks
