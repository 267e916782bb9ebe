# SPDX-License-Identifier: Apache-2.0
"""Notices that tensors which are read or written by their address have got other memory, or no owner any more.

Offloading and back, ``p.data = ...``, ``load_state_dict(assign=True)`` and replaced modules leave what holds the old
memory with bytes that no model computes with. Nothing here keeps a parameter alive, and there are no weak references to
tensors, which ``torch.utils.swap_tensors`` refuses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Container, ItemsView, Iterable, Iterator, Mapping

import torch
from torch import nn

from ..errors import UnsupportedError, UsageError

Place = tuple[object, ...]

_PLAIN = (torch.Tensor, nn.Parameter)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the local part, on this rank, of a DTensor; returns any other tensor as it is."""
    if type(tensor) in _PLAIN or not (hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")):
        return tensor
    with torch.no_grad():
        local: torch.Tensor = tensor.to_local()
        return local


def place_of(tensor: torch.Tensor) -> Place:
    """Returns address, shape, strides, dtype and device of a tensor, or of the local part of a DTensor."""
    local = local_of(tensor)
    return local.data_ptr(), local.shape, local.stride(), local.dtype, local.device


def alias_of(tensor: torch.Tensor, shape: Iterable[int], strides: Iterable[int], first: int = 0) -> torch.Tensor:
    """Returns a tensor with ``shape`` and ``strides`` (in elements) over the memory of ``tensor``, beginning at its
    element ``first``. Unlike a view it does not keep the object ``tensor`` alive, only the memory.
    """
    memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return memory.set_(tensor.untyped_storage(), tensor.storage_offset() + first, tuple(shape), tuple(strides))


class LiveTensors(Mapping[str, torch.Tensor]):
    """Mapping of names to tensors that calls ``look`` at each access, so that it always has the tensors that a model
    has at that moment.
    """

    def __init__(self, look: Callable[[], dict[str, torch.Tensor]]) -> None:
        self.now = look

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.now())

    def __len__(self) -> int:
        return len(self.now())

    def items(self) -> ItemsView[str, torch.Tensor]:
        return _LiveItems(self)


class _LiveItems(ItemsView[str, torch.Tensor]):
    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._mapping.now().items())  # type: ignore[attr-defined]


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the parameters of a module, followed by its persistent buffers, under all the names that they have in its
    state dict.

    FSDP2 modules shard their parameters again when a state dict is made. Raises UnsupportedError for FSDP1, whose state
    dict is a collective call.
    """
    return tensors_and_rest_of(module)[0]


def tensors_and_rest_of(module: nn.Module) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Returns the tensors of the module (:func:`tensors_of`), and the names of the other entries of its state dict:
    entries that are no tensors, and entries that a hook has added.
    """
    for name, part in module.named_modules():
        if type(part).__name__ == "FullyShardedDataParallel":
            words = "FSDP1 keeps its parameters as parts of flat ones: shard with fully_shard (FSDP2)"
            raise UnsupportedError(words, f"module '{name}'")
    state = module.state_dict(keep_vars=True)
    if not isinstance(state, Mapping):
        raise UsageError(f"state_dict() of {type(module).__name__} returns no dict but a {type(state).__name__}")
    names: dict[int, list[str]] = {}
    for name, value in state.items():
        names.setdefault(id(value), []).append(name)
    parameters: dict[str, torch.Tensor] = {}
    buffers: dict[str, torch.Tensor] = {}
    for _, part in module.named_modules(remove_duplicate=False):
        for key, tensor in _own(part):
            of_kind = parameters if key in part._parameters else buffers
            for name in names.pop(id(tensor), ()):
                of_kind[name] = tensor
    return parameters | buffers, [name for rest in names.values() for name in rest]


