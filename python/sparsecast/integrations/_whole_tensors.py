# SPDX-License-Identifier: Apache-2.0
"""Checkpoint engines of frameworks that gather whole tensors, and whose rollout engines load whole tensors: NeMo-RL,
and verl's backend "sparsecast". What travels is what changed.

Rank 0 of the trainer compares each gathered tensor with its mirror. At a rollout worker, records become tensors in
memory that all workers of the node see. The first worker of a node, its leader, receives, stages and applies the records
to that memory, whose digest is verified before and after. Its neighbours map the same memory, and read it once the whole
group has voted. The leader writes again only in the next sync, which begins when every worker has come back.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Any, ClassVar

import torch

from sparsecast.buffers import dtype_name
from sparsecast.errors import CorruptError, UsageError

from ._checkpoint_engine import DeltaEngine
from ._checkpoint_group import Group, Plan
from ._chunks import ChunkReader, ChunkWriter, Totals
from ._log_end import LogEnd
from ._mirror import Entry, Mirror, host_bits, torch_dtype
from ._node_files import NodeFiles

_ALIGNMENT = 64


class SharedReader(ChunkReader):
    """A reader whose mirror is in memory that all rollout workers of the node share through `files`."""

    def __init__(
        self, group: Group, mirror: Mirror, plan: Plan, threads: int, files: NodeFiles, log_end: LogEnd | None
    ) -> None:
        super().__init__(group, mirror, plan, threads, log_end)
        self._files = files

    def _allocate(self, entries: Sequence[Entry]) -> Sequence[torch.Tensor | None]:
        if self._group.node.size == 1:
            return super()._allocate(entries)
        sizes = [math.prod(shape) * torch_dtype(code).itemsize for _, code, shape in entries]
        places, size = [], 0
        for each in sizes:
            places.append(size)
            size += -(-each // _ALIGNMENT) * _ALIGNMENT
        size = max(size, _ALIGNMENT)
        memory = self._files.create(size) if self._group.leader else self._files.open()[0]
        if len(memory) != size:
            raise CorruptError(f"it has {len(memory)} bytes, and the new tensors {size}", "memory of the node")
        view = torch.frombuffer(memory, dtype=torch.uint8)
        return [
            view[place : place + each].view(torch_dtype(code)).view(shape)
            for place, each, (_, code, shape) in zip(places, sizes, entries, strict=True)
        ]


class WholeTensorEngine(DeltaEngine[SharedReader]):
    """State of one rank, as that of `DeltaEngine`, with the option `load`: "changed" tensors are loaded after a sync (the
    default), or "all", for loaders that need them together.
    """

    exporter: ClassVar[str]
    """What exports the weights, for messages."""

    def __init__(self, bucket_size: int, *, load: str = "changed", **options: Any) -> None:
        super().__init__(bucket_size, **options)
        if load not in ("changed", "all"):
            raise UsageError(f"{self.options_at}.load is 'changed' or 'all', not {load!r}")
        self._load = load

    def _send(self, weights: Iterator[tuple[str, torch.Tensor]], step: int | None = None) -> tuple[Totals, bool]:
        """Runs one sync on the sender. Returns its figures, and whether it sent everything."""
        plan = self._begin(step)
        assert self._mirror is not None
        writer = ChunkWriter(self._joined(), self._mirror, plan, self.bucket_size, self._threads, self._log_end)
        self._write(weights, writer, self._mirror)
        writer.finish()
        self._commit(plan)
        return writer.totals, plan.seed

    def _write(self, weights: Iterator[tuple[str, torch.Tensor]], writer: ChunkWriter, mirror: Mirror) -> None:
        """Sends the weights that differ from the mirror: changed elements of tensors that are in the mirror, and whole
        tensors that are not in it yet. Raises UsageError for names, shapes or dtypes that do not fit.
        """
        seen: set[str] = set()
        for name, tensor in weights:
            if name in seen:
                raise UsageError(f"{self.exporter} exports two tensors of this name", f"tensor {name!r}")
            seen.add(name)
            entry = (name, dtype_name(tensor.dtype), tuple(tensor.shape))
            bits = host_bits(tensor)
            writer.totals.tensors += 1
            writer.totals.elements += bits.numel()
            # A tensor in host memory is the trainer's own: nothing changes it before the chunk is sent.
            if name not in mirror:
                writer.add_new(entry, bits)
                continue
            mirror.get(name, entry[2], known=entry[1])
            if not torch.equal(mirror.flat_bits(name), bits):
                writer.add_change(name, bits)
        if not seen:
            raise UsageError(f"{self.exporter} exports no tensors")

    def _take(self, step: int | None = None) -> Generator[list[tuple[str, torch.Tensor]], None, None]:
        """Receives one sync on a rollout worker, and then yields the tensors to load in batches, once every rank has
        received and verified the whole version: copies, on the GPU if there is one.

        If the caller stops before the end, this counts as a failure, and the next sync sends everything.
        """
        group = self._joined()
        plan, reader = self._receive(step)
        assert reader is not None
        try:
            yield from self._batches(reader.mirror, reader.names if self._load == "changed" else reader.mirror.names)
        except BaseException as error:
            # Also GeneratorExit, which is how a generator hears of a caller that failed.
            group.give_up(f"a rollout worker failed while it loaded the weights; its own error says why ({error!r})")
            raise
        self._commit(plan)

    def _batches(self, mirror: Mirror, names: Sequence[str]) -> Iterator[list[tuple[str, torch.Tensor]]]:
        batch: list[tuple[str, torch.Tensor]] = []
        size = 0
        for name in names:
            tensor = mirror.tensor(name)
            if batch and size + tensor.nbytes > self.bucket_size:
                yield batch
                batch, size = [], 0
            batch.append((name, tensor.to(self._device, copy=True)))
            size += tensor.nbytes
        if batch:
            yield batch

    def _reader(self, group: Group, mirror: Mirror, plan: Plan) -> SharedReader:
        files = NodeFiles(group.node, self._shared_dir, f"{self.options_at}.shared_dir", self._timeout)
        return SharedReader(group, mirror, plan, self._threads, files, self._log_end)
