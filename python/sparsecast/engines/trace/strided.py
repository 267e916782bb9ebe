# SPDX-License-Identifier: Apache-2.0
"""Regions of strided memory: maps the elements of one memory to elements of another memory.

A *memory* is seen through a *frame*: a shape with dense strides, so that every element has coordinates. A strided view
of a memory is cut into boxes of its frame by `cut_into_boxes`; `TracedMemory` remembers for each box where its elements
came from, so that copies of copies can be followed to their first source. All offsets, strides and extents are in
elements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_BOXES_PER_COPY = 4096
"""Largest number of boxes into which one copy is cut; a copy that needs more is too scattered for an address map."""


class TooScatteredError(ValueError):
    """Raised for a strided view that needs more than `MAX_BOXES_PER_COPY` boxes."""


class Dim(NamedTuple):
    """One loop of a copy: its number of elements, and its stride, in elements, in this memory (`here`) and in the other
    memory (`there`).
    """

    extent: int
    here: int
    there: int


class Region(NamedTuple):
    """A box of a frame (`offset` and `extent`), and where the elements of the box lie in another memory: the position
    `first` of the first element, and a stride for each dimension.
    """

    offset: tuple[int, ...]
    extent: tuple[int, ...]
    first: int
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.extent)


@dataclass(frozen=True)
class Frame:
    """A shape and strides that give every element of a memory exactly one coordinate; the dimensions may lie in any
    order.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def row_major(shape: Sequence[int]) -> Frame:
    """Returns the frame of a contiguous tensor of this shape."""
    strides = [1] * len(shape)
    for k in range(len(shape) - 2, -1, -1):
        strides[k] = strides[k + 1] * max(shape[k + 1], 1)
    return Frame(tuple(shape), tuple(strides))


def dense_frame(shape: Sequence[int], strides: Sequence[int], elements: int) -> Frame:
    """Returns shape and strides of a tensor as a frame if the tensor fills its memory of `elements` elements without a
    gap; otherwise a frame of one dimension over the memory.
    """
    expected = 1
    for stride, extent in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride != expected:
            return row_major((elements,))
        expected *= extent
    if expected != elements:
        return row_major((elements,))
    return Frame(tuple(shape), tuple(s if n > 1 else 1 for s, n in zip(strides, shape, strict=True)))


def merge_dims(dims: Sequence[Dim]) -> list[Dim]:
    """Returns loops that visit the same elements as `dims`, the largest stride `here` first. Loops that are contiguous
    in both memories are joined into one, and loops of one element are dropped.
    """
    merged: list[Dim] = []
    for dim in sorted((d for d in dims if d.extent > 1), key=lambda d: (-d.here, -d.there)):
        if merged:
            outer = merged[-1]
            if outer.here == dim.extent * dim.here and outer.there == dim.extent * dim.there:
                merged[-1] = Dim(outer.extent * dim.extent, dim.here, dim.there)
                continue
        merged.append(dim)
    return merged


def cut_into_boxes(frame: Frame, offset: int, dims: Sequence[Dim], first: int) -> list[Region]:
    """Cuts a strided view of this memory into boxes of `frame`, each with its place in the other memory. The view begins
    at element `offset` of this memory, and at element `first` of the other. Each of `dims` gives an extent and the
    strides in this memory (`Dim.here`) and in the other (`Dim.there`).

    Raises TooScatteredError if there are more than MAX_BOXES_PER_COPY boxes.
    """
    regions: list[Region] = []
    for region in _boxes(frame, offset, merge_dims(dims), first):
        if len(regions) == MAX_BOXES_PER_COPY:
            raise TooScatteredError(f"needs more than {MAX_BOXES_PER_COPY} boxes")
        regions.append(region)
    return regions


