# SPDX-License-Identifier: Apache-2.0
"""What a rank holds of a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsecast import errors
from sparsecast.torch import shards_of
from sparsecast.transforms import transformed


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("scratch", torch.ones(4), persistent=False)


def test_names_are_those_of_the_state_dict_with_tied_ones_tied() -> None:
    model = Tied()
    shards = shards_of(model)
    assert {name for name, _, _ in shards.layout.table} == set(model.state_dict())
    assert shards.layout.ties == [("head.weight", "embed.weight")]
    assert len(shards.tensors) == 2
    assert shards.tensors[0].data_ptr() == model.embed.weight.data_ptr()


def test_renaming_by_table_and_by_callable_and_leaving_out() -> None:
    model = Tied()
    shards = shards_of(model, rename={"embed.weight": "model.embed_tokens.weight", "scale": None})
    assert [n for n, _, _ in shards.layout.table] == ["model.embed_tokens.weight", "head.weight"]
    shards = shards_of(model, rename=lambda name: None if "head" in name else f"m.{name}")
    assert [n for n, _, _ in shards.layout.table] == ["m.embed.weight", "m.scale"]
    with pytest.raises(errors.UsageError, match="tensor 'x': 'head.weight' has the name of another"):
        shards_of(model, rename=lambda name: "x")
    with pytest.raises(errors.UsageError, match="nothing to send"):
        shards_of(model, rename=lambda name: None)


def test_wire_dtypes_are_cast_by_refresh_and_integers_stay() -> None:
    model = nn.Linear(3, 2)
    count = torch.tensor([3])
    shards = shards_of([("w", model.weight), ("n", count)], wire_dtype=torch.bfloat16)
    assert [d for _, d, _ in shards.layout.table] == ["BF16", "I64"]
    with torch.no_grad():
        model.weight.add_(1)
    shards.refresh()
    assert torch.equal(shards.tensors[0].view(2, 3), model.weight.bfloat16())


def test_without_the_cast_fp32_stays_master_where_it_travels_as_bf16() -> None:
    wide = torch.zeros(4, 60)
    named = [
        ("w", torch.ones(2, 3).t()),
        ("n", torch.tensor([3])),
        ("d", torch.ones(2).double()),
        ("gaps", wide[:, :9]),
    ]
    shards = shards_of(named, wire_dtype=torch.bfloat16, cast=False)
    assert [d for _, d, _ in shards.layout.table] == ["BF16", "I64", "BF16", "BF16"]
    assert [shards.holds_master(local) for local in range(4)] == [True, False, False, False]
    assert [shards.wire_bytes(local) for local in range(4)] == [2, 8, 2, 2]
    assert shards.tensors[0].data_ptr() == named[0][1].data_ptr()
    assert shards.tensors[3].numel() == 36, "a view with wide gaps is cast: a snapshot of it would have them, too"
    with pytest.raises(errors.UsageError, match="tensor 'w': transforms take what travels"):
        transformed(shards, [])


def test_4_bit_numbers_are_declared_by_patterns() -> None:
    words = torch.randint(-(2**31), 2**31, (3, 8), dtype=torch.int64).to(torch.int32)[:, ::2]
    named = [
        ("a.packed", words),
        ("b.packed", torch.arange(6, dtype=torch.uint8).view(2, 3)),
        ("c.packed", torch.arange(6, dtype=torch.int8)),
        ("scale", torch.ones(2, dtype=torch.uint8)),
    ]
    shards = shards_of(named, dtypes={"b.*": "F4X2", "*packed": "I4X2"})
    assert list(shards.layout.table) == [
        ("a.packed", "I4X2", (3, 4, 4)),
        ("b.packed", "F4X2", (2, 3)),
        ("c.packed", "I4X2", (6,)),
        ("scale", "U8", (2,)),
    ]
    (rank,) = shards.layout.ranks
    assert rank.shards[0].strides == (32, 8, 1)
    in_bytes = shards.tensors[0].as_strided((3, 4, 4), rank.shards[0].strides)
    assert torch.equal(in_bytes, words.contiguous().view(torch.uint8).view(3, 4, 4))
    words[1, 2] = 7  # Shared, not copied.
    assert in_bytes[1, 2].tolist() == [7, 0, 0, 0]


def test_a_declaration_that_does_not_fit_names_the_tensor() -> None:
    with pytest.raises(errors.UsageError, match="'w': `dtypes` says I4X2, which uint8, int8 or int32 hold"):
        shards_of([("w", torch.ones(2, dtype=torch.bfloat16))], dtypes={"w": "I4X2"})
    with pytest.raises(errors.UsageError, match="'w': `dtypes` says U8, which is none of I4X2, F4X2"):
        shards_of([("w", torch.ones(2, dtype=torch.uint8))], dtypes={"*": "U8"})
    with pytest.raises(errors.UsageError, match="local shards have their names and dtypes already"):
        shards_of(shards_of([("w", torch.ones(2))]), dtypes={"*": "I4X2"})


def test_strided_parameters_are_addressed_where_they_lie() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    shards = shards_of([("t", base.t()[1:4])])
    shard = shards.layout.ranks[0].shards[0]
    flat = shards.tensors[0]
    assert flat.data_ptr() == base.data_ptr() + 4
    for i in range(3):
        for j in range(4):
            assert flat[shard.first + i * shard.strides[0] + j * shard.strides[1]] == base.t()[1 + i, j]


def test_a_parameter_that_has_moved_is_found_before_stale_memory_is_read() -> None:
    model = nn.Linear(3, 2)
    shards = shards_of(model)
    shards.refresh()
    model.weight.data = model.weight.data.clone()
    with pytest.raises(errors.UsageError, match="tensor 'weight': its memory is not the one"):
        shards.refresh()


def test_parameters_without_memory_are_refused_by_name() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    with pytest.raises(errors.UsageError, match="tensor 'weight': it is on the meta device"):
        shards_of(model)


def test_a_log_of_a_part_is_refused_with_the_way_that_there_is() -> None:
    from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable
    from sparsecast.torch import LocalShards
    from sparsecast.torch.shards import whole_tensors

    half = torch.zeros(6)
    rank = RankLayout([LocalTensor("w", "F32", 6)], [Shard(0, Box([0, 0], [2, 3]), 0, 0, [3, 1])])
    shards = LocalShards(Layout(TensorTable([("w", "F32", (4, 3))]), [rank]), [half], [None])
    with pytest.raises(errors.UsageError, match=r"tensor 'w': a log needs it whole.*sparsecast.relay"):
        whole_tensors(shards, "a log")
