# SPDX-License-Identifier: Apache-2.0
"""A torch dispatch mode that follows canonical tensors through a loader without moving a byte.

Every canonical tensor is on the meta device, so it has an identity (its storage), an offset and strides, and no memory.
Views need no care. Of an operator that copies, the origins of the elements that it would write are recorded; the result
of an operator that computes is `Computed`; and nothing is written into live memory.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from sparsecast.engines.trace.strided import (
    CONSTANT,
    Clash,
    Computed,
    Dim,
    Link,
    Origin,
    Piece,
    Region,
    TooScatteredError,
    TracedMemory,
    dense_frame,
)

aten = torch.ops.aten

_BYTES = {torch.uint8, torch.int8}
"""Dtypes between which a copy changes no bit."""

_NEW = (aten.empty, aten.empty_strided, aten.zeros, aten.ones, aten.full)
_NEW_LIKE = (aten.empty_like, aten.zeros_like, aten.ones_like, aten.full_like)
_NEW_OF = (aten.new_empty, aten.new_empty_strided, aten.new_zeros, aten.new_ones, aten.new_full)


@contextlib.contextmanager
def pools_run_here() -> Iterator[None]:
    """While the context lasts, makes work that this thread hands to a ThreadPoolExecutor run at once and in this
    thread. Loaders hand copies to such pools, and a dispatch mode sees only the operators of its own thread.
    """
    owner, submit = threading.get_ident(), ThreadPoolExecutor.submit

    def run(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        if threading.get_ident() != owner:
            return submit(pool, work, *arguments, **options)
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **options))
        except Exception as error:  # Raised where the result is waited for.
            future.set_exception(error)
        return future

    ThreadPoolExecutor.submit = run  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]


def storage_key(tensor: torch.Tensor) -> int:
    """Returns the identity of the storage of a tensor, unique while the storage exists."""
    return int(tensor.untyped_storage()._cdata)


def storage_elements(tensor: torch.Tensor) -> int:
    """Returns the number of elements of the tensor's dtype that fit into the tensor's whole storage."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


class TraceRefusedError(RuntimeError):
    """Raised when the loader asks for the value of a tensor that has no memory, and so no value."""


class LoaderTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records where the elements of `canonical` go while a loader runs under this mode.

    `live` maps names to the tensors of the model; `canonical` maps names to tensors on the meta device. After the
    trace, `memories[storage_key(t)]` has the origins of the elements of live tensor `t`. `computed` has a sentence
    about the computation, by name, for each canonical tensor with which the loader computes. `clashes` has a pair (name
    of the live tensor, `Clash`) for each write over elements that another canonical tensor had filled. `read_on_host`
    names the canonical tensors whose values the loader read on the host.
    """

    def __init__(self, live: dict[str, torch.Tensor], canonical: dict[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memories: dict[int, TracedMemory] = {}
        self.computed: dict[str, str] = {}
        self.clashes: list[tuple[str, Clash]] = []
        self.dtypes: dict[str, torch.dtype] = {}
        self.read_on_host: set[str] = set()
        self._live_names: dict[int, str] = {}
        self._keep_alive: list[torch.Tensor] = []  # A storage that is freed would give its identity to another storage.
        self._read_scalars: dict[float | int, torch.Tensor] = {}
        self._read_back: set[int] = set()  # Storages that were filled from live storages.
        for name, tensor in live.items():
            self._live_names.setdefault(storage_key(tensor), name)
            self._memory(tensor)
        for name, tensor in canonical.items():
            self.dtypes[name] = tensor.dtype
            memory = self._memory(tensor)
            shape = tuple(tensor.shape)
            if tensor.numel():
                memory.pieces.append(Piece(Region((0,) * len(shape), shape, 0, memory.frame.strides), name))

    # -- the mode ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func.overloadpacket)
        if handler is not None:
            return handler(self, func, args, kwargs)
        if func.is_view:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        traced = [t for t in tensors if self._names_of(t, live=True)]
        written = written_tensors(func, args, kwargs)
        if written and (traced or any(storage_key(t) in self._live_names for t in written)):
            return self._computed_in_place(func, traced, written, args)
        if not traced:
            return func(*args, **kwargs)
        if any(t.is_meta for t in traced):  # Nothing is computed; other operands come along.
            args, kwargs = tree_map(_on_meta, (args, kwargs))
        return self._computed_result(func, traced, func(*args, **kwargs))

    def _computed_result(self, func: Any, traced: Sequence[torch.Tensor], result: Any) -> Any:
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        inputs = {storage_key(t) for t in traced}
        if outputs and all(storage_key(output) in inputs for output in outputs):
            return result  # A view that its schema does not call a view, as _unsafe_view is.
        origin = self._compute(f"{func.overloadpacket.__name__}() computes with it", traced)
        for output in outputs:
            self._note_read_back(output, traced)
            self._overwrite(output, origin)
        return result

    def _computed_in_place(
        self, func: Any, traced: Sequence[torch.Tensor], written: Sequence[torch.Tensor], args: tuple[Any, ...]
    ) -> Any:
        # This changes the elements of a live tensor as well, hence its names.
        origin = self._compute(f"{func.overloadpacket.__name__}() computes with it", [*traced, *written])
        for output in written:
            self._note_read_back(output, traced)
            self._overwrite(output, origin)
        return args[0] if args else None

    def _compute(self, reason: str, tensors: Sequence[torch.Tensor]) -> Computed:
        names = self._all_names(tensors)
        first = next((self.computed[name] for name in sorted(names) if name in self.computed), reason)
        if not all(self._is_read_back(t) for t in tensors):
            for name in names:
                self.computed.setdefault(name, first)
        # Else the result may serve a check, or stay outside the model: it matters only if it goes into a live tensor.
        return Computed(names, first)

    # -- memories ------------------------------------------------------------------------------------------------

    def _memory(self, tensor: torch.Tensor) -> TracedMemory:
        key = storage_key(tensor)
        memory = self.memories.get(key)
        if memory is None:
            whole = tensor.storage_offset() == 0
            elements = storage_elements(tensor)
            shape = tuple(tensor.shape) if whole else (elements,)
            strides = tuple(tensor.stride()) if whole else (1,)
            memory = self.memories[key] = TracedMemory(dense_frame(shape, strides, elements))
            self._keep_alive.append(tensor.detach())
        return memory

    def _names_of(self, tensor: torch.Tensor, *, live: bool = False) -> frozenset[str]:
        key = storage_key(tensor)
        memory = self.memories.get(key) if live or key not in self._live_names else None
        return memory.names() if memory is not None else frozenset()

    def _is_read_back(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is live, or was made only from live tensors that the loader has read again."""
        return storage_key(tensor) in self._live_names or storage_key(tensor) in self._read_back

    def _note_read_back(self, tensor: torch.Tensor, sources: Sequence[torch.Tensor]) -> None:
        if sources and all(self._is_read_back(source) for source in sources):
            self._read_back.add(storage_key(tensor))

    def _all_names(self, tensors: Sequence[torch.Tensor]) -> frozenset[str]:
        """Returns the names of the canonical tensors from which elements of `tensors` came, also by way of live tensors
        into which they were loaded.
        """
        return frozenset[str]().union(*(self._names_of(t, live=True) for t in tensors))

    def _overwrite(self, tensor: torch.Tensor, origin: Origin) -> None:
        dims = [Dim(n, 0, s) for n, s in zip(tensor.shape, tensor.stride(), strict=True)]
        if tensor.numel():
            self._write(tensor, Link(origin, 0, int(tensor.storage_offset()), dims))

    def _write(self, target: torch.Tensor, link: Link) -> None:
        name = self._live_names.get(storage_key(target), "")
        clashes = self._memory(target).write(link)
        if name:
            self.clashes += [(name, clash) for clash in clashes]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Records the effect that `target.copy_(source)` would have, with `source` broadcast to the shape of `target`.
        Copies nothing.
        """
        if not target.numel():
            return
        names = self._names_of(source, live=True)
        if not names:
            self._overwrite(target, CONSTANT)
            return
        self._note_read_back(target, [source])
        if source.dtype != target.dtype and not {source.dtype, target.dtype} <= _BYTES:
            self._overwrite(target, self._compute(f"copy_() casts {source.dtype} to {target.dtype}", [source]))
            return
        if any(self.dtypes[name].itemsize != source.element_size() for name in names):
            self._overwrite(target, self._compute(f"view({source.dtype}) regroups its bytes", [source]))
            return
        source = source.expand(target.shape)
        dims = [Dim(*d) for d in zip(source.shape, source.stride(), target.stride(), strict=True)]
        try:
            begin, to = int(source.storage_offset()), int(target.storage_offset())
            for link in list(self._memory(source).read(begin, dims, to)):
                self._write(target, link)
        except TooScatteredError as error:
            self._overwrite(target, self._compute(f"copy_() {error}", [source]))

    # -- operators with a meaning of their own -------------------------------------------------------------------

    def on_copy_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, source = args[0], args[1]
        if storage_key(target) in self._live_names or self._names_of(source) or self._names_of(target):
            self.copy(target, source)
            return target
        return func(*args, **kwargs)

    def on_foreach_copy_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for target, source in zip(args[0], args[1], strict=True):
            self.on_copy_(aten.copy_.default, (target, source), {})
        return args[0]

    def on_fill_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0]
        value = args[1] if len(args) > 1 else 0
        if isinstance(value, torch.Tensor) and self._names_of(value):
            self.copy(target, value)
        elif not isinstance(value, (torch.Tensor, bool)) and value in self._read_scalars:
            self.copy(target, self._read_scalars[value])
        elif storage_key(target) in self._live_names or self._names_of(target):
            self._overwrite(target, CONSTANT)
        else:
            return func(*args, **kwargs)
        return target

    def on_clone(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[0]
        if not self._names_of(source):
            return func(*args, **kwargs)
        # Moving to another device changes no bit, and on the meta device there is nothing to move.
        options = {key: value for key, value in kwargs.items() if key in ("memory_format", "dtype")}
        result = func(source, **options)
        self.copy(result, source)
        return result

    def on_new(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        model = args[0] if args and isinstance(args[0], torch.Tensor) else None
        result = func(*args, **{**kwargs, "device": model.device} if model is not None and model.is_meta else kwargs)
        self._memory(result)  # Its shape is known now; the first copy may be into a part of it.
        return result

    def on_cat(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parts = args[0]
        if not any(self._names_of(part) for part in parts):
            return func(*args, **kwargs)
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        result = func([part if part.is_meta else torch.empty_like(part, device="meta") for part in parts], dim)
        self._memory(result)
        start = 0
        for i, part in enumerate(parts):
            if func.overloadpacket is aten.stack:
                self.copy(result.select(dim, i), part)
            elif tuple(part.shape) != (0,):
                self.copy(result.narrow(dim, start, part.shape[dim]), part)
                start += part.shape[dim]
        return result

    def on_pad(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source, pads = args[0], args[1]
        result = func(*args, **kwargs)
        if not self._names_of(source):
            return result
        if min(pads) < 0:
            return self._computed_result(func, [source], result)
        self._memory(result)
        inside = result
        for i in range(0, len(pads), 2):
            dim = source.dim() - 1 - i // 2
            inside = inside.narrow(dim, pads[i], source.shape[dim])
        self.copy(inside, source)
        return result

    def on_index(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[0]
        if not self._names_of(source):
            return func(*args, **kwargs)
        if func.overloadpacket is aten.index_select:
            dim, index = args[1] % source.dim(), args[2]
        else:
            used = [(d, i) for d, i in enumerate(args[1]) if i is not None]
            dim, index = used[0] if len(used) == 1 else (0, None)
        if index is None or index.is_meta or index.dim() != 1 or index.dtype in (torch.bool, torch.uint8):
            return self._computed_result(func, [source], func(*args, **kwargs))
        rows = [int(i) for i in index]
        shape = [*source.shape[:dim], len(rows), *source.shape[dim + 1 :]]
        result = torch.empty(shape, dtype=source.dtype, device=source.device)
        self._memory(result)
        for start, row, count in _runs(rows):
            row = row % source.shape[dim]
            self.copy(result.narrow(dim, start, count), source.narrow(dim, row, count))
        return result

    def on_item(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[0]
        if not self._names_of(source):
            return func(*args, **kwargs)
        if self._names_of(source) & self.computed.keys():
            raise TraceRefusedError("a value that was computed from it decides how it is loaded")
        # The value does not exist; a number that no loader has takes its place, so that fill_() can know it again.
        n = len(self._read_scalars) + 1
        value: float | int = -(2**40 + n) if not source.dtype.is_floating_point else odd_float(n)
        self._read_scalars[value] = source
        self.read_on_host |= self._names_of(source)
        return value


def odd_float(n: int) -> float:
    """Returns the `n`-th of a series of floats that no loader uses as values. Each can stand for a value that does not
    exist, and be recognized later.
    """
    return float(struct.unpack("<d", struct.pack("<Q", (0x0123 << 48) + n))[0])


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cuts a list of row numbers into runs of consecutive numbers. Yields for each run its position in the list, its
    first row number, and its length.
    """
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1:
            yield start, rows[start], i - start
            start = i


def _on_meta(leaf: Any) -> Any:
    return torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) and not leaf.is_meta else leaf


def written_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Returns the tensors among the arguments that the operator writes into, as its schema says."""
    found: list[torch.Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return found


_Handler = Callable[[LoaderTrace, Any, tuple[Any, ...], dict[str, Any]], Any]
_HANDLERS: dict[Any, _Handler] = {
    aten.copy_: LoaderTrace.on_copy_,
    aten._foreach_copy_: LoaderTrace.on_foreach_copy_,
    aten.fill_: LoaderTrace.on_fill_,
    aten.zero_: LoaderTrace.on_fill_,
    aten.clone: LoaderTrace.on_clone,
    aten._to_copy: LoaderTrace.on_clone,
    aten.cat: LoaderTrace.on_cat,
    aten.stack: LoaderTrace.on_cat,
    aten.constant_pad_nd: LoaderTrace.on_pad,
    aten.index: LoaderTrace.on_index,
    aten.index_select: LoaderTrace.on_index,
    aten._local_scalar_dense: LoaderTrace.on_item,
    **dict.fromkeys((*_NEW, *_NEW_LIKE, *_NEW_OF), LoaderTrace.on_new),
}
