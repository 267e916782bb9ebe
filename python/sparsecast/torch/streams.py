"""Order between a caller's CUDA streams and the one that the library works on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch


class StreamOrder:
    """The stream that was torch's current one, on the tensors' device, when this was made; nothing in host memory.

    The library enqueues all its work there. Whoever calls later, from another stream or thread, marks where its own
    stream is, and the library's stream goes on behind that.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._device = tensors[0].device if tensors and tensors[0].device.type == "cuda" else None
        self._stream = torch.cuda.current_stream(self._device) if self._device is not None else None

    @property
    def number(self) -> int:
        """What the library is given; 0 for host memory.

        torch's default stream is CUDA's legacy one, whose number is 0 as well: its alias 1 says so explicitly.
        """
        return 0 if self._stream is None else int(self._stream.cuda_stream) or 1

    def mark(self) -> torch.cuda.Event | None:
        """Where the caller's current stream is now."""
        if self._device is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def catch_up(self) -> None:
        """What the library enqueues from now on goes behind what the caller's current stream has now."""
        with self.behind(self.mark()):
            return

    @contextlib.contextmanager
    def behind(self, ready: torch.cuda.Event | None) -> Iterator[None]:
        """What is enqueued within goes to the library's stream, behind ``ready``."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            if ready is not None:
                self._stream.wait_event(ready)
            yield
