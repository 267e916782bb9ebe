# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a server's files are in the log that it follows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sparsecast.errors import Error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from sparsecast.engines.trace.loader import CanonicalTensor
    from sparsecast.transports import Log

_MOST_TABLE_BYTES = 1 << 28
_ASK_SECONDS = 10.0  # For a request to the store, while the engine stands still.


def followed_table(
    log: Log,
    group: ProcessGroup,
    target: Callable[[], list[CanonicalTensor]],
    draft: Callable[[], list[CanonicalTensor]],
    unused: Callable[[Sequence[CanonicalTensor]], Iterable[str]],
) -> list[CanonicalTensor]:
    """Returns the tensor table with which the workers in `group` follow `log`, the same on all of them. Collective over
    the group: an error of one worker is raised on all.

    `target` returns the tensors in the files of the target model, and `draft` those in the draft's own files, by their
    names in the log; none where this worker has no such draft. `unused` returns the names, in a table, of tensors that
    the target model does not use on this worker.

    The table has the tensors of both. If the log has another table, the tensors are left out that it may lack: those of
    the draft's files, those of the target's files that the target does not use on any worker (MTP heads), or both.
    Whatever table the log has else, or if there is no log yet, or its store does not answer within 10 s, the result has
    the tensors of both, and the receiver names the tensor that differs.
    """
    import torch.distributed as dist

    from sparsecast import log_table_hash

    tables: list[list[CanonicalTensor]] = []
    wanted: str | None = None

    def read() -> list[CanonicalTensor]:
        tables.append(target())
        return draft()

    if dist.get_rank(group) == 0:
        with contextlib.suppress(Error):  # The receiver meets it again, and judges it.
            wanted = log_table_hash(log.location, list(log.trusted_keys), min(log.timeout, _ASK_SECONDS))
    answers = _gather(lambda: [wanted, read()], group)
    wanted = answers[0][0]
    whole = tables[0]
    beside: list[CanonicalTensor] = []
    for _, own in answers:
        beside = beside or [(name, dtype, tuple(shape)) for name, dtype, shape in own]
    if wanted in (None, _hash(whole + beside)):
        return whole + beside
    if wanted == _hash(whole):
        return whole
    everywhere = _gather(lambda: sorted(unused(whole)), group)
    lacking = set(everywhere[0]).intersection(*everywhere[1:])
    used = [entry for entry in whole if entry[0] not in lacking]
    return next((table for table in (used, used + beside) if _hash(table) == wanted), whole + beside)


def _gather(own: Callable[[], list[Any]], group: ProcessGroup) -> list[list[Any]]:
    """Returns what `own` returns on each worker, as JSON values. An error of one worker is raised on all."""
    from sparsecast.engines.agreement import raise_if_any_failed
    from sparsecast.torch.layouts import gather_bytes

    failure: BaseException | None = None
    text = b""
    try:
        text = json.dumps(own()).encode()
    except BaseException as error:  # Told to the other workers, and raised on all of them.
        failure = error
    raise_if_any_failed(failure, group)
    answers = gather_bytes(text, group, _MOST_TABLE_BYTES, "a table of tensors")
    return [json.loads(answer) for answer in answers]


def _hash(table: Sequence[CanonicalTensor]) -> str:
    from sparsecast import TensorTable

    return TensorTable(sorted(table, key=lambda entry: entry[0].encode())).hash
