# SPDX-License-Identifier: Apache-2.0
"""The draft model of a vLLM worker (MTP, EAGLE, a small model) as a second destination of the target's version."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sparsecast.engines.draft import KEEP, LIVE_PREFIX, DraftModel, add_draft, over_table, say_kept, without_draft
from sparsecast.engines.refresh.recompute import Recomputation
from sparsecast.engines.refresh.repacked import RepackedModules
from sparsecast.engines.trace.loader import CanonicalTensor, TracedLoader, trace_loader
from sparsecast.engines.vllm.model import checkpoint_tensors, loader_of, recomputation_of, repacked_modules
from sparsecast.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

__all__ = ["Draft", "choose_draft", "draft_with_files", "with_draft", "without_draft"]

_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")  # vLLM names the target as their draft.
_logger = logging.getLogger("vllm.sparsecast")


@dataclass(frozen=True)
class Draft:
    """The draft model of one worker, and the part of the trainer's table that is for it."""

    model: torch.nn.Module
    config: Any
    """vLLM's ModelConfig of the draft."""
    prefix: str = ""
    """Prefix of the draft's names in the trainer's table. Empty if the draft's weights lie in the files of the target,
    under the names that they have there.
    """

    def checkpoint(self, vllm_config: VllmConfig) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields (name, tensor) of the files from which the draft was loaded, by the trainer's names."""
        for name, tensor in checkpoint_tensors(vllm_config, self.config, self.model):
            yield self.prefix + name, tensor


def choose_draft(
    speculative: Any, target: Any, model: torch.nn.Module | None, prefix: str, *, can_look: bool
) -> Draft | None:
    """Returns the draft that follows the trainer. Returns None if there is no draft here, or if the draft is not
    updated, which is logged as a warning.

    `speculative` is vLLM's SpeculativeConfig or None, `target` the ModelConfig of the target, `model` the draft model
    of this worker or None, and `prefix` the prefix of the draft's names in the trainer's table. `can_look` says whether
    the worker shows its draft model. Raises UnsupportedError for a draft that keeps a quantised copy of the target's
    head.
    """
    config = getattr(speculative, "draft_model_config", None)
    if config is None or speculative.method in _WITHOUT_WEIGHTS:
        return None
    if not can_look:
        say_kept(
            _logger,
            config.model,
            "the workers do not show it: start vLLM with --worker-extension-cls "
            "sparsecast.engines.vllm.WorkerExtension",
        )
        return None
    if model is None:
        return None  # Another pipeline stage has it.
    if not prefix and (config.model, config.revision) != (target.model, target.revision):
        say_kept(
            _logger,
            config.model,
            "it has files of its own; a trainer that trains it, too, sends its tensors under a prefix "
            "and names that in draft_prefix (of a server that follows a log: SPARSECAST_FOLLOW_DRAFT_PREFIX)",
        )
        return None
    if getattr(speculative, "draft_lm_head_quantization", None) is not None:
        raise UnsupportedError(
            f"the draft {config.model} guesses with a quantised copy of the target's lm_head "
            "(draft_lm_head_quantization), which a patch of lm_head would leave behind: start vLLM without it, " + KEEP
        )
    return Draft(model, config, prefix)


def draft_with_files(speculative: Any, target: Any, model: torch.nn.Module | None, prefix: str) -> Draft | None:
    """Returns the draft model of this worker if its weights lie in files of its own, and the log has their names under
    `prefix`. Returns None if another pipeline stage has it, or without a prefix. The arguments are those of
    `choose_draft`. Raises UsageError if the server has no such draft.
    """
    if not prefix:
        return None
    config = getattr(speculative, "draft_model_config", None)
    if (
        config is None
        or speculative.method in _WITHOUT_WEIGHTS
        or (config.model, config.revision) == (target.model, target.revision)
    ):
        raise UsageError(
            f"SPARSECAST_FOLLOW_DRAFT_PREFIX: {prefix!r} is for the names of a draft model with files of its own, and this "
            "server has none: start it without this variable"
        )
    return Draft(model, config, prefix) if model is not None else None


def with_draft(
    traced: TracedLoader,
    draft: Draft | None,
    target: torch.nn.Module,
    canonical: Sequence[CanonicalTensor],
    vllm_config: VllmConfig,
    may_miss: Sequence[str] = (),
    repacked_too: Collection[str] = (),
    modes: Mapping[str, str] | None = None,
) -> tuple[TracedLoader, Recomputation | None]:
    """Returns the map of the target, `traced`, joined with the map of the draft, over the trainer's whole table; and
    the recomputation of what vLLM computes from the draft's weights, not proven yet, or None if the draft does not
    follow. For a caller within `set_current_vllm_config`. `repacked_too` names modules whose parameters are not what
    was loaded; names of the draft's modules begin with `LIVE_PREFIX`. `modes`, and the errors, are those of `add_draft`.
    """
    traced = over_table(traced, canonical)
    if draft is None:
        return traced, None
    repacked = _repacked(draft, target, vllm_config, repacked_too)

    def trace(table: Sequence[CanonicalTensor], forced: Mapping[str, str]) -> TracedLoader:
        with repacked.shown():
            found = trace_loader(
                draft.model,
                table,
                loader_of(draft.model),
                strict=False,
                modes=forced,
                several=repacked.parameters,
            )
        return repacked.completed(found)

    def recompute(found: TracedLoader) -> tuple[Recomputation, set[str]]:
        whose = f"the draft {draft.config.model}"
        return recomputation_of(draft.model, found, vllm_config, draft.config, whose, repacked)

    described = DraftModel(draft.model, draft.config.model, draft.prefix, trace, recompute)
    return add_draft(traced, described, target, canonical, _logger, may_miss=may_miss, modes=modes)


def _repacked(draft: Draft, target: torch.nn.Module, vllm_config: VllmConfig, too: Collection[str]) -> RepackedModules:
    """Returns the repacked modules that the draft does not share with the target."""
    from vllm.config.utils import replace as replace_config

    own = {name.removeprefix(LIVE_PREFIX) for name in too if name.startswith(LIVE_PREFIX)}
    prefix = ""
    if vllm_config.speculative_config.method == "draft_model":  # vLLM makes it as a target of its own.
        vllm_config = replace_config(vllm_config, model_config=draft.config, quant_config=None)
        prefix = "draft_model"
    try:
        return repacked_modules(draft.model, vllm_config, own, draft.config, prefix, set(target.modules()))
    except UnsupportedError as error:
        raise UnsupportedError(f"the draft {draft.config.model}: {error.message}; {KEEP}") from error
