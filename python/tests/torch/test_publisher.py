# SPDX-License-Identifier: Apache-2.0
"""A torch trainer and its engines: live over TCP, and over a log."""

from __future__ import annotations

import dataclasses
import gc
import pathlib
import threading

import pytest
import torch
from safetensors.torch import load_file
from sparsecast_ports import free_port
from torch import nn

from sparsecast import errors
from sparsecast.buffers import TORCH_DTYPES
from sparsecast.torch import Log, Publisher, Subscriber, World, shards_of

TIMEOUT = 30.0


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 33), nn.LayerNorm(33), nn.Linear(33, 50, bias=False))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randint(0, 50, (8,))).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def same_bits(trainer: nn.Module, engine: nn.Module) -> bool:
    pairs = zip(trainer.state_dict().values(), engine.state_dict().values(), strict=True)
    return all(torch.equal(a.to(b.dtype).view(torch.int16), b.view(torch.int16)) for a, b in pairs)


def world_of(size: int) -> World:
    return World("127.0.0.1", free_port(), "a secret of sixteen or more", size=size, timeout=TIMEOUT)


class Engine(threading.Thread):
    """Takes so many versions, and raises in join() what went wrong."""

    def __init__(self, model: nn.Module, world: World, versions: int, **options: object) -> None:
        super().__init__()
        self.model = model
        self.seen: list[int] = []
        self.pauses: list[bool] = []
        self._versions = versions
        self._failure: BaseException | None = None
        self.subscriber = Subscriber(
            model,
            transport=world,
            pause=self.pauses.append,
            **{"needs_anchor": True, **options},  # type: ignore[arg-type]
        )
        self.start()

    def run(self) -> None:
        try:
            for _ in range(self._versions):
                self.seen.append(self.subscriber.update().version)
            self.subscriber.audit()
        except BaseException as failure:  # noqa: BLE001 - for the main thread
            self._failure = failure

    def result(self) -> None:
        self.join(2 * TIMEOUT)
        if self._failure is not None:
            raise self._failure


def test_two_engines_follow_a_mixed_precision_trainer_bit_for_bit() -> None:
    model = make_model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    world = world_of(3)
    engines = [
        Engine(make_model(r).bfloat16(), dataclasses.replace(world, rank_offset=r), 3, engine=f"e{r}") for r in (1, 2)
    ]
    with Publisher(model, optimizer, transport=world, wire_dtype=torch.bfloat16) as publisher:
        for version in (1, 2, 3):
            train(model, optimizer)
            report = publisher.publish()
            assert report.version == publisher.version == version
            assert report.step == version
            assert report.elements == sum(p.numel() for p in model.parameters())
            assert report.changed == sum(t.changed for t in report.tensors)
            assert report.dense_bytes == 2 * report.elements
            assert len(report.digest) == 32
    for engine in engines:
        engine.result()
        assert engine.seen == [1, 2, 3]
        assert engine.pauses == [True, False] * 3
        assert same_bits(model, engine.model)


