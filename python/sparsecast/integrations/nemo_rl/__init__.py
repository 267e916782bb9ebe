# SPDX-License-Identifier: Apache-2.0
"""NeMo-RL: a checkpoint engine whose ranks send and verify only what changed.

    policy.generation.refit_transport: "sparsecast.integrations.nemo_rl:CheckpointEngine"
    policy.generation.refit_cfg: {"sparsecast.integrations.nemo_rl:CheckpointEngine": {}}

docs/integrations.md says what that does, and its limits.
"""

from __future__ import annotations

from .engine import CheckpointEngine

__all__ = ["CheckpointEngine"]
