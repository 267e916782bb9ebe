# SPDX-License-Identifier: Apache-2.0
"""Memory of the machine: every access is checked for bounds and alignment."""

from __future__ import annotations

from typing import Any

import numpy as np


class Bytes:
    """Bytes at addresses [base, base + size)."""

    def __init__(self, size: int, base: int, fill: int) -> None:
        self.base = base
        self.bytes = np.full(size, fill, np.uint8)

    def places(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """Returns indices [lane, byte] of `size` bytes at each address; ValueError for a bad address."""
        offsets = addresses - self.base
        bad = (offsets < 0) | (offsets > len(self.bytes) - size)
        if bad.any():
            raise ValueError(f"address {int(addresses[np.argmax(bad)]):#x} is out of bounds")
        if (offsets % size).any():
            raise ValueError(f"address {int(addresses[np.argmax(offsets % size)]):#x} is not aligned to {size}")
        return offsets[:, None] + np.arange(size)

    def load(self, addresses: np.ndarray, size: int) -> np.ndarray:
        """Returns words [lane, word] of 32 bits; one word for sizes below 4."""
        raw = self.bytes[self.places(addresses, size)]
        return raw.view(f"<u{min(size, 4)}").astype(np.uint32)

    def store(self, addresses: np.ndarray, size: int, words: np.ndarray) -> None:
        """Stores words [lane, word]; where lanes have one address, the last one wins."""
        raw = np.ascontiguousarray(words, "<u4").view(np.uint8).reshape(len(words), -1)
        self.bytes[self.places(addresses, size)] = raw[:, :size]


class SharedMemory(Bytes):
    """Shared memory of a CTA, full of noise at first."""

    def __init__(self, size: int = 64 << 10) -> None:
        super().__init__(size, 0, 0xA5)


class Memory(Bytes):
    """Global memory. Allocations lie apart, and what lies between them is out of bounds."""

    GAP = 4096

    def __init__(self, size: int = 96 << 20, base: int = 0x700000000000) -> None:
        super().__init__(size, base, 0xA5)
        self.top = base
        self.allocated = np.zeros(size, bool)

    def places(self, addresses: np.ndarray, size: int) -> np.ndarray:
        places = super().places(addresses, size)
        held = self.allocated[places].all(axis=1)
        if not held.all():
            raise ValueError(f"address {int(addresses[np.argmin(held)]):#x} is not allocated")
        return places

    def allocate(self, size: int) -> int:
        """Returns the address of `size` bytes, aligned to 256, with noise in them."""
        address = self.top
        self.allocated[address - self.base : address - self.base + size] = True
        self.top += (size + self.GAP + 255) // 256 * 256
        if self.top - self.base > len(self.bytes):
            raise MemoryError("the machine's memory is full")
        return address

    def put(self, values: Any, lead: int = 0) -> int:
        """Returns the address of a copy of an array or of bytes, `lead` bytes behind a multiple of 256."""
        raw = np.frombuffer(values if isinstance(values, bytes) else np.ascontiguousarray(values).tobytes(), np.uint8)
        address = self.allocate(lead + len(raw)) + lead
        self.allocated[address - lead - self.base : address - self.base] = False
        self.bytes[address - self.base : address - self.base + len(raw)] = raw
        return address

    def get(self, address: int, dtype: Any, count: int) -> np.ndarray:
        """Returns a copy of `count` elements."""
        begin = address - self.base
        return np.frombuffer(self.bytes[begin : begin + np.dtype(dtype).itemsize * count].tobytes(), dtype)
