# SPDX-License-Identifier: Apache-2.0
"""Copy in host memory of the tensors that trainer and rollout workers agree on, by their Hugging Face names.

Values travel as differences to it. The sender has one, and so has the leader of each rollout node.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sparsecast import Memory, TensorTable, describe
from sparsecast.buffers import TORCH_DTYPES, bits_of
from sparsecast.errors import CorruptError, UnsupportedError, UsageError

_DTYPES: dict[str, torch.dtype] = {
    code: getattr(torch, name) for name, code in TORCH_DTYPES.items() if hasattr(torch, name)
}

_MOST_ELEMENTS = 1 << 48

Entry = tuple[str, str, tuple[int, ...]]
"""Name, dtype by its safetensors name, shape."""


def torch_dtype(code: str) -> torch.dtype:
    return _DTYPES[code]


def dtype_word(dtype: torch.dtype) -> str:
    """Returns the name that a dtype has in torch, such as "bfloat16"; verl's receivers look it up there."""
    return str(dtype).removeprefix("torch.")


def parse_entries(value: object) -> list[Entry]:
    """Returns the entries in a message's list [[name, dtype, shape], ...]. Raises CorruptError if the list is empty,
    names a tensor twice, or has another form.
    """
    if not isinstance(value, list) or not value:
        raise CorruptError("a chunk names no tensors", "chunk")
    entries: list[Entry] = []
    for item in value:
        if not isinstance(item, list) or len(item) != 3:
            raise CorruptError("a tensor is not [name, dtype, shape]", "chunk")
        name, code, shape = item
        if not isinstance(name, str) or code not in _DTYPES or not isinstance(shape, list):
            raise CorruptError(f"{name!r}: {code!r} {shape!r} is no tensor", "chunk")
        if not all(type(extent) is int and 0 <= extent <= _MOST_ELEMENTS for extent in shape):
            raise CorruptError(f"no tensor has the shape {shape}", f"tensor {name!r}")
        if math.prod(shape) > _MOST_ELEMENTS:
            raise CorruptError(f"{shape} has more elements than can be sent", f"tensor {name!r}")
        entries.append((name, code, tuple(shape)))
    if len({name for name, _, _ in entries}) != len(entries):
        raise CorruptError("a chunk names a tensor twice", "chunk")
    return entries


class Mirror:
    """Contiguous copies of tensors in host memory, by name.

    instead     advice that the error gives if the tensors do not fit into memory.
    most_bytes  largest size of all tensors together; None: the memory of this machine.
    """

    def __init__(self, instead: str, most_bytes: int | None = None) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._codes: dict[str, str] = {}
        self._bytes = 0
        self._instead = instead
        self._most_bytes = _physical_bytes() if most_bytes is None else most_bytes

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        return self._tensors

    @property
    def nbytes(self) -> int:
        return self._bytes

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def add(self, entry: Entry, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Adds a tensor and returns it. It lies in `memory`, which must be contiguous, of the entry's dtype and shape,
        and filled with zeros; if `memory` is None, new memory of zeros is allocated.

        Raises UsageError if there is a tensor with this name already, and UnsupportedError if the machine's memory
        cannot hold it in addition to the other tensors.
        """
        name, code, shape = entry
        if name in self._tensors:
            raise UsageError("the export has this tensor twice; two of the trainer's are one here", f"tensor {name!r}")
        dtype = _DTYPES[code]
        self._bytes += math.prod(shape) * dtype.itemsize
        if self._bytes > self._most_bytes:
            raise UnsupportedError(
                f"the copy of the weights in host memory needs more than the {self._most_bytes >> 20} MiB of this "
                f"machine: {self._instead}",
                f"tensor {name!r}",
            )
        tensor = torch.zeros(shape, dtype=dtype) if memory is None else memory
        self._tensors[name] = tensor
        self._codes[name] = code
        return tensor

    def get(self, name: str, shape: Sequence[int], known: str = "") -> torch.Tensor:
        """Returns the tensor with this name. Raises UsageError if there is none, or if it has another shape than
        `shape` or, unless `known` is empty, another dtype than `known` (a safetensors name).
        """
        tensor = self._tensors.get(name)
        cure = "the model has changed since the first sync; restart trainer and rollout workers together"
        if tensor is None:
            raise UsageError(f"it was not in the first sync: {cure}", f"tensor {name!r}")
        if tuple(tensor.shape) != tuple(shape):
            raise UsageError(f"it has shape {list(shape)}, and had {list(tensor.shape)}: {cure}", f"tensor {name!r}")
        if known and self._codes[name] != known:
            raise UsageError(f"it has dtype {known}, and had {self._codes[name]}: {cure}", f"tensor {name!r}")
        return tensor

    def entry(self, name: str) -> Entry:
        return name, self._codes[name], tuple(self._tensors[name].shape)

    def described(self, names: Sequence[str]) -> tuple[TensorTable, list[Memory]]:
        """Returns the table and the memory of the tensors with these names, in this order."""
        table = TensorTable([self.entry(name) for name in names])
        return table, [describe(self._tensors[name]) for name in names]

    def flat_bits(self, name: str) -> torch.Tensor:
        """Returns the tensor as a vector of integers of its element size, in the same memory."""
        return bits_of(self._tensors[name].view(-1))

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def host_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bits of the tensor's elements in host memory, as a vector of integers of the element size."""
    bits: torch.Tensor = bits_of(tensor.detach().contiguous().reshape(-1)).cpu()
    return bits


def _physical_bytes() -> int:
    return int(os.sysconf("SC_PHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))


def as_json(entries: Sequence[Entry]) -> list[list[Any]]:
    return [[name, code, list(shape)] for name, code, shape in entries]
