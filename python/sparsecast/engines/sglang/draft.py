# SPDX-License-Identifier: Apache-2.0
"""Names the draft model of an SGLang server, which a patch of the target leaves as it is."""

from __future__ import annotations

import logging

_WITHOUT_WEIGHTS = frozenset({"NGRAM"})
_log = logging.getLogger("sparsecast")


def stale_draft() -> str:
    """Returns a warning that the draft model, with which this server guesses tokens, is not updated. Returns an empty
    string if the server guesses without weights, or does not guess.
    """
    from sglang.srt.runtime_context import get_model, get_spec

    spec = get_spec()
    algorithm = str(spec.speculative_algorithm or "").upper()
    if not algorithm or algorithm in _WITHOUT_WEIGHTS:
        return ""
    path = spec.speculative_draft_model_path or get_model().model_path
    return (
        f"the draft model {path} ({algorithm}) is not updated by sparsecast: SGLang's draft worker has weights of its own. "
        "Its guesses are accepted less often as the target's weights change; what is generated stays the target's"
    )


def say_stale_draft() -> None:
    """Logs the warning of `stale_draft`, if there is one."""
    words = stale_draft()
    if words:
        _log.warning("%s", words)
