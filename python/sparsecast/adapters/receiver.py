# SPDX-License-Identifier: Apache-2.0
"""Keeps the adapters of one engine at the versions of their trainers.

absent --add()--> served at version n --update()--> served at version m --remove()--> absent
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from .. import _core
from ..buffers import describe
from ..errors import CorruptError, UnsupportedError, UsageError
from ..torch import Subscriber
from ..transports import Log, Transport
from .adapter import CONFIG_FILE, TENSOR_FILE, AdapterSpec
from .engines import AdapterEngine

_FOUR_BIT_STATE = ".quant_state.bitsandbytes__"


@dataclass(frozen=True)
class AdapterUpdate:
    """Report of one update of an adapter. ``received_bytes`` were read from the stream, and ``adapter_bytes`` is the
    size of all tensors of the adapter. ``load_seconds`` is the time in which the engine loaded this version, 0 if it
    had it already; ``total_seconds`` is the time of the whole call.
    """

    name: str
    version: int
    received_bytes: int
    adapter_bytes: int
    directory: pathlib.Path
    load_seconds: float
    total_seconds: float


@dataclass
class _Held:
    """An adapter that the receiver holds. ``live`` is True if its stream is a world, and False if it is a log."""

    spec: AdapterSpec
    tensors: dict[str, torch.Tensor]
    subscriber: Subscriber
    live: bool
    folder: pathlib.Path
    served: int | None = None  # Version that the engine has loaded.
    kept: list[pathlib.Path] = field(default_factory=list)  # Directories that the engine may read, the newest last.


class AdapterReceiver:
    """Receives adapters, each from a stream of its own, and makes ``engine`` load every version by its own adapter
    interface.

    The tensors of each adapter are in host memory of this process, patched and verified as any other weights. A version
    is then written below ``directory`` as a PEFT checkpoint, at a new path (engines identify the prefixes in their
    caches by that path), and loaded by the engine under the adapter's name. The directory of the version before stays
    for requests in progress; older ones are removed. The engine must see ``directory`` under the same path; on a tmpfs
    (``/dev/shm/...``) nothing is written to a disk. Weights of the base model are neither read nor written.

    ``base`` maps names of the base checkpoint's tensors to shapes (:func:`checkpoint_shapes`): an adapter for a module
    that is not there, or has another shape, is refused. Without ``base`` only the engine can refuse it, and vLLM
    ignores modules that its model does not have.

    Call from one thread. Several receivers need different directories.
    """

    def __init__(
        self,
        engine: AdapterEngine,
        directory: str | os.PathLike[str],
        *,
        base: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self._engine = engine
        self._directory = pathlib.Path(directory)
        self._base = base
        self._held: dict[str, _Held] = {}

    @property
    def versions(self) -> dict[str, int]:
        """Version of each adapter that the engine serves, by the adapter's name."""
        return {name: held.served for name, held in self._held.items() if held.served is not None}

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Returns the tensors of an adapter by name, as they were received. They are the receiver's memory: do not
        write them.
        """
        return dict(self._of(name).tensors)

    def add(
        self, spec: AdapterSpec, transport: Transport, *, engine: str = "engine", threads: int = 1
    ) -> AdapterUpdate:
        """Joins the stream of an adapter, receives its newest version and makes the engine load it under the adapter's
        name.

        ``transport`` is a log, or the adapter's own world, in which this process is the engine named ``engine`` and the
        call meets the trainer. With a ``Log``, ``state`` may be left out. ``threads`` is the number of CPU threads.
        Raises UsageError for a name that is served already and for modules that the base model does not have; the
        errors of the stream (TableMismatchError: another rank or other modules than in ``spec``); UnsupportedError if
        the engine refuses the adapter. After any error the receiver does not hold the adapter.
        """
        if spec.name in self._held:
            raise UsageError("it is served already: remove it first", f"adapter '{spec.name}'")
        self._check_base(spec)
        folder = self._directory / spec.name
        left = list(folder.glob("v*"))  # By a process before this one; the server may still serve it.
        shutil.rmtree(folder / "state", ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if isinstance(transport, Log) and not transport.state:
                transport = _with_state(transport, folder / "state")
            tensors = spec.empty()
            subscriber = Subscriber(
                list(tensors.items()),
                transport=transport,
                engine=engine,
                threads=threads,
                needs_anchor=not isinstance(transport, Log),
            )
            if not isinstance(transport, Log):
                subscriber.regroup()  # The trainer seeds it.
            held = _Held(spec, tensors, subscriber, not isinstance(transport, Log), folder)
            update = self._serve(held, None)
        except BaseException:
            if not left:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        self._held[spec.name] = held
        return update

    def update(self, name: str, version: int | None = None) -> AdapterUpdate:
        """Receives a version of an adapter and makes the engine load it, unless the engine serves this version already.
        From a world it receives the next version; from a log, ``version``, or the newest version if None.

        Raises UsageError for an adapter that is not served here, the errors of the stream, and the errors of the
        engine. After UnsupportedError the engine still serves the version before, and the next update tries again with
        the version that it receives.
        """
        return self._serve(self._of(name), version, update=True)

    def rejoin(self, name: str, transport: Transport | None = None) -> AdapterUpdate:
        """Meets the trainer of an adapter in its world again: after a failure, or when another engine joins the world.

        ``transport`` describes the new world; None means the previous one. Raises the errors that :meth:`update`
        raises.
        """
        held = self._of(name)
        held.subscriber.regroup(transport)
        return self._serve(held, None)

    def restore(self, served: Mapping[str, pathlib.Path]) -> list[str]:
        """Makes a server load again the adapters that it no longer has, as after a restart. Returns their names.

        ``served`` has the adapters that the server says it has (``VllmServer.served()``). Raises the errors of the
        engine.
        """
        lost = [name for name, held in self._held.items() if served.get(name) != held.kept[-1].absolute()]
        for name in lost:
            self._engine.load(name, self._held[name].kept[-1], served.get(name))
        return lost

    def remove(self, name: str) -> None:
        """Makes the engine unload an adapter, leaves the adapter's stream and removes its files. Other adapters are not
        affected.

        Raises UsageError for an adapter that is not served here, and the errors of the engine, after which the receiver
        still holds the adapter.
        """
        held = self._of(name)
        self._engine.unload(name)
        del self._held[name]
        shutil.rmtree(held.folder, ignore_errors=True)

    def _of(self, name: str) -> _Held:
        held = self._held.get(name)
        if held is None:
            have = ", ".join(sorted(self._held)) or "none"
            raise UsageError(f"it is not served here, was removed or never added (served: {have})", f"adapter '{name}'")
        return held

    def _check_base(self, spec: AdapterSpec) -> None:
        if self._base is None:
            return
        for module, (a, b) in spec.pairs().items():
            where = f"adapter '{spec.name}', module '{module}'"
            inside = [name for name in self._base if name.startswith(module + ".")]
            if not inside:
                raise UsageError("the base model has no such module", where)
            shape = self._base.get(module + ".weight")
            # Other formats pack weights in shapes and names of their own.
            quantised = len([name for name in inside if name not in (module + ".weight", module + ".bias")]) > 0
            if shape is not None and not quantised and tuple(shape) != (b[0], a[1]):
                raise UsageError(f"B @ A is {[b[0], a[1]]}, and the base model has {list(shape)}", where)

    def _serve(self, held: _Held, version: int | None, *, update: bool = False) -> AdapterUpdate:
        begin = time.perf_counter()
        received = 0
        if update or not held.live:
            received = held.subscriber.update(version).received_bytes
        newest = held.subscriber.version
        assert newest is not None
        load_seconds = 0.0
        if newest != held.served:
            target = held.folder / f"v{newest}-{secrets.token_hex(4)}"  # No path twice, also after a remove().
            _write(held, target)
            loading = time.perf_counter()
            try:
                self._engine.load(held.spec.name, target, held.kept[-1] if held.kept else None)
            except UnsupportedError:  # After other errors the engine may still read it.
                shutil.rmtree(target, ignore_errors=True)
                raise
            load_seconds = time.perf_counter() - loading
            held.served = newest
            held.kept.append(target)
            while len(held.kept) > 2:
                shutil.rmtree(held.kept.pop(0), ignore_errors=True)
        size = sum(tensor.numel() * tensor.element_size() for tensor in held.tensors.values())
        return AdapterUpdate(
            held.spec.name, newest, received, size, held.kept[-1], load_seconds, time.perf_counter() - begin
        )


def checkpoint_shapes(directory: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all tensors in a directory's safetensors files, by name. Reads little more than the
    headers.

    For weights that bitsandbytes has packed to 4 bits it returns the shape before packing, which is stored next to
    them. Tensors that belong to such a weight, and scales of an fp8 weight, are left out. Raises UsageError if there
    are no files, CorruptError naming the tensor whose shape cannot be read.
    """
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    unpacked: dict[str, tuple[int, ...]] = {}
    floats: set[str] = set()
    for file in sorted(pathlib.Path(directory).glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # It is no dict.
                part = opened.get_slice(name)
                shapes[name] = tuple(part.get_shape())
                weight, state, _ = name.partition(_FOUR_BIT_STATE)
                if state:
                    unpacked[weight] = _shape_in(opened.get_tensor(name), f"{file}, tensor '{name}'")
                elif part.get_dtype().startswith("F8_"):
                    floats.add(name)
    if not shapes:
        raise UsageError("there are no safetensors files", str(directory))

    def is_beside(name: str) -> bool:
        ends = (at for at, letter in enumerate(name) if letter == ".")
        return any(name[:end] in unpacked for end in ends) or name.rpartition("_scale")[0] in floats

    return {**{name: shape for name, shape in shapes.items() if not is_beside(name)}, **unpacked}


def _shape_in(state: torch.Tensor, where: str) -> tuple[int, ...]:
    """Returns the shape of the weight in a quantisation state of bitsandbytes, which is JSON in bytes. Raises
    CorruptError, with ``where`` as its context, if ``state`` is not such a state.
    """
    try:
        shape = json.loads(bytes(state.tolist()))["shape"]
        if not all(type(extent) is int and extent > 0 for extent in shape):
            raise TypeError(f"shape {shape!r}")
        return tuple(shape)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"it is no quantisation state of bitsandbytes: {error}", where) from None


def _write(held: _Held, target: pathlib.Path) -> None:
    target.mkdir()
    (target / CONFIG_FILE).write_text(json.dumps(dict(held.spec.config)))
    table = _core.TensorTable(held.spec.tensors)
    _core.write_checkpoint(table, [describe(tensor) for tensor in held.tensors.values()], target / TENSOR_FILE)


def _with_state(log: Log, state: pathlib.Path) -> Log:
    return dataclasses.replace(log, state=state)
