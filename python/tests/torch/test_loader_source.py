# SPDX-License-Identifier: Apache-2.0
"""Subscribers of models that keep their weights in another form than the trainer: live, and from a log."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from sparsecast_ports import free_port
from torch import nn

from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable, errors
from sparsecast.torch import LoaderSource, LocalShards, Log, Publisher, Subscriber, World

TABLE = [("q", "BF16", (6, 4)), ("k", "BF16", (2, 4)), ("norm", "F32", (4,)), ("steps", "I64", (1,))]


class Trainer(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.q = nn.Parameter(torch.randn(6, 4, generator=generator).bfloat16(), requires_grad=False)
        self.k = nn.Parameter(torch.randn(2, 4, generator=generator).bfloat16(), requires_grad=False)
        self.norm = nn.Parameter(torch.randn(4, generator=generator), requires_grad=False)
        self.register_buffer("steps", torch.tensor([seed]))

    def step(self) -> None:
        self.q[1, 2] += 1
        self.k[1] -= 1
        self.norm *= 1.5
        self.steps += 1


class Engine(nn.Module):
    """Fuses q and k, and casts the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Parameter(torch.zeros(8, 4, dtype=torch.bfloat16), requires_grad=False)
        self.norm = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16), requires_grad=False)
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
        self.failure: Exception | None = None

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            if self.failure is not None:
                raise self.failure
            place = {"q": self.qk.data[:6], "k": self.qk.data[6:], "norm": self.norm.data, "steps": self.steps}[name]
            place.copy_(tensor)

    def holds(self, trainer: Trainer) -> bool:
        fresh = Engine()
        fresh.load_weights((name, getattr(trainer, name)) for name, _, _ in TABLE)
        return all(
            torch.equal(a, b) for a, b in zip(self.state_dict().values(), fresh.state_dict().values(), strict=True)
        )


def checkpoint(trainer: Trainer) -> list[tuple[str, torch.Tensor]]:
    return [(name, getattr(trainer, name)) for name, _, _ in TABLE]


MODES = [{}, {"q": "nan_masked", "norm": "dense"}, {"*": "dense"}]


@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("seeded", [False, True])
def test_a_live_subscriber_follows_through_the_loader_of_its_model(modes: dict[str, str], seeded: bool) -> None:
    trainer, engine = Trainer(1), Engine()
    if not seeded:
        engine.load_weights(checkpoint(trainer))
    addresses = [p.data_ptr() for p in engine.parameters()]
    files = None if seeded else checkpoint(trainer)
    source = LoaderSource(engine, engine.load_weights, TABLE, modes=modes, checkpoint=files)
    world = World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2, timeout=30.0)
    pauses: list[bool] = []
    subscriber = Subscriber(
        source, transport=dataclasses.replace(world, rank_offset=1), needs_anchor=seeded, pause=pauses.append
    )
    publisher = Publisher(trainer, transport=world)
    with ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(publisher.regroup)
        subscriber.regroup()
        meeting.result()
        assert engine.holds(trainer)
        for version in (1, 2, 3):
            trainer.step()
            publishing = pool.submit(publisher.publish)
            assert subscriber.update().version == version
            publishing.result()
            assert engine.holds(trainer) and subscriber.version == version
    assert [p.data_ptr() for p in engine.parameters()] == addresses
    assert pauses == [True, False] * 3
    subscriber.audit()
    found = subscriber.modes()
    chosen = {name: mode for mode, names in found["modes"].items() for name in names}
    expected = {"norm": "shadow"} if not modes else {n: modes.get(n, modes.get("*")) for n in chosen}
    assert chosen == expected and found["in_place"] == len(TABLE) - len(chosen)
    with torch.no_grad():
        engine.norm[1] += 1
    with pytest.raises(errors.DirtyError, match="norm is not what the engine's loader.* makes of the weights"):
        subscriber.audit()


def test_a_follower_of_a_log_loads_what_it_does_not_patch_and_again_after_a_failure(tmp_path: pathlib.Path) -> None:
    trainer, engine = Trainer(1), Engine()
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"))
    publisher = Publisher(trainer, transport=log)
    source = LoaderSource(engine, engine.load_weights, TABLE, modes={"k": "nan_masked"})
    pauses: list[bool] = []
    subscriber = Subscriber(
        source, transport=dataclasses.replace(log, state=str(tmp_path / "state")), pause=pauses.append
    )
    trainer.step()
    publisher.publish()
    assert subscriber.update().version == 2 and engine.holds(trainer)
    trainer.step()
    publisher.publish()
    engine.failure = ValueError("no room")
    with pytest.raises(errors.DirtyError, match="'k': the engine's loader failed: ValueError: no room"):
        subscriber.update()
    assert subscriber.version is None and pauses[-1] is False
    with pytest.raises(errors.DirtyError, match="no room"):
        subscriber.update()
    engine.failure = None
    subscriber.update()
    assert subscriber.version == 3 and engine.holds(trainer)


def test_copies_that_hold_the_logs_version_before_anything_is_loaded_are_loaded(tmp_path: pathlib.Path) -> None:
    trainer, engine = Trainer(0), Engine()
    for tensor in trainer.state_dict().values():
        tensor.zero_()
    engine.qk.data.fill_(7)
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"))
    Publisher(trainer, transport=log).close()
    source = LoaderSource(engine, engine.load_weights, TABLE, modes={"*": "dense"})
    pauses: list[bool] = []
    subscriber = Subscriber(
        source, transport=dataclasses.replace(log, state=str(tmp_path / "state")), pause=pauses.append
    )
    assert subscriber.version is None
    subscriber.update()
    assert engine.holds(trainer) and subscriber.version == 1 and pauses == [True, False]
    subscriber.update()
    assert pauses == [True, False]


