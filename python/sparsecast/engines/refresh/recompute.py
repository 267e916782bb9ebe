# SPDX-License-Identifier: Apache-2.0
"""Tensors that an engine computes from its weights, brought up to date after each update by the engine's own code.

A patch of the weights does not reach what an engine computes once, after or while loading (MLA's factors of
`kv_b_proj`, Mamba's `A = -exp(A_log)`, casts). A `Step` is the piece of the engine that computed it; a `Recomputation`
runs the steps again, after each update and within the pause, and leaves the results at the addresses where they were:

    a step of the loader             canonical tensors that it computes with are kept outside the model (shadows) and
                                     patched like weights; the loader gets them again
    a step of post-processing        its inputs are live weights, which are patched in place; it runs over one module

The loader gets all shadows in one step, because it may compute with several of them together, and tensors in mode
"dense" a few in each step. Tensors in mode "nan_masked" need no step: `masked_reload` brings them up to date.

`prove` runs every step once before the first update and refuses, with the reason, steps whose results are not a
function of their inputs alone, or not what the engine's own load has left.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from sparsecast.buffers import bits_of
from sparsecast.engines.refresh.masked_reload import MaskedReload
from sparsecast.engines.trace.address_map import MODES
from sparsecast.engines.trace.dispatch_mode import pools_run_here, storage_key
from sparsecast.engines.trace.loader import LoadWeights, TracedLoader
from sparsecast.engines.trace.slots import Slot, slots
from sparsecast.engines.trace.watch import Watch
from sparsecast.errors import DirtyError, UnsupportedError


@dataclass
class Step:
    """A piece of an engine's code, `run`, that computes tensors of `module` from weights of `module` and from
    `inputs`.
    """

    name: str
    """Name of `module` in its model; empty for the model itself."""
    module: torch.nn.Module
    run: Callable[[], object]
    inputs: tuple[torch.Tensor, ...] = ()
    """Copies outside the model that the step reads: shadows of canonical tensors, or parameters as they were loaded."""
    loads: tuple[str, ...] = ()
    """Names of the tensors in mode "dense" that this step gives the loader; empty for any other step."""
    repacks: bool = False
    """Whether the step is post-processing that makes tensors of `module` from `inputs` alone (module
    `refresh.repacked`).
    """
    places: tuple[Slot, ...] = ()
    """Places that the step may write in addition to the places of `module`."""
    unproven: str = ""
    """Sentence that says what is only known to be right once the step has made the same bits as the engine's own load;
    empty if there is nothing of that kind.
    """
    derived: list[Slot] = field(default_factory=list)
    """Places of the tensors that the step computes; `Recomputation.prove` finds them."""

    def may_make(self, derived: str) -> bool:
        """Returns whether the tensor of this name in the model belongs to the step's module or to a submodule of it."""
        return not self.name or derived.startswith(f"{self.name}.")


def loader_step(model: torch.nn.Module, load_weights: LoadWeights, shadows: Mapping[str, torch.Tensor]) -> Step:
    """Returns the step that gives the loader of `model` the copies in `shadows`, by canonical name: the canonical
    tensors with which the loader computes.
    """
    return Step("", model, lambda: load_weights(iter(shadows.items())), tuple(shadows.values()))


def loader_steps(model: torch.nn.Module, load_weights: LoadWeights, traced: TracedLoader) -> list[Step]:
    """Returns the steps that load the tensors that the map `traced` keeps outside the model: all tensors in mode
    "shadow" in one step, and the tensors in mode "dense" a few per step.
    """
    shadows = traced.shadows("shadow")
    steps = [loader_step(model, load_weights, shadows)] if shadows else []
    return steps + dense_steps(model, load_weights, traced.shadows("dense"))


def dense_steps(model: torch.nn.Module, load_weights: LoadWeights, copies: Mapping[str, torch.Tensor]) -> list[Step]:
    """Returns steps that give the loader the tensors in `copies` whole, in their order. The tensors of one step have at
    most as many bytes as the largest tensor of all. A tensor is moved from host memory to the device of the model when
    the loader takes it.
    """
    largest = max((copy.nbytes for copy in copies.values()), default=0)
    device = next((slot.data.device for slot in slots(model)), torch.device("cpu"))
    groups: list[dict[str, torch.Tensor]] = []
    left = 0
    for name, copy in copies.items():
        if not groups or copy.nbytes > left:
            groups.append({})
            left = largest
        groups[-1][name] = copy
        left -= copy.nbytes

    def give(group: Mapping[str, torch.Tensor]) -> object:
        return load_weights((name, copy.to(device)) for name, copy in group.items())

    return [Step("", model, partial(give, group), tuple(group.values()), tuple(group)) for group in groups]


