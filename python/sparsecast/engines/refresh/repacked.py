# SPDX-License-Identifier: Apache-2.0
"""Modules whose parameters an engine has changed in form after loading: transposed, repacked or quantised once more.

The loader cannot be traced into such parameters. Where the bytes have stayed and only the form has changed (a
transposed view, another name), live memory is patched in the form that the parameter had when it was loaded. Otherwise
this rank's part of the parameter is kept a second time, in host memory, as it was loaded; updates patch this copy
through the map of the loader, and after each update the engine's own post-processing makes the live parameters from the
copies:

    canonical tensor -> loader's map -> copy as loaded -> post-processing -> live parameter, at its address

Post-processing runs over a twin of the module: the same model is made once more on the meta device, and its module of
the same name gets clones of the copies as parameters. So nothing of the live module changes but the bytes of its
tensors, and each run begins with a module that has not been post-processed yet.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, ParamSpec, TypeVar

import torch

from sparsecast.buffers import bits_of
from sparsecast.engines.refresh.constants import Constants
from sparsecast.engines.refresh.reached import Reached
from sparsecast.engines.refresh.recompute import Step
from sparsecast.engines.trace.address_map import TracedLoader
from sparsecast.engines.trace.dispatch_mode import pools_run_here, storage_elements, storage_key
from sparsecast.engines.trace.memory import host_memory
from sparsecast.engines.trace.slots import Slot, slots
from sparsecast.engines.trace.watch import Watch
from sparsecast.errors import UnsupportedError

P = ParamSpec("P")
R = TypeVar("R")

_PERIOD = 65521


class RepackedModules:
    """The repacked modules of a live model, with copies of their parameters as they were loaded; for the engine's
    thread.

    `twin` is the same model on the meta device, as it is before loading; it was made under the mode `constants`.
    `finish` maps the name of each repacked module to the engine's post-processing of the module of that name in `twin`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        twin: torch.nn.Module,
        finish: Mapping[str, Callable[[], object]],
        constants: Constants | None = None,
    ) -> None:
        device = next((p.device for p in model.parameters() if p.is_cuda), torch.device("cpu"))
        owners = Counter(id(p) for module in twin.modules() for p in module._parameters.values() if p is not None)
        shared = {key for key, count in owners.items() if count > 1}
        self._modules = [
            _Repacked(
                name, model.get_submodule(name), twin.get_submodule(name), run, device, shared, constants or Constants()
            )
            for name, run in finish.items()
        ]

    @property
    def parameters(self) -> list[str]:
        """Names in the model of the parameters that the modules had when they were loaded."""
        return [f"{module.name}.{name}" for module in self._modules for name in module.copies]

    def has(self, name: str) -> bool:
        """Returns whether the tensor of this name in the model belongs to one of the repacked modules."""
        return any(name.startswith(f"{module.name}.") for module in self._modules)

    @contextlib.contextmanager
    def shown(self, *, to_read: bool = False) -> Iterator[None]:
        """Puts the copies in the place of the model's live parameters while the context lasts, because the loader works
        on parameters as they are before post-processing. With `to_read`, copies that are not on the model's device are
        replaced by clones that are there.
        """
        live = [(module.live._parameters, dict(module.live._parameters)) for module in self._modules]
        for module in self._modules:
            table: dict[str, Any] = module.live._parameters
            shown = {key: parameter for key, parameter in table.items() if key in module.shared}
            table.clear()
            table.update({**shown, **(module.copies_on_device() if to_read else module.copies)})
        try:
            yield
        finally:
            for table, before in live:
                table.clear()
                table.update(before)

    def around(self, run: Callable[P, R], *, to_read: bool = False) -> Callable[P, R]:
        """Returns a function that runs `run` while the copies are `shown`; `to_read` is handed on to `shown`. `run` is
        a piece of the engine's loading that comes before post-processing.
        """

        def shown(*arguments: P.args, **options: P.kwargs) -> R:
            with self.shown(to_read=to_read):
                return run(*arguments, **options)

        return shown if self._modules else run

    @property
    def places(self) -> tuple[Slot, ...]:
        """Slots of the copies, each with the name of its parameter in the model."""
        return tuple(
            Slot(f"{module.name}.{name}", module.copies, name, copy, copy.detach(), True)
            for module in self._modules
            for name, copy in module.copies.items()
        )

    def completed(self, traced: TracedLoader) -> TracedLoader:
        """Returns the complete map of the model for `traced`, a map that was traced while the copies were shown.
        `repacked` of the result has the names of the copies. Copies are not in its `missing`, nor are parameters in
        live memory whose unfilled elements are padding.

        Raises UnsupportedError for a parameter that canonical tensors fill only in part, if the results of
        post-processing depend on the other elements and the engine does not make the parameter with one constant value.
        """
        own = {f"{module.name}.{name}" for module in self._modules for name in module.copies if module.is_copy(name)}
        complete = set(own)
        for module in self._modules:
            module.look_at_unfilled(traced)
            complete |= module.padded_in_place(traced)
        return replace(
            traced,
            repacked=tuple(tensor.name for tensor in traced.tensors if tensor.name in own),
            missing={name: what for name, what in traced.missing.items() if name not in complete},
            untouched=tuple(name for name in traced.untouched if name not in own),
        )

    def steps(self, loader_steps: Sequence[Step]) -> list[Step]:
        """Returns all steps of a `Recomputation`: `loader_steps`, which may then also write the copies, followed by the
        steps that make the live parameters from the copies.
        """
        return [
            *(replace(step, places=self.places) for step in loader_steps),
            *(
                Step(m.name, m.live, m.run, tuple(m.copies.values()), (), True, m.places(), m.unproven)
                for m in self._modules
                if not m.lies_in_place
            ),
        ]


