# SPDX-License-Identifier: Apache-2.0
"""What verl's own delta_sharded would send: its released sender, cut off where it broadcasts."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def bytes_of_verl(engine: Any, rank: int) -> int:
    """Returns bytes of positions and values of the sync that `engine` is due, without its manifests; collective.

    The export is run once more afterwards: the engine's snapshots are as before.
    """
    from verl.checkpoint_engine.delta_checkpoint_engine import DeltaShardedCheckpointEngine

    sent: list[int] = []

    class Counting(DeltaShardedCheckpointEngine):
        def __init__(self) -> None:
            self.rank = 0 if rank == 0 else -1
            self.is_master = rank == 0
            self.bucket_size = 1 << 20
            self.rollout_dtype = torch.bfloat16
            self.encoding = "indices"
            self.batch_gather = 32
            self.verify_every = 0
            self._shard_seeded = True

        def _publish_flush(self, flush: Any, first: bool, is_last: bool) -> None:
            sent.append(flush.wire_bytes)

        def _publish_terminal(self, first: bool) -> None:
            pass

        def _release_staging_pool(self, phase: str) -> None:
            pass

    before = {name: value.clone() for name, value in engine._delta_shard_snap.items()}
    with contextlib.suppress(StopIteration):
        Counting().send_weights(engine).send(None)
    engine._delta_shard_snap = before
    return sum(sent)
