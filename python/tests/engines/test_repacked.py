# SPDX-License-Identifier: Apache-2.0
"""Parameters that post-processing changes in form: which can be made of copies as loaded, and what an update leaves.

The repacks here are made up, to try the mechanism; those of engines are in test_vllm_low_bit.py and
test_sglang_low_bit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch

from sparsecast.engines.refresh.constants import Constants
from sparsecast.engines.refresh.recompute import Recomputation, loader_step
from sparsecast.engines.refresh.repacked import RepackedModules
from sparsecast.engines.trace.loader import TracedLoader, trace_loader
from sparsecast.errors import DirtyError, UnsupportedError, UsageError


class Kernel:
    """An object that post-processing makes, and that keeps tensors of its own beside the layer's."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self.weight = weight
        self.tables = {"inverse": 1 / scale}


class Layer(torch.nn.Module):
    """A layer that is loaded as [rows, columns] with a scale a row, and then repacked as `finish` says."""

    def __init__(self, finish: Callable[[Any], object]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(4, 6, dtype=torch.int8), requires_grad=False)
        self.scale = torch.nn.Parameter(torch.empty(4, 1), requires_grad=False)
        for parameter in self.parameters():
            parameter.loader = self.load  # type: ignore[attr-defined]
        self.kernel: Any = None
        self.finish = finish

    def load(self, parameter: torch.nn.Parameter, tensor: torch.Tensor, row: int) -> None:
        parameter.data.narrow(0, row, tensor.shape[0]).copy_(tensor)


class Model(torch.nn.Module):
    """A layer of two fused halves, and a neighbour that is no more than loaded."""

    def __init__(self, finish: Callable[[Any], object]) -> None:
        super().__init__()
        self.layer = Layer(finish)
        self.neighbour = torch.nn.Linear(6, 4, dtype=torch.bfloat16)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        parameters: dict[str, Any] = dict(self.named_parameters())
        for name, tensor in weights:
            half, _, key = name.rpartition(".")
            if half in ("up", "gate"):
                parameter = parameters[f"layer.{key}"]
                parameter.loader(parameter, tensor, 0 if half == "gate" else 2)
            else:
                parameters[name].data.copy_(tensor)


TABLE = [
    ("gate.weight", "I8", (2, 6)),
    ("gate.scale", "F32", (2, 1)),
    ("up.weight", "I8", (2, 6)),
    ("up.scale", "F32", (2, 1)),
    ("neighbour.weight", "BF16", (4, 6)),
    ("neighbour.bias", "BF16", (4,)),
]


def values(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    found = {}
    for name, dtype, shape in TABLE:
        if dtype == "I8":
            found[name] = torch.randint(-100, 100, shape, generator=random).to(torch.int8)
        else:
            found[name] = torch.rand(shape, generator=random).to(torch.bfloat16 if dtype == "BF16" else torch.float32)
    return found


def loaded(finish: Callable[[Any], object], seed: int = 1) -> Model:
    model = Model(finish)
    model.load_weights(values(seed).items())
    finish(model.layer)
    return model


def prepared(model: Model, finish: Callable[[Any], object], table: Any = TABLE) -> tuple[TracedLoader, Recomputation]:
    """As a receiver does it, with shadows and copies filled from the checkpoint of seed 1."""
    with torch.device("meta"):
        twin = Model(finish)
    repacked = RepackedModules(model, twin, {"layer": partial(finish, twin.layer)})
    with repacked.shown():
        traced = trace_loader(model, table, model.load_weights, strict=False, modes={}, several=repacked.parameters)
    traced = repacked.completed(traced)
    traced.require_complete()
    shadows = traced.shadows()
    loader = [loader_step(model, repacked.around(model.load_weights), shadows)] if shadows else []
    assert traced.differences(traced.filling((n, t) for n, t in values(1).items())) == {}
    return traced, Recomputation(model, repacked.steps(loader), traced)


def patch(traced: TracedLoader, tensors: dict[str, torch.Tensor]) -> None:
    """What an apply writes."""
    for shard in traced.shards:
        box = tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.extent, strict=True))
        memory = traced.tensors[shard.local].memory
        memory.as_strided(shard.extent, shard.strides, shard.first).copy_(tensors[traced.table[shard.tensor][0]][box])


