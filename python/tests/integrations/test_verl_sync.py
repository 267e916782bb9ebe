# SPDX-License-Identifier: Apache-2.0
"""Syncs of the released verl: its manager, its workers and its FSDP export in Ray actors, its receivers' loops."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

import verl_package

verl_package.prepare()

import ray
import torch
from verl_cluster import Cluster, start_ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    directory = start_ray()
    made = Cluster([("sglang", "a"), ("sglang", "a"), ("vllm", "b")], verify_every=3)
    yield made
    made.close()
    ray.shutdown()
    shutil.rmtree(directory, ignore_errors=True)


def assert_same(cluster: Cluster) -> None:
    wanted = cluster.on_trainers("bits")[0]
    for held in cluster.on_rollouts("bits"):
        assert held.keys() == wanted.keys()
        for name, bits in wanted.items():
            assert torch.equal(held[name], bits), name


def test_every_sync_leaves_every_rollout_with_the_trainers_bits(cluster: Cluster) -> None:
    figures = cluster.sync()
    assert figures["seed"] == 1 and figures["changed_ratio"] == 1
    assert_same(cluster)
    for number in range(1, 5):
        cluster.on_trainers("step")
        of_verl = sum(cluster.on_trainers("bytes_of_verl"))
        figures = cluster.sync()
        assert figures["seed"] == 0 and 0 < figures["changed_ratio"] < 0.1
        assert of_verl == 6 * figures["changed_elems"] and figures["payload_mbytes"] * (1 << 20) < of_verl
        # At every third sync SGLang compares all that it has, by verl's sweep; so would vLLM, which verl has refuse it.
        wanted = ["indices", "dense"] if number % 3 == 0 else ["indices"]
        assert cluster.on_rollouts("flushes") == [wanted] * 3
        assert_same(cluster)


def test_one_copy_of_the_weights_is_kept_on_a_node(cluster: Cluster) -> None:
    assert cluster.on_rollouts("has_mirror") == [True, False, True]


def test_a_step_that_changes_nothing_leaves_servers_alone(cluster: Cluster) -> None:
    before = cluster.sync()
    cluster.sync()
    assert cluster.on_rollouts("flushes")[2] == [] or before["changed_elems"] == 0
    assert_same(cluster)


@pytest.mark.parametrize("index", [1, 2])
def test_a_worker_that_was_restarted_gets_everything(cluster: Cluster, index: int) -> None:
    cluster.restart(index)
    cluster.on_trainers("step")
    assert cluster.sync()["seed"] == 1
    assert_same(cluster)
    cluster.on_trainers("step")
    assert cluster.sync()["seed"] == 0
    assert_same(cluster)


def test_a_server_that_fails_raises_in_verls_manager_and_the_next_sync_sends_everything(cluster: Cluster) -> None:
    ray.get(cluster.rollouts[0].fail_at.remote(0))
    cluster.on_trainers("step")
    with pytest.raises(ray.exceptions.RayTaskError, match="the server is gone|failed while it took the weights"):
        cluster.sync()
    ray.get(cluster.rollouts[0].fail_at.remote(-1))
    cluster.on_trainers("step")
    assert cluster.sync()["seed"] == 1
    assert_same(cluster)


def test_a_copy_that_was_altered_is_refused_and_the_next_sync_heals_it(cluster: Cluster) -> None:
    held = cluster.on_rollouts("bits")
    ray.get(cluster.rollouts[2].flip_mirror.remote())
    cluster.on_trainers("step")
    with pytest.raises(
        ray.exceptions.RayTaskError, match="nothing of this sync was loaded, the next one sends everything"
    ):
        cluster.sync()
    for before, after in zip(held, cluster.on_rollouts("bits"), strict=True):
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert cluster.sync()["seed"] == 1
    assert_same(cluster)


def test_nan_stops_the_sync_by_name_on_every_rank(cluster: Cluster) -> None:
    cluster.on_trainers("poison")
    with pytest.raises(ray.exceptions.RayTaskError, match="embed.weight"):
        cluster.sync()
    cluster.on_trainers("heal")
    assert cluster.sync()["seed"] == 1
    assert_same(cluster)


def test_whole_tensors_go_to_servers_that_take_no_deltas(cluster: Cluster) -> None:
    cluster.use(backend="sparsecast")
    for seed in (1, 0):
        cluster.on_trainers("step")
        figures = cluster.sync()
        assert figures["seed"] == seed and (
            seed or figures["payload_mbytes"] * (1 << 20) < 6 * figures["changed_elems"]
        )
        assert_same(cluster)
        names = cluster.on_trainers("bits")[0].keys()
        assert [sorted(names_of_one) for names_of_one in cluster.on_rollouts("flushes")] == [sorted(names)] * 3


def test_the_records_may_go_through_a_log(cluster: Cluster, tmp_path: pathlib.Path) -> None:
    cluster.use(log={"location": str(tmp_path / "log")})
    for seed in (1, 0, 0):
        cluster.on_trainers("step")
        assert cluster.sync()["seed"] == seed
        assert_same(cluster)
    assert len(list((tmp_path / "log" / "deltas").glob("*.scd"))) >= 3
