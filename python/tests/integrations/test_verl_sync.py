# SPDX-License-Identifier: Apache-2.0
"""Syncs of the released verl: its manager, its workers and its FSDP export in Ray actors, its receivers' loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

import verl_package

verl_package.prepare()

import ray
import torch
from verl_cluster import Cluster, start_ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    start_ray()
    made = Cluster([("sglang", "a"), ("sglang", "a"), ("vllm", "b")], verify_every=3)
    yield made
    made.close()
    ray.shutdown()


def assert_same(cluster: Cluster) -> None:
    wanted = cluster.on_trainers("bits")[0]
    for held in cluster.on_rollouts("bits"):
        assert held.keys() == wanted.keys()
        for name, bits in wanted.items():
            assert torch.equal(held[name], bits), name


def test_every_sync_leaves_every_rollout_with_the_trainers_bits(cluster: Cluster) -> None:
    print(cluster.sync())
    assert_same(cluster)
    for _ in range(3):
        cluster.on_trainers("step")
        print(cluster.on_trainers("bytes_of_verl"))
        print(cluster.sync(), cluster.on_rollouts("flushes"))
        assert_same(cluster)
