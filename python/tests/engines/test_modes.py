# SPDX-License-Identifier: Apache-2.0
"""How updates reach a tensor: in place, from a shadow, NaN-masked or whole through the loader, chosen or forced."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, ShardedPublisher, TensorTable, describe, meet
from sparsecast.buffers import bits_of
from sparsecast.engines.receiver import Receiver
from sparsecast.engines.refresh.masked_loader import MaskedLoader
from sparsecast.engines.refresh.masked_reload import MaskedReload
from sparsecast.engines.refresh.recompute import Recomputation, dense_steps, loader_steps, report
from sparsecast.engines.trace.loader import TracedLoader, trace_loader
from sparsecast.errors import DirtyError, UnsupportedError
from sparsecast.transports import World

TABLE = [
    ("q", "BF16", (6, 4)),
    ("k", "BF16", (2, 4)),
    ("down", "F32", (5, 3)),
    ("up", "F8_E4M3", (3, 5)),
    ("scale", "F32", ()),
    ("ids", "I32", (4,)),
    ("a_log", "F32", (4,)),
]
KINDS = {"BF16": torch.bfloat16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn, "I32": torch.int32}
Load = Callable[["Engine", str, torch.Tensor], object]


class Engine(torch.nn.Module):
    """Fused, transposed, padded and integer parameters, a number that is read on the host, and one that is computed."""

    def __init__(self, **loads: Load) -> None:
        super().__init__()
        for name, shape, dtype in (
            ("qk", (8, 4), torch.bfloat16),
            ("down", (3, 5), torch.float32),
            ("up", (4, 5), torch.float8_e4m3fn),
            ("scale", (1,), torch.float32),
            ("ids", (4,), torch.int32),
            ("a", (4,), torch.float32),
        ):
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape).to(dtype), requires_grad=False))
        self.loads: dict[str, Load] = loads

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            self.loads.get(name, Engine.load)(self, name, tensor)

    def load(self, name: str, tensor: torch.Tensor) -> None:
        if name in "qk":
            self.qk.data.narrow(0, 0 if name == "q" else 6, tensor.shape[0]).copy_(tensor)
        elif name == "down":
            self.down.data.copy_(tensor.t().contiguous())
        elif name == "up":
            padded = torch.zeros(4, 5, dtype=tensor.dtype)
            padded[:3] = tensor
            self.up.data.copy_(padded)
        elif name == "a_log":
            self.a.data.copy_(-torch.exp(tensor))
        elif name == "scale":
            self.scale.data.fill_(tensor.item())
        else:
            getattr(self, name).data.copy_(tensor)


def refuses_a_trace(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    if tensor.is_meta:
        raise RuntimeError("its address is wanted")
    Engine.load(engine, name, tensor)


def refuses_a_trace_and_computes(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    refuses_a_trace(engine, name, tensor * 2)


def fails(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    raise RuntimeError("no such layer")


def replaces(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    engine.down.data = tensor.t().contiguous()


def values(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: (torch.randn(shape, generator=generator) * 9).to(KINDS[dtype]) for name, dtype, shape in TABLE}


def addresses(engine: Engine) -> list[int]:
    return [p.data_ptr() for p in engine.parameters()]


def differing(engine: Engine, tensors: dict[str, torch.Tensor]) -> list[str]:
    fresh = Engine()
    fresh.loads = engine.loads
    fresh.load_weights(tensors.items())
    pairs = zip(engine.named_parameters(), fresh.parameters(), strict=True)
    return [name for (name, a), b in pairs if not torch.equal(bits_of(a.data), bits_of(b.data))]


def step(tensors: dict[str, torch.Tensor], seed: int) -> None:
    """Some elements of every tensor become those of another checkpoint, in place."""
    generator = torch.Generator().manual_seed(seed)
    for name, other in values(seed).items():
        chosen = torch.rand(other.shape, generator=generator) < 0.3
        bits_of(tensors[name]).copy_(torch.where(chosen, bits_of(other), bits_of(tensors[name])))


class Served:
    """A trainer, and an engine that holds its checkpoint, over a world of two ranks."""

    def __init__(self, modes: dict[str, str] | None = None, **loads: Load) -> None:
        self.trainer = values(1)
        self.engine = Engine(**loads)
        self.engine.load_weights(self.trainer.items())
        self.traced: TracedLoader = trace_loader(
            self.engine, TABLE, self.engine.load_weights, strict=False, modes=modes or {}
        )
        load: Any = self.engine.load_weights
        self.recomputation = Recomputation(
            self.engine, loader_steps(self.engine, load, self.traced), self.traced, load_weights=load
        )
        assert self.traced.differences(self.traced.filling(self.trainer.items())) == {}
        self.recomputation.prove(as_loaded=True)
        self.traced.require_complete(self.recomputation.derived)
        shards = [
            Shard(i, Box([0] * len(shape), shape), i, 0, self.trainer[name].stride())
            for i, (name, _, shape) in enumerate(TABLE)
        ]
        locals_ = [LocalTensor(name, dtype, self.trainer[name].numel()) for name, dtype, _ in TABLE]
        layout = Layout(TensorTable(TABLE), [RankLayout(locals_, shards)])
        self.publisher = ShardedPublisher(layout, 0, [describe(t) for t in self.trainer.values()])
        self.receiver = Receiver(
            "e", self.traced.layout(), 0, self.traced.memories(), recomputations=[self.recomputation]
        )
        self.pool = ThreadPoolExecutor(1)
        self.generation = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def join(self) -> None:
        self.generation += 1
        meeting = self.pool.submit(self._meet, self.generation)
        self.receiver.join(
            World("127.0.0.1", self.port, "a secret of the test", 2, rank_offset=1, generation=self.generation), 20.0
        )
        meeting.result()

    def _meet(self, generation: int) -> None:
        channel = meet(
            "127.0.0.1",
            self.port,
            rank=0,
            size=2,
            secret="a secret of the test",
            generation=generation,
            timeout=20.0,
        )
        self.publisher.regroup(channel, timeout=20.0)

    def update(self) -> None:
        sync = self.pool.submit(self.publisher.sync, 20.0)
        self.receiver.update(20.0)
        sync.result()

    def modes(self) -> dict[str, list[str]]:
        found: Any = report([self.recomputation])["modes"]
        return {mode: list(names) for mode, names in found.items() if names}

    def close(self) -> None:
        self.receiver.close()
        self.pool.shutdown()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    opened: list[Served] = []

    def make(modes: dict[str, str] | None = None, **loads: Load) -> Served:
        opened.append(Served(modes, **loads))
        return opened[-1]

    yield make
    for served in opened:
        served.close()


CHOICES: dict[str, tuple[dict[str, str], dict[str, Load], dict[str, list[str]]]] = {
    "as the trace finds it": ({}, {}, {"shadow": ["a_log"]}),
    "a loader that wants memory": (
        {},
        {"k": refuses_a_trace, "up": refuses_a_trace, "scale": refuses_a_trace},
        {"shadow": ["a_log"], "nan_masked": ["k", "scale", "up"]},
    ),
    "one that also computes, or takes integers, or replaces": (
        {},
        {"k": refuses_a_trace_and_computes, "ids": refuses_a_trace, "down": replaces},
        {"shadow": ["a_log"], "dense": ["down", "ids", "k"]},
    ),
    "each forced": (
        {"q": "nan_masked", "k": "dense", "down": "shadow", "up": "nan_masked", "scale": "nan_masked", "*": "dense"},
        {},
        {"shadow": ["down"], "nan_masked": ["q", "scale", "up"], "dense": ["a_log", "ids", "k"]},
    ),
    "all dense": ({"*": "dense"}, {}, {"dense": sorted(name for name, _, _ in TABLE)}),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_in_every_mode_the_engine_is_a_fresh_load_after_each_update_and_moves_nothing(
    choice: str, serve: Callable[..., Served]
) -> None:
    modes, loads, expected = CHOICES[choice]
    served = serve(modes, **loads)
    assert served.modes() == expected
    assert differing(served.engine, served.trainer) == [], "the proof changed something"
    before = addresses(served.engine)
    served.join()
    for version in range(1, 6):
        step(served.trainer, seed=10 + version)
        served.update()
        assert differing(served.engine, served.trainer) == []
    assert addresses(served.engine) == before
    served.receiver.audit()
    with torch.no_grad():
        bits_of(served.engine.up.data)[1, 1] ^= 1
    with pytest.raises(DirtyError):
        served.receiver.audit()


def test_the_report_has_the_reason_of_every_mode(serve: Callable[..., Served]) -> None:
    served = serve({"q": "dense"}, k=refuses_a_trace_and_computes, up=refuses_a_trace)
    found: Any = report([served.recomputation])
    assert found["modes"] == {
        "shadow": {"a_log": "a is no copy of it: exp() computes with it"},
        "nan_masked": {"up": "the engine's loader failed: RuntimeError: its address is wanted"},
        "dense": {
            "q": "so it was asked for",
            "k": "the engine's loader failed: RuntimeError: its address is wanted; "
            "tensor 'k' cannot be NaN-masked: the loader computes with it (mul)",
        },
    }
    assert served.traced.in_place == 3 and found["shadows"] == ["a_log", "k", "q", "up"]
    assert found["shadow_bytes"] == 16 + 16 + 48 + 15


def casts(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    Engine.load(engine, name, tensor.float().bfloat16())


def counts(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    Engine.load(engine, name, tensor)
    engine.scale.data += 1


def drops(engine: Engine, name: str, tensor: torch.Tensor) -> None: ...


def chokes_on_nans(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    if not math.isfinite(tensor.item()):
        raise ValueError(f"not a scale: {tensor.item()}")
    Engine.load(engine, name, tensor)


def loads_other_values(engine: Engine, name: str, tensor: torch.Tensor) -> None:
    Engine.load(engine, name, tensor.flip(0))


REFUSED: dict[str, tuple[str, Load | None, str, str]] = {
    "integers": ("ids", None, "nan_masked", r"'ids' is of I32, which has no NaN"),
    "computes": ("a_log", None, "nan_masked", r"'a_log' cannot be NaN-masked: the loader computes with it \(exp\)"),
    "casts": ("k", casts, "nan_masked", r"'k' cannot be NaN-masked: the loader casts it to torch.float32"),
    "counts": ("k", counts, "nan_masked", r"'k': the loader writes something else than copies"),
    "replaces": ("down", replaces, "nan_masked", r"'down': the loader writes something else than copies"),
    "chokes": ("scale", chokes_on_nans, "nan_masked", r"'scale' .*: the loader fails: ValueError: not a scale: nan"),
    "flips": ("q", loads_other_values, "nan_masked", r"'q' cannot be NaN-masked: the loader computes with it \(flip\)"),
    "counts, dense": ("k", counts, "dense", r"loader, given 'k', cannot be run again .*: it reads scale"),
    "computes, in place": ("a_log", None, "in_place", r"'a_log': .*exp\(\) computes with it"),
    "fails": ("k", fails, "dense", r"'k': the engine's loader failed: RuntimeError: no such layer"),
    "wants memory, in place": (
        "k",
        refuses_a_trace,
        "in_place",
        r"'k': the engine's loader failed: .*address is wanted",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mode_that_a_tensor_cannot_take_is_refused_by_name_and_leaves_no_trace(case: str) -> None:
    name, load, mode, words = REFUSED[case]
    engine = Engine()
    engine.load_weights(values(1).items())
    engine.loads = {name: load} if load is not None else {}
    before = [(p.data_ptr(), p.clone()) for p in engine.parameters()]
    traced = trace_loader(engine, TABLE, engine.load_weights, strict=False, modes={name: mode})
    with pytest.raises(UnsupportedError, match=words):  # By the trace, or by the proof.
        traced.require_complete(traced.may_fill())
        for _ in traced.filling(values(1).items()):
            pass
        steps = loader_steps(engine, engine.load_weights, traced)
        Recomputation(engine, steps, traced, load_weights=engine.load_weights).prove(as_loaded=True)
    for (address, old), now in zip(before, engine.parameters(), strict=True):
        assert now.data_ptr() == address and torch.equal(bits_of(now.data), bits_of(old.data))


def test_a_tensor_that_a_loader_drops_is_in_no_mode() -> None:
    engine = Engine(k=drops)
    engine.load_weights(values(1).items())
    copies = {"k": values(1)["k"]}
    with pytest.raises(UnsupportedError, match="'k' cannot be NaN-masked: the loader copies nothing of it"):
        MaskedReload(engine, engine.load_weights, copies).prove(as_loaded=True)


def test_a_model_that_is_not_what_its_checkpoint_was_is_not_masked() -> None:
    engine = Engine()
    engine.load_weights(values(2).items())
    reload = MaskedReload(engine, engine.load_weights, {"k": values(1)["k"]})
    with pytest.raises(UnsupportedError, match="'k' cannot be NaN-masked: what the engine's load has left"):
        reload.prove(as_loaded=True)
    reload.prove(as_loaded=False)


def test_a_tensor_is_read_back_from_where_its_loader_puts_it() -> None:
    def scatter(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        rows = torch.cat([tensor[1:], tensor[:1]]) if name == "q" else torch.stack([tensor[1], tensor[0]])
        if name == "q":
            rows = rows.index_select(0, torch.tensor([5, 4, 3, 2, 1, 0]))[torch.tensor([1, 0, 2, 3, 4, 5])]
        Engine.load(engine, name, rows)

    engine = Engine(q=scatter, k=scatter)
    engine.load_weights(values(1).items())
    loader = MaskedLoader(TABLE, engine.load_weights)
    for name, tensor in values(1).items():
        if name in ("ids", "a_log"):
            continue
        found = torch.zeros_like(tensor)
        assert loader.read_back(name, found)
        assert torch.equal(bits_of(found), bits_of(tensor)), name
    assert differing(engine, values(1)) == []


def test_a_copy_that_the_loader_keeps_for_itself_says_nothing_about_the_model() -> None:
    def copies_first(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        kept = tensor.clone()
        engine.qk.data[:3].copy_(tensor[:3])
        engine.qk.data[3:6].copy_(kept[3:])

    engine = Engine(q=copies_first)
    engine.load_weights(values(1).items())
    found = values(2)["q"]
    MaskedLoader(TABLE, engine.load_weights).read_back("q", found)
    assert torch.equal(bits_of(found), bits_of(values(1)["q"]))


def test_elements_of_other_ranks_are_left_as_they_are() -> None:
    def half(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        Engine.load(engine, name, tensor.narrow(0, 1, 1))

    engine = Engine(k=half)
    engine.load_weights(values(1).items())
    found = torch.full((2, 4), 7, dtype=torch.bfloat16)
    places = MaskedLoader(TABLE, engine.load_weights).read_back("k", found)
    assert [tuple(place.shape) for place in places] == [(1, 4)]
    assert found[0].eq(7).all() and torch.equal(found[1], values(1)["k"][1])


def test_an_element_that_becomes_a_nan_has_its_tensor_loaded_whole_and_reported(serve: Callable[..., Served]) -> None:
    served = serve({"[qk]": "nan_masked"})
    served.join()
    served.trainer["q"][1, 2] = float("nan")
    served.trainer["k"][0, 0] = float("inf")
    served.update()
    assert differing(served.engine, served.trainer) == []
    assert report([served.recomputation])["loaded_whole"] == ["q"]
    served.trainer["q"][1, 1] = 3.0  # The NaN beside it stays, and stands in no one's way.
    served.update()
    assert differing(served.engine, served.trainer) == []
    assert report([served.recomputation])["loaded_whole"] == []


def test_only_elements_that_changed_are_written_when_nan_masked() -> None:
    engine = Engine()
    engine.load_weights(values(1).items())
    copy = values(1)["q"].clone()
    reload = MaskedReload(engine, engine.load_weights, {"q": copy})
    reload.prove(as_loaded=True)
    given: list[torch.Tensor] = []
    engine.loads["q"] = lambda e, name, tensor: (given.append(tensor.clone()), Engine.load(e, name, tensor))
    reload.run()
    assert len(given) == 1, "only read back"
    copy[2, 3] += 1
    given.clear()
    reload.run()
    assert [int(t.isfinite().sum()) for t in given] == [24, 1, 24]
    assert torch.equal(engine.qk.data[:6], copy)


@pytest.mark.parametrize("mode", ["nan_masked", "dense"])
def test_a_loader_that_fails_in_the_pause_leaves_a_dirty_engine_which_a_join_repairs(
    mode: str, serve: Callable[..., Served]
) -> None:
    served = serve({"down": mode})
    served.join()

    def has_no_room(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        raise ValueError("no room")

    served.engine.loads["down"] = has_no_room
    step(served.trainer, seed=20)
    sync = served.pool.submit(served.publisher.sync, 20.0)
    with pytest.raises(DirtyError, match="'down'.* failed: ValueError: no room"):
        served.receiver.update(20.0)
    assert sync.result().version == 1 and served.receiver.state == "dirty"
    with pytest.raises(DirtyError, match="half-written"):
        served.receiver.start_receive(1.0)
    del served.engine.loads["down"]
    served.join()
    assert served.receiver.version == 1
    assert differing(served.engine, served.trainer) == []


def test_a_loader_that_leaves_other_bytes_than_it_was_given_is_found_by_reading_back() -> None:
    engine = Engine()
    engine.load_weights(values(1).items())
    copy = values(1)["down"].clone()
    reload = MaskedReload(engine, engine.load_weights, {"down": copy})
    reload.prove(as_loaded=True)
    calls: list[int] = []

    def forgets(engine: Engine, name: str, tensor: torch.Tensor) -> None:
        calls.append(1)
        if len(calls) != 2:  # The load itself, between two readings.
            Engine.load(engine, name, tensor)

    engine.loads["down"] = forgets
    copy[1, 1] += 1
    with pytest.raises(DirtyError, match="'down': the engine's loader left other bytes"):
        reload.run()


def test_dense_tensors_go_to_the_loader_no_more_bytes_at_a_time_than_the_largest_has() -> None:
    engine = Engine()
    copies = values(1)
    steps = dense_steps(engine, engine.load_weights, copies)
    sizes = [[copy.nbytes for copy in step.inputs] for step in steps]
    assert sum(sizes, []) == [copy.nbytes for copy in copies.values()]
    assert max(map(sum, sizes)) == max(copy.nbytes for copy in copies.values()) and len(sizes) == 4
