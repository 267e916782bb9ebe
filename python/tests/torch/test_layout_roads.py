# SPDX-License-Identifier: Apache-2.0
"""Random layouts of numbered elements at both ends, over a world, a log and a loader: every number arrives at its place.

The oracle is one integer for each element of each canonical tensor, all different: whatever road it took, and however
the two ends cut and place the tensors in their memory, a place that a layout gives to an element holds its number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from sparsecast_ports import free_port
from torch import nn

from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable, errors
from sparsecast.torch import LoaderSource, LocalShards, Log, Publisher, Subscriber, World

Numbers = dict[str, torch.Tensor]
GAP = -1  # What memory holds that no element has.


@dataclasses.dataclass
class Place:
    """Box of a canonical tensor, and where its elements lie in memory `local`."""

    name: str
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    local: int
    first: int
    strides: tuple[int, ...]

    def of(self, canonical: torch.Tensor) -> torch.Tensor:
        return canonical[tuple(slice(o, o + n) for o, n in zip(self.offset, self.extent, strict=True))]

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        return memory.as_strided(self.extent, self.strides, self.first)


@dataclasses.dataclass
class End:
    """Memory of one end, and what is where in it."""

    places: list[Place]
    memory: list[torch.Tensor]

    def write(self, numbers: Numbers) -> None:
        for place in self.places:
            place.within(self.memory[place.local]).copy_(place.of(numbers[place.name]))

    def check(self, numbers: Numbers) -> None:
        left = [torch.ones(len(memory), dtype=torch.bool) for memory in self.memory]
        for place in self.places:
            assert torch.equal(place.within(self.memory[place.local]), place.of(numbers[place.name])), place
            place.within(left[place.local]).fill_(False)
        for memory, unused in zip(self.memory, left, strict=True):
            assert bool((memory[unused] == GAP).all()), "memory was written that no element has"

    def shards(self, numbers: Numbers) -> LocalShards:
        names = list(numbers)
        table = TensorTable([(name, "I64", tuple(tensor.shape)) for name, tensor in numbers.items()])
        shards = [
            Shard(names.index(p.name), Box(list(p.offset), list(p.extent)), p.local, p.first, list(p.strides))
            for p in self.places
        ]
        locals_ = [LocalTensor(f"memory.{i}", "I64", len(memory)) for i, memory in enumerate(self.memory)]
        return LocalShards(Layout(table, [RankLayout(locals_, shards)]), self.memory, [None] * len(self.memory))


def numbered(chosen: random.Random) -> Numbers:
    shapes = [tuple(chosen.randint(1, 6) for _ in range(chosen.randint(1, 4))) for _ in range(chosen.randint(1, 5))]
    ends = list(itertools.accumulate((torch.Size(shape).numel() for shape in shapes), initial=0))
    return {
        f"t{i}": torch.arange(begin, begin + torch.Size(shape).numel()).view(shape)
        for i, (shape, begin) in enumerate(zip(shapes, ends, strict=False))
    }


def cut(chosen: random.Random, length: int) -> list[tuple[int, int]]:
    """Returns random parts (begin, length) of a dimension."""
    at = sorted({0, length, *(chosen.randint(0, length) for _ in range(chosen.randint(0, 2)))})
    return [(a, b - a) for a, b in itertools.pairwise(at)]


def random_end(chosen: random.Random, numbers: Numbers, *, whole: bool) -> End:
    """Cuts the tensors into boxes and scatters these over few memories: dimensions in any order, with gaps between
    elements, and boxes interleaved with copies of themselves. `whole`: every tensor in one piece, as it is in a file.
    """
    boxes = [
        (name, tuple(b for b, _ in box), tuple(n for _, n in box))
        for name, tensor in numbers.items()
        for box in itertools.product(*([(0, n)] if whole else cut(chosen, n) for n in tensor.shape))
    ]
    chosen.shuffle(boxes)
    lengths = [0] * chosen.randint(1, 3)
    places = []
    for name, offset, extent in boxes:
        order = list(range(len(extent)))
        strides, reach = [0] * len(extent), 1 if whole else chosen.choice([1, 1, 2])
        if not whole:
            chosen.shuffle(order)
        for dim in reversed(order):
            strides[dim] = reach
            reach = reach * extent[dim] + (0 if whole else chosen.choice([0, 0, 1]))
        local = chosen.randrange(len(lengths))
        first = lengths[local] + chosen.choice([0, 0, 3])
        places.append(Place(name, offset, extent, local, first, tuple(strides)))
        lengths[local] = first + 1 + sum((n - 1) * s for n, s in zip(extent, strides, strict=True))
    return End(places, [torch.full((n,), GAP) for n in lengths])


def change(chosen: random.Random, numbers: Numbers) -> None:
    """Gives some elements numbers that none has had."""
    for tensor in numbers.values():
        flat = tensor.view(-1)
        for i in chosen.sample(range(len(flat)), chosen.randint(0, len(flat))):
            flat[i] += 1_000_000


class Loaded(nn.Module):
    """A model that holds an end's memory as its parameters, and copies the parts of each tensor to their places."""

    def __init__(self, end: End) -> None:
        super().__init__()
        self.end = end
        self.held = nn.ParameterList([nn.Parameter(memory, requires_grad=False) for memory in end.memory])
        end.memory = [parameter.data for parameter in self.held]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            for place in self.end.places:
                if place.name == name:
                    place.within(self.held[place.local].data).copy_(place.of(tensor))


