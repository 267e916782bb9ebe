# SPDX-License-Identifier: Apache-2.0
"""The draft model of a vLLM worker (MTP, EAGLE, a small model) as a second destination of the target's version.

The loader of the draft is traced like the target's loader, and both maps become one: one layout, one transaction, one
digest. What vLLM shares between the two, such as embeddings, belongs to the target's map and is written once.

    the draft's weights lie          its loader gets                      without tensors of the trainer for it
    in the files of the target       the whole table of the trainer       it stays as it is, which is said once
    in files of their own            the names under `draft_prefix`,      the same
                                     without the prefix
"""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from sparsecast.engines.refresh.recompute import Recomputation
from sparsecast.engines.refresh.repacked import RepackedModules
from sparsecast.engines.trace.dispatch_mode import storage_key
from sparsecast.engines.trace.dtypes import in_checkpoint, pairs_of
from sparsecast.engines.trace.loader import CanonicalTensor, TracedLoader, trace_loader
from sparsecast.engines.vllm.model import checkpoint_tensors, loader_of, recomputation_of, repacked_modules
from sparsecast.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

LIVE_PREFIX = "draft."
"""Stands before the names of the draft's parameters, in errors, audits and `may_miss`; vLLM's checksums have it, too.
"""

_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")  # vLLM names the target as their draft.
_KEEP = "or keep the draft as it is with draft='keep' (its guesses are accepted less often; answers stay the target's)"
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

    def table(self, canonical: Sequence[CanonicalTensor]) -> list[CanonicalTensor]:
        """Returns the part of the table `canonical` that the draft's loader may take, by the names that this loader
        knows.
        """
        if not self.prefix:
            return list(canonical)
        size = len(self.prefix)
        return [(name[size:], dtype, shape) for name, dtype, shape in canonical if name.startswith(self.prefix)]

    def checkpoint(self, vllm_config: VllmConfig) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields (name, tensor) of the files from which the draft was loaded, by the trainer's names."""
        for name, tensor in checkpoint_tensors(vllm_config, self.config, self.model):
            yield self.prefix + name, tensor


def without_draft(canonical: Sequence[CanonicalTensor], prefix: str) -> list[CanonicalTensor]:
    """Returns the target's part of the table `canonical`: the tensors without `prefix` in their names, or all of them
    if `prefix` is empty.
    """
    return [entry for entry in canonical if not prefix or not entry[0].startswith(prefix)]


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
        _say_kept(
            config,
            "the workers do not show it: start vLLM with --worker-extension-cls "
            "sparsecast.engines.vllm.WorkerExtension",
        )
        return None
    if model is None:
        return None  # Another pipeline stage has it.
    if not prefix and (config.model, config.revision) != (target.model, target.revision):
        _say_kept(
            config,
            "it has files of its own; a trainer that trains it, too, sends its tensors under a prefix "
            "and names that in draft_prefix",
        )
        return None
    if getattr(speculative, "draft_lm_head_quantization", None) is not None:
        raise UnsupportedError(
            f"the draft {config.model} guesses with a quantised copy of the target's lm_head "
            "(draft_lm_head_quantization), which a patch of lm_head would leave behind: start vLLM without it, " + _KEEP
        )
    return Draft(model, config, prefix)


