"""The entry point of vLLM's plug-in group `vllm.general_plugins`: makes the weight-transfer backend "sparsecast" known.

vllm serve MODEL --weight-transfer-config '{"backend": "sparsecast"}'
"""

from __future__ import annotations

BACKEND = "sparsecast"


def register() -> None:
    """Registers both ends by name; vLLM imports them when they are asked for. May be called more than once."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "sparsecast.engines.vllm", "SparsecastWeightTransferEngine"
        )
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(
            BACKEND, "sparsecast.engines.vllm_trainer", "SparsecastTrainerWeightTransferEngine"
        )
