"""What is wrong with a trace, in words: for the loader, the names, and the model."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from sparsecast.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from sparsecast.engines.loader_trace import TracedLoader


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" (nearest: {', '.join(repr(other) for other in close)})" if close else ""


def _is_unknown_name(error: Exception) -> bool:
    """Loaders look a name up in a dict of parameters, or say so in words."""
    return isinstance(error, KeyError) or "no module or parameter named" in str(error)


def raise_for(traced: TracedLoader, failed: Mapping[str, Exception], live: Mapping[str, torch.Tensor]) -> None:
    """Raises for whatever keeps a trace from being the whole map: unknown names first, errors, then what is missing.

    `failed` has what the loader raised, by canonical name; `live` the model's tensors.
    """
    unknown = [name for name, error in failed.items() if _is_unknown_name(error)]
    if unknown:
        listed = _listed(f"{name!r}{_nearest(name, live)}" for name in unknown)
        raise UsageError(f"the engine's model has no place for {listed}")
    if traced.refused:
        listed = _listed(f"{name!r}: {reason}" for name, reason in traced.refused.items())
        raise UnsupportedError(f"these tensors cannot be patched in place, load them the engine's own way: {listed}")
    if traced.missing:
        names = [name for name, _, _ in traced.table]
        listed = _listed(f"{where!r}, {what}{_nearest(where, names)}" for where, what in traced.missing.items())
        raise UsageError(f"no canonical tensor fills {listed}")


def _listed(items: Iterable[str], most: int = 8) -> str:
    shown = list(items)
    more = f"; and {len(shown) - most} more" if len(shown) > most else ""
    return "; ".join(shown[:most]) + more
