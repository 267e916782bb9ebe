# SPDX-License-Identifier: Apache-2.0
"""Runs steps in sequence, from local shards to the tensors that a publisher compares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .._core import Box
from ..buffers import PAIRS, TORCH_DTYPES, dtype_name
from ..errors import UsageError
from .step import Piece, TensorSpec, Transform

_TORCH_OF_NAME: dict[str, torch.dtype] = {
    name: getattr(torch, torch_name) for torch_name, name in TORCH_DTYPES.items() if hasattr(torch, torch_name)
} | dict.fromkeys(PAIRS, torch.uint8)

#: A canonical tensor, the part of it that this rank holds, and the box of that part.
_Held = tuple[TensorSpec, torch.Tensor, Box]


class Transforms:
    """Runs steps in sequence for the tensors of ``table``: ``(name, dtype, shape)`` of the canonical tensors of the
    trainer.

    Raises UsageError if two results have the same name. Results are contiguous tensors on the device of the local
    tensor. They are allocated at the first call with a box and kept: every later call with this box writes the same
    memory. Tensors between two steps are freed. A tensor to which no step applies is returned as the same object.
    """

    def __init__(self, transforms: Sequence[Transform], table: Iterable[TensorSpec | tuple[str, str, Sequence[int]]]):
        self._transforms = list(transforms)
        self._inputs: dict[str, TensorSpec] = {}
        self._results: dict[str, list[TensorSpec]] = {}
        self._outputs: dict[tuple[object, ...], torch.Tensor] = {}
        made: dict[str, str] = {}
        for entry in table:
            spec = entry if isinstance(entry, TensorSpec) else TensorSpec(entry[0], entry[1], tuple(entry[2]))
            if spec.name in self._inputs:
                raise UsageError("the table names it twice", f"tensor '{spec.name}'")
            self._inputs[spec.name] = spec
            self._results[spec.name] = self._after(0, spec)
            for out in self._results[spec.name]:
                if made.setdefault(out.name, spec.name) != spec.name:
                    raise UsageError(f"it comes from '{made[out.name]}' and from '{spec.name}'", f"tensor '{out.name}'")

    def names(self) -> dict[str, list[str]]:
        """Returns the names of the results by the name of the canonical tensor from which they are made."""
        return {name: [out.name for out in results] for name, results in self._results.items()}

    def is_taken(self, name: str) -> bool:
        """Returns whether a step applies to the tensor ``name``. A tensor to which no step applies is returned
        unchanged.
        """
        spec = self._spec(name)
        return any(step.specs(spec) for step in self._transforms)

    @property
    def specs(self) -> list[TensorSpec]:
        """All resulting canonical tensors, in the order of the table; a TensorTable can be made of them."""
        return [out for results in self._results.values() for out in results]

    @torch.no_grad()
    def __call__(self, name: str, local: torch.Tensor, box: Box | None = None) -> list[tuple[str, torch.Tensor, Box]]:
        """Returns (name, tensor, box) of each result of the local tensor ``local``, which holds ``box`` of the tensor
        ``name`` (None: the whole tensor).

        On a CUDA device the work is enqueued on the current torch stream. Raises UsageError naming a tensor that the
        table does not have or that does not fit its box.
        """
        spec = self._spec(name)
        whole = Box((0,) * len(spec.shape), spec.shape)
        return self.pieces(name, [(local, whole if box is None else box)])

    @torch.no_grad()
    def pieces(self, name: str, held: Sequence[tuple[torch.Tensor, Box]]) -> list[tuple[str, torch.Tensor, Box]]:
        """Returns (name, tensor, box) of each result for a rank that holds several boxes of a tensor, or none. ``held``
        has (local tensor, box) for each of them. Results are ordered by the resulting tensor, then as the boxes are in
        ``held``.

        Boxes may share a result (blocks of :class:`Quantize`), so pass all of them at once.
        """
        spec = self._spec(name)
        first = next((step for step in self._transforms if step.specs(spec)), None)
        for local, box in held:
            _check_local(spec, local, box, packed=first is not None and first.reads_packed(spec))
        results = self._run(0, spec, [(spec, local, box) for local, box in held])
        return [(out.name, tensor, box) for out, tensor, box in results]

    def _spec(self, name: str) -> TensorSpec:
        if name not in self._inputs:
            raise UsageError("the table does not have it", f"tensor '{name}'")
        return self._inputs[name]

    def _after(self, index: int, spec: TensorSpec) -> list[TensorSpec]:
        """Returns the canonical tensors that the steps from number ``index`` on make of ``spec``."""
        for later in range(index, len(self._transforms)):
            if specs := self._transforms[later].specs(spec):
                return [out for one in specs for out in self._after(later + 1, one)]
        return [spec]

    def _run(self, index: int, spec: TensorSpec, held: list[_Held]) -> list[_Held]:
        """Runs the steps from number ``index`` on over everything that this rank holds of the tensor ``spec``, and
        returns the results.
        """
        for later in range(index, len(self._transforms)):
            step = self._transforms[later]
            if specs := step.specs(spec):
                boxes = [step.boxes(spec, box) for _, _, box in held]
                pieces = [
                    Piece(
                        local.detach(),
                        box,
                        [self._output(later, out, to, box, local.device) for out, to in zip(specs, of, strict=True)],
                    )
                    for (_, local, box), of in zip(held, boxes, strict=True)
                ]
                step.run(spec, pieces)
                results: list[_Held] = []
                for i, out in enumerate(specs):
                    made = [(out, p.outputs[i], of[i]) for p, of in zip(pieces, boxes, strict=True)]
                    results += self._run(later + 1, out, made)
                return results
        return held

    def _output(self, index: int, spec: TensorSpec, box: Box, source: Box, device: torch.device) -> torch.Tensor:
        """Returns memory for ``box`` of ``spec``, which step number ``index`` makes of the box ``source`` of its input.
        The memory is the same at each call if no later step uses it.
        """
        is_result = all(step.specs(spec) is None for step in self._transforms[index + 1 :])
        key = (index, spec.name, tuple(source.offset), tuple(source.extent), str(device))
        kept = self._outputs.get(key) if is_result else None
        if kept is None:
            kept = torch.empty(tuple(box.extent), dtype=_TORCH_OF_NAME[spec.dtype], device=device)
            if is_result:
                self._outputs[key] = kept
        return kept


def _check_local(spec: TensorSpec, local: torch.Tensor, box: Box, packed: bool) -> None:
    context = f"tensor '{spec.name}'"
    ends = [offset + extent for offset, extent in zip(box.offset, box.extent, strict=True)]
    if len(ends) != len(spec.shape) or any(end > most for end, most in zip(ends, spec.shape, strict=True)):
        raise UsageError(f"{box} does not lie in the shape {list(spec.shape)}", context)
    if packed:
        return
    if tuple(local.shape) != tuple(box.extent):
        raise UsageError(f"a local tensor of shape {list(local.shape)} for {box}", context)
    if dtype_name(local.dtype) != spec.dtype and not (spec.dtype in PAIRS and local.dtype == torch.uint8):
        raise UsageError(f"a local tensor of {dtype_name(local.dtype)}, and the table says {spec.dtype}", context)
