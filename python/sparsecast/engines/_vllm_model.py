# SPDX-License-Identifier: Apache-2.0
"""What a vLLM model must be to be patched in place: its trace, and the refusals that only vLLM needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from sparsecast.engines._derived import derived_tensors, packed_copies
from sparsecast.engines.loader_trace import CanonicalTensor, LoadWeights, TracedLoader, trace_loader
from sparsecast.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_KV_CACHE_ATTRIBUTES = frozenset({"kv_cache"})


def trace(model: torch.nn.Module, canonical: Sequence[CanonicalTensor], may_miss: Sequence[str] = ()) -> TracedLoader:
    """Runs `trace_loader` over a vLLM model, within `set_current_vllm_config`.

    Also refuses what only vLLM does: see `refuse_copies_of_weights`.
    """
    refuse_copies_of_weights(model)
    return trace_loader(model, canonical, loader_of(model), may_miss=may_miss)


def loader_of(model: torch.nn.Module) -> LoadWeights:
    load_weights: LoadWeights = model.load_weights  # type: ignore[assignment]  # Of every vLLM model.
    return load_weights


def refuse_copies_of_weights(model: torch.nn.Module, whose: str = "the model") -> None:
    """Raises UnsupportedError for tensors that post-processing has derived from weights (W_UV and W_UK_T of MLA, a
    packed copy for a kernel), which a patch of the weights would not update.
    """
    packed = packed_copies(model)
    if packed:
        listed = ", ".join(sorted(packed)[:4])
        raise UnsupportedError(
            f"{len(packed)} layers of {whose} compute with a copy of their weights that is packed for this CPU "
            f"({listed}, ...), which a patch would not reach; with the environment variable ONEDNN_MAX_CPU_ISA=AVX2 "
            "vLLM makes no such copies: start the server with it"
        )
    derived = derived_tensors(model, _KV_CACHE_ATTRIBUTES)
    if derived:
        listed = ", ".join(sorted(derived)[:8])
        raise UnsupportedError(
            f"{whose} computes with tensors that are derived from its weights after loading: {listed}; a patch "
            "would leave them behind; use a dense weight-transfer backend (nccl) for this model"
        )


def refuse_moving_experts(parallel_config: Any) -> None:
    """Raises UnsupportedError if vLLM moves experts between ranks while it runs: the map would be wrong after a move."""
    if parallel_config.enable_eplb:
        raise UnsupportedError(
            "--enable-eplb: vLLM moves experts, redundant ones among them, between ranks while it runs, and a patch "
            "goes where the loader put them; start vLLM without it, or use a dense weight-transfer backend (nccl)"
        )


def refuse_new_ties(traced: TracedLoader, ties: Sequence[Sequence[str]]) -> None:
    """Raises UnsupportedError for two names that share memory here and are not among the ties of the trainer."""
    known = {frozenset(pair) for pair in ties}
    for alias, original in traced.ties:
        if frozenset((alias, original)) not in known:
            raise UnsupportedError(
                f"vLLM keeps {alias!r} and {original!r} in one memory, because they are tied or were equal when they "
                "were loaded, and the trainer has two tensors: name them in ties, or start vLLM from untied weights"
            )


def checkpoint_tensors(
    vllm_config: VllmConfig, model_config: Any, model: torch.nn.Module
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of the files that `model` was loaded from, by the reader of vLLM."""
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    loader = get_model_loader(vllm_config.load_config)
    if not isinstance(loader, DefaultModelLoader):
        raise UnsupportedError(
            f"{type(loader).__name__} reads no checkpoint files to compare the worker's memory with: use proof='trust' "
            "if the kernels of this model keep the loader's layout"
        )
    yield from loader.get_all_weights(model_config, model)
