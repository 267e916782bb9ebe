# SPDX-License-Identifier: Apache-2.0
"""Layout and memory of a trainer that hands its weights over as vLLM's `WeightSource`.

The layout comes from the source's metadata alone, the same on every rank, so the ranks exchange nothing. What a pass
over the source yields is one of two things:

    in place   memory that the source keeps: published where it is, and at the same address in every later pass
    copied     memory that a pass makes (a gather, a cast, a scratch buffer): kept here, filled in every pass

Both vLLM 0.33 (`metadata`, `iter_local`, `iter_full`) and 0.32 (`metadata()`, iteration over whole tensors) are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable
from sparsecast.buffers import dtype_name
from sparsecast.errors import UnsupportedError, UsageError
from sparsecast.torch.dtensor import chunk_of


@dataclass(frozen=True)
class Piece:
    """One canonical tensor of a trainer: its name, its dtype and shape at the engines, and the box of it that each
    trainer rank publishes (None: the rank publishes nothing of it).
    """

    name: str
    dtype: torch.dtype
    """The dtype in which engines hold the tensor."""
    shape: tuple[int, ...]
    boxes: tuple[Box | None, ...]


@dataclass(frozen=True)
class _Seen:
    """Place and form of a tensor that a pass over the source has yielded. Does not keep the tensor's memory alive."""

    storage: StorageWeakRef
    begin: int
    end: int
    """Addresses of the first byte, and of the byte after the last."""
    form: tuple[object, ...]

    @property
    def alive(self) -> bool:
        return not self.storage.expired()  # type: ignore[no-untyped-call]


def _look(tensor: torch.Tensor) -> _Seen:
    storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    return _Seen(storage, tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, _form(tensor))


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.device, tensor.dtype, tensor.stride()


def trainer_ranks(source: Any) -> int:
    """Returns the number of ranks of the trainer: the size of the default process group if there is one, else one more
    than the highest rank that the metadata of `source` names as an owner.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1 + max((max(owners) for meta in _metadata(source) if (owners := getattr(meta, "owners", None))), default=0)


def pieces_of(source: Any, ranks: int, wire_dtype: torch.dtype | None = None) -> list[Piece]:
    """Returns the tensors that a trainer of `ranks` ranks publishes, in the order of the source's metadata.

    A source without `iter_local` yields whole tensors: each is published by one of the ranks that get it, in turn.
    `wire_dtype` replaces the dtype of floating-point tensors. Raises UsageError naming the tensor if its owner is no
    rank of the trainer, and UnsupportedError for a source whose ranks hold different tensors without saying which.
    """
    local = is_local(source)
    if not local and ranks > 1 and getattr(source, "held_names", lambda: None)() is not None:
        raise UnsupportedError(
            f"{type(source).__name__} has held_names(), which says what this rank holds and not what the others do: "
            "take vLLM 0.33, whose metadata names the owners, or give the engine a ready publisher"
        )
    pieces = []
    for index, meta in enumerate(_metadata(source)):
        owners = tuple(getattr(meta, "owners", None) or range(ranks))
        if max(owners) >= ranks:
            raise UsageError(
                f"rank {max(owners)} owns it, and the trainer has {ranks} ranks (trainer_ranks)",
                f"tensor '{meta.name}'",
            )
        shape = tuple(meta.shape)
        boxes: list[Box | None] = [None] * ranks
        if local:
            for position, owner in enumerate(owners):
                boxes[owner] = _box(meta, shape, position, len(owners))
        else:
            boxes[owners[index % len(owners)]] = Box([0] * len(shape), list(shape))
        dtype = wire_dtype if wire_dtype is not None and meta.dtype.is_floating_point else meta.dtype
        pieces.append(Piece(meta.name, dtype, shape, tuple(boxes)))
    if not pieces:
        raise UsageError("the source has no parameters")
    return pieces


def is_local(source: Any) -> bool:
    """Returns whether a pass over `source` yields the pieces that this rank holds (`iter_local`); otherwise it yields
    whole tensors.
    """
    implements = getattr(source, "implements_iter_local", None)
    return implements is not None and bool(implements())


def whole_tensors(source: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor) of whole tensors, which `source` gathers, or of the source's pieces if each piece is a whole
    tensor; collective over the trainer if the source gathers. Raises UnsupportedError naming a tensor of which this rank
    gets nothing, or only a part.
    """
    shapes = None
    if not hasattr(source, "implements_iter_full"):
        found = iter(source)
    elif source.implements_iter_full():
        found = source.iter_full()
    else:
        found = source.iter_local()
        shapes = {meta.name: tuple(meta.shape) for meta in source.metadata}
    for name, tensor in found:
        if tensor is None:
            raise UnsupportedError("this rank does not hold it, and rank 0 sends all", f"tensor '{name}'")
        if shapes is not None and shapes[name] != tuple(tensor.shape):
            raise UnsupportedError(
                "the source yields a piece of it and has no iter_full, and rank 0 sends whole tensors",
                f"tensor '{name}'",
            )
        yield name, tensor