class _Repacked:
    """One repacked module: its copies, and the post-processing that makes its live tensors from them."""

    def __init__(
        self,
        name: str,
        live: torch.nn.Module,
        twin: torch.nn.Module,
        finish: Callable[[], object],
        device: torch.device,
        shared: Collection[int],
        constants: Constants,
    ) -> None:
        self.name, self.live = name, live
        self._twin, self._finish, self._device = twin, finish, device
        own = {key: p for key, p in twin._parameters.items() if p is not None and id(p) not in shared}
        self.shared = {key for key, parameter in twin._parameters.items() if id(parameter) in shared}
        """Names of parameters that other modules have as well. They are not copied: they stay as they were loaded
        there.
        """
        self._fresh = Reached(twin)
        common = {storage_key(tensor) for tensor in self._fresh.tensors.values() if not tensor.is_meta}
        reached = Reached(live).tensors
        self._live = {path: tensor for path, tensor in reached.items() if storage_key(tensor) not in common}
        """Tensors that the live module reaches, by path; without tensors that the twin reaches as well, which all
        modules share.
        """
        self._in_place: dict[int, str] = {}
        """Names of parameters by `storage_key`, for live storages that have the bytes of the parameter as it was
        loaded.
        """
        self.lies_in_place = False
        """Whether every live tensor of the module lies in a storage in `_in_place`, or is as it was constructed:
        nothing has to be made again then.
        """
        live_memory = self._find_what_lies_in_place(own)
        self.copies = {key: _as_loaded(p, live_memory.get(key), live, twin, device) for key, p in own.items()}
        """The parameters by name, in the form that they had when they were loaded: live memory where that has their
        bytes, else a copy in host memory.
        """
        self._constants = {key: value for key, p in own.items() if (value := constants.value_of(p)) is not None}
        """Value, by name, of each parameter that the engine makes with one value throughout; padding keeps this
        value.
        """
        for key, value in self._constants.items():
            if value and key not in live_memory:  # Copies begin as zeros.
                self.copies[key].fill_(value)
        self.unproven = ""
        """Sentence that says what only a comparison with the engine's own load can prove; empty if there is nothing of
        that kind.
        """

    def copies_on_device(self) -> dict[str, torch.Tensor]:
        """Returns the copies by name; a copy that is not on the module's device is replaced by a clone that is
        there.
        """
        return {
            key: copy if copy.device == self._device else _like(copy.detach().to(self._device), copy)
            for key, copy in self.copies.items()
        }

    def is_copy(self, name: str) -> bool:
        """Returns whether the parameter of this name is kept as a copy; False if live memory has the parameter's bytes
        as they were loaded.
        """
        return name not in self._in_place.values()

    def _find_what_lies_in_place(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns, by name, the parameters whose bytes live memory still holds as they were loaded, as tensors over
        that memory. Also sets `_in_place` and `lies_in_place`.

        These are the parameters whose bytes post-processing leaves where they are, even if it changes their form (a
        transposed view, another name). To find them, post-processing is run on random values.
        """
        try:
            with _probing():
                made, given = self._made({key: self._random(parameter) for key, parameter in parameters.items()})
        except Exception:  # Post-processing may fail on random values; the proof tells whether it does on weights.
            return {}
        found: dict[str, torch.Tensor] = {}
        for key, tensor in given.items():
            left_alone = torch.equal(_bytes(tensor), _bytes(self._random(parameters[key])))
            for path, new in made.items():
                now = self._live.get(path)
                if left_alone and now is not None and storage_key(new) == storage_key(tensor) and _is_same(new, now):
                    self._in_place[storage_key(now)] = key
                    memory = torch.empty(0, dtype=tensor.dtype, device=now.device)
                    found[key] = memory.set_(now.untyped_storage(), 0, tensor.shape, tensor.stride())
        self.lies_in_place = all(
            storage_key(tensor) in self._in_place or self._is_as_constructed(path, made) or not tensor.numel()
            for path, tensor in self._live.items()
        )
        return found

    def _is_as_constructed(self, path: str, made: Mapping[str, torch.Tensor]) -> bool:
        is_constant = path in made and made[path].is_meta and path not in self.live._parameters
        return is_constant or path in self.shared

    def run(self) -> None:
        """Makes every live tensor of the module again from the copies, at its address. Raises UnsupportedError, before
        anything is written, if post-processing does not make one of the tensors, or makes it with another dtype or
        shape.
        """
        made, _ = self._made(self.copies)
        writes: list[tuple[torch.Tensor, torch.Tensor]] = []
        found = set(self._in_place)
        for path, tensor in self._live.items():
            new = made.get(path)
            if new is None or new.is_meta or path in self.shared or storage_key(tensor) in self._in_place:
                continue
            if (new.dtype, new.shape) != (tensor.dtype, tensor.shape):
                raise UnsupportedError(
                    f"it makes {tuple(new.shape)} of {new.dtype} where {self.name}.{path} is {tuple(tensor.shape)} of "
                    f"{tensor.dtype}"
                )
            found.add(storage_key(tensor))
            writes.append((tensor, new))
        for path, tensor in self._live.items():
            if storage_key(tensor) not in found and tensor.numel() and not self._is_as_constructed(path, made):
                raise UnsupportedError(f"it does not make {self.name}.{path}")
        for tensor, new in writes:
            tensor.copy_(new)

    def places(self) -> tuple[Slot, ...]:
        """Returns slots of live tensors that belong to objects of the module, such as kernels, and not to the module
        itself.
        """
        own = {storage_key(slot.data) for slot in slots(self.live)}
        return tuple(
            Slot(f"{self.name}.{path}", {path: tensor}, path, tensor, tensor, False)
            for path, tensor in self._live.items()
            if storage_key(tensor) not in own
        )

    def look_at_unfilled(self, traced: TracedLoader) -> None:
        """Finds out whether the results of post-processing depend on elements of the copies that no canonical tensor
        fills. If they do, sets `unproven` if the engine makes these parameters with one constant value, which the
        unfilled elements may keep as padding; otherwise raises UnsupportedError.
        """
        unfilled = [name for name in self.copies if self.is_copy(name) and f"{self.name}.{name}" in traced.missing]
        if not unfilled:
            return
        zeros = {name: _like_zeros(copy) for name, copy in self.copies.items()}
        other = {name: _like_zeros(copy) for name, copy in self.copies.items()}
        for name in unfilled:
            bits = bits_of(_flat(other[name]))
            bits[self._rest(traced, name)] = -1 if bits.element_size() > 1 else 255
        with _probing():
            (first, _), (second, _) = self._made(zeros), self._made(other)
        for path, tensor in first.items():
            if not tensor.is_meta and not torch.equal(bits_of(tensor), bits_of(second[path])):
                reason = (
                    f"no canonical tensor fills all of {self.name}.{unfilled[0]}, and the engine's post-processing "
                    f"makes {self.name}.{path} of it"
                )
                if not all(name in self._constants and self._is_partly_filled(traced, name) for name in unfilled):
                    raise UnsupportedError(reason)
                self.unproven = f"{reason}: whether the rest is padding is proven by what the engine has loaded alone"

    def padded_in_place(self, traced: TracedLoader) -> set[str]:
        """Returns the names, in the model, of parameters in live memory that canonical tensors fill only in part, and
        whose other elements are padding: they have the constant value with which the engine makes the parameter.
        """
        found: set[str] = set()
        for name, value in self._constants.items():
            full = f"{self.name}.{name}"
            if full in traced.missing and not self.is_copy(name) and self._is_partly_filled(traced, name):
                rest = _flat(self.copies[name])[self._rest(traced, name)]
                if torch.equal(bits_of(rest), bits_of(torch.full_like(rest, value))):
                    found.add(full)
        return found

    def _is_partly_filled(self, traced: TracedLoader, name: str) -> bool:
        return f"{self.name}.{name}" not in traced.untouched

    def _rest(self, traced: TracedLoader, name: str) -> torch.Tensor:
        """Returns a mask over the storage of a parameter's copy: True for elements that no shard in `traced` fills."""
        copy = self.copies[name]
        mask = torch.ones(storage_elements(copy), dtype=torch.bool, device=copy.device)
        for shard in traced.shards:
            if traced.tensors[shard.local].name == f"{self.name}.{name}":
                mask.as_strided(shard.extent, shard.strides, shard.first).fill_(False)
        return mask

    def _random(self, parameter: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of random values with the dtype, shape and strides of a parameter: the same values each
        time, and finite for a floating-point dtype. The values repeat after a prime number of elements, which fits no
        tile.
        """
        size, dtype = storage_elements(parameter), parameter.dtype
        random = torch.Generator().manual_seed(size)
        if dtype.is_floating_point:
            values = torch.randn(_PERIOD, generator=random).to(dtype)
        else:
            values = torch.randint(0, 256, (_PERIOD * dtype.itemsize,), dtype=torch.uint8, generator=random).view(dtype)
        repeated = bits_of(values).to(self._device).repeat(-(-size // _PERIOD))[:size].clone()
        return repeated.view(dtype).as_strided(parameter.shape, parameter.stride())

    def _made(self, copies: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Runs post-processing over the twin with clones of `copies` as its parameters, and puts the twin back. Returns
        the tensors that the twin reached after that, by path, and the clones by name.
        """
        given: dict[str, torch.Tensor] = {}
        parameters: dict[str, Any] = self._twin._parameters
        try:
            for key, copy in copies.items():
                clone = torch.empty_strided(copy.shape, copy.stride(), dtype=copy.dtype, device=self._device)
                given[key] = clone.copy_(copy.detach())
                parameters[key] = _like(clone.detach(), parameters[key])
            for key in self.shared:
                live: Any = self.live._parameters[key]
                parameters[key] = _like(live.detach().clone(), live)
            for key, buffer in self._twin._buffers.items():
                now = self.live._buffers.get(key)
                if buffer is not None and buffer.is_meta and now is not None and now.shape == buffer.shape:
                    self._twin._buffers[key] = now.clone()
            self._finish()
            return Reached(self._twin).tensors, given
        finally:
            self._fresh.put_back()


def _as_loaded(
    parameter: torch.Tensor,
    live_memory: torch.Tensor | None,
    live: torch.nn.Module,
    twin: torch.nn.Module,
    device: torch.device,
) -> torch.Tensor:
    """Returns the copy of a parameter of the twin, as a parameter of the same class. Where the parameter has a loader
    method of the twin, the copy has that method of the live module. Its memory is `live_memory`, or new zeros in host
    memory if that is None.
    """
    if live_memory is None:
        memory = host_memory(storage_elements(parameter), parameter.dtype, device)
        live_memory = memory.as_strided(parameter.shape, parameter.stride())
    copy = _like(live_memory, parameter)
    for key, value in vars(copy).items():
        if isinstance(value, MethodType) and value.__self__ is twin:
            vars(copy)[key] = MethodType(value.__func__, live)
    return copy


@contextlib.contextmanager
def _probing() -> Iterator[None]:
    """Context manager for trial runs of the engine's code. At its end, undoes all writes into tensors that existed
    before. Within it nothing is logged, because the engine's messages would be about values that are not the model's.
    """
    watch, disabled = Watch({}), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with torch.no_grad(), pools_run_here(), watch:
            yield
    finally:
        logging.disable(disabled)
        watch.undo()


def _is_same(made: torch.Tensor, live: torch.Tensor) -> bool:
    """Returns whether two tensors have the same dtype, shape, strides and offset, in storages of the same size."""

    def form(tensor: torch.Tensor) -> tuple[object, ...]:
        place = tensor.shape, tensor.stride(), tensor.storage_offset()
        return tensor.dtype, *place, tensor.untyped_storage().nbytes()

    return form(made) == form(live)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of all bytes of the tensor's storage."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    storage = tensor.untyped_storage()
    return memory.set_(storage, 0, (storage.nbytes(),), (1,))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view of all elements of the tensor's storage, in one dimension."""
    return tensor.detach().as_strided((storage_elements(tensor),), (1,), 0)


def _like_zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(storage_elements(tensor), dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


def _like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Makes `tensor` a parameter of the same class and with the same attributes as `parameter`, and returns it."""
    tensor.__class__ = parameter.__class__
    tensor.__dict__ = dict(vars(parameter))
    return tensor
