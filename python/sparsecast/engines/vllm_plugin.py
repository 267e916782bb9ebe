# SPDX-License-Identifier: Apache-2.0
"""Entry point of the plug-in group `vllm.general_plugins` of vLLM: registers the weight-transfer backend "sparsecast".

vllm serve MODEL --weight-transfer-config '{"backend": "sparsecast"}'
"""

from __future__ import annotations

BACKEND = "sparsecast"


def register() -> None:
    """Registers both ends by name; vLLM imports them on first use. May be called more than once."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "sparsecast.engines.vllm", "SparsecastWeightTransferEngine"
        )
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(
            BACKEND, "sparsecast.engines.vllm_trainer", "SparsecastTrainerWeightTransferEngine"
        )