def _metadata(source: Any) -> Sequence[Any]:
    found: Sequence[Any] = source.metadata() if callable(source.metadata) else source.metadata
    return found


def _box(meta: Any, shape: tuple[int, ...], position: int, owners: int) -> Box:
    """Returns the part of a tensor that its owner at `position` in the device mesh yields: the whole tensor, or a part
    as torch.chunk cuts it, the outer mesh axis first.
    """
    offset, extent = [0] * len(shape), list(shape)
    mesh = getattr(meta, "mesh_shape", None) or (owners,)
    for axis, placement in enumerate(getattr(meta, "placements", None) or ()):
        dim = getattr(placement, "dim", None)  # Of a Shard; a Replicate has none.
        if hasattr(placement, "split_factor"):
            raise UnsupportedError(f"its placement {placement} may leave a rank several boxes", f"tensor '{meta.name}'")
        if dim is not None:
            inner = math.prod(mesh[axis + 1 :])
            begin, extent[dim] = chunk_of(extent[dim], mesh[axis], position // inner % mesh[axis])
            offset[dim] += begin
    return Box(offset, extent)


class SourceWeights:
    """The memory of one trainer rank that is published, as its `WeightSource` yields it, and the layout of all ranks.

    `tensors[i]` is the memory of `layout.ranks[rank].tensors[i]`: one-dimensional, and always at the same address. The
    constructor runs two passes over the source, and `refresh` one; a pass is collective if it is so in the source. With
    `copy` all tensors are copied, for a trainer whose weights move to other memory between steps.
    """

    def __init__(
        self,
        source: Any,
        rank: int,
        ranks: int,
        *,
        wire_dtype: torch.dtype | None = None,
        ties: Sequence[tuple[str, str]] = (),
        copy: bool = False,
    ) -> None:
        aliases = {alias for alias, _ in ties}
        self._source = source
        self._rank = rank
        self._pieces = pieces_of(source, ranks, wire_dtype)
        self._mine: dict[str, int | None] = {}  # Index in `tensors`; None: another rank's, or nothing.
        self.layout = self._layout(ranks, aliases, list(ties))
        self.tensors, self._in_place = self._register(copy)

    @property
    def has_masters(self) -> bool:
        """Whether any memory is fp32 and engines get its cast to bf16, which the publisher computes."""
        of_layout = self.layout.ranks[self._rank].tensors
        return any(
            t.dtype == torch.float32 and own.dtype == "BF16" for t, own in zip(self.tensors, of_layout, strict=True)
        )

    @property
    def copied_bytes(self) -> int:
        """Bytes of the tensors that are copied in every pass."""
        return sum(t.nbytes for i, t in enumerate(self.tensors) if i not in self._in_place)

    @property
    def copied(self) -> int:
        """Number of tensors that are copied in every pass."""
        return len(self.tensors) - len(self._in_place)

    @torch.no_grad()
    def refresh(self) -> None:
        """Brings `tensors` up to date with the weights as they are now, on the caller's current CUDA stream.

        Raises UsageError naming a tensor that is published where it lies and has moved to other memory. The pass is
        completed first, so that other ranks do not wait in its collectives.
        """
        moved: list[str] = []
        for index, name, tensor in self._pass():
            own = self.tensors[index]
            if index not in self._in_place:
                own.view(tensor.shape).copy_(tensor)
            elif _form(tensor) != self._in_place[index]:
                moved.append(name)
        if moved:
            raise UsageError(
                f"the source yields {len(moved)} tensors in other memory than before: weights that move between steps "
                "(offloaded, wrapped or assigned anew) need copy=True in the init info",
                f"tensor '{moved[0]}'",
            )

    # -- inside ------------------------------------------------------------------------------------------------------

    def _layout(self, ranks: int, aliases: set[str], ties: list[tuple[str, str]]) -> Layout:
        table = [(p.name, dtype_name(p.dtype), p.shape) for p in self._pieces]
        known = {name: (dtype, shape) for name, dtype, shape in table}
        for alias, original in ties:
            if original not in known:
                raise UsageError(f"it is tied to '{original}', which the source does not have", f"tensor '{alias}'")
            if alias not in known:
                table.append((alias, *known[original]))
        layouts = []
        for rank in range(ranks):
            locals_: list[LocalTensor] = []
            shards: list[Shard] = []
            for index, piece in enumerate(self._pieces):
                box = piece.boxes[rank]
                here = box is not None and box.elements > 0 and piece.name not in aliases
                if rank == self._rank:
                    self._mine[piece.name] = len(locals_) if here else None
                if here:
                    assert box is not None
                    shards.append(Shard(index, box, len(locals_), 0, _strides(box.extent)))
                    locals_.append(LocalTensor(piece.name, dtype_name(piece.dtype), box.elements))
            layouts.append(RankLayout(locals_, shards))
        return Layout(TensorTable(table), layouts, ties)

    def _pass(self) -> Iterator[tuple[int, str, torch.Tensor]]:
        """Runs a pass over the source. Yields (index in `tensors`, name, tensor) for each tensor that this rank
        publishes. Raises UsageError naming a tensor whose name, shape or dtype is not what the metadata says.
        """
        extents = {p.name: (p, p.boxes[self._rank]) for p in self._pieces}
        missing = {name for name, index in self._mine.items() if index is not None}
        for name, tensor in self._iterate():
            if name not in self._mine:
                raise UsageError("the source yields it, and its metadata does not have it", f"tensor '{name}'")
            index = self._mine[name]
            if index is None or tensor is None:
                continue
            if name not in missing:
                raise UsageError("the source yields it twice", f"tensor '{name}'")
            missing.remove(name)
            piece, box = extents[name]
            assert box is not None
            if hasattr(tensor, "to_local"):
                tensor = tensor.to_local()
            if tuple(tensor.shape) != box.extent:
                raise UsageError(
                    f"the source yields {tuple(tensor.shape)}, and by its metadata rank {self._rank} has {box}",
                    f"tensor '{name}'",
                )
            if tensor.dtype != piece.dtype and not (tensor.is_floating_point() and piece.dtype.is_floating_point):
                raise UsageError(f"{tensor.dtype} is not cast to {piece.dtype}", f"tensor '{name}'")
            yield index, name, tensor.detach()
        if missing:
            raise UsageError(
                f"the source has not yielded {len(missing)} tensors that rank {self._rank} owns by its metadata",
                f"tensor '{min(missing)}'",
            )

    def _iterate(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        if is_local(self._source):
            yield from self._source.iter_local()
        elif hasattr(self._source, "iter_full"):
            yield from self._source.iter_full()
        else:
            yield from self._source

    def _register(self, copy: bool) -> tuple[list[torch.Tensor], dict[int, tuple[object, ...]]]:
        """Returns the memory to publish, and the place and form of those tensors, by index, that are the source's own
        memory. The other tensors are new buffers, which `refresh` fills.

        The source's own memory is published if it outlives a pass, if the next pass yields the tensor in the same
        place, and if no other tensor lies there (as in a buffer through which the tensors go one after another).
        """
        dtypes = {self._mine[piece.name]: piece.dtype for piece in self._pieces}
        first = {} if copy else {index: _look(tensor) for index, _, tensor in self._pass()}
        steady = _without_overlaps({i: seen for i, seen in first.items() if seen.alive})
        found: dict[int, torch.Tensor] = {}
        in_place: dict[int, tuple[object, ...]] = {}
        for index, _, tensor in self._pass():
            dtype = dtypes[index]
            same = index in steady and first[index].alive and first[index].form == _form(tensor)
            if same and tensor.is_contiguous() and _publishable(tensor.dtype, dtype):
                in_place[index] = _form(tensor)
                found[index] = tensor.view(-1)
            else:
                found[index] = torch.empty(tensor.numel(), dtype=dtype, device=tensor.device)
        return [found[i] for i in range(len(found))], in_place


def _publishable(memory: torch.dtype, wire: torch.dtype) -> bool:
    """Returns whether a publisher can take memory of dtype `memory` for a tensor that engines hold as `wire`: the
    dtypes are equal, or the memory is an fp32 master of a bf16 tensor.
    """
    return memory == wire or (memory == torch.float32 and wire == torch.bfloat16)


def _without_overlaps(seen: dict[int, _Seen]) -> set[int]:
    """Returns the indices of the tensors that share no byte with another tensor."""
    alone = set(seen)
    last: tuple[int, int] | None = None  # (index, end) of what reaches farthest.
    for index, one in sorted(seen.items(), key=lambda item: item[1].begin):
        if last is not None and one.begin < last[1]:
            alone -= {index, last[0]}
        if last is None or one.end > last[1]:
            last = (index, one.end)
    return alone


def _strides(extent: Sequence[int]) -> list[int]:
    return [math.prod(extent[i + 1 :]) for i in range(len(extent))]
