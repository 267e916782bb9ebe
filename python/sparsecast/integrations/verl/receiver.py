# SPDX-License-Identifier: Apache-2.0
"""A rollout worker's end: records become changed elements, and these the flushes that verl's rollouts take.

The leader of a node decodes: records are checked, staged and applied to its mirror, whose digest is verified before and
after; what differs from before are the changed elements. Its neighbours get the finished flushes through a file in
shared memory. Nothing is handed to a rollout before the whole group has voted.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from verl.checkpoint_engine.delta_sync.encode import checksum

from sparsecast import ControlChannel, Subscriber
from sparsecast.buffers import TORCH_DTYPES
from sparsecast.errors import CorruptError, DigestMismatchError, Error, IoError, WrongBaseError

from .._checkpoint_group import Group
from .._mirror import Mirror, dtype_word, parse_entries, torch_dtype

MOST_ELEMENTS = 64 << 20
"""Changed elements of one part of a flush: SGLang's loader needs 8 bytes of device memory for each while it writes."""

_ELSEWHERE = (
    "name a directory that all rollout workers of the node share and that has room for a bucket, as "
    "engine_kwargs.delta_sharded.shared_dir"
)

Flush = tuple[list[tuple[str, torch.Tensor]], bool]
"""What verl's rollouts take: named tensors, and whether it is the last."""


@dataclass(frozen=True)
class Changed:
    """Changed elements of one tensor. `positions` are flat, int32, ascending."""

    name: str
    shape: tuple[int, ...]
    positions: torch.Tensor
    values: torch.Tensor


class ChunkReader:
    """Leader's half of a sync, up to the vote."""

    def __init__(
        self, group: Group, mirror: Mirror, *, stream: str, base: int, seed: bool, threads: int, timeout: float
    ) -> None:
        self.changed: list[Changed] = []
        self.chunks = 0
        self._group = group
        self._mirror = mirror
        self._stream = stream
        self._base = base
        self._seed = seed
        self._threads = threads
        self._timeout = timeout

    def read(self, tensors: object) -> None:
        """Receives the records of a chunk of these tensors and applies them to the mirror. Raises what is wrong with
        them, and WrongBaseError for a mirror that is not what the sender has.
        """
        entries = parse_entries(tensors)
        for entry in entries:
            if self._seed:
                self._mirror.add(entry)
            else:
                self._mirror.get(entry[0], entry[2], known=entry[1])
        names = [name for name, _, _ in entries]
        table, memories = self._mirror.described(names)
        before = [] if self._seed else [self._mirror.flat_bits(name).clone() for name in names]
        subscriber = Subscriber(
            table, memories, version=self._base, stream_id=self._stream, threads=self._threads, audit_versions=1
        )
        try:
            subscriber.sync(self._group.transport, 0, self._timeout)
        except (WrongBaseError, DigestMismatchError) as error:
            raise type(error)(
                f"{error.message}: the copy of the weights in this worker's memory is not the sender's",
                f"tensors {names[0]!r} to {names[-1]!r}",
            ) from error
        for name, old in zip(names, before, strict=False):
            self._collect(name, old)
        self.chunks += 1

    def _collect(self, name: str, old: torch.Tensor) -> None:
        new = self._mirror.flat_bits(name)
        places = torch.ne(new, old).nonzero().view(-1)
        if places.numel() == 0:
            return
        tensor = self._mirror.tensor(name)
        values = new[places].view(tensor.dtype)
        self.changed.append(Changed(name, tuple(tensor.shape), places.to(torch.int32), values))


def sparse_flushes(changed: Iterable[Changed], most_bytes: int) -> Iterator[list[Changed]]:
    """Cuts changes into flushes: values of one dtype each, and at most about `most_bytes` of positions and values."""
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
    """Cuts all tensors into flushes of one dtype and about `most_bytes` each."""
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
    """One flush in host memory: verl's manifest, positions as bytes (none if it is dense), values."""

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
    """Flushes from the leader to the other rollout workers of its node, through files in shared memory."""

    def __init__(self, node: ControlChannel, directory: str, timeout: float) -> None:
        self._node = node
        self._directory = os.path.realpath(directory)
        self._timeout = timeout

    def give(self, payload: Payload | None, is_last: bool) -> None:
        """On the leader: returns when every neighbour has a copy. None says that no more come."""
        if self._node.size == 1:
            return
        if payload is None:
            self._node.broadcast(json.dumps({"end": True}).encode(), self._timeout)
            return
        parts = [payload.manifest, b"" if payload.positions is None else _bytes(payload.positions)]
        parts.append(_bytes(payload.values))
        note = {
            "sizes": [len(part) for part in parts],
            "dense": payload.positions is None,
            "dtype": dtype_word(payload.values.dtype),
            "last": is_last,
        }
        try:
            handle, path = tempfile.mkstemp(prefix="sparsecast-", dir=self._directory)
        except OSError as error:
            raise IoError(f"{error}; {_ELSEWHERE}", self._directory) from error
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
            self._node.broadcast(json.dumps({**note, "file": os.path.basename(path)}).encode(), self._timeout)
            self._node.all_gather(b"", self._timeout)
        except Error:
            raise
        except OSError as error:
            raise IoError(f"{error}; {_ELSEWHERE}", path) from error
        finally:
            os.unlink(path)

    def take(self) -> tuple[Payload, bool] | None:
        """On a neighbour: returns the next flush, and whether it is the last; None when no more come."""
        note = _note(self._node.broadcast(b"", self._timeout))
        if note is None:
            return None
        name, sizes, dtype, dense, last = note
        path = os.path.join(self._directory, name)
        try:
            with open(path, "rb") as file:
                state = os.fstat(file.fileno())
                if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid() or state.st_size != sum(sizes):
                    raise CorruptError(f"it is not the leader's file of {sum(sizes)} bytes", path)
                manifest, positions, values = (bytearray(file.read(size)) for size in sizes)
        except OSError as error:
            raise IoError(f"{error}; {_ELSEWHERE}", path) from error
        self._node.all_gather(b"", self._timeout)
        return Payload(
            bytes(manifest), None if dense else _tensor(positions, torch.uint8), _tensor(values, torch_dtype(dtype))
        ), last


def _note(data: bytes) -> tuple[str, list[int], str, bool, bool] | None:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise CorruptError(f"it is not JSON ({error})", "flush") from error
    if isinstance(fields, dict) and fields.get("end") is True:
        return None
    if not isinstance(fields, dict):
        raise CorruptError("it is not a JSON object", "flush")
    name, sizes, code = fields.get("file"), fields.get("sizes"), TORCH_DTYPES.get(str(fields.get("dtype")))
    if not isinstance(name, str) or os.path.basename(name) != name or not name.startswith("sparsecast-"):
        raise CorruptError(f"{name!r} is no file of the leader", "flush")
    if not isinstance(sizes, list) or len(sizes) != 3 or not all(type(size) is int and size >= 0 for size in sizes):
        raise CorruptError(f"{sizes!r} are no sizes", "flush")
    if code is None:
        raise CorruptError(f"there is no dtype {fields.get('dtype')!r}", "flush")
    return name, sizes, code, fields.get("dense") is True, fields.get("last") is True


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.contiguous().view(torch.uint8).numpy().data


def _tensor(data: bytearray, dtype: torch.dtype) -> torch.Tensor:
    if len(data) % dtype.itemsize:
        raise CorruptError(f"{len(data)} bytes are no elements of {dtype}", "flush")
    return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
