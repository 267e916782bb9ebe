# SPDX-License-Identifier: Apache-2.0
"""Writes a trace beside a training loop.

made: the anchor is on disk --step()--> changed? write step_NNNNNN, durable, then it is the base --> ...
                               \\--error--> the base stands: the next step holds both steps' changes
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, final

import torch
from safetensors.torch import save_file
from torch import nn

from ..buffers import bits_of, dtype_name
from ..errors import CorruptError, IoError, UnsupportedError, UsageError
from ..torch.owners import tensors_of
from .files import read_safetensors, step_path, write_atomically

#: Largest number of elements of a tensor: positions are I32 in the files.
MAX_ELEMENTS = 2**31


NamedTensors = Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


@final
class Recorder:
    """Records the exact weights of every optimizer step: an anchor when it is made, then what each step changed.

    ``source`` is a module (its parameters and persistent buffers), or named tensors. Shared tensors are stored once,
    under the first name; their other names are in the anchor's metadata (``ties``). ``wire_dtype`` is the dtype in
    which floating-point tensors are recorded, as they would travel (fp32 masters as bf16, rounded to nearest even);
    None means their own. Bits are compared, never numbers. Each tensor's device keeps a copy of the recorded bits.

    With an ``optimizer`` each of its steps is recorded, by a hook, and the metadata has its name, learning rate and
    betas; without an optimizer, call :meth:`step`. ``every=n`` records every n-th step: versions count files,
    ``optimizer_step`` in the metadata counts steps. ``version`` is the anchor's number. ``verify`` reads every file
    back and compares.

    ``directory`` is made if missing, and must be empty. Every file appears whole or not at all, so after a crash the
    trace ends with the last whole step. Errors of a step are raised by :meth:`step`, or with a hook by
    ``optimizer.step()``. Not thread-safe.
    """

    def __init__(
        self,
        source: nn.Module | NamedTensors,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        directory: str | os.PathLike[str],
        wire_dtype: torch.dtype | None = None,
        every: int = 1,
        version: int = 0,
        verify: bool = False,
    ) -> None:
        if every < 1 or version < 0:
            raise UsageError("every is at least 1, version at least 0")
        if wire_dtype is not None and not wire_dtype.is_floating_point:
            raise UsageError(f"wire_dtype is a floating-point dtype, not {wire_dtype}")
        self._module = source if isinstance(source, nn.Module) else None
        self._optimizer = optimizer
        self._wire = wire_dtype
        self._every = every
        self._verify = verify
        self._version = version
        self._steps = 0
        self._hook: Any = None
        named = _named(source)
        for name, tensor in named:
            _check(name, tensor, self._wire)
        self._tensors, self._ties = _untied(named)
        self._described = {name: _description(tensor) for name, tensor in self._tensors.items()}
        self.directory = _empty_directory(directory)
        self._base = {name: self._wire_bits(tensor) for name, tensor in self._tensors.items()}
        self._write_anchor()
        if optimizer is not None:
            self._hook = optimizer.register_step_post_hook(self._after_step)

    @property
    def version(self) -> int:
        """Newest version that is on disk."""
        return self._version

    def step(self) -> int | None:
        """Records the current weights. Returns the number of changed elements, or None if ``every`` skips this step.

        Raises UsageError naming a tensor that was replaced, IoError naming a file that could not be written, and
        CorruptError naming a file that did not read back as written. After an error nothing of this step is recorded;
        the next step includes its changes.
        """
        self._steps += 1
        if self._steps % self._every:
            return None
        self._check_unmoved()
        changes: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, tensor in self._tensors.items():
            bits = self._wire_bits(tensor)
            indices = (bits != self._base[name]).nonzero().view(-1)
            if indices.numel():
                changes[name] = (indices, bits[indices])
        self._write_step(changes)
        for name, (indices, values) in changes.items():
            self._base[name][indices] = values
        self._version += 1
        return sum(indices.numel() for indices, _ in changes.values())

    def close(self) -> None:
        """Removes the hook from the optimizer. The trace stays on disk; further calls do nothing."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _after_step(self, *_: Any) -> None:
        self.step()

    def _dtype(self, tensor: torch.Tensor) -> torch.dtype:
        return self._wire if self._wire is not None and tensor.is_floating_point() else tensor.dtype

    def _wire_bits(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the bits of the tensor as it is recorded: a flat copy of integers of the element size, on the same
        device.
        """
        wire = tensor.detach().to(self._dtype(tensor), copy=True, memory_format=torch.contiguous_format).view(-1)
        return bits_of(wire)

    def _check_unmoved(self) -> None:
        if self._module is not None:
            # The data pointer may change: a parameter whose data is replaced is still the same parameter.
            now = tensors_of(self._module)
            for name, tensor in self._tensors.items():
                if now.get(name) is not tensor:
                    raise UsageError("the module has another tensor under this name now; make a new recorder", name)
            for alias, name in self._ties.items():
                if alias not in now or _memory(now[alias]) != _memory(self._tensors[name]):
                    raise UsageError(f"it no longer shares the memory of {name}; make a new recorder", alias)
        for name, tensor in self._tensors.items():
            if _description(tensor) != self._described[name]:
                raise UsageError(
                    f"it was {_text(self._described[name])}, and is {_text(_description(tensor))} now", name
                )

    def _metadata(self, changed: int, total: int) -> dict[str, str]:
        said = {
            "model_version": str(self._version if self._steps == 0 else self._version + 1),
            "optimizer_step": str(self._steps),
            "sparsity": f"{1 - changed / total if total else 1:.6f}",
        }
        if self._optimizer is not None:
            groups = self._optimizer.param_groups
            said["optimizer"] = type(self._optimizer).__name__
            for key in ("lr", "betas"):
                values = [_plain(group[key]) for group in groups if key in group]
                if values:
                    same = all(value == values[0] for value in values)
                    said[key] = json.dumps(values[0] if same else values)
        return said

    def _write_anchor(self) -> None:
        metadata = self._metadata(0, 0) | {"sparse": "False", "sparsity": "0.0"}
        if self._ties:
            metadata["ties"] = json.dumps(self._ties)
        tensors = {
            name: bits.cpu().view(self._dtype(self._tensors[name])).reshape(self._tensors[name].shape)
            for name, bits in self._base.items()
        }
        self._write(step_path(self.directory, self._version), tensors, metadata)

    def _write_step(self, changes: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        changed = sum(indices.numel() for indices, _ in changes.values())
        total = sum(bits.numel() for bits in self._base.values())
        metadata = self._metadata(changed, total) | {"sparse": "True", "changed_params": json.dumps(list(changes))}
        tensors = {}
        for name, (indices, values) in changes.items():
            tensors[f"{name}.indices"] = indices.to(torch.int32).cpu()
            tensors[f"{name}.values"] = values.cpu().view(self._dtype(self._tensors[name]))
        self._write(step_path(self.directory, self._version + 1), tensors, metadata)

    def _write(self, path: pathlib.Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
        write_atomically(path, lambda partial: save_file(tensors, partial, metadata))
        if self._verify and not _reads_back(path, tensors, metadata):
            raise CorruptError("it does not read back as it was written", str(path))


def _named(source: nn.Module | NamedTensors) -> list[tuple[str, torch.Tensor]]:
    if isinstance(source, nn.Module):
        return list(tensors_of(source).items())
    return list(source.items() if isinstance(source, Mapping) else source)


def _reads_back(path: pathlib.Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bool:
    entries, said = read_safetensors(path)
    if said != metadata or entries.keys() != tensors.keys():
        return False
    for name, tensor in tensors.items():
        dtype, shape, data = entries[name]
        written = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        if dtype != dtype_name(tensor.dtype) or shape != tuple(tensor.shape) or data.tobytes() != written.tobytes():
            return False
    return True


def _untied(named: Iterable[tuple[str, torch.Tensor]]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    tensors: dict[str, torch.Tensor] = {}
    ties: dict[str, str] = {}
    owners: dict[Any, str] = {}
    for name, tensor in named:
        if name in tensors or name in ties:
            raise UsageError("two tensors have this name", name)
        owner = owners.setdefault(_memory(tensor), name) if tensor.numel() else name
        if owner == name:
            tensors[name] = tensor
        else:
            ties[name] = owner
    if not tensors:
        raise UsageError("there are no tensors to record")
    return tensors, ties


def _check(name: str, tensor: torch.Tensor, wire: torch.dtype | None) -> None:
    if not name or name.endswith((".indices", ".values")):
        raise UsageError("a sparse step cannot name it: names are not empty, nor end in .indices or .values", name)
    if type(tensor) is not nn.Parameter and hasattr(tensor, "to_local"):
        raise UsageError("it is a DTensor: record its to_local(), each rank into a directory of its own", name)
    if tensor.device.type == "meta" or tensor.layout != torch.strided:
        raise UsageError(f"a tensor on {tensor.device} of layout {tensor.layout} has no bits to record", name)
    if tensor.numel() > MAX_ELEMENTS:
        raise UnsupportedError(f"{tensor.numel()} elements; a sparse step's I32 positions reach {MAX_ELEMENTS}", name)
    dtype_name(wire if wire is not None and tensor.is_floating_point() else tensor.dtype)


def _empty_directory(directory: str | os.PathLike[str]) -> pathlib.Path:
    path = pathlib.Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        entries = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise IoError(error.strerror or str(error), str(path)) from error
    if entries:
        raise UsageError(f"the directory of a new trace must be empty; it has {entries[0]}", str(path))
    return path


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _description(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], torch.device]:
    return tensor.dtype, tuple(tensor.shape), tensor.device


def _text(description: tuple[torch.dtype, tuple[int, ...], torch.device]) -> str:
    dtype, shape, device = description
    return f"{dtype} {list(shape)} on {device}"


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [_plain(part) for part in value] if isinstance(value, (tuple, list)) else value
