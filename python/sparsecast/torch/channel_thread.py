# SPDX-License-Identifier: Apache-2.0
"""The one thread of the process that uses the NCCL channels of a device."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from .streams import use_device

Result = TypeVar("Result")

_lock = threading.Lock()
# By process, because a forked child has no threads, and device.
_threads: dict[tuple[int, int], concurrent.futures.ThreadPoolExecutor] = {}


def _thread_of(device: int) -> concurrent.futures.ThreadPoolExecutor:
    with _lock:
        key = (os.getpid(), device)
        if key not in _threads:
            current = torch.device("cuda", device) if torch.cuda.is_available() else None
            _threads[key] = concurrent.futures.ThreadPoolExecutor(
                1, f"sparsecast-nccl-{device}", use_device, (current,)
            )
        return _threads[key]


def run_in_channel_thread(device: torch.device, work: Callable[[], Result], end: Callable[[], None]) -> Result:
    """Runs ``work`` in the thread of the NCCL channels of ``device``, and returns its result or raises its exception.

    All publishers of a device share that thread, because NCCL wants one thread for each device. For the CPU, ``device``
    means the current CUDA device. ``end`` is called if the wait for the result is interrupted, by Ctrl-C, for example:
    it must make a ``work`` that waits for other ranks fail. Afterwards the interruption is raised.
    """
    number = device.index if device.type == "cuda" else None
    if number is None:
        number = torch.cuda.current_device() if torch.cuda.is_available() else 0
    future = _thread_of(number).submit(work)
    try:
        return future.result()
    except BaseException:
        if not future.done():
            end()
            if not future.cancel():
                concurrent.futures.wait([future])
        raise
