# SPDX-License-Identifier: Apache-2.0
"""A rollout worker's end: records become changed elements, and the changed elements flushes that verl's rollouts take.

The leader of a node decodes: records are checked, staged and applied to its mirror, whose digest is verified before and
after; what differs from before are the changed elements. Its neighbours get the finished flushes through a file in
shared memory. Nothing is handed to a rollout before the whole group has voted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from verl.checkpoint_engine.delta_sync.encode import checksum

from sparsecast import ControlChannel
from sparsecast.buffers import TORCH_DTYPES
from sparsecast.errors import CorruptError

from .._checkpoint_group import Group, Plan
from .._chunks import ChunkReader
from .._log_end import LogEnd
from .._mirror import Mirror, dtype_word, torch_dtype
from .._node_files import NodeFiles

MOST_ELEMENTS = 64 << 20
"""Most changed elements of one flush. SGLang's loader needs 8 bytes of device memory for each while it writes."""

Flush = tuple[list[tuple[str, torch.Tensor]], bool]
"""A flush as verl's rollouts take it: named tensors, and whether it is the last flush of the sync."""


@dataclass(frozen=True)
class Changed:
    """Changed elements of one tensor: their `positions` in the flattened tensor (int32, ascending), and their new
    `values`.
    """

    name: str
    shape: tuple[int, ...]
    positions: torch.Tensor
    values: torch.Tensor


class ChangeReader(ChunkReader):
    """Reader of a leader. `changed` has the elements that differ from the version before."""

    def __init__(self, group: Group, mirror: Mirror, plan: Plan, threads: int, log_end: LogEnd | None) -> None:
        super().__init__(group, mirror, plan, threads, log_end)
        self.changed: list[Changed] = []
        self._old: dict[str, torch.Tensor] = {}

    def _before(self, names: Sequence[str]) -> None:
        self._old.update((name, self.mirror.flat_bits(name).clone()) for name in names)

    def _after(self) -> None:
        while self._old:
            name = next(iter(self._old))
            self._collect(name, self._old.pop(name))

    def _collect(self, name: str, old: torch.Tensor) -> None:
        new = self.mirror.flat_bits(name)
        places = torch.ne(new, old).nonzero().view(-1)
        if places.numel() == 0:
            return
        tensor = self.mirror.tensor(name)
        values = new[places].view(tensor.dtype)
        self.changed.append(Changed(name, tuple(tensor.shape), places.to(torch.int32), values))