def bf16_memory() -> set[int]:
    """Where all bf16 tensors of this process lie, that have elements."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor) and o.dtype == torch.bfloat16]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


def test_beside_fp32_masters_a_live_publisher_keeps_the_snapshot_and_nothing_else() -> None:
    model = make_model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    world = world_of(2)
    engine = Engine(make_model(1).bfloat16(), dataclasses.replace(world, rank_offset=1), 3)
    before = bf16_memory()
    with Publisher(model, optimizer, transport=world, wire_dtype=torch.bfloat16) as publisher:
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        for _ in range(3):
            train(model, optimizer)
            report = publisher.publish()
            assert publisher.sharded.snapshot_bytes == 2 * report.elements == report.dense_bytes
            assert bf16_memory() <= before, "a bf16 copy beside the snapshot"
        held = publisher._shards
        assert {tensor.untyped_storage().data_ptr() for tensor in held.tensors} == own
        assert held.masters == [None] * len(held.tensors)
    engine.result()
    assert same_bits(model, engine.model)


def test_behind_transforms_and_in_shards_that_were_cast_the_copy_stays() -> None:
    for cast in (True, False):
        model = make_model(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        world = world_of(2)
        engine = Engine(make_model(1).bfloat16(), dataclasses.replace(world, rank_offset=1), 2)
        shards = shards_of(model, wire_dtype=torch.bfloat16, cast=cast)
        assert {tensor.dtype for tensor in shards.tensors} == {torch.bfloat16 if cast else torch.float32}
        with Publisher(shards, optimizer, transport=world) as publisher:
            for _ in range(2):
                train(model, optimizer)
                report = publisher.publish()
                assert report.dense_bytes == 2 * report.elements
        engine.result()
        assert same_bits(model, engine.model)


def test_a_publication_without_waiting_is_over_before_the_next_step_writes_the_weights() -> None:
    model = make_model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    world = world_of(2)
    engine = Engine(make_model(1), dataclasses.replace(world, rank_offset=1), 4)
    publisher = Publisher(model, optimizer, transport=world, publish_every=2)
    for _ in range(8):
        train(model, optimizer)
    report = publisher.wait(TIMEOUT)
    assert report is not None and (report.step, report.version) == (8, 4)
    assert publisher.wait(TIMEOUT) is None
    engine.result()
    assert engine.seen == [1, 2, 3, 4]
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), engine.model.state_dict().values(), strict=True)
    )
    assert publisher.version == 4
    publisher.close()


def test_nothing_changes_when_the_learning_rate_is_zero() -> None:
    model = make_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    world = world_of(2)
    engine = Engine(make_model(1), dataclasses.replace(world, rank_offset=1), 2)
    with Publisher(model, optimizer, transport=world) as publisher:
        first = publisher.publish()
        train(model, optimizer)
        second = publisher.publish()
    engine.result()
    assert second.changed == 0 and second.density == 0 and second.digest == first.digest


def test_a_failed_publication_leaves_the_base_and_a_new_world_heals_it() -> None:
    model = make_model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    world = dataclasses.replace(world_of(2), timeout=2.0)
    engine = Engine(make_model(1), dataclasses.replace(world, rank_offset=1), 1)
    publisher = Publisher(model, optimizer, transport=world)
    publisher.publish()
    engine.result()
    train(model, optimizer)
    with pytest.raises(errors.Error):
        publisher.publish()  # The engine takes no second version.
    assert publisher.version == 1
    fresh = dataclasses.replace(world, port=free_port(), generation=1, timeout=TIMEOUT)
    again = Engine(engine.model, dataclasses.replace(fresh, rank_offset=1), 1, version=1, needs_anchor=False)
    publisher.regroup(fresh)
    publisher.publish()
    again.result()
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), engine.model.state_dict().values(), strict=True)
    )


def test_a_log_is_begun_followed_and_gone_on_with_after_a_restart(tmp_path: pathlib.Path) -> None:
    model = make_model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"), timeout=TIMEOUT)
    held = make_model(1).bfloat16()
    with Publisher(model, optimizer, transport=log, wire_dtype=torch.bfloat16) as publisher:
        follower = Subscriber(held, transport=dataclasses.replace(log, state=str(tmp_path / "follower")))
        first = follower.update()
        assert first.reseeded and same_bits(model, held)
        for version in (1, 2, 3):
            train(model, optimizer)
            report = publisher.publish(label=f"step {version}")
            assert isinstance(report.version, int) and report.changed > 0
        assert follower.update().version == publisher.version == follower.version
        assert same_bits(model, held)
    # Weights on another state than the log's newest version are refused, the same ones go on.
    with pytest.raises(errors.WrongBaseError):
        Publisher(make_model(5), transport=log, wire_dtype=torch.bfloat16)
    with Publisher(model, optimizer, transport=log, wire_dtype=torch.bfloat16, detector="snapshot") as publisher:
        train(model, optimizer)
        publisher.publish()
    follower.update()
    assert same_bits(model, held)


def test_4_bit_numbers_in_words_are_followed_through_a_log_in_fewer_bytes(tmp_path: pathlib.Path) -> None:
    start = torch.arange(2**15, dtype=torch.int32).view(64, 512) * 0x01010101
    steps = 1 << 4 * torch.randint(0, 7, (2**15,), generator=torch.Generator().manual_seed(1))
    sizes = {}
    for dtypes in (None, {"*_packed": "I4X2"}):
        words = start.clone()
        directory = tmp_path / str(dtypes)
        log = Log(str(directory / "log"), mirror=str(directory / "mirror.safetensors"), timeout=TIMEOUT)
        directory.mkdir()
        with Publisher([("w_packed", words)], transport=log, dtypes=dtypes) as publisher:
            words.view(-1)[::31] += steps[::31]
            report = publisher.publish()
        sizes[dtypes is not None] = report.wire_bytes
        live = torch.zeros_like(words)
        reader = Log(str(directory / "log"), state=str(directory / "state"))
        assert Subscriber([("w_packed", live)], transport=reader, dtypes=dtypes).update().version == report.version
        assert torch.equal(live, words)
        stored = load_file(directory / "mirror.safetensors")["w_packed"]
        assert (stored.dtype, stored.shape) == (torch.int32, start.shape), "as engines' checkpoints have it"
    assert sizes[True] < 0.8 * sizes[False]


def test_every_dtype_of_torch_is_followed_through_a_log(tmp_path: pathlib.Path) -> None:
    generator = torch.Generator().manual_seed(2)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)

    dtypes = {name: getattr(torch, name) for name in TORCH_DTYPES if hasattr(torch, name)}
    assert {"uint16", "uint32", "uint64", "complex64", "float8_e4m3fnuz", "float8_e5m2fnuz"} <= dtypes.keys()
    bits = {name: noise(50, 8 * dtype.itemsize) for name, dtype in dtypes.items()}
    bits["bool"] &= 1
    live = {name: torch.zeros_like(tensor) for name, tensor in bits.items()}

    def views(tensors: dict[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
        return [(name, tensors[name].view(dtype)) for name, dtype in dtypes.items()]

    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"), timeout=TIMEOUT)
    with Publisher(views(bits), transport=log) as publisher:
        follower = Subscriber(views(live), transport=dataclasses.replace(log, state=str(tmp_path / "follower")))
        for density in (0, 0.001, 0.1, 1):
            changed = {name: torch.rand(tensor.shape, generator=generator) < density for name, tensor in bits.items()}
            for name, tensor in bits.items():
                tensor[changed[name]] ^= 1 if name == "bool" else noise(*tensor.shape)[changed[name]]
            publisher.publish()
            follower.update()
            assert all(torch.equal(live[name], bits[name]) for name in dtypes)
    stored = load_file(tmp_path / "mirror.safetensors")
    kept = {name for name in dtypes if name != "float4_e2m1fn_x2"}  # That one is U8 in files.
    assert all(stored[name].dtype == dtypes[name] for name in kept)
    assert all(torch.equal(stored[name].view(torch.uint8), bits[name]) for name in dtypes)


def test_wrong_use_is_answered_in_words(tmp_path: pathlib.Path) -> None:
    model = make_model(0)
    world = world_of(2)
    with pytest.raises(errors.UsageError, match="there is no detector 'magic'"):
        Publisher(model, transport=world, detector="magic")
    with pytest.raises(errors.UsageError, match="publish_every"):
        Publisher(model, transport=world, publish_every=3)
    with pytest.raises(errors.UsageError, match="needs a mirror"):
        Publisher(model, transport=Log(str(tmp_path / "log")))
    with pytest.raises(errors.UsageError, match="needs fp32 parameters"):
        Publisher(
            model, transport=Log(str(tmp_path / "log"), mirror=str(tmp_path / "m.safetensors")), detector="fused_cast"
        )
    with pytest.raises(errors.UsageError, match="there are no channels 'rdma'"):
        dataclasses.replace(world, channels="rdma")
    with pytest.raises(errors.UsageError, match="no TCP congestion control 'carrier-pigeon'.* available: "):
        dataclasses.replace(world, congestion="carrier-pigeon").open(0)
    with pytest.raises(errors.UsageError, match="a world has no field 'hosts'"):
        World.from_json({**world.to_json(), "hosts": 1})
    with pytest.raises(errors.UsageError, match="'port' of a world must be int"):
        World.from_json({**world.to_json(), "port": "80"})
    assert World.from_json(world.to_json()) == world
    assert world.secret not in repr(world)


def test_an_engine_with_other_shapes_dtypes_or_names_is_named() -> None:
    for change, words in (
        (lambda m: m.double(), "dtype|F64"),
        (lambda m: nn.Sequential(nn.Embedding(51, 16), *list(m)[1:]), "51"),
        (lambda m: nn.Sequential(m), "nearest name there is '0.0.weight'"),
    ):
        model = make_model(0)
        world = dataclasses.replace(world_of(2), timeout=10.0)
        engine = Engine(change(make_model(1)), dataclasses.replace(world, rank_offset=1), 1)
        publisher = Publisher(model, transport=world)
        with pytest.raises(errors.Error, match=words):
            publisher.publish()
        with pytest.raises(errors.Error):
            engine.result()