def test_a_follower_of_a_log_patches_fused_tensors_where_they_lie(tmp_path: pathlib.Path) -> None:
    trainer, engine = Trainer(1), Engine()
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"))
    publisher = Publisher(trainer, transport=log)
    source = LoaderSource(engine, engine.load_weights, TABLE)
    subscriber = Subscriber(source, transport=dataclasses.replace(log, state=str(tmp_path / "state")))
    assert subscriber.update().version == 1 and engine.holds(trainer)
    for version in (2, 3):
        trainer.step()
        publisher.publish()
        assert subscriber.update().version == version and engine.holds(trainer)
    assert {"q", "k"}.isdisjoint(name for names in subscriber.modes()["modes"].values() for name in names)


@pytest.mark.parametrize("order", [("q", "k", "v"), ("v", "q", "k")])
def test_fused_tensors_are_published_to_a_log_from_where_they_lie(
    tmp_path: pathlib.Path, order: tuple[str, ...]
) -> None:
    rows = {"q": 4, "k": 2, "v": 2}
    fused = torch.randn(8, 4).bfloat16()
    table = TensorTable([(name, "BF16", (n, 4)) for name, n in rows.items()])
    begin = dict(zip(order, itertools.accumulate((rows[name] for name in order), initial=0), strict=False))
    shards = [
        Shard(index, Box([0, 0], [n, 4]), 0, 4 * begin[name], [4, 1]) for index, (name, n) in enumerate(rows.items())
    ]
    layout = Layout(table, [RankLayout([LocalTensor("fused", "BF16", 32)], shards)])
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"), state=str(tmp_path / "state"))
    publisher = Publisher(LocalShards(layout, [fused.view(-1)], [None]), transport=log)
    held = {name: torch.zeros(n, 4, dtype=torch.bfloat16) for name, n in rows.items()}
    subscriber = Subscriber(list(held.items()), transport=log)
    for _ in range(2):
        subscriber.update()
        for name, n in rows.items():
            assert torch.equal(held[name], fused[begin[name] : begin[name] + n]), name
        fused[begin["k"]] += 1
        publisher.publish()


def test_a_log_refuses_tensors_of_its_table_that_the_rank_does_not_hold(tmp_path: pathlib.Path) -> None:
    table = TensorTable([("q", "F32", (2, 2)), ("k", "F32", (2, 2))])
    shards = [Shard(0, Box([0, 0], [2, 2]), 0, 0, [2, 1])]
    layout = Layout(table, [RankLayout([LocalTensor("q", "F32", 4)], shards)])
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"))
    with pytest.raises(errors.UsageError, match="'k': .* holds nothing of it"):
        Publisher(LocalShards(layout, [torch.zeros(4)], [None]), transport=log)


def test_copies_that_nothing_has_filled_are_refused() -> None:
    engine = Engine()
    source = LoaderSource(engine, engine.load_weights, TABLE)
    world = World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2, rank_offset=1)
    with pytest.raises(errors.UsageError, match="are empty: give LoaderSource the checkpoint"):
        Subscriber(source, transport=world)


def test_a_checkpoint_that_the_model_does_not_hold_is_refused_by_name() -> None:
    engine = Engine()
    engine.load_weights(checkpoint(Trainer(1)))
    other = Trainer(1)
    other.q[1, 1] += 1
    with pytest.raises(errors.UnsupportedError, match=r"not hold what its checkpoint has: 'q' \(1 elements\)"):
        LoaderSource(engine, engine.load_weights, TABLE, checkpoint=checkpoint(other))


def test_tensors_of_which_only_the_bits_are_moved_go_through_the_loader(tmp_path: pathlib.Path) -> None:
    table = [("a", "U32", (4, 8)), ("b", "U32", (2, 8)), ("c", "C64", (3,)), ("f", "F8_E4M3FNUZ", (4, 4))]
    words = {name: torch.randint(0, 256, (*shape[:-1], 8 * shape[-1]), dtype=torch.uint8) for name, _, shape in table}
    views = {
        "a": words["a"][:, :32].clone().view(torch.uint32),
        "b": words["b"][:, :32].clone().view(torch.uint32),
        "c": words["c"].clone().view(torch.complex64),
        "f": words["f"][:, :4].clone().view(torch.float8_e4m3fnuz),
    }

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("ab", torch.zeros(6, 8, dtype=torch.uint32))
            self.register_buffer("c", torch.zeros(3, dtype=torch.complex64))
            self.register_buffer("f", torch.zeros(4, 4, dtype=torch.float8_e4m3fnuz))

        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
            for name, tensor in weights:
                {"a": self.ab[:4], "b": self.ab[4:], "c": self.c, "f": self.f}[name].copy_(tensor)

    engine = Packed()
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"), state=str(tmp_path / "state"))
    with Publisher(list(views.items()), transport=log) as publisher:
        follower = Subscriber(LoaderSource(engine, engine.load_weights, table), transport=log)
        for _ in range(3):
            for tensor in views.values():
                tensor.view(torch.uint8).view(-1)[3] ^= 0x81
            publisher.publish()
            follower.update()
            ab = torch.cat([views["a"].view(torch.int32), views["b"].view(torch.int32)])
            assert torch.equal(engine.ab.view(torch.int32), ab)
            assert torch.equal(engine.c.view(torch.int64), views["c"].view(torch.int64))
            assert torch.equal(engine.f.view(torch.uint8), views["f"].view(torch.uint8))
