# SPDX-License-Identifier: Apache-2.0
"""A torch dispatch mode that sees which memory a piece of an engine's code reads and writes, and undoes the writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsecast.engines.trace.dispatch_mode import storage_key, written_tensors

aten = torch.ops.aten

_OVERWRITES = (aten.copy_, aten._foreach_copy_, aten.fill_, aten.zero_)  # These operators do not read what they write.
_COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional")
_COLLECTIVE_NAMES = ("all_gather", "all_reduce", "reduce_scatter", "broadcast", "all_to_all")


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Torch dispatch mode that lets every operator run, and notes which memory the code under it reads and writes.
    `read` has the storages in `known` that the code reads before it writes them; `written` has the storages that the
    code writes and has not made itself. Both have the storages by `storage_key`.

    `known` names the storages of the model by `storage_key`; they must stay alive. Code that runs no torch operator (a
    kernel launched by itself), or that runs in another thread (but see `pools_run_here`), is not seen. With
    `may_read_tables`, reads of tensors that are not in `known` are allowed if they are of int64, which are indices, or
    have at most 512 bytes, which are tables of a format's values.
    """

    def __init__(self, known: Mapping[int, str], *, may_read_tables: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read: set[int] = set()
        self.written: set[int] = set()
        self.has_read_unknown = False
        """Whether the code read a tensor that is not in `known`, that it has not made itself, and that
        `may_read_tables` does not allow.
        """
        self.reasons: list[str] = []
        """Reasons why another run of the code may give another result: random numbers, and operations over several
        ranks.
        """
        self._known = known
        self._may_read_tables = may_read_tables
        self._made: set[int] = set()
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []  # Bytes of a storage, and a copy from before.

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        name = packet.__name__
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.reasons.append(f"it draws random numbers ({name})")
        if func.namespace in _COLLECTIVE_NAMESPACES or any(word in name for word in _COLLECTIVE_NAMES):
            self.reasons.append(f"it depends on other ranks ({name})")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if packet is aten.lift_fresh:
            self._made |= {storage_key(t) for t in tensors}  # A constant of the code itself.
        written = written_tensors(func, args, kwargs)
        outputs = [kwargs[a.name] for a in func._schema.arguments if a.is_out and a.name in kwargs]
        unread = {id(t) for t in (written if packet in _OVERWRITES else outputs)}
        if not func.is_view:
            for tensor in tensors:
                if id(tensor) not in unread and tensor.numel():
                    self._note_read(tensor)
        for tensor in written:
            self._note_written(tensor)
        result = func(*args, **kwargs)
        made = {storage_key(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        self._made |= made - {storage_key(t) for t in tensors} - self._known.keys()
        return result

    def has_changed(self) -> bool:
        """Returns whether the code has changed any byte of a storage that existed before the code ran."""
        return any(not torch.equal(memory, before) for memory, before in self._before)

    def undo(self) -> None:
        """Restores the bytes of every storage that existed before the code ran and that the code has written."""
        for memory, before in self._before:
            memory.copy_(before)

    def _note_read(self, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key in self._known:
            self.read |= {key} - self.written  # What it has written itself is no input.
        elif key not in self._made:
            is_table = tensor.dtype == torch.int64 or tensor.untyped_storage().nbytes() <= 512
            self.has_read_unknown |= not (self._may_read_tables and is_table)

    def _note_written(self, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key in self._made or key in self.written:
            return
        self.written.add(key)
        memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        storage = tensor.untyped_storage()
        memory.set_(storage, 0, (storage.nbytes(),), (1,))
        self._before.append((memory, memory.clone()))