def replace(layer: Any, name: str, tensor: torch.Tensor) -> None:
    setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))


def transpose(layer: Any) -> None:
    replace(layer, "weight", layer.weight.data.t())


def rearrange(layer: Any) -> None:
    replace(layer, "weight", layer.weight.data.t().contiguous())


def pack(layer: Any) -> None:
    """Pairs of 4-bit values in one byte, another dtype, other names, and a kernel that has some of it."""
    low, high = (layer.weight.data[:, i::2].to(torch.uint8) & 15 for i in (0, 1))
    replace(layer, "packed", (low | high << 4).t().contiguous())
    del layer.weight
    layer.kernel = Kernel(layer.packed, layer.scale.data)


def swizzle_in_place(layer: Any) -> None:
    """The same form, other places."""
    layer.weight.data.copy_(layer.weight.data.flip(0).clone())
    layer.scale.data = layer.scale.data * 2


def tensors_of(model: Model) -> dict[str, torch.Tensor]:
    found = dict(model.named_parameters())
    kernel = model.layer.kernel
    return found | ({"kernel": kernel.weight, "inverse": kernel.tables["inverse"]} if kernel is not None else {})


IN_PLACE = {transpose: 4 * 6 + 4 * 4, pack: 4 * 4, swizzle_in_place: 0}
"""Repacks, and how many bytes of the layer they leave where they were."""


@pytest.mark.parametrize("finish", [pack, swizzle_in_place])
def test_repacked_parameters_follow_updates_and_keep_their_addresses(finish: Callable[[Any], object]) -> None:
    model = loaded(finish)
    before = {name: (t.data_ptr(), t) for name, t in tensors_of(model).items()}
    kernel = model.layer.kernel
    traced, recomputation = prepared(model, finish)
    recomputation.prove(as_loaded=True)
    assert recomputation.repacked == ["layer"]
    assert recomputation.shadow_bytes == 4 * 6 + 4 * 4 - IN_PLACE[finish]
    assert traced.in_place == (4 if IN_PLACE[finish] else 2)
    for seed in range(2, 12):
        patch(traced, values(seed))
        recomputation.run()
        fresh = tensors_of(loaded(finish, seed))
        live = tensors_of(model)
        assert live.keys() == fresh.keys() == before.keys()
        for name, tensor in live.items():
            assert torch.equal(tensor, fresh[name]) and tensor.stride() == fresh[name].stride()
            assert tensor is before[name][1] and tensor.data_ptr() == before[name][0]
    assert model.layer.kernel is kernel, "a kernel that a graph has captured stays"
    recomputation.audit()
    next(iter(model.layer.parameters())).data[0, 0] += 1
    with pytest.raises(DirtyError, match=r"layer\..* is not what the engine's post-processing of layer makes"):
        recomputation.audit()


def test_parameters_whose_bytes_stay_where_they_are_are_patched_there() -> None:
    model = loaded(transpose)
    addresses = [p.data_ptr() for p in model.parameters()]
    traced, recomputation = prepared(model, transpose)
    recomputation.prove(as_loaded=True)
    assert recomputation.repacked == [] and recomputation.shadow_bytes == 0 and traced.in_place == 6
    patch(traced, values(2))
    for tensor, fresh in zip(model.parameters(), loaded(transpose, 2).parameters(), strict=True):
        assert torch.equal(tensor, fresh)
    assert [p.data_ptr() for p in model.parameters()] == addresses


def test_several_tensors_that_are_loaded_into_one_place_are_loaded_as_the_engine_does() -> None:
    class Shaped(Model):
        """A loader that gives the shape of each half to one parameter, so that the last stays."""

        def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
            super().load_weights((n.replace("gate.scale", "up.scale"), t) for n, t in weights)

    model, fresh = Shaped(transpose), Shaped(transpose)
    for each in (model, fresh):
        each.layer.scale.data.zero_()
        each.load_weights(values(1).items())
        transpose(each.layer)
    with torch.device("meta"):
        twin = Shaped(transpose)
    repacked = RepackedModules(model, twin, {"layer": partial(transpose, twin.layer)})
    with repacked.shown():
        traced = trace_loader(model, TABLE, model.load_weights, strict=False, modes={}, several=repacked.parameters)
    assert set(traced.shadowed) == {"gate.scale", "up.scale"}
    assert "is loaded from it and from 'gate.scale' in one place" in traced.shadowed["up.scale"]
    assert traced.ties == ()


