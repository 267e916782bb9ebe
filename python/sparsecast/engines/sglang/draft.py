# SPDX-License-Identifier: Apache-2.0
"""The draft model of an SGLang server. With a log it follows in the target's version; a sync with a trainer leaves it
as it is, and names it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from sparsecast.engines.draft import KEEP, LIVE_PREFIX, DraftModel, add_draft, over_table, say_kept
from sparsecast.engines.refresh.recompute import Recomputation
from sparsecast.engines.trace.loader import CanonicalTensor, TracedLoader, trace_loader
from sparsecast.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

_WITHOUT_WEIGHTS = frozenset({"NGRAM"})
_log = logging.getLogger("sparsecast")


class Drafts:
    """The draft models of one rank, which a server has for one target model: one, or one for each step of guessing.

    `draft_worker` is SGLang's worker of the drafts, None if this rank has none, and `target` the ModelRunner of the
    target. `prefix` stands in the log before the names of a draft with files of its own; it is empty if the log has no
    such draft. `follow` says whether the drafts are to be updated.
    """

    def __init__(self, draft_worker: Any, target: ModelRunner, *, prefix: str = "", follow: bool = True) -> None:
        self._runners: list[ModelRunner] = []
        if draft_worker is not None:
            if hasattr(draft_worker, "weight_update_runners"):
                self._runners = [runner for _, runner in draft_worker.weight_update_runners()]
            elif follow:
                say_kept(_log, "of this server", "this SGLang does not tell where it is")
        self._target = target
        self._prefix = prefix
        self._follow = follow

    @property
    def models(self) -> list[torch.nn.Module]:
        """The draft models of this rank."""
        return [runner.model for runner in self._runners]

    def table(self) -> list[CanonicalTensor]:
        """Returns the tensors in the draft's own files, by their names in the log; none without a prefix, or if this
        rank has no draft. Raises UsageError for a prefix if the server has no draft with files of its own.
        """
        from sparsecast.engines.sglang.weights import checkpoint_table

        runner = self._with_files()
        if runner is None:
            return []
        table = checkpoint_table(runner.model, runner.model_config, runner.draft_load_format)
        return [(self._prefix + name, dtype, shape) for name, dtype, shape in table]

    def files(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields (name, tensor) of the draft's own files, by their names in the log (`table`)."""
        from sparsecast.engines.sglang.weights import checkpoint_tensors

        runner = self._with_files()
        if runner is not None:
            for name, tensor in checkpoint_tensors(runner.model, runner.model_config, runner.draft_load_format):
                yield self._prefix + name, tensor

    def add_to(
        self, traced: TracedLoader, canonical: Sequence[CanonicalTensor], modes: Mapping[str, str]
    ) -> tuple[TracedLoader, list[Recomputation]]:
        """Returns the map of the target, `traced`, joined with the maps of the drafts, over the whole table
        `canonical`; and the recomputations of what SGLang computes from the drafts' weights, not proven yet. `modes`,
        and the errors, are those of `add_draft`.
        """
        traced = over_table(traced, canonical)
        recomputations: list[Recomputation] = []
        for i, runner in enumerate(self._runners if self._follow else []):
            if self._has_files(runner) and not self._prefix:
                words = (
                    "it has files of its own, and SPARSECAST_FOLLOW_DRAFT_PREFIX does not say where the log has them"
                )
                say_kept(_log, runner.model_config.model_path, words)
                continue
            live_prefix = LIVE_PREFIX if len(self._runners) == 1 else f"{LIVE_PREFIX}{i}."
            draft = self._described(runner, live_prefix)
            traced, found = add_draft(traced, draft, self._target.model, canonical, _log, modes=modes)
            recomputations += [found] if found is not None else []
        return traced, recomputations

    def _described(self, runner: ModelRunner, live_prefix: str) -> DraftModel:
        from sparsecast.engines.sglang.weights import recomputation_of, repacked_modules

        model, config = runner.model, runner.model_config
        load_weights: Any = model.load_weights
        try:
            repacked = repacked_modules(model, config, ())
        except UnsupportedError as error:
            raise UnsupportedError(f"the draft {config.model_path}: {error.message}; {KEEP}") from error

        def trace(table: Sequence[CanonicalTensor], modes: Mapping[str, str]) -> TracedLoader:
            with repacked.shown():
                found = trace_loader(model, table, load_weights, strict=False, modes=modes, several=repacked.parameters)
            return repacked.completed(found)

        def recompute(found: TracedLoader) -> tuple[Recomputation, set[str]]:
            return recomputation_of(model, config, found, repacked)

        prefix = self._prefix if self._has_files(runner) else ""
        return DraftModel(model, config.model_path, prefix, trace, recompute, live_prefix)

    def _has_files(self, runner: ModelRunner) -> bool:
        return bool(runner.model_config.model_path != self._target.model_config.model_path)

    def _with_files(self) -> ModelRunner | None:
        """Returns the runner of a draft with files of its own; None without a prefix, or if this rank has none."""
        from sparsecast.engines.sglang.releases import get_model, get_spec

        if not self._prefix:
            return None
        path = get_spec().speculative_draft_model_path
        if not path or path == get_model().model_path:
            raise UsageError(
                f"SPARSECAST_FOLLOW_DRAFT_PREFIX: {self._prefix!r} is for the names of a draft model with files of its "
                "own, and this server has none: start it without this variable"
            )
        return next((runner for runner in self._runners if self._has_files(runner)), None)


def stale_draft() -> str:
    """Returns a warning that a sync leaves the draft model, with which this server guesses tokens, as it is. Returns an empty
    string if the server guesses without weights, or does not guess.
    """
    from sparsecast.engines.sglang.releases import get_model, get_spec

    spec = get_spec()
    algorithm = str(spec.speculative_algorithm or "").upper()
    if not algorithm or algorithm in _WITHOUT_WEIGHTS:
        return ""
    path = spec.speculative_draft_model_path or get_model().model_path
    return (
        f"the draft model {path} ({algorithm}) is not updated by sparsecast: syncs reach the target's weights alone. "
        "Its guesses are accepted less often as the target's weights change; what is generated stays the target's"
    )


def say_stale_draft() -> None:
    """Logs the warning of `stale_draft`, if there is one."""
    words = stale_draft()
    if words:
        _log.warning("%s", words)
