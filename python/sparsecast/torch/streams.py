# SPDX-License-Identifier: Apache-2.0
"""Ordering between CUDA streams of callers and the stream of the library."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch


def cuda_device(tensors: Sequence[torch.Tensor]) -> torch.device | None:
    """Returns the CUDA device on which the tensors lie; None for host memory."""
    return tensors[0].device if tensors and tensors[0].device.type == "cuda" else None


def use_device(device: torch.device | None) -> None:
    """Makes ``device`` the current CUDA device of this thread; does nothing if it is None. A new thread begins with
    device 0 and would otherwise take memory there.
    """
    if device is not None:
        torch.cuda.set_device(device)


class StreamOrder:
    """The CUDA stream on which the library works: the torch stream that was current, on the device of the tensors, when
    this object was made. Does nothing for tensors in host memory.

    The library enqueues all its work on this stream. A later caller may be in another stream or thread: it marks the
    present end of its own stream (``mark``), and the library's stream waits for that point before it goes on.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._device = cuda_device(tensors)
        self._stream = torch.cuda.current_stream(self._device) if self._device is not None else None

    @property
    def number(self) -> int:
        """Handle of the stream, for the library; 0 for host memory.

        The default stream of torch is the legacy stream of CUDA, whose handle is 0 as well: for it the number is 1,
        another handle of the same stream.
        """
        return 0 if self._stream is None else int(self._stream.cuda_stream) or 1

    def mark(self) -> torch.cuda.Event | None:
        """Returns an event at the present end of the caller's current stream; None for host memory."""
        if self._device is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def catch_up(self) -> None:
        """Makes later work of the library wait for the work that is on the caller's current stream now."""
        with self.behind(self.mark()):
            return

    @contextlib.contextmanager
    def behind(self, ready: torch.cuda.Event | None) -> Iterator[None]:
        """Makes the stream of the library the current one while the context lasts. Work that is enqueued there waits
        for the event ``ready`` first, unless that is None.
        """
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            if ready is not None:
                self._stream.wait_event(ready)
            yield
