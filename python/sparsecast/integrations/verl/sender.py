# SPDX-License-Identifier: Apache-2.0
"""The sender, on rank 0 of the trainer: what verl's export yields becomes chunks of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from verl.checkpoint_engine.delta_sync.sparse_gather import gather_slot_entries_to_rank0

from sparsecast.buffers import bits_of, dtype_name
from sparsecast.errors import CorruptError, DigestMismatchError, UsageError

from .._checkpoint_group import Group, Plan
from .._chunks import ChunkWriter, Totals
from .._log_end import LogEnd
from .._mirror import Mirror, host_bits

LARGEST_TENSOR = (1 << 31) - 1
"""Most elements of a tensor, because verl's receivers take positions as int32."""


class ExportWriter(ChunkWriter):
    """Sends the tensors of verl's exports.

    An error in `take` is kept in `failure`, and no more tensors are sent. It is not raised, because an export is
    collective over the trainer's ranks and must be read to its end.
    """

    def __init__(
        self, group: Group, mirror: Mirror, plan: Plan, chunk_bytes: int, threads: int, log_end: LogEnd | None
    ) -> None:
        super().__init__(group, mirror, plan, chunk_bytes, threads, log_end)
        self.failure: Exception | None = None

    def take(self, work: Callable[..., None], *arguments: Any) -> None:
        """Calls `work`, a method of this object, with these arguments, unless an earlier call has failed. Keeps an
        error in `failure`, and breaks the group.
        """
        if self.failure is not None:
            return
        try:
            work(*arguments)
        except Exception as error:
            self.failure = error
            self.group.give_up(f"the trainer's rank 0 failed: {error}")

    def add_full(self, name: str, tensor: torch.Tensor) -> None:
        """Adds a whole tensor, in a sync that sends everything. Raises UsageError if it is too large for verl."""
        if tensor.numel() > LARGEST_TENSOR:
            raise UsageError(f"{tensor.numel()} elements: verl's receivers take int32 positions", f"tensor {name!r}")
        self.totals.elements += tensor.numel()
        self.add_new((name, dtype_name(tensor.dtype), tuple(tensor.shape)), host_bits(tensor))

    def add_elements(
        self, name: str, dtype: str, shape: Sequence[int], positions: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Adds changed elements of a tensor: their positions in the flattened tensor, and their values. If there are
        none, only counts the tensor's elements. Raises UsageError for NaNs and for a tensor that does not fit the
        mirror, and CorruptError for positions outside the tensor.
        """
        held = self._mirror.get(name, shape)
        self.totals.elements += held.numel()
        if positions.numel() == 0:
            return
        values = values.detach()
        if values.is_floating_point() and bool(torch.isnan(values).any()):
            raise UsageError(
                "a changed element is NaN, which verl's receivers take for 'unchanged' or refuse: stop the run and look "
                "at its loss, or go back to a checkpoint",
                f"tensor {name!r}",
            )
        if values.dtype != held.dtype:
            if not (values.is_floating_point() and held.is_floating_point()):
                raise UsageError(f"its export has become {dtype}, and was {held.dtype}", f"tensor {name!r}")
            values = values.to(held.dtype)
        places = positions.detach().to(device="cpu", dtype=torch.int64)
        if places.numel() != values.numel() or int(places.min()) < 0 or int(places.max()) >= held.numel():
            raise CorruptError(
                f"the export names positions outside of its {held.numel()} elements, or too few values",
                f"tensor {name!r}",
            )
        self.add_change(name, host_bits(values), places)

    def compare(self, name: str, tensor: torch.Tensor) -> None:
        """Raises DigestMismatchError unless the tensor is bitwise equal to the tensor that was sent under this name."""
        sent = self._mirror.get(name, tensor.shape)
        different = int(torch.ne(bits_of(sent.view(-1)), host_bits(tensor)).sum())
        if different:
            raise DigestMismatchError(
                f"{different} of {sent.numel()} elements of the full export are not what the sparse exports have made "
                "of it: the trainer's snapshot or its conversion is wrong",
                f"tensor {name!r}",
            )


class Gatherer:
    """Gathers the entries of verl's sparse export on rank 0, several entries at a time, in the same order on every
    rank.
    """

    def __init__(self, at_once: int, round_bytes: int, writer: ExportWriter | None) -> None:
        self._at_once = max(at_once, 1)
        self._round_bytes = round_bytes
        self._writer = writer
        self._waiting: dict[int, tuple[Any, list[Sequence[Any]]]] = {}

    def run(self, entries: Iterable[Sequence[Any]]) -> None:
        """Reads all entries (slots, dtype, counts, positions, values, process group) of this rank, and gathers them on
        rank 0. Collective over the trainer.

        A round of gathering begins when a certain number of entries wait. The number of bytes cannot decide this,
        because it differs between ranks.
        """
        for *entry, group in entries:
            _, waiting = self._waiting.setdefault(id(group), (group, []))
            waiting.append(entry)
            if len(waiting) >= self._at_once:
                self._round(group, waiting)
        for group, waiting in self._waiting.values():
            self._round(group, waiting)

    def _round(self, group: Any, waiting: list[Sequence[Any]]) -> None:
        entries = list(waiting)
        waiting.clear()
        if not entries:
            return
        if group is None:  # Whole on every rank: what rank 0 has is all.
            for slots, dtype, counts, positions, values in entries:
                sizes = [int(count) for count in counts]
                parts = zip(positions.split(sizes), values.split(sizes), strict=True)
                self._take(slots, dtype, parts)
            return
        for batch in _of_one_dtype(entries):
            self._gather(group, batch)

    def _gather(self, group: Any, entries: list[Sequence[Any]]) -> None:
        positions = torch.cat([entry[3] for entry in entries])
        gathered = gather_slot_entries_to_rank0(
            positions,
            torch.cat([entry[4] for entry in entries]),
            torch.cat([torch.as_tensor(entry[2]) for entry in entries]).to(positions.device),
            group=group,
            max_round_bytes=self._round_bytes,
        )
        if gathered is None:
            return
        parts = iter(gathered)
        for slots, dtype, *_ in entries:
            self._take(slots, dtype, parts)

    def _take(self, slots: Iterable[Any], dtype: str, parts: Any) -> None:
        for name, shape in slots:
            positions, values = next(parts)
            if self._writer is not None:
                self._writer.take(self._writer.add_elements, name, dtype, shape, positions, values)


def consume_full(
    weights: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype, take: Callable[[str, torch.Tensor], None] | None
) -> None:
    """Reads a full export to its end, which is collective over the trainer. Calls `take`, if it is not None, with the
    name and the tensor; floating-point tensors are cast to `dtype`.
    """
    for name, tensor in weights:
        if take is None:
            continue
        tensor = tensor.detach()
        take(name, tensor.to(dtype) if tensor.is_floating_point() else tensor)


def tell_ranks(plan: int, device: str) -> int:
    """Returns, on every rank of the trainer, the number `plan` that rank 0 has passed. Collective over the default
    process group.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return plan
    word = torch.tensor([plan], dtype=torch.int64, device=device)
    dist.broadcast(word, src=0)
    return int(word.item())


def metrics_of(totals: Totals, message_bytes: int, seed: bool) -> dict[str, float]:
    """Returns the figures of a sync under the names that verl uses. `seed` says whether everything was sent;
    `message_bytes` is the size of the messages besides records.
    """
    figures: Mapping[str, float] = {
        "changed_ratio": (totals.changed / totals.elements if totals.elements else 0.0) if not seed else 1.0,
        "changed_elems": float(totals.elements if seed else totals.changed),
        "payload_mbytes": (totals.record_bytes + message_bytes) / (1 << 20),
        "flushes": float(totals.chunks),
        "seed": float(seed),
    }
    return {f"checkpoint_engine/{name}": value for name, value in figures.items()}


def _of_one_dtype(entries: list[Sequence[Any]]) -> list[list[Sequence[Any]]]:
    """Cuts the list of entries into runs of entries whose values have the same dtype. Gathering a run of several dtypes
    would convert all values to the widest one.
    """
    runs: list[list[Sequence[Any]]] = []
    for entry in entries:
        if runs and runs[-1][-1][4].dtype == entry[4].dtype:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs
