# SPDX-License-Identifier: Apache-2.0
"""Bytes between trainer and rollouts on a recorded run (testdata/trace), beside verl's own. `pytest -s` prints them."""

from __future__ import annotations

import pathlib

import pytest

pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

import verl_package

verl_package.prepare()

import torch
from safetensors.torch import load_file
from verl_bytes import bytes_of_verl
from verl_threads import Threads

TRACE = pathlib.Path(__file__).parents[3] / "testdata" / "trace"


def test_a_recorded_run_takes_a_quarter_of_verls_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *steps = sorted(TRACE.glob("step_*.safetensors"))
    weights = load_file(first)
    threads = Threads(weights, ["a"], monkeypatch, bucket_size=2048 << 20)  # verl's default.
    threads.sync()
    theirs = ours = changed = 0
    for path in steps:
        patch = load_file(path)
        for name, value in weights.items():
            if f"{name}.indices" in patch:
                value.view(-1)[patch[f"{name}.indices"].long()] = patch[f"{name}.values"]
        of_verl = bytes_of_verl(threads.trained, 0)
        figures = threads.sync()
        threads.assert_same()
        own = round(figures["payload_mbytes"] * (1 << 20))
        elements = int(figures["changed_elems"])
        print(f"{path.stem}: {elements} changed, verl {of_verl}, sparsecast {own}, {of_verl / own:.2f} times fewer")
        assert of_verl == 6 * elements  # int32 and bf16.
        theirs, ours, changed = theirs + of_verl, ours + own, changed + elements
    print(f"all: {changed} changed, verl {theirs}, sparsecast {ours}, {theirs / ours:.2f} times fewer")
    assert len(steps) == 6 and theirs > 4 * ours


def test_every_sync_counts_the_messages_beside_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.zeros(1 << 16, dtype=torch.bfloat16)
    threads = Threads({"weight": value}, ["a"], monkeypatch)
    assert threads.sync()["payload_mbytes"] > 0
    assert 0.00005 < threads.sync()["payload_mbytes"] < 0.001  # Nothing changed: what rank 0 holds.
