# SPDX-License-Identifier: Apache-2.0
"""Prints how long syncs take on CPUs: a trainer and two rollout workers of one node, as threads of one process, with what
the test does with the flushes.

python verl_time.py [MILLIONS_OF_PARAMETERS [DIRECTORY_OF_A_LOG]]
"""

from __future__ import annotations

import sys
import time

import verl_package

verl_package.prepare()

import pytest
import torch
from verl_threads import Threads, random_step


def main() -> None:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 160
    through = {"log": sys.argv[2]} if len(sys.argv) > 2 else {}
    generator = torch.Generator().manual_seed(1)
    weights = {
        f"layers.{index}.weight": (torch.randn(millions * 125_000, generator=generator) * 0.02).to(torch.bfloat16)
        for index in range(8)
    }
    with pytest.MonkeyPatch.context() as patch:
        threads = Threads(weights, ["a", "a"], patch, bucket_size=64 << 20, timeout=300.0, threads=0, **through)
        for _ in range(4):
            threads.meet()
            began, worked = time.monotonic(), time.process_time()
            figures = threads.sync()
            took, worked = time.monotonic() - began, time.process_time() - worked
            print(f"{took:.2f} s, of processors {worked:.2f} s", figures)
            threads.assert_same()
            random_step(weights, generator, 0.01)


main()