def draw(layer: Any) -> None:
    replace(layer, "weight", layer.weight.data.t() + torch.randint(0, 2, (6, 4)))


def read_the_neighbour(layer: Any) -> None:
    replace(layer, "weight", (layer.weight.data.t().float() * NEIGHBOURS[0].data.sum().float()).to(torch.int8))


def hide_the_input(layer: Any) -> None:
    if not layer.weight.is_meta:
        HIDDEN.append(torch.cat([layer.weight.data.t().float()] * 16))
    replace(layer, "weight", HIDDEN[0][:6].to(torch.int8))


def write_the_neighbour(layer: Any) -> None:
    NEIGHBOURS[0].data.zero_()
    rearrange(layer)


def fail_at_the_second_time(layer: Any) -> None:
    HIDDEN.append(torch.empty(0))
    if len(HIDDEN) >= 2:
        raise ValueError("already repacked")
    rearrange(layer)


def count(layer: Any) -> None:
    HIDDEN.append(torch.empty(0))
    replace(layer, "weight", layer.weight.data.t() + len(HIDDEN))


def grow(layer: Any) -> None:
    HIDDEN.append(torch.empty(0))
    replace(layer, "weight", torch.cat([layer.weight.data.t()] * len(HIDDEN)))


def keep_more_at_first(layer: Any) -> None:
    HIDDEN.append(torch.empty(0))
    if len(HIDDEN) == 1:
        layer.extra = [layer.scale.data * 2]
    rearrange(layer)


HIDDEN: list[torch.Tensor] = []
NEIGHBOURS: list[torch.Tensor] = []

HOSTILE: dict[Callable[[Any], object], str] = {
    draw: r"it draws random numbers \(randint\)",
    read_the_neighbour: "it reads neighbour.weight, which is not its own",
    hide_the_input: "it reads a tensor that no module shows",
    write_the_neighbour: "it writes neighbour.weight, which is not its own",
    fail_at_the_second_time: "it fails when it is run again: ValueError: already repacked",
    count: "does not make layer.weight again: it differs from what the engine's load has left",
    grow: r"it makes \(18, 4\) of torch.int8 where layer.weight is \(6, 4\) of torch.int8",
    keep_more_at_first: "it does not make layer.extra.0",
}


@pytest.mark.parametrize("finish", HOSTILE, ids=lambda finish: finish.__name__)
def test_a_repack_that_is_no_function_of_one_module_is_refused_with_the_reason_and_leaves_no_trace(
    finish: Callable[[Any], object],
) -> None:
    HIDDEN.clear()
    model = Model(finish)
    NEIGHBOURS[:] = [model.neighbour.weight]
    model.load_weights(values(1).items())
    finish(model.layer)
    model.neighbour.weight.data.copy_(values(1)["neighbour.weight"])
    before = {name: (t.data_ptr(), t.clone()) for name, t in model.named_parameters()}
    recomputation = prepared(model, finish)[1]
    with pytest.raises(UnsupportedError, match=HOSTILE[finish]):
        recomputation.prove(as_loaded=True)
    for name, tensor in model.named_parameters():
        assert tensor.data_ptr() == before[name][0] and torch.equal(tensor, before[name][1])


def test_elements_that_nothing_fills_are_refused_if_post_processing_makes_something_of_them() -> None:
    table = [entry for entry in TABLE if entry[0] != "up.scale"]

    def drop_the_scale(layer: Any) -> None:
        rearrange(layer)
        layer.scale = None

    def double_the_scale(layer: Any) -> None:
        replace(layer, "scale", layer.scale.data * 2)

    traced, recomputation = prepared(loaded(drop_the_scale), drop_the_scale, table)
    assert traced.missing == {}
    recomputation.prove(as_loaded=True)
    with pytest.raises(UnsupportedError, match="no canonical tensor fills all of layer.scale, and the engine's"):
        prepared(loaded(double_the_scale), double_the_scale, table)
    with pytest.raises(UsageError, match=r"no canonical tensor fills 'layer.scale', 2 of 4 elements"):
        prepared(loaded(transpose), transpose, table)


