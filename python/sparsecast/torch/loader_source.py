# SPDX-License-Identifier: Apache-2.0
"""A torch model whose parameters are not the checkpoint's tensors: its own loader says where those go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .._core import Memory
from ..engines.refresh.recompute import Recomputation, loader_steps, report
from ..engines.trace.loader import CanonicalTensor, LoadWeights, Modes, trace_loader
from ..errors import UnsupportedError
from .owners import guard_of
from .shards import LocalShards


class LoaderSource:
    """Source of a :class:`Subscriber` for a model that fuses, casts or computes what its loader ``load_weights`` gives
    it.

    ``tensors`` are the trainer's, as (name, safetensors dtype, shape), the same on every rank. A trace of the loader
    decides the mode of each tensor: whether it is updated in place, or in a copy outside the model from which it is
    loaded after each update ("shadow", "nan_masked", "dense"; docs/engines.md explains them). The first pattern
    (fnmatch) in ``modes`` that fits a name forces its mode.

    ``checkpoint`` has the tensors from which the model was loaded, as (name, tensor): they are compared with the model,
    and fill the copies. Without it nothing is compared, and copies need a trainer that sends everything
    (``needs_anchor``, or a log). Parameters that match a pattern in ``may_miss`` may stay unfilled.

    While this object is made and used, no other thread may load or run the model. Raises UnsupportedError naming the
    tensors that no mode, or not the forced one, can update, with the reasons, and UsageError for names that do not fit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        load_weights: LoadWeights,
        tensors: Sequence[CanonicalTensor],
        *,
        modes: Modes | None = None,
        checkpoint: Iterable[tuple[str, torch.Tensor]] | None = None,
        may_miss: Sequence[str] = (),
    ) -> None:
        traced = trace_loader(model, tensors, load_weights, strict=False, may_miss=may_miss, modes=modes or {})
        traced.require_complete(traced.may_fill())
        self._in_place = traced.in_place
        self.holds_copies = bool(traced.shadowed)
        """Whether any tensor is updated in a copy outside the model."""
        self.is_filled = checkpoint is not None
        """Whether the copies outside the model have been filled from the checkpoint."""
        if checkpoint is not None:
            wrong = traced.differences(traced.filling(checkpoint))
            if wrong:
                listed = ", ".join(f"{name!r} ({count} elements)" for name, count in list(wrong.items())[:8])
                raise UnsupportedError(f"the model does not hold what its checkpoint has: {listed}")
        steps = loader_steps(model, load_weights, traced)
        self._recomputation = Recomputation(model, steps, traced, load_weights=load_weights)
        self._recomputation.prove(as_loaded=checkpoint is not None)
        traced.require_complete(self._recomputation.derived)
        memory = [tensor.memory for tensor in traced.tensors]
        guard = guard_of([model], memory, "make a new LoaderSource")
        self.shards = LocalShards(traced.layout(), memory, [None] * len(memory), guard=guard)
        self._traced = traced

    def memories(self) -> list[Memory]:
        """Returns the memory that updates patch, in the order of ``shards.tensors``."""
        return self._traced.memories()

    def load(self) -> None:
        """Loads the copies into the model, and computes again what the loader computes from them. Raises DirtyError
        naming the tensor or the step that failed.
        """
        with torch.no_grad():
            self._recomputation.run()

    def audit(self) -> None:
        """Loads the copies and computes what the loader computes from them once more, and compares the results with
        what the model held. Raises DirtyError naming a tensor that differs.
        """
        with torch.no_grad():
            self._recomputation.audit()

    def report(self) -> dict[str, Any]:
        """Returns, as JSON values, the number of tensors that are patched in place ("in_place"), and the report of the
        recomputation: the names of the other tensors by mode, with the reasons, and what they cost.
        """
        return {"in_place": self._in_place, **report([self._recomputation])}