Source = LocalShards | LoaderSource


def followed(
    road: str, folder: pathlib.Path, publishes: LocalShards, follows: Source
) -> contextlib.AbstractContextManager[Callable[[], None]]:
    """Returns a context whose function publishes, and returns when the follower has it."""
    if road == "log":
        return over_log(folder, publishes, follows)
    return over_world(publishes, follows)


@contextlib.contextmanager
def over_world(publishes: LocalShards, follows: Source) -> Iterator[Callable[[], None]]:
    world = World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2, timeout=60.0)
    subscriber = Subscriber(follows, transport=dataclasses.replace(world, rank_offset=1), needs_anchor=True)
    publisher = Publisher(publishes, transport=world)

    def step() -> None:
        update = pool.submit(subscriber.update)
        publisher.publish()
        update.result()
        subscriber.audit()

    with ThreadPoolExecutor(1) as pool, publisher:
        yield step


@contextlib.contextmanager
def over_log(folder: pathlib.Path, publishes: LocalShards, follows: Source) -> Iterator[Callable[[], None]]:
    log = Log(str(folder / "log"), mirror=str(folder / "mirror.safetensors"))
    with Publisher(publishes, transport=log) as publisher:
        subscriber = Subscriber(follows, transport=dataclasses.replace(log, state=str(folder / "state")))

        def step() -> None:
            publisher.publish()
            subscriber.update()

        yield step


def seeds() -> list[int]:
    given = os.environ.get("SPARSECAST_SEED")
    return [int(given)] if given else [int.from_bytes(os.urandom(3), "little") for _ in range(12)]


@pytest.mark.parametrize("loads", [False, True], ids=["addresses", "loader"])
@pytest.mark.parametrize("road", ["world", "log"])
@pytest.mark.parametrize("seed", seeds())
def test_every_number_arrives_at_its_place(seed: int, road: str, loads: bool, tmp_path: pathlib.Path) -> None:
    chosen = random.Random(seed)
    numbers = numbered(chosen)
    trainer = random_end(chosen, numbers, whole=road == "log")
    # A log's follower patches tensors that lie whole in memory; of others a loader keeps copies.
    engine = random_end(chosen, numbers, whole=road == "log" and not loads)
    trainer.write(numbers)
    source: Source
    if loads:
        model = Loaded(engine)
        table = [(name, "I64", tuple(tensor.shape)) for name, tensor in numbers.items()]
        modes = {"*": "dense"} if road == "log" else {}
        source = LoaderSource(model, model.load_weights, table, modes=modes, may_miss=["held.*"])  # The gaps.
    else:
        source = engine.shards(numbers)
    with followed(road, tmp_path, trainer.shards(numbers), source) as step:
        for _ in range(3):
            change(chosen, numbers)
            trainer.write(numbers)
            step()
            engine.check(numbers)
            trainer.check(numbers)


@pytest.mark.parametrize("seed", seeds())
def test_a_log_refuses_what_does_not_lie_whole_in_memory_before_it_is_made(seed: int, tmp_path: pathlib.Path) -> None:
    chosen = random.Random(seed)
    numbers = numbered(chosen)
    trainer = random_end(chosen, numbers, whole=False)
    refused = {
        p.name
        for p in trainer.places
        if p.extent != numbers[p.name].shape or not p.within(trainer.memory[p.local]).is_contiguous()
    }
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"))
    if not refused:
        Publisher(trainer.shards(numbers), transport=log).close()
        return
    with pytest.raises(errors.UsageError) as caught:
        Publisher(trainer.shards(numbers), transport=log)
    assert any(f"'{name}'" in str(caught.value) for name in refused)
    assert not list(tmp_path.iterdir())
