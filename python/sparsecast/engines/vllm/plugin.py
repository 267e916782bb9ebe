# SPDX-License-Identifier: Apache-2.0
"""Entry point of the plug-in group `vllm.general_plugins` of vLLM: registers the weight-transfer backend "sparsecast".

vllm serve MODEL --weight-transfer-config '{"backend": "sparsecast"}'
"""

from __future__ import annotations

import logging
import os

BACKEND = "sparsecast"
STOCK_BACKEND = "sparsecast_stock"
"""Trainer's backend for servers without sparsecast (`stock`)."""
LOG_BACKEND = "sparsecast_log"
"""Trainer's backend that writes a delta log (`sparsecast.integrations.vllm_log`)."""

SUPPORTED = ((0, 28), (0, 33))
"""First and last version of vLLM that this is made for; docs/engines.md says what was run with each."""

_logger = logging.getLogger("vllm.sparsecast")


def check_version() -> None:
    """Logs a warning, once in a process, if the installed version of vLLM is newer than those that sparsecast is made
    for. Raises UnsupportedError for an older version, which has another weight-transfer interface.
    """
    from vllm import __version__

    from sparsecast.engines.release import refuse_other_engine

    refuse_other_engine("vLLM", __version__, SUPPORTED, "has another weight-transfer interface", _logger)


def missing() -> list[str]:
    """Returns a sentence for each thing that the installed vLLM lacks, and that sparsecast has to do without. It asks
    for the thing itself, not for the version.
    """
    from vllm.distributed.weight_transfer.base import WeightSource
    from vllm.engine.protocol import EngineClient

    lacks = []
    if not hasattr(WeightSource, "iter_local"):
        lacks.append("its trainer API has no iter_local: a trainer of several ranks that uses it gathers whole tensors")
    if not hasattr(EngineClient, "shutdown_weight_transfer_engine"):
        lacks.append(
            "it has no /shutdown_weight_transfer_engine: only workers with the worker extension can be told to leave "
            "their group, before they are seeded again or when a control plane removes them"
        )
    if not hasattr(EngineClient, "release_kv_cache_memory"):
        lacks.append("it has no /release_kv_cache_memory: a control plane cannot let its KV cache sleep alone")
    return lacks


def say_what_is_missing() -> None:
    """Logs what the installed vLLM lacks (`missing`), once in a process."""
    from vllm import __version__

    from sparsecast.engines.release import say_lacks

    say_lacks("vLLM", __version__, missing(), _logger)


def _limit_vector_units() -> None:
    """Makes the environment variable ONEDNN_MAX_CPU_ISA hold for vLLM's own AMX kernels, too. These kernels ask only
    the processor, and compute with packed copies of weights, which no update in place would reach.
    """
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if limit not in ("", "ALL", "DEFAULT") and "AMX" not in limit:
        import torch

        torch.cpu._is_amx_tile_supported = lambda: False


def add_follow_methods() -> None:
    """Gives vLLM's workers the methods with which they follow a log."""
    from vllm.v1.worker.worker_base import WorkerBase

    from sparsecast.engines.vllm import follow_worker

    for name in follow_worker.METHODS:
        setattr(WorkerBase, name, getattr(follow_worker, name))


def register() -> None:
    """Registers the weight-transfer backends of servers and trainers with vLLM, by name; vLLM imports them on first
    use. May be called more than once.

    If this vLLM has no interface for such backends, only a warning is logged: sparsecast may be installed for another
    purpose.
    """
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    except ImportError as error:
        _logger.warning(
            "sparsecast registers no weight-transfer backend: this vLLM has no interface for it (%s)", error
        )
        return

    _limit_vector_units()
    if os.environ.get("SPARSECAST_FOLLOW"):
        add_follow_methods()
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "sparsecast.engines.vllm.engine", "SparsecastWeightTransferEngine"
        )
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(
            BACKEND, "sparsecast.engines.vllm.trainer", "SparsecastTrainerWeightTransferEngine"
        )
    if STOCK_BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(
            STOCK_BACKEND, "sparsecast.engines.vllm.stock", "StockTrainerWeightTransferEngine"
        )
    if LOG_BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(
            LOG_BACKEND, "sparsecast.integrations.vllm_log", "LogTrainerWeightTransferEngine"
        )