def steps_that_make(derived: Collection[str], post_processing: Iterable[Step]) -> list[Step]:
    """Returns the steps in `post_processing` that may have made a tensor named in `derived`, in their order: for each
    tensor, the steps of the innermost module that contains it.
    """
    steps = list(post_processing)
    wanted: set[str] = set()
    for name in derived:
        fitting = [step.name for step in steps if step.may_make(name)]
        wanted |= {max(fitting, key=len)} if fitting else set()
    return [step for step in steps if step.name in wanted]


class Recomputation:
    """The steps that bring the derived tensors of one rank up to date after an update; for the engine's thread, while
    nothing runs.

    `traced` is the map of what updates patch, with the copies that are kept outside the model. `needed` names the
    tensors that the steps have to make, in addition to the tensors that the loader computes according to the map.
    `load_weights` is the loader for tensors in mode "nan_masked", and for tensors whose mode is chosen by `prove`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        steps: Sequence[Step],
        traced: TracedLoader,
        needed: Collection[str] = (),
        load_weights: LoadWeights | None = None,
    ) -> None:
        self.steps = tuple(steps)
        self.needed = frozenset(needed).union(traced.computed)
        self.shadows = traced.shadows()
        self.modes = dict(traced.modes)
        """Mode of each tensor in `shadows`, by name; an empty string until `prove` has chosen the mode."""
        self.reasons = dict(traced.shadowed)
        """Sentence, by name of each tensor in `shadows`, that says what keeps the tensor from being patched in
        place.
        """
        self._load_weights = load_weights
        self._masked: MaskedReload | None = None
        self.seconds = 0.0
        """Duration of the last `run`, in seconds."""
        self._model = model
        live = {storage_key(slot.data) for slot in slots(model)}
        inputs = [tensor for step in self.steps if step.repacks for tensor in step.inputs]
        self._copies = {id(tensor): tensor for tensor in inputs if storage_key(tensor) not in live}
        self._patched = {storage_key(tensor.memory) for tensor in traced.tensors}

    @property
    def shadow_bytes(self) -> int:
        """Bytes of all copies that are kept outside the model: copies of canonical tensors (shadows), and parameters as
        they were loaded.
        """
        return sum(tensor.nbytes for tensor in (*self.shadows.values(), *self._copies.values()))

    @property
    def repacked(self) -> list[str]:
        """Names of the modules whose live parameters are made from copies of the parameters as they were loaded."""
        return [step.name for step in self.steps if step.repacks]

    @property
    def derived(self) -> list[str]:
        """Names in the model of the live tensors that `run` computes or loads again; complete after `prove`."""
        made = [slot.name for step in self.steps for slot in step.derived]
        return list(dict.fromkeys([*made, *(self._masked.derived if self._masked is not None else ())]))

    @property
    def loaded_whole(self) -> list[str]:
        """Names of tensors in mode "nan_masked" that the last `run` loaded whole, because some of their elements became
        NaNs.
        """
        return self._masked.loaded_whole if self._masked is not None else []

    def prove(self, *, as_loaded: bool) -> None:
        """Runs every step once or twice and puts the whole model back as it was. Raises UnsupportedError, with the
        reason, for a step that cannot be run again, and for a tensor in `needed` that no step computes.

        `as_loaded` says that the live tensors are what the engine's own load has left: then every step has to make the
        same bits. Otherwise the weights are still to come, and each step has to make the same bits twice.
        """
        self._choose_and_mask(as_loaded)
        more = [slot for step in self.steps for slot in step.places]
        known = {storage_key(slot.data): slot.name for slot in (*more, *slots(self._model))}
        # The copies outside the model hold nothing of value before the loader fills them.
        beside = {storage_key(copy) for copy in self._copies.values()}
        for step in self.steps:
            if step.unproven and not as_loaded:
                raise UnsupportedError(f"{step.unproven}: join with proof='checkpoint', without needs_anchor")
            first = self._observe(step, known)
            for slot, made in first:
                if storage_key(slot.data) in beside:
                    slot.data.copy_(made)
            if as_loaded:
                _compare(step, first, {slot.place: slot.data for slot, _ in first}, "what the engine's load has left")
            if step.repacks or not as_loaded:
                second = {slot.place: made for slot, made in self._observe(step, known)}
                _compare(step, first, second, "what it made a moment before")
            step.derived = [slot for slot, _ in first]
        left = sorted(self.needed - set(self.derived))
        if left:
            listed = ", ".join(left[:8])
            raise UnsupportedError(
                f"tensors that are derived from weights, and that no step of the engine makes: {listed}"
            )

    def run(self) -> None:
        """Computes every derived tensor again, at the address where it was. Raises DirtyError, naming the tensor or the
        step, if a step fails: then the weights are of the new version, and the derived tensors are not.
        """
        begin = time.perf_counter()
        if self._masked is not None:
            self._masked.run()
        for step in self.steps:
            _run(step)
        self._synchronize()
        self.seconds = time.perf_counter() - begin

    def audit(self) -> None:
        """Computes every derived tensor again, reads every tensor in mode "nan_masked" back, and compares. Raises
        DirtyError naming a tensor that held other bits.
        """
        if self._masked is not None:
            self._masked.audit()
        for step in self.steps:
            before = [slot.data.clone() for slot in step.derived]
            _run(step)
            for slot, old in zip(step.derived, before, strict=True):
                if not torch.equal(bits_of(slot.data), bits_of(old)):
                    raise DirtyError(f"{slot.name} is not what {_named(step)} makes of the weights")
        self._synchronize()

    def _choose_and_mask(self, as_loaded: bool) -> None:
        """Chooses the mode of each tensor that has none yet: "nan_masked" if that can be proven, else "dense". Then
        proves all tensors in mode "nan_masked" together, and raises UnsupportedError if that fails.
        """
        still_open = {name: self.shadows[name] for name, mode in self.modes.items() if mode == ""}
        for name, copy in still_open.items():
            try:
                self._masked_reload({name: copy}).prove(as_loaded=as_loaded)
                self.modes[name] = "nan_masked"
            except Exception as error:  # The engine's code may raise anything.
                self.modes[name] = "dense"
                self.reasons[name] += f"; {error}"
        dense = {name: copy for name, copy in still_open.items() if self.modes[name] == "dense"}
        if dense:  # Before the post-processing, which may read what these steps load.
            assert self._load_weights is not None
            self.steps = (*dense_steps(self._model, self._load_weights, dense), *self.steps)
        masked = {name: copy for name, copy in self.shadows.items() if self.modes[name] == "nan_masked"}
        if masked:
            self._masked = self._masked_reload(masked)
            self._masked.prove(as_loaded=as_loaded)

    def _masked_reload(self, copies: Mapping[str, torch.Tensor]) -> MaskedReload:
        if self._load_weights is None:
            raise UnsupportedError(f"tensor {next(iter(copies))!r} needs the engine's loader, which is not known here")
        return MaskedReload(self._model, self._load_weights, copies)

    def _observe(self, step: Step, known: Mapping[int, str]) -> list[tuple[Slot, torch.Tensor]]:
        """Runs a step under watch and undoes its writes. Returns the places that it writes, each with the tensor that
        it made there. Raises UnsupportedError with the first reason why the step cannot be run after an update. `known`
        names the storages of the model, by `storage_key`.
        """
        own = [*slots(step.module, step.name), *step.places]
        writable = {storage_key(slot.data) for slot in own}
        inputs = {storage_key(tensor) for tensor in step.inputs}
        watch = Watch({**known, **dict.fromkeys(inputs, "a shadow")}, may_read_tables=step.repacks)
        failure: Exception | None = None
        try:
            with pools_run_here(), watch:
                step.run()
        except Exception as error:  # The engine's code may raise anything.
            failure = error
        made: list[tuple[Slot, torch.Tensor]] = []
        reasons = [] if failure is None else [_failed(failure)]
        for slot in own:
            moved = not slot.is_as_found()
            if moved or storage_key(slot.data) in watch.written:
                now = slot.table.get(slot.key)
                reasons += _changed_form(slot, now)
                made.append((slot, now.detach().clone() if isinstance(now, torch.Tensor) else slot.data))
        for slot in own:
            slot.put_back()
        watch.undo()
        reasons += watch.reasons
        readable = inputs | (self._patched - watch.written) if inputs else writable
        if step.repacks:  # Buffers, such as the map of experts, and parameters of other modules are as they were.
            buffers = {storage_key(slot.data) for slot in own if slot.table is step.module._buffers}
            readable = inputs | buffers | (writable & self._patched)
        outside = sorted(known[key] for key in watch.read - readable)
        if outside:
            reasons.append(f"it reads {outside[0]}, which is not its own")
        elsewhere = sorted(known.get(key, "a tensor that no module shows") for key in watch.written - writable)
        if elsewhere:
            reasons.append(f"it writes {elsewhere[0]}, which is not its own")
        touched = watch.written | {storage_key(slot.data) for slot, _ in made}
        weights = sorted(known[key] for key in touched & self._patched if key in known)
        if weights and (step.repacks or not step.inputs):  # Even if it leaves the same bits now: a clamp, say.
            reasons.append(f"it writes {weights[0]}, a weight that updates patch")
        if watch.has_read_unknown:
            reasons.append("it reads a tensor that no module shows")
        if reasons:
            raise UnsupportedError(f"{_named(step)} cannot be run again after an update: {reasons[0]}")
        return made

    def _synchronize(self) -> None:
        if any(slot.data.is_cuda for step in self.steps for slot in step.derived):
            torch.cuda.synchronize()


def unwritten_parameters(
    models: Iterable[torch.nn.Module], traced: TracedLoader, recomputations: Iterable[Recomputation]
) -> list[torch.Tensor]:
    """Returns the parameters of `models` that keep elements which neither an update by the map `traced` nor a step of
    the recomputations writes: padding, constants of the loader, weights that are not updated.
    """
    filled = [0] * len(traced.tensors)
    for shard in traced.shards:
        filled[shard.local] += math.prod(shard.extent)
    written = {
        storage_key(tensor.memory)
        for tensor, count in zip(traced.tensors, filled, strict=True)
        if count == tensor.memory.numel()
    }
    written |= {storage_key(slot.data) for each in recomputations for step in each.steps for slot in step.derived}
    live = {id(parameter): parameter.detach() for model in models for parameter in model.parameters()}
    return [tensor for tensor in live.values() if not tensor.is_meta and storage_key(tensor) not in written]


def report(recomputations: Sequence[Recomputation]) -> dict[str, object]:
    """Returns the part of an engine's status that is about recomputation, as JSON values: the canonical tensors that
    are not patched in place (by mode, with the reason), the live tensors that are recomputed, the bytes of copies, and
    the seconds that the last recomputation took.
    """
    return {
        "modes": {mode: _reasons(recomputations, mode) for mode in MODES if mode != "in_place"},
        "derived": [name for each in recomputations for name in each.derived],
        "repacked": [name for each in recomputations for name in each.repacked],
        "shadows": sorted(name for each in recomputations for name in each.shadows),
        "shadow_bytes": sum(each.shadow_bytes for each in recomputations),
        "recompute_seconds": sum(each.seconds for each in recomputations),
        "loaded_whole": sorted(name for each in recomputations for name in each.loaded_whole),
    }


def _reasons(recomputations: Sequence[Recomputation], mode: str) -> dict[str, str]:
    return {
        name: each.reasons[name] for each in recomputations for name, own in sorted(each.modes.items()) if own == mode
    }


def _compare(
    step: Step, made: Sequence[tuple[Slot, torch.Tensor]], others: Mapping[tuple[int, str], torch.Tensor], what: str
) -> None:
    for slot, tensor in made:
        other = others.get(slot.place)
        if other is None or not torch.equal(bits_of(tensor), bits_of(other)):
            raise UnsupportedError(f"{_named(step)} does not make {slot.name} again: it differs from {what}")


def _failed(failure: Exception) -> str:
    if isinstance(failure, UnsupportedError):
        return failure.message
    return f"it fails when it is run again: {type(failure).__name__}: {failure}"


def _named(step: Step) -> str:
    if step.inputs and not step.repacks:
        listed = ", ".join(map(repr, step.loads[:4])) + (", ..." if len(step.loads) > 4 else "")
        return f"the engine's loader, given {listed}," if listed else "the engine's loader"
    return f"the engine's post-processing of {step.name or 'the model'}"


def _changed_form(slot: Slot, now: object) -> list[str]:
    if not isinstance(now, torch.Tensor) or (now.numel() == 0 and slot.data.numel()):
        return [f"it frees {slot.name}"]
    if (now.dtype, now.shape) != (slot.data.dtype, slot.data.shape):
        was = f"{tuple(slot.data.shape)} of {slot.data.dtype}"
        return [f"it makes {tuple(now.shape)} of {now.dtype} where {slot.name} was {was}"]
    return []


def _run(step: Step) -> None:
    try:
        step.run()
    except Exception as error:  # The engine's code: whatever it raises, its results are missing.
        raise DirtyError(f"{_named(step)} failed: {type(error).__name__}: {error}") from error
    for slot in step.derived:
        _settle(slot)


def _settle(slot: Slot) -> None:
    """After a step that may have put a new tensor into the place: copies its elements into the tensor that was found
    there, at the address of that tensor, and puts that tensor back into the place. Raises DirtyError if the place has
    no tensor of the same dtype and shape.
    """
    if slot.is_as_found():
        return
    now = slot.table.get(slot.key)
    if not isinstance(now, torch.Tensor) or (now.dtype, now.shape) != (slot.data.dtype, slot.data.shape):
        raise DirtyError(f"the engine's post-processing has not made {slot.name} again")
    slot.data.copy_(now.detach())
    slot.put_back()
