# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's checkpoint engine: one object in each policy rank and in each rollout worker, driven by NeMo-RL.

NeMo-RL calls `prepare` on all, hands what they return to all by `init_policy_process_group` and
`init_rollout_process_group`, and then, for every sync, `send_weights` on the policy and `receive_weight_batches` on the
rollout workers at the same time. With `release_after_refit` it does all of that for every sync.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ray
import torch
from nemo_rl.utils.checkpoint_engines import base

from sparsecast.buffers import dtype_name
from sparsecast.errors import GroupMismatchError, UsageError

from .._checkpoint_engine import DeltaEngine
from .._checkpoint_group import Group, Plan, Topology, describe_rank
from .._chunks import ChunkWriter, Totals
from .._gathered import drain
from .._mirror import Mirror, host_bits
from .._node_files import NodeFiles
from .receiver import SharedReader

_KEY = "sparsecast"

logger = logging.getLogger(__name__)


class CheckpointEngine(DeltaEngine[SharedReader], base.CheckpointEngine):
    """Options, under `policy.generation.refit_cfg` at the name of this class:

    - `channels`: what carries records: "control" (TCP, encrypted; the default) or "nccl".
    - `timeout`: seconds after which a wait for another rank ends (600).
    - `threads`: threads that encode and decode (as many as cores, at most 8).
    - `host`: address of the policy's first rank that the rollout workers reach (what Ray calls that node).
    - `interface`: name or address of the network interface.
    - `shared_dir`: where the rollout workers of a node share the weights ("/dev/shm").
    - `load`: what vLLM loads after a sync: "changed" tensors (the default), or "all".
    - `release_after_refit`: NeMo-RL's; with true, a sync after a failed one meets anew.
    - `update_weights_bucket_memory_ratio`: NeMo-RL's; bounds what is handed to vLLM at once.
    """

    options_at = "refit_cfg"
    without_copy = "take NeMo-RL's own transport, which has no copy, by leaving out refit_transport"
    how_to_meet = (
        "start the run again, or set release_after_refit: true in refit_cfg, with which the ranks meet before each sync"
    )

    def __init__(
        self,
        bucket_size: int,
        *,
        host: str = "",
        load: str = "changed",
        release_after_refit: bool = False,
        **options: Any,
    ) -> None:
        del release_after_refit
        super().__init__(bucket_size, **options)
        if load not in ("changed", "all"):
            raise UsageError(f"{self.options_at}.load is 'changed' or 'all', not {load!r}")
        self.figures: Totals | None = None
        """Figures of the last sync, on rank 0 of the policy."""
        self._host = host
        self._load = load

    # What NeMo-RL calls before the first sync, or before each.

    def prepare(self) -> dict[str, Any]:
        """Returns where this rank is, in which group, and where a new one could meet if this is the policy's rank 0."""
        host = self._host or str(ray.util.get_node_ip_address()).strip("[]")
        return {_KEY: describe_rank(_who_shares(self._shared_dir), self._group, host)}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Meets the rollout workers, on rank 0; the policy's other ranks are in no group."""
        if worker_rank == 0:
            self._join(0, train_world_size, rollout_world_size, metadata)

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Meets rank 0 of the policy and the other rollout workers."""
        self._join(1 + rollout_rank, train_world_size, rollout_world_size, metadata)

    def _join(self, rank: int, train: int, rollout: int, metadata: Sequence[Any]) -> None:
        """Joins the group, unless it is as it was. Every rank decides that from the same metadata."""
        ours = [item[_KEY] for item in metadata if isinstance(item, Mapping) and _KEY in item]
        if len(metadata) != train + rollout or len(ours) != len(metadata) or not 0 <= rank <= rollout:
            raise GroupMismatchError(
                f"{len(ours)} of {train + rollout} workers use this class: set refit_transport in the one "
                "configuration that policy and generation share"
            )
        self._rank = rank
        topology = Topology.of(ours[0], ours[train:])
        if topology.meeting is not None:
            node = topology.nodes[rank - 1] if rank > 0 else 0
            self._meet(topology.meeting, rank, 1 + rollout, node, rank > 0 and topology.leaders[rank - 1])

    # The policy.

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Runs one sync on a rank of the policy. `weights` gathers over its ranks, so that all read it to its end."""
        iterator = iter(weights)
        try:
            if self._rank == 0:
                self._send(iterator)
        except Exception as error:
            raise self._failed(error) from error
        finally:
            drain(iterator)

    def _send(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        plan = self._begin()
        assert self._mirror is not None
        writer = ChunkWriter(self._joined(), self._mirror, plan, self.bucket_size, self._threads)
        self._write(weights, writer, self._mirror)
        writer.finish()
        self._commit(plan)
        self.figures = totals = writer.totals
        logger.info(
            "sparsecast sent %d bytes: %d of %d elements, %d of %d tensors%s",
            totals.record_bytes,
            totals.changed,
            totals.elements,
            totals.sent_tensors,
            totals.tensors,
            ", all of them" if plan.seed else "",
        )

    def _write(self, weights: Iterator[tuple[str, torch.Tensor]], writer: ChunkWriter, mirror: Mirror) -> None:
        """Sends what the mirror lacks: the changes of tensors that it has, and tensors that it does not have whole.
        Raises UsageError for names, shapes or dtypes that do not fit.
        """
        seen: set[str] = set()
        for name, tensor in weights:
            if name in seen:
                raise UsageError("the policy exports two tensors of this name", f"tensor {name!r}")
            seen.add(name)
            entry = (name, dtype_name(tensor.dtype), tuple(tensor.shape))
            bits = host_bits(tensor)
            writer.totals.tensors += 1
            writer.totals.elements += bits.numel()
            # A tensor in host memory is the policy's own: nothing changes it before the chunk is sent.
            if name not in mirror:
                writer.add_new(entry, bits)
                continue
            mirror.get(name, entry[2], known=entry[1])
            if not torch.equal(mirror.flat_bits(name), bits):
                writer.add_change(name, bits)
        if not seen:
            raise UsageError("the policy exports no tensors")

    # The rollout workers.

    async def receive_weight_batches(self) -> AsyncGenerator[list[tuple[str, torch.Tensor]], None]:
        """Yields tensors of one version, after all of it has been received and verified on every rank.

        They are copies, on the GPU if there is one. A caller that stops before the end has failed: everything is sent
        again next time.
        """
        group = self._joined()
        plan, reader = self._receive()
        assert reader is not None
        names = reader.names if self._load == "changed" else reader.mirror.names
        try:
            for batch in self._batches(reader.mirror, names):
                yield batch
        except BaseException as error:
            # Also GeneratorExit, which is how a generator hears of a caller that failed.
            group.give_up(f"a rollout worker failed while it loaded the weights; its own error says why ({error!r})")
            raise
        self._commit(plan)

    def _reader(self, group: Group, mirror: Mirror, plan: Plan) -> SharedReader:
        files = NodeFiles(group.node, self._shared_dir, f"{self.options_at}.shared_dir", self._timeout)
        return SharedReader(group, mirror, plan, self._threads, files)

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


def _who_shares(directory: str) -> str:
    """Returns a word that is the same for all who see the same directory of the same running machine."""
    try:
        state = os.stat(directory)
    except OSError as error:
        raise UsageError(f"shared_dir in refit_cfg: {error}") from error
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{state.st_dev}/{state.st_ino}"
