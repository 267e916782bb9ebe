# SPDX-License-Identifier: Apache-2.0
"""The live model of one vLLM worker: its map, traced, and compared with the files that vLLM was started from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config

from sparsecast.engines.refresh.recompute import Recomputation
from sparsecast.engines.trace.loader import CanonicalTensor, TracedLoader
from sparsecast.engines.vllm.draft import Draft, choose_draft, with_draft, without_draft
from sparsecast.engines.vllm.model import checkpoint_tensors, trace
from sparsecast.errors import UnsupportedError
from sparsecast.torch.owners import guard_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig


@dataclass(frozen=True)
class TraceRequest:
    """The tensors that the address map of a model must cover, and how the trace is to treat them.

    `table` is the tensor table of the trainer or the log, as (name, dtype, shape). `may_miss` has patterns (fnmatch) of
    names of vLLM's parameters that the trainer does not have. `modes` has a mode (of `MODES`) by pattern (fnmatch) of
    names in the table; the trace chooses for other names. `follow_draft` says whether a draft model is updated, too,
    and `draft_prefix` stands before the draft's names in the table (empty: the draft's weights lie in the target's
    files).
    """

    table: Sequence[CanonicalTensor]
    may_miss: Sequence[str] = ()
    modes: Mapping[str, str] = field(default_factory=dict)
    follow_draft: bool = True
    draft_prefix: str = ""


class LiveModel:
    """The target model of a worker, and the draft model that the worker may have. Not thread-safe: for the engine's
    thread.
    """

    def __init__(self, vllm_config: VllmConfig, model: torch.nn.Module) -> None:
        self.vllm_config = vllm_config
        self.model = model
        self.find_draft: Callable[[], torch.nn.Module | None] | None = None
        """Returns the draft model of this worker; None if the worker has not said how."""
        self._rearranged: set[str] = set()  # Modules whose kernels keep another order than the files.

    def trace(self, request: TraceRequest, *, verify: bool) -> tuple[TracedLoader, list[Recomputation]]:
        """Returns the address map of the target model, and of the draft model if it is updated as well, and the
        recomputations of the tensors that vLLM derives from the weights, which are not proven yet.

        With `verify`, the memory is compared with the files from which vLLM was started. If some modules differ because
        kernels keep weights in another order than the files, the models are traced once more, with these modules as
        repacked ones.
        Raises UnsupportedError naming tensors that cannot be patched, and UsageError for names that do not fit.
        """
        with set_current_vllm_config(self.vllm_config):
            traced, recomputations, draft = self._trace(request)
            wrong = self._differences(traced, draft) if verify else {}
            if not wrong:
                return traced, recomputations
            self._rearranged = traced.modules_of(wrong)
            traced, recomputations, draft = self._trace(request)
            if not self._differences(traced, draft):
                return traced, recomputations
            self._rearranged = set()
            listed = ", ".join(f"{name!r} ({count} elements)" for name, count in list(wrong.items())[:8])
            raise UnsupportedError(
                f"{len(wrong)} tensors in the worker's memory are not what its checkpoint has, starting with {listed}: "
                "a kernel keeps them in another layout than the loader writes, and vLLM's post-processing does not "
                "make it, so they cannot be patched; use a dense weight-transfer backend (nccl) for this model"
            )

    def guard(self, traced: TracedLoader, cure: str) -> Callable[[], None]:
        """Returns a function that checks where the weights lie. It raises UsageError once a weight of the target or the
        draft has moved to other memory than in the map `traced`; the message names the tensor and ends with the advice
        `cure`.
        """
        draft = self._draft_model()
        models = [self.model] if draft is None else [self.model, draft]
        return guard_of(models, (tensor.memory for tensor in traced.tensors), cure)

    def _draft_model(self) -> torch.nn.Module | None:
        return self.find_draft() if self.find_draft is not None else None

    def _trace(self, request: TraceRequest) -> tuple[TracedLoader, list[Recomputation], Draft | None]:
        target = without_draft(request.table, request.draft_prefix)
        traced, recomputation = trace(
            self.model, target, self.vllm_config, request.may_miss, request.modes, self._rearranged
        )
        draft = None
        if request.follow_draft:
            draft = choose_draft(
                getattr(self.vllm_config, "speculative_config", None),
                self.vllm_config.model_config,
                self._draft_model(),
                request.draft_prefix,
                can_look=self.find_draft is not None,
            )
        if draft is None and not request.draft_prefix:
            return traced, [recomputation], None
        whole, of_draft = with_draft(
            traced,
            draft,
            self.model,
            request.table,
            self.vllm_config,
            request.may_miss,
            self._rearranged,
            request.modes,
        )
        return whole, [recomputation, *([of_draft] if of_draft is not None else [])], draft

    def _differences(self, traced: TracedLoader, draft: Draft | None) -> dict[str, int]:
        files = checkpoint_tensors(self.vllm_config, self.vllm_config.model_config, self.model)
        wrong = traced.differences(traced.filling(files))
        if draft is not None and draft.prefix:
            wrong |= traced.differences(traced.filling(draft.checkpoint(self.vllm_config)))
        return wrong


def draft_model(worker: Any) -> torch.nn.Module | None:
    """Returns the draft model of a vLLM worker; None if the worker guesses without a draft model, or if another
    pipeline stage has the draft model.
    """
    find = getattr(worker.model_runner, "get_draft_model", None)
    draft = find() if find is not None else None
    return draft if isinstance(draft, torch.nn.Module) else None
