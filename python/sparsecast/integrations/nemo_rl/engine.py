# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL's checkpoint engine: one object in each policy rank and in each rollout worker, driven by NeMo-RL.

NeMo-RL calls `prepare` on all, hands what they return to all by `init_policy_process_group` and
`init_rollout_process_group`, and then, for every sync, `send_weights` on the policy and `receive_weight_batches` on the
rollout workers at the same time. With `release_after_refit` it does all of that for every sync.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

import ray
import torch
from nemo_rl.utils.checkpoint_engines import base

from sparsecast.errors import GroupMismatchError, UsageError

from .._checkpoint_group import Topology, describe_rank
from .._chunks import Totals
from .._gathered import drain
from .._whole_tensors import WholeTensorEngine

_KEY = "sparsecast"

logger = logging.getLogger(__name__)


class CheckpointEngine(WholeTensorEngine, base.CheckpointEngine):
    """NeMo-RL's checkpoint engine by sparsecast. Its options are under `policy.generation.refit_cfg`, at the name of
    this class:

    - `channels`: transport that carries records: "control" (TCP, encrypted; the default) or "nccl".
    - `log`: location of a delta log that carries the records in place of `channels`: a directory that all nodes see, or
      "s3://bucket/prefix"; or a mapping of `location`, `key`, `trusted_keys`, `mirror` and `timeout` of a `Log`.
    - `positions`: encoding of positions in the log: "packed" (the default), which servers with several workers can
      follow, or "auto", which is smaller.
    - `timeout`: seconds after which a wait for another rank ends (600).
    - `threads`: number of threads that encode and decode (0, the default: one for each core, at most 8).
    - `host`: address at which the rollout workers reach the policy's first rank (by default Ray's for its node).
    - `interface`: name or address of the network interface.
    - `shared_dir`: directory where the rollout workers of a node share the weights ("/dev/shm").
    - `load`: tensors that vLLM loads after a sync: "changed" tensors (the default), or "all".
    - `release_after_refit`: an option of NeMo-RL; with true, the ranks make a new group after a sync has failed.
    - `update_weights_bucket_memory_ratio`: an option of NeMo-RL; limits the bytes that vLLM is given at once.
    """

    options_at = "refit_cfg"
    exporter = "the policy"
    without_copy = "take NeMo-RL's own transport, which has no copy, by leaving out refit_transport"
    how_to_meet = (
        "start the run again, or set release_after_refit: true in refit_cfg, with which the ranks meet before each sync"
    )

    def __init__(
        self,
        bucket_size: int,
        *,
        host: str = "",
        release_after_refit: bool = False,
        **options: Any,
    ) -> None:
        del release_after_refit
        super().__init__(bucket_size, **options)
        self.figures: Totals | None = None
        """Figures of the last sync, on rank 0 of the policy."""
        self._host = host

    # What NeMo-RL calls before the first sync, or before each.

    def prepare(self) -> dict[str, Any]:
        """Returns, as JSON values, the node of this rank, its membership in the present group, and an address on this
        machine where a new group could meet. Only the address of the policy's rank 0 is used.
        """
        host = self._host or str(ray.util.get_node_ip_address()).strip("[]")
        return {_KEY: describe_rank(_who_shares(self._shared_dir), self._group, host)}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """On rank 0 of the policy, joins the group of the rollout workers. The policy's other ranks are in no group."""
        if worker_rank == 0:
            self._join(0, train_world_size, rollout_world_size, metadata)

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Joins the group of rank 0 of the policy and the other rollout workers."""
        self._join(1 + rollout_rank, train_world_size, rollout_world_size, metadata)

    def _join(self, rank: int, train: int, rollout: int, metadata: Sequence[Any]) -> None:
        """Joins a new group as rank `rank`, unless the present group has the same members and works. All ranks decide
        this from the same `metadata`, which are the results of `prepare` on all ranks. Raises GroupMismatchError if a
        worker uses another class than this one.
        """
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
        """Runs one sync on a rank of the policy; rank 0 sends the weights. `weights` gathers tensors over all ranks of
        the policy, so every rank reads it to its end.
        """
        iterator = iter(weights)
        try:
            if self._rank == 0:
                self.figures, is_seed = self._send(iterator)
                logger.info(
                    "sparsecast sent %d bytes: %d of %d elements, %d of %d tensors%s",
                    self.figures.record_bytes,
                    self.figures.changed,
                    self.figures.elements,
                    self.figures.sent_tensors,
                    self.figures.tensors,
                    ", all of them" if is_seed else "",
                )
        except Exception as error:
            raise self._failed(error) from error
        finally:
            drain(iterator)

    # The rollout workers.

    async def receive_weight_batches(self) -> AsyncGenerator[list[tuple[str, torch.Tensor]], None]:
        """Receives one sync and yields its tensors in batches: see `_take`."""
        with contextlib.closing(self._take()) as batches:
            for batch in batches:
                yield batch


def _who_shares(directory: str) -> str:
    """Returns a text that identifies a directory on a running machine: it is the same for all processes that see this
    directory there. Raises UsageError if there is no such directory.
    """
    try:
        state = os.stat(directory)
    except OSError as error:
        raise UsageError(f"shared_dir in refit_cfg: {error}") from error
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()}/{state.st_dev}/{state.st_ino}"