def _walked(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns all parameters and buffers of the module and its submodules by name."""
    found = dict(module.named_parameters(remove_duplicate=False))
    return found | dict(module.named_buffers(remove_duplicate=False))


def _own(part: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for key, parameter in part._parameters.items():
        if parameter is not None:
            yield key, parameter
    for key, buffer in part._buffers.items():
        if buffer is not None and key not in part._non_persistent_buffers_set:
            yield key, buffer


@dataclasses.dataclass
class _Node:
    """A module with its own children and tensors, as they were when a :class:`ModuleWatch` last looked."""

    module: weakref.ref[nn.Module]
    children: dict[str, weakref.ref[nn.Module] | None]
    tensors: dict[str, Place]
    count: int  # number of its tensors, including those that are not compared

    def stands(self, every: bool) -> bool:
        """Returns whether the module's children and watched tensors are still in their places. With ``every``, also
        whether the module has no further children or tensors.
        """
        part = self.module()
        if part is None or (every and len(part._modules) != len(self.children)):
            return False
        for key, child in self.children.items():
            if part._modules.get(key) is not (child() if child is not None else None):
                return False
        for key, place in self.tensors.items():
            tensor: torch.Tensor | None = part._parameters.get(key)
            if tensor is None:
                tensor = part._buffers.get(key)
            if tensor is None or place_of(tensor) != place:
                return False
        return not every or sum(1 for _ in _own(part)) == self.count


class ModuleWatch:
    """Remembers where the tensors of a module lie, by name, and finds out whether any of them has got other memory
    since.

    Without ``storages`` it watches the whole state dict, and notices new tensors as well. Otherwise it watches only the
    parameters and buffers that lie in ``storages``, a set of addresses at which storages begin. ``ignored`` has names
    of tensors that may lie anywhere. ``found`` is the result of :func:`tensors_of` for the module, if the caller has it
    already. ``cure`` is the advice at the end of error messages. A check takes a few microseconds per tensor.
    """

    def __init__(
        self,
        module: nn.Module,
        cure: str,
        *,
        storages: set[int] | None = None,
        ignored: Container[str] = (),
        found: dict[str, torch.Tensor] | None = None,
    ) -> None:
        self._module = module
        self._cure = cure
        self._every = storages is None
        self._look = tensors_of if storages is None else _walked
        self._storages = storages
        self._ignored = ignored
        if found is None:
            found = self._look(module)
        self._places = {name: place_of(tensor) for name, tensor in found.items() if self._is_watched(name, tensor)}
        self._nodes = self._tree(found)

    def check(self) -> None:
        """Raises UsageError naming a tensor if it has other memory than before, is gone, or is new."""
        if all(node.stands(self._every) for node in self._nodes):
            return
        found = self._look(self._module)
        for name, place in self._places.items():
            if name not in found:
                raise UsageError(f"the model has it no more: {self._cure}", f"tensor '{name}'")
            if place_of(found[name]) != place:
                raise UsageError(self._why(name, found[name]), f"tensor '{name}'")
        if self._every:
            for name in found:
                if name not in self._places and name not in self._ignored:
                    raise UsageError(f"the model has it only since then: {self._cure}", f"tensor '{name}'")
        self._nodes = self._tree(found)  # Modules were wrapped, and tensors left alone.

    def _is_watched(self, name: str, tensor: torch.Tensor) -> bool:
        if self._storages is not None and local_of(tensor).untyped_storage().data_ptr() not in self._storages:
            return False
        return name not in self._ignored

    def _tree(self, found: dict[str, torch.Tensor]) -> list[_Node]:
        watched = {id(tensor) for name, tensor in found.items() if name in self._places}
        nodes = []
        for part in self._module.modules():
            own = dict(_own(part))
            tensors = {key: place_of(tensor) for key, tensor in own.items() if id(tensor) in watched}
            children = {key: weakref.ref(child) if child is not None else None for key, child in part._modules.items()}
            nodes.append(_Node(weakref.ref(part), children, tensors, len(own)))
        return nodes

    def _why(self, name: str, tensor: torch.Tensor) -> str:
        if isinstance(tensor, nn.Parameter):
            return f"its memory is not the one that was described (offloaded, wrapped or assigned anew?): {self._cure}"
        cure = f"name it in `reassigned` of the publisher, or {self._cure}" if self._every else self._cure
        return f"this buffer was assigned anew: write into it, or {cure}"


def guard_of(models: Iterable[nn.Module], memory: Iterable[torch.Tensor], cure: str) -> Callable[[], None]:
    """Returns a function that raises UsageError if a weight of one of ``models`` has got other memory since this call;
    the message names the tensor and ends with the advice ``cure``. Only weights that lie in the storages of the tensors
    in ``memory`` are watched.
    """
    storages = {tensor.untyped_storage().data_ptr() for tensor in memory}
    watches = [ModuleWatch(model, cure, storages=storages) for model in models]

    def check() -> None:
        for watch in watches:
            watch.check()

    return check


class MemoryWatch:
    """Watches memory whose owner is not known, such as the memory of a list of tensors: whether it stays where it is,
    and whether anybody but the user of this watch still holds it. If nobody does, no model computes with it.

    Memory that is not torch's own (numpy's, a mapped file's) may have owners that torch does not count.
    """

    def __init__(self, tensors: Iterable[tuple[str, torch.Tensor]], cure: str) -> None:
        """``tensors`` are pairs of a name and a tensor over the memory to watch. The caller must have made these
        tensors with :func:`alias_of`, and none may be a view of another: each counts as one reference to its memory by
        the caller, and not by an owner. ``cure`` is the advice at the end of error messages, such as "make a new
        publisher".
        """
        self._cure = cure
        self._held: dict[int, _Memory] = {}
        for name, tensor in tensors:
            storage = tensor.untyped_storage()
            memory = self._held.setdefault(storage._cdata, _Memory(name, storage, storage.data_ptr(), storage.nbytes()))
            memory.users += 1

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Context manager: references to the memory that are made while it lasts count as references of the user of
        this watch, and not of an owner.
        """
        before = {key: memory.count() for key, memory in self._held.items()}
        yield
        for key, memory in self._held.items():
            memory.users += memory.count() - before[key]

    def check(self) -> None:
        """Raises UsageError naming a tensor if its memory has moved, or if it has no owner any more."""
        for memory in self._held.values():
            storage = memory.storage
            where = f"tensor '{memory.name}'"
            if storage.data_ptr() != memory.address or storage.nbytes() != memory.nbytes:
                raise UsageError(f"its memory is not the one that was described: {self._cure}", where)
            if memory.nbytes and storage.resizable() and memory.count() <= memory.users:
                words = (
                    "nobody else holds its memory any more: its owner has got another one (offloaded, assigned anew?)"
                )
                raise UsageError(f"{words}; {self._cure}", where)


@dataclasses.dataclass
class _Memory:
    """A storage as it was when the watch was made, with the number of references to it that are not an owner's."""

    name: str
    storage: torch.UntypedStorage
    address: int
    nbytes: int
    users: int = 1  # References to the storage: this one, and those that the user of the watch has.

    def count(self) -> int:
        return int(torch._C._storage_Use_Count(self.storage._cdata))
