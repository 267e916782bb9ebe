# SPDX-License-Identifier: Apache-2.0
"""Layouts from Python, and sharded ends over them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from sparsecast_ports import free_port

import sparsecast as sc
from sparsecast import errors

SECRET = "a secret of sixteen or more"
ROWS, COLUMNS = 10, 6


def rows_layout(begin: int, end: int) -> sc.Layout:
    """One rank that holds rows [begin, end) of 'w', contiguous."""
    table = sc.TensorTable([("w", "F32", (ROWS, COLUMNS))])
    local = sc.LocalTensor("w", "F32", (end - begin) * COLUMNS)
    shard = sc.Shard(0, sc.Box([begin, 0], [end - begin, COLUMNS]), 0, 0, [COLUMNS, 1])
    return sc.Layout(table, [sc.RankLayout([local], [shard])])


def columns_layout(begin: int, end: int) -> sc.Layout:
    """One rank that holds columns [begin, end), transposed."""
    table = sc.TensorTable([("w", "F32", (ROWS, COLUMNS))])
    local = sc.LocalTensor("w.t", "F32", (end - begin) * ROWS)
    shard = sc.Shard(0, sc.Box([0, begin], [ROWS, end - begin]), 0, 0, [1, ROWS])
    return sc.Layout(table, [sc.RankLayout([local], [shard])])


def test_a_layout_goes_through_bytes_and_json_unchanged() -> None:
    layout = sc.join_layouts([rows_layout(0, 7), rows_layout(7, 10)])
    assert len(layout.ranks) == 2
    assert sc.Layout.parse(layout.serialize()) == layout
    assert sc.Layout.from_json(layout.to_json()) == layout
    assert layout.ranks[1].shards[0].box == sc.Box([7, 0], [3, 6])
    with pytest.raises(errors.CorruptError):
        sc.Layout.parse(layout.serialize()[:-3])
    with pytest.raises(errors.CorruptError, match="mine"):
        sc.Layout.from_json("{", name="mine")


def test_a_table_is_a_sequence_of_its_tensors() -> None:
    table = sc.TensorTable([("a", "BF16", (2, 3)), ("b", "F32", ())])
    assert list(table) == [("a", "BF16", (2, 3)), ("b", "F32", ())] and len(table) == 2
    assert table[-1] == ("b", "F32", ()) and table.find("b") == 1 and table.find("c") is None
    assert (table.elements, table.nbytes) == (7, 16)
    assert table == sc.TensorTable(list(table)) and table != sc.TensorTable([("a", "BF16", (2, 3))])
    with pytest.raises(IndexError):
        table[2]
    with pytest.raises(errors.UsageError, match="a"):
        sc.TensorTable([("a", "F32", (1,)), ("a", "F32", (1,))])


def test_layouts_that_disagree_are_refused_with_tensor_and_ranks() -> None:
    other = sc.Layout(
        sc.TensorTable([("w", "BF16", (ROWS, COLUMNS))]),
        [sc.RankLayout([sc.LocalTensor("w", "BF16", 60)], [sc.Shard(0, sc.Box([0, 0], [10, 6]), 0, 0, [6, 1])])],
    )
    with pytest.raises(errors.UsageError, match="tensor 'w': rank 0 has it as F32"):
        sc.join_layouts([rows_layout(0, 10), other])
    with pytest.raises(errors.UsageError, match="rank 0"):
        sc.Layout(
            sc.TensorTable([("w", "F32", (4,))]),
            [sc.RankLayout([sc.LocalTensor("w", "F32", 2)], [sc.Shard(0, sc.Box([0], [4]), 0, 0, [1])])],
        )


def test_rows_of_a_trainer_reach_transposed_columns_of_an_engine_in_two_halves() -> None:
    trainer = sc.join_layouts([rows_layout(0, 7), rows_layout(7, 10)])
    engine = sc.join_layouts([columns_layout(0, 4), columns_layout(4, 6)])
    port = free_port()
    weights = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    steps = [weights]
    rng = np.random.default_rng(3)
    for _ in range(4):
        steps.append(np.where(rng.random(weights.shape) < 0.2, rng.random(weights.shape, np.float32), steps[-1]))
    failures: list[BaseException] = []

    def meet(rank: int) -> sc.ControlChannel:
        return sc.meet("127.0.0.1", port, rank=rank, size=4, secret=SECRET, timeout=30)

    def publish(rank: int) -> None:
        rows = slice(0, 7) if rank == 0 else slice(7, 10)
        live = steps[0][rows].copy()
        publisher = sc.ShardedPublisher(trainer, rank, [sc.describe(live)], report_tensors=True)
        publisher.regroup(meet(rank), timeout=30)
        for version, step in enumerate(steps[1:], start=1):
            live[:] = step[rows]
            report = publisher.sync(30)
            assert report.version == version
            assert report.changed == sum(t.changed for t in report.tensors)

    def follow(rank: int) -> None:
        columns = slice(0, 4) if rank == 0 else slice(4, 6)
        live = np.zeros((columns.stop - columns.start, ROWS), dtype=np.float32)
        subscriber = sc.ShardedSubscriber("e", engine, rank, [sc.describe(live)], needs_anchor=True)
        subscriber.regroup(meet(2 + rank), timeout=30)
        assert np.array_equal(live, steps[0][:, columns].T)
        for version, step in enumerate(steps[1:], start=1):
            subscriber.receive(30)
            assert subscriber.version == version - 1
            assert np.array_equal(live, steps[version - 1][:, columns].T)
            assert subscriber.apply(30).version == version
            assert np.array_equal(live, step[:, columns].T)
        subscriber.audit()
        with pytest.raises(errors.UsageError, match="receive"):
            subscriber.apply(1)

    def run(body: object, rank: int) -> None:
        try:
            body(rank)  # type: ignore[operator]
        except BaseException as failure:  # noqa: BLE001 - the main thread raises it
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(f, r)) for f in (publish, follow) for r in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]


def test_trainer_ranks_that_hold_other_values_under_one_name_are_named() -> None:
    trainer = sc.join_layouts([rows_layout(0, 6), rows_layout(4, 10)])
    engine = rows_layout(0, 10)
    port = free_port()
    live = [np.ones((6, COLUMNS), np.float32), np.ones((6, COLUMNS), np.float32), np.zeros((10, COLUMNS), np.float32)]
    live[1][1, 2] = 2  # Row 5, which both ranks have.
    said: list[str] = []

    def run(rank: int) -> None:
        tensors = [sc.describe(live[rank])]
        try:
            end: sc.ShardedPublisher | sc.ShardedSubscriber = (
                sc.ShardedPublisher(trainer, rank, tensors)
                if rank < 2
                else sc.ShardedSubscriber("e", engine, 0, tensors, needs_anchor=True)
            )
            end.regroup(sc.meet("127.0.0.1", port, rank=rank, size=3, secret=SECRET, timeout=30), timeout=30)
        except errors.DigestMismatchError as error:
            said.append(str(error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    words = (
        "tensor 'w'[4:6,0:6]: trainer ranks 0 and 1 hold different values of what is described as copies: name them "
        "apart, make them equal, or leave it out"
    )
    assert said == [words] * 3
    assert not live[2].any(), "the engine was not written to"


def test_local_tensors_that_do_not_fit_the_layout_are_refused_by_rank_and_name() -> None:
    layout = rows_layout(0, 10)
    with pytest.raises(errors.UsageError, match="rank 0: local tensor 'w': it has 59 elements, and the layout says 60"):
        sc.ShardedPublisher(layout, 0, [sc.describe(np.zeros(59, np.float32))])
    with pytest.raises(errors.UsageError, match="it is not contiguous"):
        sc.ShardedPublisher(layout, 0, [sc.describe(np.zeros((10, 12), np.float32)[:, ::2])])
    with pytest.raises(errors.UsageError, match="rank 1 of a layout of 1"):
        sc.ShardedPublisher(layout, 1, [])


def test_fp32_for_bf16_is_a_master_only_when_that_is_said() -> None:
    locals_ = [sc.LocalTensor("w", "BF16", 12), sc.LocalTensor("n", "F32", 3)]
    shards = [sc.Shard(0, sc.Box([0, 0], [4, 3]), 0, 0, [3, 1]), sc.Shard(1, sc.Box([0], [3]), 1, 0, [1])]
    table = sc.TensorTable([("w", "BF16", (4, 3)), ("n", "F32", (3,))])
    layout = sc.Layout(table, [sc.RankLayout(locals_, shards)], [])
    weights = [sc.describe(np.zeros(12, np.float32)), sc.describe(np.zeros(3, np.float32))]
    with pytest.raises(errors.UsageError, match="local tensor 'w': it has dtype F32, and the layout says BF16"):
        sc.ShardedPublisher(layout, 0, weights)
    assert sc.ShardedPublisher(layout, 0, weights, masters=True).snapshot_bytes == 0, "before the first regroup()"
    bits = sc.describe(np.zeros(12, np.int16), dtype="BF16")
    sc.ShardedPublisher(layout, 0, [bits, weights[1]], masters=True)
    with pytest.raises(errors.UsageError, match="a pinned snapshot is for tensors in device memory"):
        sc.ShardedPublisher(layout, 0, weights, masters=True, detector="pinned")
    with pytest.raises(errors.UsageError, match="there is no detector 'mask' over shards: snapshot, pinned"):
        sc.ShardedPublisher(layout, 0, weights, masters=True, detector="mask")
    half = sc.describe(np.zeros(12, np.float16))
    with pytest.raises(errors.UsageError, match="local tensor 'w': it has dtype F16, and the layout says BF16"):
        sc.ShardedPublisher(layout, 0, [half, weights[1]], masters=True)
    with pytest.raises(errors.UsageError, match="local tensor 'n': it has dtype F64, and the layout says F32"):
        sc.ShardedPublisher(layout, 0, [weights[0], sc.describe(np.zeros(3))], masters=True)
