# SPDX-License-Identifier: Apache-2.0
"""The trace of a loader, with loaders that do one thing each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
import torch

from sparsecast.engines.trace.loader import TracedLoader, TracedShard, trace_loader
from sparsecast.errors import UnsupportedError, UsageError

Weights = Iterable[tuple[str, torch.Tensor]]
Load = Callable[[torch.nn.Parameter, torch.Tensor], None]


class OneParameter(torch.nn.Module):
    """A parameter of `shape`, into which `load` puts every tensor."""

    def __init__(self, shape: tuple[int, ...], load: Load, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)
        self.load = load

    def load_weights(self, weights: Weights) -> None:
        for _, tensor in weights:
            self.load(self.weight, tensor)


def trace_one(
    live: tuple[int, ...], canonical: tuple[int, ...], load: Load, may_miss: tuple[str, ...] = ()
) -> TracedLoader:
    """Traces `load` of tensor "w", checks the map against the loader run for real, and returns it."""
    model = OneParameter(live, load)
    traced = trace_loader(model, [("w", "BF16", canonical)], model.load_weights, may_miss=may_miss)
    assert not model.weight.view(torch.int16).any(), "the trace wrote something"
    bits = torch.randint(-(2**15), 2**15, canonical, dtype=torch.int16, generator=torch.Generator().manual_seed(7))
    tensor = bits.view(torch.bfloat16)
    model.load_weights([("w", tensor)])
    assert traced.differences([("w", tensor)]) == {}
    covered = torch.zeros(live, dtype=torch.bool)
    for shard in traced.shards:
        covered.view(-1).as_strided(shard.extent, shard.strides, shard.first).fill_(True)
    assert not model.weight.view(torch.int16)[~covered].any(), "the loader wrote what no shard has"
    return traced


def boxes(traced: TracedLoader) -> list[tuple[tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]]:
    return [(s.offset, s.extent, s.first, s.strides) for s in traced.shards]


def test_a_plain_copy_is_one_box() -> None:
    traced = trace_one((4, 6), (4, 6), lambda p, t: p.data.copy_(t))
    assert traced.shards == (TracedShard(0, (0, 0), (4, 6), 0, 0, (6, 1)),)


def test_a_slice_of_columns_into_a_slice_of_rows_keeps_both_offsets() -> None:
    def load(p: torch.nn.Parameter, t: torch.Tensor) -> None:
        p.data.narrow(0, 4, 4).copy_(t.narrow(1, 2, 3))

    assert boxes(trace_one((8, 3), (4, 6), load, ("weight",))) == [((0, 2), (4, 3), 12, (3, 1))]


def test_a_transposed_copy_has_transposed_strides() -> None:
    assert boxes(trace_one((6, 4), (4, 6), lambda p, t: p.data.copy_(t.t().contiguous()))) == [
        ((0, 0), (4, 6), 0, (1, 4))
    ]


def test_padding_and_concatenation_are_followed() -> None:
    def load(p: torch.nn.Parameter, t: torch.Tensor) -> None:
        padded = torch.nn.functional.pad(t.clone(), (0, 0, 0, 2))
        p.data.copy_(torch.cat([padded[:, 3:], padded[:, :3]], dim=1))

    assert boxes(trace_one((6, 6), (4, 6), load)) == [((0, 3), (4, 3), 0, (6, 1)), ((0, 0), (4, 3), 3, (6, 1))]


def test_a_reshape_into_heads_is_cut_at_their_borders() -> None:
    def load(p: torch.nn.Parameter, t: torch.Tensor) -> None:
        p.data.copy_(t.view(2, 3, 4, 5).transpose(0, 1).reshape(24, 5))  # [2 groups, 3 kinds, 4 rows] by kind.

    assert len(trace_one((24, 5), (24, 5), load).shards) == 6


def test_a_flattened_tensor_that_is_cut_anywhere_is_put_together_from_rows() -> None:
    traced = trace_one((14,), (4, 6), lambda p, t: p.data.copy_(t.view(-1)[4:18]))
    assert boxes(traced) == [((0, 4), (1, 2), 0, (0, 1)), ((1, 0), (2, 6), 2, (6, 1))]


def test_rows_that_are_picked_by_index_are_found() -> None:
    order = torch.tensor([2, 3, 0, 1])
    assert boxes(trace_one((4, 5), (4, 5), lambda p, t: p.data.copy_(t[order]))) == [
        ((2, 0), (2, 5), 0, (5, 1)),
        ((0, 0), (2, 5), 10, (5, 1)),
    ]


def test_interleaved_rows_are_a_box_each() -> None:
    def load(p: torch.nn.Parameter, t: torch.Tensor) -> None:
        p.data[:3].copy_(t[::2])
        p.data[3:].copy_(t[1::2])

    assert len(trace_one((6, 4), (6, 4), load).shards) == 6


def test_one_scalar_for_all_is_a_copy_in_every_place() -> None:
    assert [s.first for s in trace_one((3,), (1,), lambda p, t: p.data.copy_(t.expand(3))).shards] == [0, 1, 2]


def test_a_value_that_is_read_and_filled_in_again_is_a_copy() -> None:
    model = OneParameter((1,), lambda p, t: p.data.fill_(t.item()), torch.float32)
    traced = trace_loader(model, [("scale", "F32", ())], model.load_weights)
    assert boxes(traced) == [((), (), 0, ())]


def test_a_value_that_is_read_and_used_otherwise_is_refused() -> None:
    model = OneParameter((1,), lambda p, t: p.data.fill_(t.item() * 2), torch.float32)
    with pytest.raises(UnsupportedError, match=r"'scale': the loader reads its value on the host"):
        trace_loader(model, [("scale", "F32", ())], model.load_weights)


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (lambda p, t: p.data.copy_(t * 2), r"weight is no copy of it: mul\(\) computes with it"),
        (lambda p, t: p.data.copy_(t.float()), r"casts torch.bfloat16 to torch.float32"),
        (lambda p, t: p.data.add_(t), r"add_\(\) computes with it"),
        (lambda p, t: p.data.copy_(t.flip(0)), r"flip\(\) computes with it"),
        (lambda p, t: p.data.copy_(t if t.any() else t), r"loader failed"),
        (lambda p, t: (p.data.copy_(t), p.data.mul_(2)), r"mul_\(\) computes with it"),
        (lambda p, t: (p.data.copy_(t), p.data.zero_()), r"weight is written over after it was loaded"),
        (lambda p, t: setattr(p, "data", t.clone()), r"loader failed: RuntimeError"),
        (lambda p, t: p.data.copy_(t[:3]), r"loader failed: RuntimeError"),
    ],
)
def test_what_is_computed_rather_than_copied_is_refused_with_the_reason(load: Load, reason: str) -> None:
    model = OneParameter((4, 6), load)
    before = model.weight.data_ptr()
    with pytest.raises(UnsupportedError, match=rf"'w': .*({reason})"):
        trace_loader(model, [("w", "BF16", (4, 6))], model.load_weights)
    assert model.weight.data_ptr() == before
    assert not model.weight.any()


def test_a_parameter_that_the_loader_replaces_is_refused_and_put_back() -> None:
    model = OneParameter((4, 6), lambda p, t: None)

    def load_weights(weights: Weights) -> None:
        for _, tensor in weights:
            model.weight.data.copy_(tensor)
            model.weight = torch.nn.Parameter(torch.zeros(6, 4, dtype=torch.bfloat16))

    weight = model.weight
    with pytest.raises(UnsupportedError, match=r"'w': the loader replaces weight by another tensor"):
        trace_loader(model, [("w", "BF16", (4, 6))], load_weights)
    assert model.weight is weight


def test_the_refused_are_listed_and_the_others_have_their_map_when_not_strict() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.zeros(4))
            self.b = torch.nn.Parameter(torch.zeros(4))

        def load_weights(self, weights: Weights) -> None:
            for name, tensor in weights:
                getattr(self, name).data.copy_(tensor if name == "a" else tensor.neg())

    model = Two()
    traced = trace_loader(model, [("a", "F32", (4,)), ("b", "F32", (4,))], model.load_weights, strict=False)
    assert [name for name, _, _ in traced.table] == ["a"]
    assert traced.refused == {"b": "b is no copy of it: neg() computes with it"}


def test_two_different_tensors_in_one_place_are_both_refused() -> None:
    def load(p: torch.nn.Parameter, t: torch.Tensor) -> None:
        p.data.copy_(t.view(4, 6))

    model = OneParameter((4, 6), load)
    with pytest.raises(UnsupportedError, match=r"'b': .*from 'a' in one place"):
        trace_loader(model, [("a", "BF16", (4, 6)), ("b", "BF16", (6, 4))], model.load_weights)


def test_a_transposed_parameter_is_addressed_in_its_storage() -> None:
    model = OneParameter((4, 6), lambda p, t: p.data.copy_(t))
    model.weight = torch.nn.Parameter(torch.zeros(6, 4, dtype=torch.bfloat16).t(), requires_grad=False)
    traced = trace_loader(model, [("w", "BF16", (4, 6))], model.load_weights)
    assert boxes(traced) == [((0, 0), (4, 6), 0, (1, 4))]
    assert traced.tensors[0].memory.is_contiguous()


def test_a_name_that_is_given_twice_and_a_dtype_that_is_not_carried_are_refused() -> None:
    model = OneParameter((4,), lambda p, t: p.data.copy_(t))
    with pytest.raises(UsageError, match=r"'w' is named twice"):
        trace_loader(model, [("w", "BF16", (4,)), ("w", "BF16", (4,))], model.load_weights)
    with pytest.raises(UnsupportedError, match=r"'w': dtype F4 is not carried"):
        trace_loader(model, [("w", "F4", (4,))], model.load_weights)


@pytest.mark.parametrize(
    ("live", "sent", "stored"),
    [
        (torch.uint8, ("F4X2", (4, 6)), (4, 6)),
        (torch.int8, ("I4X2", (4, 6)), (4, 6)),
        (torch.int32, ("I4X2", (4, 6, 4)), (4, 6)),
        (torch.int32, ("F4X2", (24, 4)), (24,)),
    ],
)
def test_pairs_of_4_bit_numbers_lie_in_the_words_or_bytes_that_the_loader_copies(
    live: torch.dtype, sent: tuple[str, tuple[int, ...]], stored: tuple[int, ...]
) -> None:
    dtype, shape = sent
    model = OneParameter(stored[::-1], lambda p, t: p.data.copy_(t.t()), live)  # Transposed.
    traced = trace_loader(model, [("w", dtype, shape)], model.load_weights)
    layout = traced.layout()
    assert list(layout.table) == [("w", dtype, shape)]
    (memory,) = traced.memories()
    assert (memory.dtype, memory.elements) == (dtype, math.prod(shape))
    values = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    loaded = values.view(live).view(stored) if live is torch.int32 else values.view(live)
    for shard in layout.ranks[0].shards:
        box = tuple(slice(o, o + n) for o, n in zip(shard.box.offset, shard.box.extent, strict=True))
        bits = traced.tensors[0].memory.view(torch.uint8)
        bits.as_strided(shard.box.extent, shard.strides, shard.first).copy_(values[box])
    assert torch.equal(model.weight, loaded.t())
    assert traced.differences([("w", loaded)]) == {}


def test_bytes_of_one_parameter_are_not_pairs_and_numbers_at_once() -> None:
    def load(weights: Weights) -> None:
        for name, tensor in weights:
            model.weight.data[:2].copy_(tensor) if name == "a" else model.weight.data[2:].copy_(tensor)

    model = OneParameter((4, 6), lambda p, t: None, torch.uint8)
    with pytest.raises(UnsupportedError, match=r"has bits of 'a' \(F4X2\) as well as of it \(U8\)"):
        trace_loader(model, [("a", "F4X2", (2, 6)), ("b", "U8", (2, 6))], load)


def test_random_views_are_mapped_as_torch_copies_them() -> None:
    generator = torch.Generator().manual_seed(11)

    def draw(n: int) -> int:
        return int(torch.randint(n, (1,), generator=generator))

    for _ in range(60):
        shape = tuple(2 + draw(4) for _ in range(3))

        def views(t: torch.Tensor, seed: int = draw(10**6)) -> torch.Tensor:
            state = torch.Generator().manual_seed(seed)
            for _ in range(3):
                kind = int(torch.randint(5, (1,), generator=state))
                dim = int(torch.randint(t.dim(), (1,), generator=state))
                if kind == 0:
                    t = t.transpose(dim, 0)
                elif kind == 1 and t.shape[dim] > 1:
                    t = t.narrow(dim, 1, t.shape[dim] - 1)
                elif kind == 2:
                    t = t.contiguous()
                elif kind == 3:
                    t = t.reshape(-1, t.shape[-1])
                elif t.shape[dim] > 2:
                    t = t[(slice(None),) * dim + (slice(None, None, 2),)]
            return t

        live = tuple(views(torch.empty(shape)).shape)
        trace_one(live, shape, lambda p, t: p.data.copy_(views(t)))
