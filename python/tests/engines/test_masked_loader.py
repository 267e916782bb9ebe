# SPDX-License-Identifier: Apache-2.0
"""NaN-masked tensors through loaders that want tensors of full shape, against loads of the whole checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sparsecast import Publisher, Subscriber, TensorTable, describe
from sparsecast.buffers import bits_of
from sparsecast.engines.refresh.masked_loader import MaskedLoader
from sparsecast.errors import DirtyError, UnsupportedError

TABLE = [
    ("q", "BF16", (6, 4)),
    ("k", "BF16", (2, 4)),
    ("down", "F32", (5, 3)),
    ("up", "F8_E4M3", (3, 5)),
    ("scale", "F32", ()),
]
Load = Callable[["Engine", str, torch.Tensor], None]


class Engine(torch.nn.Module):
    """Fused, transposed and padded parameters, and a scalar that its loader reads on the host."""

    def __init__(self, load: Load | None = None) -> None:
        super().__init__()
        for name, shape, dtype in (
            ("qk", (8, 4), torch.bfloat16),
            ("down", (3, 5), torch.float32),
            ("up", (4, 5), torch.float8_e4m3fn),
            ("scale", (1,), torch.float32),
        ):
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape).to(dtype), requires_grad=False))
        self._load = load or Engine.load

    def load(self, name: str, tensor: torch.Tensor) -> None:
        if name in "qk":
            self.qk.data.narrow(0, 0 if name == "q" else 6, tensor.shape[0]).copy_(tensor)
        elif name == "down":
            self.down.data.copy_(tensor.t().contiguous())
        elif name == "up":
            padded = torch.zeros(4, 5, dtype=tensor.dtype)
            padded[:3] = tensor
            self.up.data.copy_(padded)
        else:
            self.scale.data.fill_(tensor.item())

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            self._load(self, name, tensor)

    def canonical(self) -> list[torch.Tensor]:
        """The live elements as the checkpoint has them: views."""
        return [self.qk.data[:6], self.qk.data[6:], self.down.data.t(), self.up.data[:3], self.scale.data.view(())]


def random_tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    kinds = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}
    return {name: torch.randn(shape, generator=generator).to(kinds[dtype]) for name, dtype, shape in TABLE}


class Pair:
    """A trainer, and an engine that takes its deltas through its own loader."""

    def __init__(self, load: Load | None = None, values: str = "ulp") -> None:
        self.trainer = random_tensors(1)
        self.engine = Engine()
        self.engine.load_weights(self.trainer.items())
        self.engine._load = load or Engine.load
        table = TensorTable(TABLE)
        self.publisher = Publisher(table, [describe(t) for t in self.trainer.values()], values=values)
        self.subscriber = Subscriber(table, [describe(t) for t in self.engine.canonical()])
        self.loader = MaskedLoader(TABLE, self.engine.load_weights)

    def step(self, seed: int) -> None:
        """Some elements of every tensor become those of another checkpoint."""
        generator = torch.Generator().manual_seed(seed)
        for name, other in random_tensors(seed).items():
            chosen = torch.rand(other.shape, generator=generator) < 0.3
            bits = bits_of(self.trainer[name])
            bits.copy_(torch.where(chosen, bits_of(other), bits))

    def update(self) -> Any:
        delta = self.publisher.publish()
        self.subscriber.stage(delta)
        report = self.subscriber.apply_nan_masked(self.loader)
        self.publisher.commit(report.version)
        return report


def load_in_a_pool(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(Engine.load, engine, name, tensor).result()


@pytest.mark.parametrize(("values", "load"), [("ulp", None), ("raw", None), ("xor", load_in_a_pool)])
def test_after_every_update_the_engine_is_what_a_load_of_the_whole_checkpoint_makes(values: str, load: Any) -> None:
    pair, fresh = Pair(load, values=values), Engine()
    pair.loader.prove(pair.engine)
    addresses = [p.data_ptr() for p in pair.engine.parameters()]
    for version in range(1, 6):
        pair.step(seed=10 + version)
        assert pair.update().version == version
        fresh.load_weights(pair.trainer.items())
        for a, b in zip(pair.engine.parameters(), fresh.parameters(), strict=True):
            assert torch.equal(bits_of(a.data), bits_of(b.data))
    assert [p.data_ptr() for p in pair.engine.parameters()] == addresses
    pair.subscriber.audit()


def test_infinities_and_signed_zeros_are_carried_and_a_nan_that_appears_is_refused_by_name() -> None:
    pair = Pair()
    pair.trainer["q"][0, :3] = torch.tensor([float("inf"), float("-inf"), -0.0])
    pair.update()
    assert torch.equal(bits_of(pair.engine.qk.data[0, :3]), bits_of(pair.trainer["q"][0, :3]))
    before = pair.engine.qk.clone()
    pair.trainer["k"][1, 2] = float("nan")
    with pytest.raises(UnsupportedError, match=r"tensor 'k'"):
        pair.update()
    assert torch.equal(pair.engine.qk, before) and not pair.subscriber.dirty


def computes(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    Engine.load(engine, name, tensor * 1 if name == "down" else tensor)


def casts(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    Engine.load(engine, name, tensor.bfloat16().float() if name == "down" else tensor)


def casts_at_the_end(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    if name == "k":
        engine.down.data[0, :4].copy_(tensor[0])
    Engine.load(engine, name, tensor)


def counts(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    Engine.load(engine, name, tensor)
    engine.scale.data += 1


def replaces(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    if name == "q":
        engine.qk.data = torch.cat([tensor, engine.qk.data[6:]])
    else:
        Engine.load(engine, name, tensor)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (computes, r"'down' cannot be NaN-masked: the loader computes with it \(mul\)"),
        (casts, r"'down' cannot be NaN-masked: the loader casts it to torch.bfloat16"),
        (casts_at_the_end, r"'k' cannot be NaN-masked: the loader casts it to torch.float32"),
        (counts, r"'q': the loader writes something else than copies"),
        (replaces, r"'q': the loader writes something else than copies"),
    ],
)
def test_a_loader_that_does_more_than_copy_is_refused_by_name_and_leaves_no_trace(load: Load, words: str) -> None:
    pair = Pair(load)
    before = [(p.data_ptr(), p.clone()) for p in pair.engine.parameters()]
    with pytest.raises(UnsupportedError, match=words):
        pair.loader.prove(pair.engine)
    for (address, old), now in zip(before, pair.engine.parameters(), strict=True):
        assert now.data_ptr() == address and torch.equal(bits_of(now.data), bits_of(old.data))


def test_integer_tensors_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"'ids' is of I32, which has no NaN"):
        MaskedLoader([("ids", "I32", (4,))], lambda weights: None).prove(torch.nn.Module())


def forgets(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    Engine.load(engine, name, tensor[:5] if name == "q" else tensor)


def test_an_element_that_the_loader_does_not_write_is_found_by_reading() -> None:
    pair = Pair(forgets)
    pair.loader.prove(pair.engine)
    pair.trainer["q"][5, 1] += 1
    with pytest.raises(DirtyError, match="the loader left other bytes"):
        pair.update()
    assert pair.subscriber.dirty


def test_what_a_loader_raises_arrives_and_leaves_the_engine_dirty() -> None:
    def fails(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        raise ValueError(f"no room for {name}")

    pair = Pair(fails)
    pair.trainer["k"][0, 0] += 1
    with pytest.raises(ValueError, match="no room for k"):
        pair.update()
    assert pair.subscriber.dirty
