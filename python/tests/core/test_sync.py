# SPDX-License-Identifier: Apache-2.0
"""Publisher and Subscriber from Python: bits, versions, and what is refused."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

import sparsecast as sc
from sparsecast import errors

SPECS = [
    ("a", "BF16", (37, 41)),
    ("b", "F32", (100,)),
    ("c", "I64", (3, 4, 5)),
    ("e", "F8_E4M3", (0, 7)),
    ("s", "F32", ()),
    ("i4", "I4X2", (9, 50)),
    ("f4", "F4X2", (450,)),
]
CARRIERS = {
    "BF16": np.uint16,
    "F32": np.uint32,
    "I64": np.uint64,
    "F8_E4M3": np.uint8,
    "I4X2": np.uint8,
    "F4X2": np.uint8,
}


def random_tensors(rng: np.random.Generator) -> list[np.ndarray]:
    """Random bits, NaNs and negative zeros among them."""
    return [
        rng.integers(0, np.iinfo(CARRIERS[d]).max, size=shape, dtype=CARRIERS[d], endpoint=True)
        for _, d, shape in SPECS
    ]


def described(tensors: list[np.ndarray]) -> list[sc.Memory]:
    return [sc.describe(t, dtype=d) for t, (_, d, _) in zip(tensors, SPECS, strict=True)]


def train(rng: np.random.Generator, tensors: list[np.ndarray], density: float) -> int:
    changed = 0
    for tensor in tensors:
        if tensor.size == 0:
            continue
        mask = rng.random(tensor.shape) < density
        flips = rng.integers(1, np.iinfo(tensor.dtype).max, size=tensor.shape, dtype=tensor.dtype)
        np.bitwise_xor(tensor, flips, out=tensor, where=mask)
        changed += int(mask.sum())
    return changed


def test_bytes_are_what_the_table_says_they_hold_and_pairs_take_fewer_bits() -> None:
    rng = np.random.default_rng(5)
    old = rng.integers(0, 256, 1 << 18, dtype=np.uint8)
    halves = rng.choice(old.size, 4_000, replace=False)
    sizes = {}
    for dtype in ("U8", "I4X2", "F4X2"):
        live, held = old.copy(), old.copy()
        table = sc.TensorTable([("w", dtype, old.shape)])
        publisher = sc.Publisher(table, [sc.describe(live)])
        subscriber = sc.Subscriber(table, [sc.describe(held)])
        live[halves[:2_000]] ^= 0x10  # One step up or down of a high half, in all orders.
        live[halves[2_000:]] ^= 0x01
        delta = publisher.publish()
        for record in delta.records():
            subscriber.stage(record)
        subscriber.apply()
        assert np.array_equal(live, held)
        sizes[dtype] = delta.wire_bytes
    for dtype in ("I4X2", "F4X2"):
        assert sizes["U8"] - sizes[dtype] > 4_000 * 2 / 8, sizes
    other = sc.TensorTable([("w", "I8", old.shape)])
    with pytest.raises(errors.UsageError, match="it has dtype U8, and the table says I8"):
        sc.Publisher(other, [sc.describe(old)])


@pytest.mark.parametrize("values", ["raw", "xor", "ulp"])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_every_version_arrives_bit_for_bit_and_counts_what_changed(values: str, density: float) -> None:
    rng = np.random.default_rng(7)
    live = random_tensors(rng)
    held = [t.copy() for t in live]
    table = sc.TensorTable(SPECS)
    publisher = sc.Publisher(table, described(live), values=values)
    subscriber = sc.Subscriber(table, described(held))
    for version in range(1, 4):
        changed = train(rng, live, density)
        delta = publisher.publish()
        assert (delta.version, delta.base_version, delta.changed) == (version, version - 1, changed)
        assert sum(t["changed"] for t in delta.tensors()) == changed
        for record in delta.records():
            subscriber.stage(record)
        assert subscriber.ready
        report = subscriber.apply()
        publisher.commit(version)
        assert report.digest == delta.digest == publisher.digest == sc.digest(table, described(live))
        for a, b in zip(live, held, strict=True):
            assert np.array_equal(a, b)
    subscriber.audit()


def test_an_aborted_delta_is_part_of_the_next_and_undo_rolls_one_back() -> None:
    rng = np.random.default_rng(8)
    live = random_tensors(rng)
    held = [t.copy() for t in live]
    table = sc.TensorTable(SPECS)
    publisher = sc.Publisher(table, described(live))
    subscriber = sc.Subscriber(table, described(held))
    train(rng, live, 0.1)
    lost = publisher.publish()
    assert publisher.pending
    with pytest.raises(errors.UsageError):
        publisher.publish()
    publisher.abort(lost.version)
    train(rng, live, 0.1)
    delta = publisher.publish()
    before = [t.copy() for t in held]
    subscriber.stage(delta)
    subscriber.apply()
    assert all(np.array_equal(a, b) for a, b in zip(live, held, strict=True))
    subscriber.undo_last()
    assert all(np.array_equal(a, b) for a, b in zip(before, held, strict=True))


def test_a_fused_cast_publishes_what_numpy_casts() -> None:
    rng = np.random.default_rng(9)
    master = rng.standard_normal((64, 33), dtype=np.float32)
    bf16 = np.zeros((64, 33), dtype=np.uint16)
    held = bf16.copy()
    table = sc.TensorTable([("w", "BF16", (64, 33))])
    publisher = sc.Publisher(
        table, [sc.describe(bf16, dtype="BF16")], detector="fused_cast", masters=[sc.describe(master)]
    )
    subscriber = sc.Subscriber(table, [sc.describe(held, dtype="BF16")])
    for _ in range(3):
        master += rng.standard_normal(master.shape, dtype=np.float32) * 1e-3
        delta = publisher.publish()
        subscriber.stage(delta)
        subscriber.apply()
        publisher.commit(delta.version)
        bits = master.view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        assert np.array_equal(held, rounded)


def test_a_marked_mask_is_all_that_is_sent() -> None:
    live = np.zeros(130, dtype=np.float32)
    held = live.copy()
    table = sc.TensorTable([("w", "F32", (130,))])
    publisher = sc.Publisher(table, [sc.describe(live)], detector="mask", values="raw")
    subscriber = sc.Subscriber(table, [sc.describe(held)])
    live[[3, 64, 129]] = [1, 2, 3]
    words = np.zeros(3, dtype=np.uint64)
    for i in (3, 64, 129):
        words[i // 64] |= np.uint64(1) << np.uint64(i % 64)
    publisher.mark(0, words)
    delta = publisher.publish()
    assert delta.changed == 3
    subscriber.stage(delta)
    subscriber.apply()
    assert np.array_equal(live, held)
    with pytest.raises(errors.UsageError, match="2 words for 3"):
        publisher.mark(0, words[:2].copy())


def test_corrupt_stale_and_foreign_records_are_refused_by_kind_and_nothing_is_written() -> None:
    rng = np.random.default_rng(10)
    live = random_tensors(rng)
    held = [t.copy() for t in live]
    before = [t.copy() for t in held]
    table = sc.TensorTable(SPECS)
    publisher = sc.Publisher(table, described(live))
    subscriber = sc.Subscriber(table, described(held))
    train(rng, live, 0.2)
    records = publisher.publish().records()
    subscriber.stage(records[0])
    damaged = bytearray(records[1])
    damaged[len(damaged) // 2] ^= 1
    with pytest.raises(errors.CorruptError) as caught:
        subscriber.stage(bytes(damaged))
    assert caught.value.code == "corrupt" and str(caught.value)
    with pytest.raises(errors.IncompleteError):
        subscriber.apply()
    other = sc.Subscriber(table, described(held), version=1)
    with pytest.raises(errors.StaleVersionError):
        other.stage(records[0])
    foreign = sc.Subscriber(table, described(held), stream_id="0123456789abcdef" * 2)
    with pytest.raises(errors.ForeignStreamError):
        foreign.stage(records[0])
    assert all(np.array_equal(a, b) for a, b in zip(before, held, strict=True))


@pytest.mark.parametrize(
    ("specs", "arrays", "words"),
    [
        ([("w", "F32", (4,))], [np.zeros(5, np.float32)], r"tensor 'w': it has shape \[5\], and the table says \[4\]"),
        ([("w", "F32", (4,))], [np.zeros(4, np.int32)], "tensor 'w': it has dtype I32, and the table says F32"),
        ([("w", "F32", (4,))], [], "0 tensors for a table of 1"),
        ([("w", "F32", (2, 2))], [np.zeros((2, 4), np.float32)[:, ::2]], "tensor 'w'"),
    ],
)
def test_tensors_that_do_not_fit_the_table_are_refused_by_name(specs: list, arrays: list, words: str) -> None:
    with pytest.raises(errors.UsageError, match=words):
        sc.Publisher(sc.TensorTable(specs), [sc.describe(a) for a in arrays])


def test_the_names_of_options_that_do_not_exist_are_answered_with_those_that_do() -> None:
    table, memory = sc.TensorTable([("w", "F32", (4,))]), [sc.describe(np.zeros(4, np.float32))]
    with pytest.raises(errors.UsageError, match="snapshot, pinned, fused_cast, mask"):
        sc.Publisher(table, memory, detector="snap")
    with pytest.raises(errors.UsageError, match="raw, xor, ulp"):
        sc.Publisher(table, memory, values="delta")
    with pytest.raises(errors.UsageError, match="masters"):
        sc.Publisher(table, memory, detector="fused_cast")


def test_errors_survive_pickling_with_code_and_context() -> None:
    error = pickle.loads(pickle.dumps(errors.make("wrong_base", "other bytes", "route 3")))
    assert type(error) is errors.WrongBaseError
    assert (error.code, error.message, error.context, str(error)) == (
        "wrong_base",
        "other bytes",
        "route 3",
        "route 3: other bytes",
    )
    deadline = errors.make("timeout", "nobody came", "")
    assert isinstance(deadline, TimeoutError) and str(deadline) == "nobody came"
    assert isinstance(errors.make("io", "no space", "x"), OSError)


def test_a_transport_over_tcp_brings_every_version_to_all_and_frees_the_interpreter() -> None:
    from sparsecast_ports import free_port

    port, secret = free_port(), "a secret of sixteen or more"
    rng = np.random.default_rng(11)
    start = random_tensors(rng)
    final: list[list[np.ndarray]] = []

    def receive(rank: int) -> None:
        held = [t.copy() for t in start]
        subscriber = sc.Subscriber(sc.TensorTable(SPECS), described(held))
        transport = sc.tcp_transport(sc.meet("127.0.0.1", port, rank=rank, size=3, secret=secret, timeout=30))
        for _ in range(3):
            subscriber.sync(transport, timeout=30)
        final.append(held)

    threads = [threading.Thread(target=receive, args=(r,)) for r in (1, 2)]
    for thread in threads:
        thread.start()
    live = [t.copy() for t in start]
    publisher = sc.Publisher(sc.TensorTable(SPECS), described(live))
    transport = sc.tcp_transport(sc.meet("127.0.0.1", port, rank=0, size=3, secret=secret, timeout=30))
    for _ in range(3):
        train(rng, live, 0.05)
        publisher.sync(transport, timeout=30)
    for thread in threads:
        thread.join(30)
    assert len(final) == 2
    for held in final:
        assert all(np.array_equal(a, b) for a, b in zip(live, held, strict=True))


def test_meeting_with_another_secret_or_alone_ends_by_its_deadline() -> None:
    from sparsecast_ports import free_port

    with pytest.raises(errors.DeadlineError):
        sc.meet("127.0.0.1", free_port(), rank=0, size=2, secret="a secret of sixteen or more", timeout=0.3)
    with pytest.raises(errors.UsageError):
        sc.meet("127.0.0.1", free_port(), rank=0, size=2, secret="short", timeout=0.3)


def test_an_objective_decides_what_automatic_positions_are() -> None:
    rng = np.random.default_rng(12)
    table = sc.TensorTable([("w", "BF16", (200, 300))])
    exponents = rng.integers(110, 123, 60_000)
    start = (exponents << 7 | rng.integers(0, 128, 60_000)).astype(np.uint16)
    moved = start + (rng.random(60_000) < np.ldexp(0.5, 110 - exponents)).astype(np.uint16)
    sizes = {}
    for objective in (None, "speed", "1Gb/s", "100Mb/s", "size"):
        live, held = start.copy(), start.copy()
        publisher = sc.Publisher(table, [sc.describe(live.reshape(200, 300), dtype="BF16")], objective=objective)
        subscriber = sc.Subscriber(table, [sc.describe(held.reshape(200, 300), dtype="BF16")])
        live[:] = moved
        delta = publisher.publish()
        subscriber.stage(delta)
        subscriber.apply()
        assert np.array_equal(held, moved)
        sizes[objective] = delta.wire_bytes
    assert sizes[None] == sizes["speed"] == sizes["1Gb/s"]
    assert sizes["size"] == sizes["100Mb/s"] < 0.8 * sizes["speed"]
    with pytest.raises(errors.UsageError, match="no objective 'fast'"):
        sc.Publisher(table, [sc.describe(start.reshape(200, 300), dtype="BF16")], objective="fast")
