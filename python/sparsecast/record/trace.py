# SPDX-License-Identifier: Apache-2.0
"""Reads traces: every version of every tensor, bit for bit."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import CorruptError, UsageError, VersionGapError
from .bits import BITS_TYPES
from .files import Entry, read_safetensors, steps_in

if TYPE_CHECKING:
    import torch

Bits = npt.NDArray[Any]  # Unsigned integers of the elements' size, which hold their bits.


@dataclass(frozen=True)
class Change:
    """Changes of one tensor in a version: flat, ascending positions, and the bits of these elements before and
    after.
    """

    indices: npt.NDArray[np.int64]
    old: Bits
    new: Bits


@dataclass(frozen=True)
class Version:
    """One version of the weights.

    ``weights`` has the trace's own arrays by name: unsigned integers that hold the elements' bits, in the shapes of the
    tensors. The next version overwrites them, so copy what is to be kept. ``changes`` has the tensors that differ from
    the version before; it is empty for the first version.
    """

    number: int
    metadata: dict[str, str]
    weights: dict[str, Bits]
    changes: dict[str, Change]
    dtypes: dict[str, str]

    def torch_tensor(self, name: str) -> torch.Tensor:
        """Returns the tensor ``name`` as a torch tensor that shares the memory of ``weights``. Raises KeyError for an
        unknown name.
        """
        import torch

        from ..buffers import TORCH_DTYPES

        torch_name = {said: name for name, said in TORCH_DTYPES.items()}[self.dtypes[name]]
        bits = self.weights[name]
        # Signed integers: torch lacks operations on unsigned ones.
        carrier = bits if bits.itemsize == 1 else bits.view(np.dtype(f"i{bits.itemsize}"))
        dtype: torch.dtype = getattr(torch, torch_name)
        return torch.from_numpy(carrier.reshape(-1)).view(dtype).reshape(bits.shape)


class Trace:
    """The versions in the directory of a trace: files ``step_NNNNNN.safetensors``. The first file holds all weights,
    and each later file holds a sparse step or all weights.

    Iterating yields a :class:`Version` for each file; only one version is in memory at a time. Errors name file and
    tensor: UsageError for a directory without steps, CorruptError for a file that is torn or does not fit the files
    before it, VersionGapError for a missing version.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)
        self._steps = steps_in(self.directory)
        if not self._steps:
            raise UsageError("there is no step_*.safetensors", str(self.directory))
        for (before, _), (number, path) in zip(self._steps, self._steps[1:], strict=False):
            if number != before + 1:
                raise VersionGapError(f"version {before + 1} is missing before it", str(path))

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def first(self) -> int:
        """Version of the anchor, the first file."""
        return self._steps[0][0]

    def __iter__(self) -> Iterator[Version]:
        number, path = self._steps[0]
        entries, metadata = read_safetensors(path)
        if _is_sparse(entries, metadata):
            raise CorruptError("the first version of a trace has all weights; this is a sparse step", str(path))
        weights = {name: _bits(path, name, entry).copy() for name, entry in entries.items()}
        dtypes = {name: entry[0] for name, entry in entries.items()}
        yield Version(_number(path, number, metadata), metadata, weights, {}, dtypes)
        for number, path in self._steps[1:]:
            entries, metadata = read_safetensors(path)
            read = _sparse_changes if _is_sparse(entries, metadata) else _whole_changes
            changes = read(path, entries, weights, dtypes)
            for name, change in changes.items():
                weights[name].reshape(-1)[change.indices] = change.new
            yield Version(_number(path, number, metadata), metadata, weights, changes, dtypes)

    @staticmethod
    def ties(version: Version) -> dict[str, str]:
        """Returns the ties that the recorder found: for each further name of a shared tensor, the name under which the
        trace stores the tensor. ``version`` is the first version of the trace; the metadata of later versions has no
        ties.
        """
        said: dict[str, str] = json.loads(version.metadata.get("ties", "{}"))
        return said


def _is_sparse(entries: dict[str, Entry], metadata: dict[str, str]) -> bool:
    if "sparse" in metadata:
        return metadata["sparse"] == "True"
    return bool(entries) and all(name.endswith((".indices", ".values")) for name in entries)


def _number(path: pathlib.Path, number: int, metadata: dict[str, str]) -> int:
    said = metadata.get("model_version", str(number))
    if said != str(number):
        raise CorruptError(f"the file says that it is version '{said}'", str(path))
    return number


def _bits(path: pathlib.Path, name: str, entry: Entry) -> Bits:
    dtype, shape, data = entry
    if dtype not in BITS_TYPES:
        raise CorruptError(f"elements of {dtype} are not carried", f"{path}: {name}")
    return data.view(BITS_TYPES[dtype]).reshape(shape)


def _sparse_changes(
    path: pathlib.Path, entries: dict[str, Entry], weights: dict[str, Bits], dtypes: dict[str, str]
) -> dict[str, Change]:
    changes = {}
    for entry_name in entries:
        name, _, kind = entry_name.rpartition(".")
        context = f"{path}: {entry_name}"
        if kind not in ("indices", "values") or name not in weights:
            raise CorruptError("the first version has no such tensor", context)
        if kind == "values":
            if f"{name}.indices" not in entries:
                raise CorruptError("values without indices", context)
            continue
        if f"{name}.values" not in entries:
            raise CorruptError("indices without values", context)
        values = entries[f"{name}.values"]
        if entries[entry_name][0] != "I32" or values[0] != dtypes[name]:
            raise CorruptError(f"expected I32 indices and {dtypes[name]} values", context)
        indices = entries[entry_name][2].view(np.int32).astype(np.int64)
        new = _bits(path, f"{name}.values", values).reshape(-1)
        flat = weights[name].reshape(-1)
        if len(indices) != len(new):
            raise CorruptError(f"{len(indices)} indices for {len(new)} values", context)
        if len(indices) and (indices[0] < 0 or indices[-1] >= len(flat) or np.any(np.diff(indices) <= 0)):
            raise CorruptError(f"indices do not increase within the tensor's {len(flat)} elements", context)
        changes[name] = Change(indices, flat[indices], new)
    return changes


def _whole_changes(
    path: pathlib.Path, entries: dict[str, Entry], weights: dict[str, Bits], dtypes: dict[str, str]
) -> dict[str, Change]:
    if missing := weights.keys() ^ entries.keys():
        raise CorruptError("the first version and this one do not have the same tensors", f"{path}: {min(missing)}")
    changes = {}
    for name, entry in entries.items():
        if entry[0] != dtypes[name] or entry[1] != weights[name].shape:
            raise CorruptError("the first version has it in another dtype or shape", f"{path}: {name}")
        new = _bits(path, name, entry).reshape(-1)
        flat = weights[name].reshape(-1)
        indices = np.flatnonzero(new != flat)
        if len(indices):
            changes[name] = Change(indices, flat[indices], new[indices])
    return changes
