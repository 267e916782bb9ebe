# SPDX-License-Identifier: Apache-2.0
"""What the checkpoint engines for verl have in common: how their ranks meet. verl drives one object in each trainer rank
and in each rollout worker.

verl calls, for every sync, `prepare` on all, `build_topology` on the driver, `init_process_group` on all,
`send_weights` on the trainer and `receive_weights` on the rollout workers at the same time, and `finalize` on all.

The group meets again when a member is new or any rank's group broke.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
import torch
from verl.checkpoint_engine import CheckpointEngine

from sparsecast.errors import UsageError

from .._checkpoint_engine import DeltaEngine, Reader
from .._checkpoint_group import Topology, describe_rank


class VerlEngine(DeltaEngine[Reader], CheckpointEngine):
    """State of one rank, and the calls of verl before and after each sync."""

    how_to_meet = "verl's manager has to call init_process_group before each sync"

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        *,
        rollout_dtype: torch.dtype | str = torch.bfloat16,
        **options: Any,
    ) -> None:
        super().__init__(bucket_size, **options)
        if isinstance(rollout_dtype, str):
            dtype = getattr(torch, rollout_dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise UsageError(f"{self.options_at}.rollout_dtype: torch has no dtype {rollout_dtype!r}")
            rollout_dtype = dtype
        self.is_master = is_master
        self._dtype = rollout_dtype

    def prepare(self) -> dict[str, Any]:
        """Returns, as JSON values, the node of this rank and its membership in the present group. On rank 0 of the
        trainer the result also has an address where a new group could meet.
        """
        host = str(ray.util.get_node_ip_address()).strip("[]") if self.is_master else None
        return describe_rank(str(ray.get_runtime_context().get_node_id()), self._group, host)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Decides, from the results of `prepare` on all ranks, whether a new group is made. Returns the arguments of
        `init_process_group` for the ranks of the trainer, and for the rollout workers, as lists. The trainer's ranks
        other than 0 are in no group, and have rank -1.
        """
        if metadata[0]["meeting"] is None:
            raise UsageError("rank 0 of the trainer is not the master: verl has changed; see docs/integrations.md")
        topology = Topology.of(metadata[0], metadata[actor_wg_world_size:])
        size = 1 + rollout_world_size
        actors, workers = actor_wg_world_size, rollout_world_size
        return (
            {
                "rank": [0] + [-1] * (actors - 1),
                "world_size": [size] * actors,
                "meeting": [topology.meeting] * actors,
                "node": [0] * actors,
                "leader": [False] * actors,
            },
            {
                "rank": list(range(1, size)),
                "world_size": [size] * workers,
                "meeting": [topology.meeting] * workers,
                "node": topology.nodes,
                "leader": topology.leaders,
            },
        )

    def init_process_group(
        self, rank: int, world_size: int, meeting: dict[str, Any] | None, node: int, leader: bool
    ) -> None:
        """Joins the new group that meets at `meeting`, as rank `rank`. Keeps the present group if `meeting` is None,
        and does nothing for rank -1, which is in no group.
        """
        self._rank = rank
        if rank >= 0 and meeting is not None:
            self._meet(meeting, rank, world_size, node, leader)

    def finalize(self) -> None:
        """Releases the device memory that the flushes have used."""
        if self._device == "cuda":
            torch.cuda.empty_cache()
