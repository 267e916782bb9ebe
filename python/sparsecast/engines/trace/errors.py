# SPDX-License-Identifier: Apache-2.0
"""Errors of a loader trace: unknown names, tensors that cannot be patched, and parameters that nothing fills."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from sparsecast.errors import UnsupportedError, UsageError


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" (nearest: {', '.join(repr(other) for other in close)})" if close else ""


def is_unknown_name(error: Exception) -> bool:
    """Returns whether the exception of a loader means that it does not know a tensor's name: a KeyError, or an
    exception whose message says so.
    """
    return isinstance(error, KeyError) or "no module or parameter named" in str(error)


def raise_for(
    *,
    failed: Mapping[str, Exception],
    refused: Mapping[str, str],
    missing: Mapping[str, str],
    names: Iterable[str],
    live: Iterable[str],
) -> None:
    """Raises an error if a trace is incomplete: UsageError for names that the loader does not know, then
    UnsupportedError for refused tensors, then UsageError for parameters that nothing fills. Returns if there is none of
    these.

    `failed` has the exceptions of the loader and `refused` the reasons of refusal, both by canonical name. `missing`
    says how much of each unfilled parameter is missing, by the parameter's name. `names` are the canonical names, and
    `live` the names of the tensors of the model, from which the messages suggest the nearest.
    """
    unknown = [name for name, error in failed.items() if is_unknown_name(error)]
    if unknown:
        listed = _listed(f"{name!r}{_nearest(name, live)}" for name in unknown)
        raise UsageError(f"the engine's model has no place for {listed}")
    if refused:
        listed = _listed(f"{name!r}: {reason}" for name, reason in refused.items())
        raise UnsupportedError(f"these tensors cannot be patched in place, load them the engine's own way: {listed}")
    if missing:
        known = list(names)
        listed = _listed(f"{where!r}, {what}{_nearest(where, known)}" for where, what in missing.items())
        raise UsageError(f"no canonical tensor fills {listed}")


def _listed(items: Iterable[str], most: int = 8) -> str:
    shown = list(items)
    more = f"; and {len(shown) - most} more" if len(shown) > most else ""
    return "; ".join(shown[:most]) + more