def _boxes(frame: Frame, offset: int, dims: list[Dim], first: int) -> Iterator[Region]:
    order = sorted((k for k, n in enumerate(frame.shape) if n > 1), key=lambda k: -frame.strides[k])
    coords = [0] * len(frame.shape)
    rest = offset
    for k in order:
        coords[k], rest = divmod(rest, frame.strides[k])
    extent = [1] * len(frame.shape)
    strides = [0] * len(frame.shape)
    for i, dim in enumerate(dims):
        others = dims[:i] + dims[i + 1 :]
        k = next((k for k in order if frame.strides[k] <= dim.here), -1)
        if k < 0 or dim.here != frame.strides[k] or extent[k] != 1:
            # The step matches no dimension of the frame: split it into single indices.
            for j in range(dim.extent):
                yield from _boxes(frame, offset + j * dim.here, others, first + j * dim.there)
            return
        room = frame.shape[k] - coords[k]
        if dim.extent > room:
            yield from _split_at_border(frame, offset, others, first, dim, frame.shape[k], room)
            return
        extent[k], strides[k] = dim.extent, dim.there
    yield Region(tuple(coords), tuple(extent), first, tuple(strides))


def _split_at_border(
    frame: Frame, offset: int, others: list[Dim], first: int, dim: Dim, size: int, room: int
) -> Iterator[Region]:
    """Yields the boxes of a view whose loop `dim` crosses the end of a frame dimension, which a box must not do.
    `others` are the other loops of the view.

    The dimension has `size` elements, and the loop begins `room` elements before its end. Where whole rows fit, the
    loop becomes a loop over rows; otherwise it is cut in two at a border.
    """
    if room == size and dim.extent % size == 0:
        rows = Dim(dim.extent // size, dim.here * size, dim.there * size)
        dims = sorted([*others, rows, Dim(size, dim.here, dim.there)], key=lambda d: -d.here)
        yield from _boxes(frame, offset, dims, first)
        return
    head = room if room < size else dim.extent // size * size
    for start, extent in ((0, head), (head, dim.extent - head)):
        part = [*others, Dim(extent, dim.here, dim.there)] if extent > 1 else list(others)
        part.sort(key=lambda d: -d.here)
        yield from _boxes(frame, offset + start * dim.here, part, first + start * dim.there)


def _may_meet(a: Region, b: Region) -> bool:
    """Returns False if the boxes of two regions are apart in the first dimension, which is the common case for the
    pieces of a stack. True means that they may or may not overlap.
    """
    if not a.offset:
        return True
    i, j = a.offset[0], b.offset[0]
    return i < j + b.extent[0] and j < i + a.extent[0]


def intersect(a: Region, b: Region) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns (offset, extent) of the box that the boxes of two regions share, or None if they share none."""
    offset = tuple(map(max, a.offset, b.offset))
    end = tuple(min(i + m, j + n) for i, m, j, n in zip(a.offset, a.extent, b.offset, b.extent, strict=True))
    if any(e <= o for o, e in zip(offset, end, strict=True)):
        return None
    return offset, tuple(e - o for o, e in zip(offset, end, strict=True))


def inner(region: Region, offset: Sequence[int], extent: Sequence[int]) -> Region:
    """Returns the part of a region that lies in the box (`offset`, `extent`), which must be inside the box of the
    region.
    """
    first = region.first + sum((o - r) * s for o, r, s in zip(offset, region.offset, region.strides, strict=True))
    return Region(tuple(offset), tuple(extent), first, region.strides)


def subtract(region: Region, offset: Sequence[int], extent: Sequence[int]) -> Iterator[Region]:
    """Yields what is left of a region, as disjoint regions, when the box (`offset`, `extent`) inside it is cut out."""
    start, size = list(region.offset), list(region.extent)
    for k in range(len(start)):
        before = offset[k] - start[k]
        after = start[k] + size[k] - (offset[k] + extent[k])
        if before:
            yield inner(region, start, [*size[:k], before, *size[k + 1 :]])
        if after:
            yield inner(
                region, [*start[:k], offset[k] + extent[k], *start[k + 1 :]], [*size[:k], after, *size[k + 1 :]]
            )
        start[k], size[k] = offset[k], extent[k]


@dataclass(frozen=True)
class Computed:
    """Origin of elements that the loader computed: the names of the canonical tensors that went into them, and a
    sentence about the computation.
    """

    names: frozenset[str]
    reason: str


@dataclass(frozen=True)
class Constant:
    """Origin of elements that come from no canonical tensor: padding, and values that the loader itself sets."""


CONSTANT = Constant()
Origin = str | Computed | Constant
"""Where elements come from: the name of a canonical tensor, or what stands in for it if they are no copies of one."""


class Piece(NamedTuple):
    """A box of a memory, and where its elements come from. `region` has the box, and the place of its elements in the
    canonical tensor.
    """

    region: Region
    origin: Origin


class Link(NamedTuple):
    """Part of a copy: the loops `dims` run over elements of `origin`, beginning at `first` (strides `here`), and over
    elements of the memory that is written, beginning at `to` (strides `there`).
    """

    origin: Origin
    first: int
    to: int
    dims: list[Dim]


class Clash(NamedTuple):
    """A write into elements that another canonical tensor had filled. `old` and `new` are the origins before and after
    the write; `same` says whether every element of the written box has the same position in `new` as in `old`.
    """

    old: Origin
    new: Origin
    same: bool


@dataclass
class TracedMemory:
    """A memory and where its elements come from, as pieces that do not overlap; elements outside all pieces are
    `CONSTANT`.
    """

    frame: Frame
    pieces: list[Piece] = field(default_factory=list)

    def names(self) -> frozenset[str]:
        """Returns the names of the canonical tensors from which any element came, copied or computed."""
        found: set[str] = set()
        for piece in self.pieces:
            if isinstance(piece.origin, Computed):
                found |= piece.origin.names
            elif isinstance(piece.origin, str):
                found.add(piece.origin)
        return frozenset(found)

    def read(self, offset: int, dims: Sequence[Dim], to: int) -> Iterator[Link]:
        """Yields where the elements of a view of this memory come from, as the links of a copy of the view. The view
        begins at element `offset` and has the loops `dims` with strides `here`; the copy begins at element `to` of
        another memory and has strides `there`.
        """
        for wanted in cut_into_boxes(self.frame, offset, dims, to):
            left = [wanted]
            for piece in self.pieces:
                shared = intersect(piece.region, wanted) if _may_meet(piece.region, wanted) else None
                if shared is None:
                    continue
                source, target = inner(piece.region, *shared), inner(wanted, *shared)
                loops = zip(shared[1], source.strides, target.strides, strict=True)
                yield Link(piece.origin, source.first, target.first, [Dim(*loop) for loop in loops])
                left = [part for region in left for part in _without(region, piece.region)]
            for region in left:
                dims_left = [Dim(n, 0, s) for n, s in zip(region.extent, region.strides, strict=True)]
                yield Link(CONSTANT, 0, region.first, dims_left)

    def write(self, link: Link) -> list[Clash]:
        """Records a copy into this memory, at the elements that `link.to` and the strides `there` give. Returns the
        overlaps with elements that other canonical tensors had filled.

        If the overlapping elements have the same positions in the new tensor as in the old one (a tie), the origin
        recorded first stays; otherwise the new origin replaces the old one, as in memory.
        """
        dims = [Dim(d.extent, d.there, d.here) for d in link.dims]
        known, fresh = list(self.pieces), []
        clashes: list[Clash] = []
        for region in cut_into_boxes(self.frame, link.to, dims, link.first):
            near = [piece for piece in known if _may_meet(piece.region, region)]
            if not near:
                fresh.append(Piece(region, link.origin))
                continue
            kept = [piece for piece in known if not _may_meet(piece.region, region)]
            stays = False
            for piece in near:
                shared = intersect(piece.region, region)
                if shared is None:
                    kept.append(piece)
                    continue
                same = shared[1] == region.extent and _same_elements(inner(piece.region, *shared), region)
                if isinstance(piece.origin, str) and piece.origin != link.origin:
                    clashes.append(Clash(piece.origin, link.origin, same))
                    stays = same and isinstance(link.origin, str)
                if stays:
                    kept.append(piece)
                else:
                    kept += [Piece(part, piece.origin) for part in subtract(piece.region, *shared)]
            known = kept
            if not stays:
                fresh.append(Piece(region, link.origin))
        self.pieces = known + fresh
        return clashes


def _same_elements(a: Region, b: Region) -> bool:
    return a.first == b.first and all(n == 1 or s == t for n, s, t in zip(b.extent, a.strides, b.strides, strict=True))


def _without(region: Region, cut: Region) -> Iterator[Region]:
    shared = intersect(region, cut)
    if shared is None:
        yield region
    else:
        yield from subtract(region, *shared)
