# SPDX-License-Identifier: Apache-2.0
"""Report of a publication on this rank."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class TensorReport:
    """Numbers of one canonical tensor in a publication, for the part of the tensor that this rank holds."""

    name: str
    elements: int  #: Elements of the tensor's part on this rank.
    changed: int
    bytes: int
    blocks: int
    dense_blocks: int  #: Blocks that were sent whole, because that took fewer bytes.

    @property
    def density(self) -> float:
        """Share of the elements that have changed, from 0 to 1."""
        return self.changed / self.elements if self.elements else 0.0


@dataclasses.dataclass(frozen=True)
class PublishReport:
    """Numbers of one publication on this rank.

    An element that is sent to several engines with different shards counts once for each of them. Seconds are wall time
    on this rank, measured to the end of the work on the device.
    """

    version: int
    step: int | None  #: Optimizer step, if known.
    elements: int  #: Elements that this rank sends.
    changed: int
    wire_bytes: int
    dense_bytes: int  #: Bytes of these elements if all of them were sent.
    digest: str  #: State digest of all tensors at this version, 32 hexadecimal digits.
    seconds: dict[str, float]  #: Of each step: prepare, encode, wire, total (world); encode, upload (log).
    tensors: tuple[TensorReport, ...] = ()
    codecs: dict[str, int] = dataclasses.field(default_factory=dict)  #: Number of blocks by position codec.

    @property
    def density(self) -> float:
        """Share of the elements that have changed, from 0 to 1."""
        return self.changed / self.elements if self.elements else 0.0

    def totals(self) -> tuple[int, int, int, int]:
        """Returns (elements, changed, wire_bytes, dense_bytes), which may be summed over ranks."""
        return self.elements, self.changed, self.wire_bytes, self.dense_bytes

    def to_json(self) -> dict[str, Any]:
        """Returns the report and its density as JSON values."""
        return {**dataclasses.asdict(self), "density": self.density}

    def __str__(self) -> str:
        ratio = self.dense_bytes / self.wire_bytes if self.wire_bytes else float("inf")
        return (
            f"version {self.version}: {self.changed} of {self.elements} elements ({self.density:.3%}), "
            f"{self.wire_bytes} bytes ({ratio:.0f} times fewer than dense)"
        )
