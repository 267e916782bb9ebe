"""Steps in a row, from local shards to what a publisher compares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .._core import Box
from ..buffers import TORCH_DTYPES, dtype_name
from ..errors import UsageError
from .step import Piece, TensorSpec, Transform

_TORCH_OF_NAME: dict[str, torch.dtype] = {name: getattr(torch, torch_name) for torch_name, name in TORCH_DTYPES.items()}

#: A tensor, this rank's part of it, and the part's box.
_Held = tuple[TensorSpec, torch.Tensor, Box]


class Transforms:
    """Steps in a row, for the tensors of ``table``: ``(name, dtype, shape)`` of the trainer's canonical tensors.

    UsageError when two of the results have one name. The results are allocated at the first call with a box, on the
    local tensor's device, contiguous, and kept: the same memory is written at every later call. What lies between two
    steps is freed again. A tensor that no step takes comes out as the very object that went in.
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
        """The names of the canonical tensors that come out, by those that go in."""
        return {name: [out.name for out in results] for name, results in self._results.items()}

    def is_taken(self, name: str) -> bool:
        """Some step takes it: it does not come out as it goes in."""
        spec = self._spec(name)
        return any(step.specs(spec) for step in self._transforms)

    @property
    def specs(self) -> list[TensorSpec]:
        """The canonical tensors that come out, in the order of the table: what a TensorTable is made of."""
        return [out for results in self._results.values() for out in results]

    @torch.no_grad()
    def __call__(self, name: str, local: torch.Tensor, box: Box | None = None) -> list[tuple[str, torch.Tensor, Box]]:
        """The results' names, this rank's tensors and their boxes, from its ``box`` of ``name`` (None: the whole).

        On a CUDA device the work is enqueued on torch's current stream. UsageError that names the tensor for one that
        the table does not have or that does not fit its box.
        """
        spec = self._spec(name)
        whole = Box((0,) * len(spec.shape), spec.shape)
        return self.pieces(name, [(local, whole if box is None else box)])

    @torch.no_grad()
    def pieces(self, name: str, held: Sequence[tuple[torch.Tensor, Box]]) -> list[tuple[str, torch.Tensor, Box]]:
        """The same for a rank that holds several boxes of a tensor, or none: each result's, in order of the boxes.

        What the boxes share (blocks of :class:`Fp8BlockQuantize`) is theirs together, so give all of them at once.
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
        """What comes out of the steps from ``index`` on."""
        for later in range(index, len(self._transforms)):
            if specs := self._transforms[later].specs(spec):
                return [out for one in specs for out in self._after(later + 1, one)]
        return [spec]

    def _run(self, index: int, spec: TensorSpec, held: list[_Held]) -> list[_Held]:
        """The steps from ``index`` on, for all that this rank holds of one tensor."""
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
        """Memory for ``box``, which step ``index`` makes of ``source``: kept when no later step takes it."""
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
    if dtype_name(local.dtype) != spec.dtype:
        raise UsageError(f"a local tensor of {dtype_name(local.dtype)}, and the table says {spec.dtype}", context)
