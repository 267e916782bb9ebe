# SPDX-License-Identifier: Apache-2.0
"""Steps of an update in an SGLang server with pipeline stages.

A stage hands a message on to the next stage only after it has dealt with the message, and a step needs all ranks at
once. So every rank puts the step aside, starts no further batch, and does the step a fixed number of passes of the
scheduler's loop later: then all ranks have the message, no batch is on its way, and no rank waits for anything else of
another rank. All ranks see the message in the same pass, so their counts agree. (SGLang's own pauses do not stop this
loop, which never looks at them; `next_batch` makes them stop it.)

The message is answered at once with DEFERRED; phase "result" asks for the answer of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsecast.engines.sglang.messages import DEFERRED

Outcome = tuple[bool, str]
PASSES = ("ingest_requests", "recv_requests")
"""Methods of the scheduler that take requests at the begin of each pass of its loop; a release has one of them first, or
none of them.
"""


@dataclass
class _Step:
    """A step that was put aside until the scheduler's loop has run `passes_left` more passes."""

    work: Callable[[], Outcome]
    passes_left: int


def put_aside(scheduler: Any, work: Callable[[], Outcome], stages: int) -> Outcome:
    """Puts `work` aside until no batch is on its way in any of the `stages` pipeline stages. Returns (True, DEFERRED),
    or (False, the reason) if another step is still put aside, or if the passes of this release cannot be counted.
    """
    if not any(hasattr(scheduler, name) for name in PASSES):
        return False, "this release of SGLang has stages in which no step can be done: use --pp-size 1 [unsupported]"
    if getattr(scheduler, "_sparsecast_step", None) is not None:
        return False, "the step before has not ended yet [usage]"
    scheduler._sparsecast_step = _Step(work, scheduler.pp_loop_size + stages)
    return True, DEFERRED


def result(scheduler: Any) -> Outcome:
    """Returns the outcome of the step that was put aside last, or (True, DEFERRED) while the step is still to
    be done.
    """
    if getattr(scheduler, "_sparsecast_step", None) is not None:
        return True, DEFERRED
    outcome: Outcome = getattr(scheduler, "_sparsecast_outcome", (False, "no step was begun [usage]"))
    return outcome


def between_passes(original: Callable[..., Any], scheduler: Any, *arguments: Any, **options: Any) -> Any:
    """Hook around the function that takes requests in each pass of the scheduler's loop: counts the passes, and does
    the step that was put aside when its time has come. Then calls `original`, in which a stage waits for the one before.
    """
    step: _Step | None = getattr(scheduler, "_sparsecast_step", None)
    if step is not None:
        step.passes_left -= 1
        if step.passes_left == 0:
            scheduler._sparsecast_outcome = step.work()
            scheduler._sparsecast_step = None
    return original(scheduler, *arguments, **options)


def next_batch(original: Callable[..., Any], scheduler: Any, *arguments: Any, **options: Any) -> Any:
    """Hook around the function that chooses the next batch: chooses none while a step is put aside, or while an engine
    with pipeline stages is paused. The running batch stays as it is. Otherwise calls `original`.
    """
    from sparsecast.engines.sglang.releases import get_parallel

    paused = get_parallel().pp_size > 1 and scheduler._engine_paused
    if getattr(scheduler, "_sparsecast_step", None) is None and not paused:
        return original(scheduler, *arguments, **options)
    try:
        from sglang.srt.managers.scheduler import NextBatchPlan
    except ImportError:  # In older releases the running batch stays in the scheduler.
        return None
    running = options["running_batch"] if "running_batch" in options else arguments[0]
    return NextBatchPlan(batch_to_run=None, running_batch=running)


def is_drained(original: Callable[..., bool], scheduler: Any, *arguments: Any) -> bool:
    """Hook around the function that says whether no pipeline stage has a request left. SGLang does not look at batches
    that have been computed and that the next choice of a batch would join with the running ones. While none is chosen
    they last, and SGLang would take the server for idle: it would flush their caches, or end itself because of them.
    """
    left = (batch for batch in getattr(scheduler, "last_mbs", ()) if batch is not None)
    held = any(_holds_cache(request) for batch in left for request in batch.reqs)
    return original(scheduler, *arguments) and not held


def is_idle(original: Callable[..., bool], scheduler: Any, for_health_check: bool = False) -> bool:
    """Hook around the function of releases before 0.5.21 that says whether the scheduler has no request left: those of
    the stages as `is_drained`, and in a paused engine not those that wait without memory of the cache, as newer releases
    do. Otherwise no cache could be flushed after a pause that took requests back, and they would go on with prefixes of
    the weights before.
    """
    waiting = scheduler.waiting_queue
    if scheduler._engine_paused and not for_health_check and not any(map(_holds_cache, waiting)):
        scheduler.waiting_queue = []
    try:
        return is_drained(original, scheduler, for_health_check)
    finally:
        scheduler.waiting_queue = waiting


def _holds_cache(request: Any) -> bool:
    return bool(request.kv.holds_kv) if hasattr(request, "kv") else request.req_pool_idx is not None
