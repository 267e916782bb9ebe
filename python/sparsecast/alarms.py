# SPDX-License-Identifier: Apache-2.0
"""Warnings about syncs that suddenly move bytes much slower than before, or change many more weights."""

from __future__ import annotations

import logging
import statistics
from collections import deque

KEPT = 16  # Syncs with which the next one is compared.
LEAST = 3  # Fewer say nothing about the next one.
FACTOR = 10.0
LEAST_BYTES = 1 << 20  # Smaller syncs measure latency, not the rate of the link.
LEAST_DENSITY = 0.02

_log = logging.getLogger("sparsecast")


class SyncAlarms:
    """Compares each sync of a trainer with the medians of up to 16 syncs before it. Not thread-safe."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._densities: deque[float] = deque(maxlen=KEPT)

    def warn(self, version: int, sent_bytes: int, wire_seconds: float, density: float) -> list[str]:
        """Logs the warnings of `look` about the sync that made `version`, and returns them."""
        warnings = self.look(sent_bytes, wire_seconds, density)
        for warning in warnings:
            _log.warning("version %d: %s", version, warning)
        return warnings

    def look(self, sent_bytes: int, wire_seconds: float, density: float) -> list[str]:
        """Adds a sync of `sent_bytes` bytes that took `wire_seconds` on the wire, and changed the share `density` of the
        elements. Returns a warning if it moved bytes at less than a tenth of the median rate (syncs of less than 1 MiB
        are not judged), and one if its density is ten times the median and at least 2 %.
        """
        warnings = []
        if sent_bytes >= LEAST_BYTES and wire_seconds > 0:
            rate = sent_bytes / wire_seconds
            if len(self._rates) >= LEAST and FACTOR * rate < (usual := statistics.median(self._rates)):
                warnings.append(
                    f"{sent_bytes} bytes took {wire_seconds:.3g} s on the wire, {rate / 1e6:.3g} MB/s, where the last "
                    f"{len(self._rates)} syncs had {usual / 1e6:.3g} MB/s: look for another link, a slower route, or an "
                    "engine that is busy"
                )
            self._rates.append(rate)
        if len(self._densities) >= LEAST:
            usual = statistics.median(self._densities)
            if density >= max(LEAST_DENSITY, FACTOR * usual):
                warnings.append(
                    f"{density:.3%} of the weights changed, where the last {len(self._densities)} syncs had {usual:.3%}: "
                    "look for another learning rate, another dtype, or weights that were loaded again"
                )
        self._densities.append(density)
        return warnings