def with_draft(
    traced: TracedLoader,
    draft: Draft | None,
    target: torch.nn.Module,
    canonical: Sequence[CanonicalTensor],
    vllm_config: VllmConfig,
    may_miss: Sequence[str] = (),
    repacked_too: Collection[str] = (),
) -> tuple[TracedLoader, Recomputation | None]:
    """Returns the map of the target, `traced`, joined with the map of the draft, over the trainer's whole table; and
    the recomputation of what vLLM computes from the draft's weights, not proven yet, or None if the draft does not
    follow. For a caller within `set_current_vllm_config`. `repacked_too` names modules whose parameters are not what
    was loaded; names of the draft's modules begin with `LIVE_PREFIX`.

    Raises UnsupportedError naming tensors that reach the draft and cannot be patched there, UsageError naming
    parameters of the draft that nothing fills although other tensors of the trainer reach the draft. A draft that no
    tensor reaches stays as it is, which is logged as a warning.
    """
    traced = _over_table(traced, canonical)
    if draft is None:
        return traced, None
    repacked = _repacked(draft, target, vllm_config, repacked_too)
    with repacked.shown():
        parameters = dict(draft.model.named_parameters())
        found = trace_loader(
            draft.model,
            draft.table(canonical),
            loader_of(draft.model),
            strict=False,
            modes={},
            several=repacked.parameters,
        )
    found = repacked.completed(found)
    shared = {storage_key(tensor) for tensor in (*target.parameters(), *target.buffers())}
    own = [i for i, tensor in enumerate(found.tensors) if storage_key(tensor.memory) not in shared]
    meant = draft.prefix or not all(why.startswith("the engine's loader failed") for why in found.refused.values())
    if found.refused and (own or meant):  # Some loaders of MTP heads fail if there is no tensor of a head.
        listed = "; ".join(f"{draft.prefix + name!r}: {why}" for name, why in list(found.refused.items())[:8])
        raise UnsupportedError(f"these tensors cannot be patched in the draft {draft.config.model}: {listed}; {_KEEP}")
    if not own:
        _say_kept(draft.config, "the trainer's table has no tensors of it")
        return traced, None
    whose = f"the draft {draft.config.model}"
    alone = tuple(name for name in found.untouched if storage_key(parameters[name]) not in shared)
    found = replace(found, untouched=alone)
    both = sorted(draft.prefix + name for name in found.shadowed if draft.prefix + name in traced.shadowed)
    if both:
        raise UnsupportedError(f"{both[0]!r} is computed with by the target and by {whose}; {_KEEP}")
    recomputation, made = recomputation_of(draft.model, found, vllm_config, draft.config, whose, repacked)
    unseen = (f"{LIVE_PREFIX}{name}" for name in made | found.may_fill())
    missing = _missing(parameters, found, shared, [*may_miss, *unseen])
    if missing:
        raise UsageError(
            f"no tensor of the trainer fills {'; '.join(missing[:8])} of the draft {draft.config.model}: send them, name "
            f"them in may_miss, {_KEEP}"
        )
    return _joined(traced, found, own, draft.prefix), recomputation


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
        raise UnsupportedError(f"the draft {draft.config.model}: {error.message}; {_KEEP}") from error


def _missing(
    parameters: Mapping[str, torch.Tensor], found: TracedLoader, shared: set[int], may_miss: Sequence[str]
) -> list[str]:
    return [
        f"{LIVE_PREFIX}{name} ({what})"
        for name, what in found.missing.items()
        if storage_key(parameters[name]) not in shared
        and not any(fnmatch.fnmatch(LIVE_PREFIX + name, pattern) for pattern in may_miss)
    ]


def _over_table(traced: TracedLoader, canonical: Sequence[CanonicalTensor]) -> TracedLoader:
    """Returns `traced`, a map of some tensors of the table `canonical`, as a map over the whole table."""
    table = tuple((name, dtype, tuple(shape)) for name, dtype, shape in map(in_checkpoint, canonical))
    index = {name: i for i, (name, _, _) in enumerate(table)}
    shards = tuple(replace(shard, tensor=index[traced.table[shard.tensor][0]]) for shard in traced.shards)
    missing = tuple(index.keys() - {name for name, _, _ in traced.table})
    return replace(traced, table=table, shards=shards, unused=traced.unused + missing, pairs=pairs_of(canonical))


def _joined(traced: TracedLoader, found: TracedLoader, own: Sequence[int], prefix: str) -> TracedLoader:
    """Returns `traced`, the map over the whole table, with tensors of the draft model added.

    `found` is the draft's own map, and `own` the indices of the tensors in it that are added, whether they are live or
    kept outside the model. The shards that lie in these tensors are added with them. `prefix` stands before the draft's
    tensor names in the whole table.
    """
    index = {name: i for i, (name, _, _) in enumerate(traced.table)}
    place = {old: len(traced.tensors) + new for new, old in enumerate(own)}
    shadows = {f"shadow of {name}": f"shadow of {prefix}{name}" for name in found.shadowed}
    tensors = [
        replace(found.tensors[i], name=shadows.get(found.tensors[i].name, LIVE_PREFIX + found.tensors[i].name))
        for i in own
    ]
    names = [prefix + name for name, _, _ in found.table]
    shards = [
        replace(shard, tensor=index[names[shard.tensor]], local=place[shard.local])
        for shard in found.shards
        if shard.local in place
    ]
    reached = {traced.table[shard.tensor][0] for shard in shards}
    ties = [(prefix + alias, prefix + original) for alias, original in found.ties if prefix + original in reached]
    reached |= {alias for alias, _ in ties}
    return replace(
        traced,
        tensors=(*traced.tensors, *tensors),
        shards=(*traced.shards, *shards),
        ties=tuple(dict.fromkeys([*traced.ties, *ties])),
        shadowed={**traced.shadowed, **{prefix + name: why for name, why in found.shadowed.items()}},
        modes={**traced.modes, **{prefix + name: mode for name, mode in found.modes.items()}},
        repacked=(*traced.repacked, *(LIVE_PREFIX + name for name in found.repacked)),
        unused=tuple(name for name in traced.unused if name not in reached),
    )


def _say_kept(config: Any, why: str) -> None:
    _logger.warning(
        "the draft model %s is not updated by sparsecast: %s. Its guesses are accepted less often as the target's weights "
        "change; what is generated stays the target's",
        config.model,
        why,
    )
