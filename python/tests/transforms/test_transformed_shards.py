# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable
from sparsecast.errors import UsageError
from sparsecast.torch import LocalShards, shards_of
from sparsecast.transforms import Fp8BlockQuantize, LoraAdapter, LoraMerge, Transforms, transformed


class Model(torch.nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embed_tokens = torch.nn.Embedding(40, 64, dtype=torch.bfloat16)
        self.up_proj = torch.nn.Linear(64, 96, bias=True, dtype=torch.bfloat16)
        self.lm_head = torch.nn.Linear(64, 40, bias=False, dtype=torch.bfloat16)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight


def contents(shards: LocalShards) -> dict[str, torch.Tensor]:
    """Every canonical tensor as the layout's addresses give it, -1 where this rank holds nothing."""
    names = [(name, tuple(shape)) for name, _, shape in shards.layout.table]
    whole = {name: torch.full(shape, -1.0) for name, shape in names}
    (rank,) = shards.layout.ranks
    assert [local.elements for local in rank.tensors] == [tensor.numel() for tensor in shards.tensors]
    for shard in rank.shards:
        memory = shards.tensors[shard.local].view(-1)
        part = memory.as_strided(shard.box.extent, shard.strides, memory.storage_offset() + shard.first)
        where = tuple(slice(o, o + e) for o, e in zip(shard.box.offset, shard.box.extent, strict=True))
        whole[names[shard.tensor][0]][where] = part.float()
    return whole


def test_a_publishers_tensors_are_the_results_and_follow_the_weights() -> None:
    model = Model(tied=False)
    steps = [Fp8BlockQuantize(block=(32, 32))]
    shards = transformed(shards_of(model), steps)
    addresses = [tensor.data_ptr() for tensor in shards.tensors]
    for _ in range(2):
        weight = model.up_proj.weight.detach()
        direct = Transforms(steps, [("w", "BF16", weight.shape)])("w", weight)
        got = contents(shards)
        assert torch.equal(got["up_proj.weight"], direct[0][1].float())
        assert torch.equal(got["up_proj.weight_scale_inv"], direct[1][1])
        assert torch.equal(got["up_proj.bias"], model.up_proj.bias.detach().float())
        assert torch.equal(got["embed_tokens.weight"], model.embed_tokens.weight.detach().float())
        assert "lm_head.weight_scale_inv" not in got
        with torch.no_grad():
            model.up_proj.weight.mul_(-1.5)
            model.up_proj.bias.add_(1)
        shards.refresh()
    assert [tensor.data_ptr() for tensor in shards.tensors] == addresses


def test_tied_names_stay_tied_to_all_results() -> None:
    shards = transformed(shards_of(Model(tied=True)), [Fp8BlockQuantize(skip=[])])
    assert set(shards.layout.ties) == {
        ("lm_head.weight", "embed_tokens.weight"),
        ("lm_head.weight_scale_inv", "embed_tokens.weight_scale_inv"),
    }
    with pytest.raises(UsageError, match="lm_head.weight.*tied"):
        transformed(shards_of(Model(tied=True)), [Fp8BlockQuantize(skip=["embed_tokens*"])])


def test_several_boxes_of_a_tensor_in_one_parameter_are_merged_and_quantised_together() -> None:
    """Heads of q in Megatron's linear_qkv, 16 rows each, in blocks of 32."""
    fused = torch.randn(96, 64, generator=torch.Generator().manual_seed(6)).to(torch.bfloat16)
    pieces = [Shard(0, Box((16 * group, 0), (16, 64)), 0, 48 * group * 64, (64, 1)) for group in (0, 1)]
    layout = Layout(
        TensorTable([("q_proj.weight", "BF16", (32, 64))]),
        [RankLayout([LocalTensor("linear_qkv.weight", "BF16", fused.numel())], pieces)],
    )
    adapter = LoraAdapter(torch.ones(1, 64), torch.ones(32, 1), 0.25)
    steps = [LoraMerge({"q_proj.weight": [adapter]}), Fp8BlockQuantize(block=(32, 32))]
    shards = transformed(LocalShards(layout, [fused.view(-1)], [None]), steps)
    query = torch.cat([fused[:16], fused[48:64]])
    merged = (query.float() + 0.25).to(torch.bfloat16)
    direct = Transforms(steps[1:], [("w", "BF16", (32, 64))])("w", merged)
    got = contents(shards)
    assert torch.equal(got["q_proj.weight"], direct[0][1].float())
    assert torch.equal(got["q_proj.weight_scale_inv"], direct[1][1])
