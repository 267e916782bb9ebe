# SPDX-License-Identifier: Apache-2.0
"""verl: its backend ``delta_sharded`` with sparsecast's codec between trainer and rollout workers, and a backend
``sparsecast`` that hands whole tensors to rollouts which take no deltas.

    rollout.checkpoint_engine.backend=delta_sharded                     # or sparsecast
    rollout.checkpoint_engine.custom_backend_module=sparsecast.integrations.verl

Importing this module replaces verl's own class in its registry, under the same name: verl tests that name to export
shards and to prepare SGLang and vLLM. docs/integrations.md says what that does, and its limits.
"""

from __future__ import annotations

# The package registers verl's own backends when it is imported: it has to come first.
from verl.checkpoint_engine import CheckpointEngineRegistry

from .engine import SparsecastCheckpointEngine
from .whole import WholeTensorCheckpointEngine

__all__ = ["SparsecastCheckpointEngine", "WholeTensorCheckpointEngine"]

CheckpointEngineRegistry.register("delta_sharded")(SparsecastCheckpointEngine)
CheckpointEngineRegistry.register("sparsecast")(WholeTensorCheckpointEngine)