def sparse_flushes(changed: Iterable[Changed], most_bytes: int) -> Iterator[list[Changed]]:
    """Cuts changes into flushes. A flush has values of one dtype, and about `most_bytes` bytes of positions and values
    at most.
    """
    by_dtype: dict[torch.dtype, list[Changed]] = {}
    for change in changed:
        by_dtype.setdefault(change.values.dtype, []).append(change)
    for dtype, changes in by_dtype.items():
        each = 4 + dtype.itemsize
        most = max(1, min(MOST_ELEMENTS, most_bytes // each))
        waiting: list[Changed] = []
        elements = 0
        for change in changes:
            for first in range(0, change.positions.numel(), most):
                part = slice(first, first + most)
                waiting.append(Changed(change.name, change.shape, change.positions[part], change.values[part]))
                elements += waiting[-1].positions.numel()
                if elements >= most:
                    yield waiting
                    waiting, elements = [], 0
        if waiting:
            yield waiting


def dense_flushes(mirror: Mirror, most_bytes: int) -> Iterator[list[str]]:
    """Cuts all tensors of the mirror into flushes, each a list of names. The tensors of a flush have one dtype and
    about `most_bytes` bytes.
    """
    by_dtype: dict[str, list[str]] = {}
    for name in mirror.names:
        by_dtype.setdefault(mirror.entry(name)[1], []).append(name)
    for names in by_dtype.values():
        waiting: list[str] = []
        size = 0
        for name in names:
            waiting.append(name)
            size += mirror.tensor(name).nbytes
            if size >= most_bytes:
                yield waiting
                waiting, size = [], 0
        if waiting:
            yield waiting


@dataclass(frozen=True)
class Payload:
    """One flush in host memory: verl's manifest (JSON), positions as bytes (None in a dense flush), and values."""

    manifest: bytes
    positions: torch.Tensor | None
    values: torch.Tensor

    def named(self, device: str) -> list[tuple[str, torch.Tensor]]:
        spec = torch.frombuffer(bytearray(self.manifest), dtype=torch.uint8)
        named = [("__delta_spec__", spec.to(device))]
        if self.positions is not None:
            named.append(("__positions__", self.positions.to(device)))
        named.append(("__values__", self.values.to(device)))
        return named


def sparse_payload(changes: list[Changed]) -> Payload:
    positions = torch.cat([change.positions for change in changes]).view(torch.uint8)
    values = torch.cat([change.values for change in changes])
    params, first = [], 0
    for change in changes:
        last = first + change.positions.numel()
        params.append(
            {
                "name": change.name,
                "dtype": dtype_word(values.dtype),
                "shape": list(change.shape),
                "pos_start": first * 4,
                "pos_end": last * 4,
                "pos_width": 4,
                "val_start": first,
                "val_end": last,
            }
        )
        first = last
    spec = {"encoding": "indices", "params": params, "checksum": int(checksum(positions, values))}
    return Payload(json.dumps(spec).encode(), positions, values)


def dense_payload(mirror: Mirror, names: list[str], *, verify: bool, is_last: bool) -> Payload:
    values = torch.cat([mirror.tensor(name).view(-1) for name in names])
    params, first = [], 0
    for name in names:
        tensor = mirror.tensor(name)
        params.append(
            {
                "name": name,
                "dtype": dtype_word(values.dtype),
                "shape": list(tensor.shape),
                "pos_start": 0,
                "pos_end": 0,
                "pos_width": 4,
                "val_start": first,
                "val_end": first + tensor.numel(),
            }
        )
        first += tensor.numel()
    spec: dict[str, Any] = {"encoding": "dense", "verify": verify, "is_last": is_last, "params": params}
    spec["checksum"] = int(checksum(torch.empty(0, dtype=torch.uint8), values))
    return Payload(json.dumps(spec).encode(), None, values)


class Neighbours:
    """Passes flushes from the leader of a node to the other rollout workers there (its neighbours), through files in
    shared memory.
    """

    def __init__(self, node: ControlChannel, files: NodeFiles, timeout: float) -> None:
        self._node = node
        self._files = files
        self._timeout = timeout

    def give_count(self, count: int) -> None:
        """Called on the leader: tells the neighbours how many flushes follow."""
        self._node.broadcast(str(count).encode(), self._timeout)

    def give(self, payload: Payload) -> None:
        """Called on the leader: passes one flush on, and returns when every neighbour has opened the file that holds
        it.
        """
        if self._node.size == 1:
            return
        positions = torch.empty(0) if payload.positions is None else payload.positions
        parts = [memoryview(payload.manifest), _bytes(positions), _bytes(payload.values)]
        sizes = [part.nbytes for part in parts]
        self._files.create(sum(sizes), parts, sizes=sizes, dtype=dtype_word(payload.values.dtype))

    def take(self) -> Iterator[tuple[Payload, bool]]:
        """Called on a neighbour: yields each flush, and whether it is the last one."""
        count = int(self._node.broadcast(b"", self._timeout))
        for number in range(count):
            memory, fields = self._files.open()
            sizes, dtype = parse_parts(fields)
            if sum(sizes) != len(memory):
                raise CorruptError(f"its parts have {sizes} bytes, and it {len(memory)}", "flush")
            manifest, positions, values = (bytearray(memory.read(size)) for size in sizes)
            yield (
                Payload(
                    bytes(manifest),
                    _tensor(positions, torch.uint8) if positions else None,
                    _tensor(values, dtype),
                ),
                number == count - 1,
            )


def parse_parts(fields: Mapping[str, Any]) -> tuple[list[int], torch.dtype]:
    """Returns, from the fields that came with a flush, the sizes of its three parts in bytes and the dtype of its
    values. Raises CorruptError if the fields are not valid.
    """
    sizes, code = fields.get("sizes"), TORCH_DTYPES.get(str(fields.get("dtype")))
    if not isinstance(sizes, list) or len(sizes) != 3 or not all(type(size) is int and size >= 0 for size in sizes):
        raise CorruptError(f"{sizes!r} are no sizes", "flush")
    if code is None:
        raise CorruptError(f"there is no dtype {fields.get('dtype')!r}", "flush")
    return sizes, torch_dtype(code)


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.contiguous().view(torch.uint8).numpy().data


def _tensor(data: bytearray, dtype: torch.dtype) -> torch.Tensor:
    if len(data) % dtype.itemsize:
        raise CorruptError(f"{len(data)} bytes are no elements of {dtype}", "flush")
    return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