class Padded(Model):
    """A model whose layer has more rows than are loaded: padding, which is made as ones, or as `made` says."""

    def __init__(self, finish: Callable[[Any], object], made: Callable[..., torch.Tensor] = torch.ones) -> None:
        super().__init__(finish)
        for name, parameter in (("weight", self.layer.weight), ("scale", self.layer.scale)):
            rows = made(6, parameter.shape[1], dtype=parameter.dtype)
            replace(self.layer, name, rows)
            getattr(self.layer, name).loader = self.layer.load


def padded(finish: Callable[[Any], object], made: Callable[..., torch.Tensor], table: Any = TABLE) -> Any:
    """A loaded model, with its map and its recomputation."""
    model = Padded(finish, made)
    with torch.device("meta"), Constants() as constants:
        twin = Padded(finish, made)
    model.load_weights(values(1).items())
    finish(model.layer)
    repacked = RepackedModules(model, twin, {"layer": partial(finish, twin.layer)}, constants)
    with repacked.shown():
        traced = trace_loader(model, table, model.load_weights, strict=False, modes={}, several=repacked.parameters)
    traced = repacked.completed(traced)
    traced.require_complete()
    assert traced.differences(traced.filling((n, t) for n, t in values(1).items())) == {}
    return model, traced, Recomputation(model, repacked.steps([]), traced)


@pytest.mark.parametrize("finish", [pack, transpose])
def test_padding_keeps_the_constant_that_it_is_made_with(finish: Callable[[Any], object]) -> None:
    model, traced, recomputation = padded(finish, torch.ones)
    recomputation.prove(as_loaded=True)
    for seed in (2, 3):
        patch(traced, values(seed))
        recomputation.run()
        fresh = Padded(finish)
        fresh.load_weights(values(seed).items())
        finish(fresh.layer)
        for name, tensor in tensors_of(fresh).items():
            assert torch.equal(tensors_of(model)[name], tensor)


def test_a_rest_that_is_no_padding_is_refused() -> None:
    def unknown(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype).add_(2)

    with pytest.raises(UnsupportedError, match="no canonical tensor fills all of layer.weight, and the engine's"):
        padded(pack, unknown)  # What it is made with is not known.
    with pytest.raises(UsageError, match=r"no canonical tensor fills 'layer.weight', 12 of 36 elements"):
        padded(transpose, unknown)
    without = [entry for entry in TABLE if entry[0] != "up.scale"]
    with pytest.raises(UsageError, match=r"no canonical tensor fills 'layer.scale', 4 of 6 elements"):
        padded(transpose, torch.ones, without)  # Some of the rest is what a tensor has filled that is not sent.
    recomputation = padded(swizzle_in_place, torch.ones, without)[2]
    with pytest.raises(UnsupportedError, match=r"does not make layer.* again: it differs from what the engine's load"):
        recomputation.prove(as_loaded=True)
    recomputation = padded(pack, torch.ones)[2]
    with pytest.raises(UnsupportedError, match=r"whether the rest is padding .*join with proof='checkpoint'"):
        recomputation.prove(as_loaded=False)


def test_copies_are_handed_to_the_next_map_of_the_model_or_refused_by_name() -> None:
    model = loaded(pack)
    first = prepared(model, pack)[0]
    second = prepared(model, pack)[0]
    for copy in second.kept().values():
        copy.zero_()
    second.fill_shadows(first.kept())
    assert all(torch.equal(copy, first.kept()[name]) for name, copy in second.kept().items())
    with pytest.raises(UnsupportedError, match=r"'layer.weight as loaded' is not patched in place .*needs_anchor"):
        second.fill_shadows({})


def test_weights_that_are_still_to_come_are_made_twice_instead_of_compared() -> None:
    model = loaded(pack)
    traced, recomputation = prepared(model, pack)
    for copy in traced.kept().values():
        copy.zero_()
    recomputation.prove(as_loaded=False)
    patch(traced, values(3))
    recomputation.run()
    assert torch.equal(model.layer.packed, loaded(pack, 3).layer.packed)
