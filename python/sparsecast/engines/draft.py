# SPDX-License-Identifier: Apache-2.0
"""The draft model of an engine as a second destination of the target's version.

The loader of the draft is traced like the target's loader, and both maps become one: one layout, one transaction, one
digest. What the engine shares between the two, such as embeddings, belongs to the target's map and is written once.

    the draft's weights lie          its loader gets                      without tensors of the trainer for it
    in the files of the target       the whole table of the trainer       it stays as it is, which is said once
    in files of their own            the names under a prefix,            the same
                                     without the prefix
"""

from __future__ import annotations

import fnmatch
import glob
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from sparsecast.engines.refresh.recompute import Recomputation
from sparsecast.engines.trace.dispatch_mode import storage_key
from sparsecast.engines.trace.dtypes import in_checkpoint, pairs_of
from sparsecast.engines.trace.loader import CanonicalTensor, TracedLoader, mode_of
from sparsecast.errors import UnsupportedError, UsageError

LIVE_PREFIX = "draft."
"""Stands before the names of the draft's parameters, in errors, audits and `may_miss`."""

KEEP = (
    "or keep the draft as it is with draft='keep', in a server that follows a log SPARSECAST_FOLLOW_DRAFT=keep (its "
    "guesses are accepted less often; answers stay the target's)"
)


@dataclass(frozen=True)
class DraftModel:
    """The draft model of one worker, the part of the trainer's table that is for it, and how it is traced."""

    model: torch.nn.Module
    path: str
    """Path or name of the model that the engine was given, for messages."""
    prefix: str
    """Prefix of the draft's names in the trainer's table. Empty if the draft's weights lie in the files of the target,
    under the names that they have there.
    """
    trace: Callable[[Sequence[CanonicalTensor], Mapping[str, str]], TracedLoader]
    """Traces the draft's loader over a table of the names that it knows, with forced modes by pattern of these names.
    """
    recompute: Callable[[TracedLoader], tuple[Recomputation, set[str]]]
    """Returns the steps that compute tensors of the draft from its weights, given its address map, and the names of
    the tensors that they may make.
    """
    live_prefix: str = LIVE_PREFIX

    def table(self, canonical: Sequence[CanonicalTensor]) -> list[CanonicalTensor]:
        """Returns the part of the table `canonical` that the draft's loader may take, by the names that this loader
        knows.
        """
        size = len(self.prefix)
        return [(name[size:], dtype, shape) for name, dtype, shape in canonical if name.startswith(self.prefix)]


def without_draft(canonical: Sequence[CanonicalTensor], prefix: str) -> list[CanonicalTensor]:
    """Returns the target's part of the table `canonical`: the tensors without `prefix` in their names, or all of them
    if `prefix` is empty.
    """
    return [entry for entry in canonical if not prefix or not entry[0].startswith(prefix)]


def add_draft(
    traced: TracedLoader,
    draft: DraftModel,
    target: torch.nn.Module,
    canonical: Sequence[CanonicalTensor],
    log: logging.Logger,
    *,
    may_miss: Sequence[str] = (),
    modes: Mapping[str, str] | None = None,
) -> tuple[TracedLoader, Recomputation | None]:
    """Returns the map `traced` of the target (which is over the whole table `canonical`, see `over_table`) joined with
    the map of the draft, and the recomputation of what the engine computes from the draft's weights, not proven yet, or
    None if the draft does not follow. `modes` has modes by pattern (fnmatch) of names in the table; they hold for
    tensors that the target does not use.

    Raises UnsupportedError naming tensors that reach the draft and cannot be patched there, UsageError naming
    parameters of the draft that nothing fills although other tensors of the trainer reach the draft. A draft that no
    tensor reaches stays as it is, which is logged as a warning.
    """
    prefix = draft.prefix
    forced = {name: mode_of(name, modes or {}) for name in traced.unused}
    own_modes = {glob.escape(name[len(prefix) :]): mode for name, mode in forced.items() if mode}
    found = draft.trace(draft.table(canonical), own_modes)
    parameters = dict(draft.model.named_parameters())
    shared = {storage_key(tensor) for tensor in (*target.parameters(), *target.buffers())}
    own = [i for i, tensor in enumerate(found.tensors) if storage_key(tensor.memory) not in shared]
    meant = prefix or not all(why.startswith("the engine's loader failed") for why in found.refused.values())
    if found.refused and (own or meant):  # Some loaders of MTP heads fail if there is no tensor of a head.
        listed = "; ".join(f"{prefix + name!r}: {why}" for name, why in list(found.refused.items())[:8])
        raise UnsupportedError(f"these tensors cannot be patched in the draft {draft.path}: {listed}; {KEEP}")
    if not own:
        say_kept(log, draft.path, "the trainer's table has no tensors of it")
        return traced, None
    alone = tuple(name for name in found.untouched if storage_key(parameters[name]) not in shared)
    found = replace(found, untouched=alone)
    both = sorted(prefix + name for name in found.shadowed if prefix + name in traced.shadowed)
    if both:
        raise UnsupportedError(f"{both[0]!r} is computed with by the target and by the draft {draft.path}; {KEEP}")
    recomputation, made = draft.recompute(found)
    unseen = (f"{draft.live_prefix}{name}" for name in made | found.may_fill())
    missing = _missing(parameters, found, shared, [*may_miss, *unseen], draft.live_prefix)
    if missing:
        raise UsageError(
            f"no tensor of the trainer fills {'; '.join(missing[:8])} of the draft {draft.path}: send them, name them in "
            f"may_miss, {KEEP}"
        )
    return _joined(traced, found, own, draft), recomputation


def over_table(traced: TracedLoader, canonical: Sequence[CanonicalTensor]) -> TracedLoader:
    """Returns `traced`, a map of some tensors of the table `canonical`, as a map over the whole table."""
    table = tuple((name, dtype, tuple(shape)) for name, dtype, shape in map(in_checkpoint, canonical))
    index = {name: i for i, (name, _, _) in enumerate(table)}
    shards = tuple(replace(shard, tensor=index[traced.table[shard.tensor][0]]) for shard in traced.shards)
    missing = tuple(index.keys() - {name for name, _, _ in traced.table})
    return replace(traced, table=table, shards=shards, unused=traced.unused + missing, pairs=pairs_of(canonical))


def say_kept(log: logging.Logger, path: str, why: str) -> None:
    """Logs a warning that the draft model `path` stays as it is, with the reason."""
    log.warning(
        "the draft model %s is not updated by sparsecast: %s. Its guesses are accepted less often as the target's weights "
        "change; what is generated stays the target's",
        path,
        why,
    )


def _missing(
    parameters: Mapping[str, torch.Tensor],
    found: TracedLoader,
    shared: set[int],
    may_miss: Sequence[str],
    live_prefix: str,
) -> list[str]:
    return [
        f"{live_prefix}{name} ({what})"
        for name, what in found.missing.items()
        if storage_key(parameters[name]) not in shared
        and not any(fnmatch.fnmatch(live_prefix + name, pattern) for pattern in may_miss)
    ]


def _joined(traced: TracedLoader, found: TracedLoader, own: Sequence[int], draft: DraftModel) -> TracedLoader:
    """Returns `traced`, the map over the whole table, with tensors of the draft model added.

    `found` is the draft's own map, and `own` the indices of the tensors in it that are added, whether they are live or
    kept outside the model. The shards that lie in these tensors are added with them.
    """
    prefix, live_prefix = draft.prefix, draft.live_prefix
    index = {name: i for i, (name, _, _) in enumerate(traced.table)}
    place = {old: len(traced.tensors) + new for new, old in enumerate(own)}
    shadows = {f"shadow of {name}": f"shadow of {prefix}{name}" for name in found.shadowed}
    tensors = [
        replace(found.tensors[i], name=shadows.get(found.tensors[i].name, live_prefix + found.tensors[i].name))
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
        repacked=(*traced.repacked, *(live_prefix + name for name in found.repacked)),
        unused=tuple(name for name in traced.unused if name not in reached),
    )
