# SPDX-License-Identifier: Apache-2.0
"""What a GPTModel on a CPU cannot show: Transformer Engine's names, grouped experts, errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bare_models import add, model_of, numbers

from sparsecast.errors import UnsupportedError, UsageError
from sparsecast.megatron import MIXTRAL, SHARED_EXPERTS, ParallelState, megatron_layout

HIDDEN, WIDTH, EXPERTS = 8, 12, 4


def config(**options: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "hidden_size": HIDDEN,
            "num_attention_heads": 4,
            "num_query_groups": 2,
            "kv_channels": 4,
            "ffn_hidden_size": 16,
            "gated_linear_unit": True,
            "num_moe_experts": EXPERTS,
            "moe_ffn_hidden_size": WIDTH,
            "moe_shared_expert_intermediate_size": 20,
        }
        | options
    )


def held(model: Any, state: ParallelState | None = None, naming: Any = None, **options: Any) -> dict[str, Any]:
    """By canonical name the whole tensor, with -1 where this rank holds nothing, from the layout alone."""
    from sparsecast.megatron import LLAMA, megatron_tensors

    layout = megatron_layout(model, config(**options), naming or LLAMA, state=state or ParallelState())
    tensors = list(megatron_tensors(model).values())
    whole = {name: torch.full(shape, -1.0) for name, _, shape in layout.table}
    names = list(whole)
    for shard in layout.ranks[0].shards:
        part = torch.as_strided(tensors[shard.local].flatten(), shard.box.extent, shard.strides, shard.first)
        where = tuple(slice(o, o + e) for o, e in zip(shard.box.offset, shard.box.extent, strict=True))
        whole[names[shard.tensor]][where] = part
    return whole


@pytest.mark.parametrize("ep", [0, 1])
@pytest.mark.parametrize("etp", [0, 1])
def test_the_grouped_linear_layers_of_transformer_engine_have_one_parameter_an_expert(ep: int, etp: int) -> None:
    state = ParallelState(expert_rank=ep, expert_size=2, expert_tensor_rank=etp, expert_tensor_size=2)
    gate, up = numbers(EXPERTS, WIDTH, HIDDEN), numbers(EXPERTS, WIDTH, HIDDEN, first=5000)
    down = numbers(EXPERTS, HIDDEN, WIDTH, first=9000)
    half = slice(etp * WIDTH // 2, (etp + 1) * WIDTH // 2)
    here = range(ep * 2, ep * 2 + 2)
    parameters = {
        f"mlp.experts.linear_fc1.weight{i}": torch.cat([gate[e, half], up[e, half]]) for i, e in enumerate(here)
    } | {f"mlp.experts.linear_fc2.weight{i}": down[e][:, half].contiguous() for i, e in enumerate(here)}
    got = held(model_of(parameters), state)
    assert len(got) == 6
    for e in here:
        at = f"model.layers.2.mlp.experts.{e}."
        assert torch.equal(got[f"{at}gate_proj.weight"][half], gate[e, half])
        assert torch.equal(got[f"{at}up_proj.weight"][half], up[e, half])
        assert torch.equal(got[f"{at}down_proj.weight"][:, half], down[e][:, half])
        assert int((got[f"{at}gate_proj.weight"] == -1).sum()) == WIDTH // 2 * HIDDEN


def test_grouped_mlp_holds_all_its_experts_transposed_in_two_parameters() -> None:
    """Its forward views weight1 as [experts, hidden, gate and up] and weight2 as [experts, width, hidden]."""
    state = ParallelState(expert_rank=1, expert_size=2, expert_tensor_rank=1, expert_tensor_size=2)
    gate, up = numbers(EXPERTS, WIDTH, HIDDEN), numbers(EXPERTS, WIDTH, HIDDEN, first=5000)
    down = numbers(EXPERTS, HIDDEN, WIDTH, first=9000)
    half, count = slice(WIDTH // 2, WIDTH), WIDTH // 2
    weight1 = torch.stack([torch.cat([gate[e, half].t(), up[e, half].t()], dim=1) for e in (2, 3)])
    weight2 = torch.stack([down[e][:, half].t() for e in (2, 3)])
    parameters = {
        "mlp.experts.weight1": weight1.contiguous().reshape(HIDDEN, 2 * 2 * count),
        "mlp.experts.weight2": weight2.contiguous().reshape(2 * count, HIDDEN),
    }
    got = held(model_of(parameters), state)
    for e in (2, 3):
        at = f"model.layers.2.mlp.experts.{e}."
        assert torch.equal(got[f"{at}gate_proj.weight"][half], gate[e, half])
        assert torch.equal(got[f"{at}up_proj.weight"][half], up[e, half])
        assert torch.equal(got[f"{at}down_proj.weight"][:, half], down[e][:, half])


def test_norms_inside_of_linear_layers_and_every_bias_have_their_names() -> None:
    qkv = numbers(4 * 4 + 2 * 2 * 4, first=100)
    got = held(
        model_of(
            {
                "self_attention.linear_qkv.layer_norm_weight": numbers(HIDDEN),
                "self_attention.linear_qkv.layer_norm_bias": numbers(HIDDEN, first=20),
                "self_attention.linear_qkv.bias": qkv,
                "self_attention.linear_proj.bias": numbers(HIDDEN, first=40),
                "mlp.linear_fc1.layer_norm_weight": numbers(HIDDEN, first=60),
                "mlp.linear_fc1.bias": numbers(32, first=200),
                "mlp.linear_fc2.bias": numbers(HIDDEN, first=80),
            }
        )
    )
    at = "model.layers.2."
    assert torch.equal(got[f"{at}input_layernorm.weight"], numbers(HIDDEN))
    assert torch.equal(got[f"{at}input_layernorm.bias"], numbers(HIDDEN, first=20))
    assert torch.equal(got[f"{at}self_attn.q_proj.bias"], torch.cat([qkv[:8], qkv[16:24]]))
    assert torch.equal(got[f"{at}self_attn.k_proj.bias"], torch.cat([qkv[8:12], qkv[24:28]]))
    assert torch.equal(got[f"{at}self_attn.v_proj.bias"], torch.cat([qkv[12:16], qkv[28:32]]))
    assert torch.equal(got[f"{at}self_attn.o_proj.bias"], numbers(HIDDEN, first=40))
    assert torch.equal(got[f"{at}post_attention_layernorm.weight"], numbers(HIDDEN, first=60))
    assert torch.equal(got[f"{at}mlp.gate_proj.bias"], numbers(16, first=200))
    assert torch.equal(got[f"{at}mlp.up_proj.bias"], numbers(16, first=216))
    assert torch.equal(got[f"{at}mlp.down_proj.bias"], numbers(HIDDEN, first=80))


def test_an_mlp_without_a_gate_is_up_alone() -> None:
    got = held(model_of({"mlp.linear_fc1.weight": numbers(16, HIDDEN)}), gated_linear_unit=False)
    assert list(got) == ["model.layers.2.mlp.up_proj.weight"]
    assert torch.equal(got["model.layers.2.mlp.up_proj.weight"], numbers(16, HIDDEN))


def test_other_families_have_other_names() -> None:
    parameters = {"mlp.router.weight": numbers(EXPERTS, HIDDEN)}
    parameters |= {f"mlp.experts.linear_fc1.weight{e}": numbers(2 * WIDTH, HIDDEN) for e in range(EXPERTS)}
    mixtral = held(model_of(parameters), naming=MIXTRAL)
    assert "model.layers.2.block_sparse_moe.gate.weight" in mixtral
    assert torch.equal(
        mixtral["model.layers.2.block_sparse_moe.experts.3.w3.weight"], numbers(2 * WIDTH, HIDDEN)[WIDTH:]
    )
    shared = model_of(
        {"mlp.shared_experts.linear_fc2.weight": numbers(HIDDEN, 20)}, mlp__router__expert_bias=numbers(4)
    )
    assert set(held(shared, naming=SHARED_EXPERTS)) == {
        "model.layers.2.mlp.shared_experts.down_proj.weight",
        "model.layers.2.mlp.gate.e_score_correction_bias",
    }


def test_wrapped_chunks_are_unwrapped_and_virtual_stages_told_apart() -> None:
    norm = {"input_layernorm.weight": numbers(HIDDEN)}
    wrapped = torch.nn.Module()
    wrapped.module = model_of(norm, layer_number=7)
    layout = megatron_layout([model_of(norm), wrapped], config(), state=ParallelState(), node="trainer3")
    assert [name for name, _, _ in layout.table] == [f"model.layers.{n}.input_layernorm.weight" for n in (2, 6)]
    locals_ = [local.name for local in layout.ranks[0].tensors]
    assert locals_ == [f"chunks.{v}.decoder.layers.0.input_layernorm.weight" for v in (0, 1)]
    assert layout.ranks[0].node == "trainer3"


def test_padding_beyond_the_vocabulary_is_memory_without_content() -> None:
    model = torch.nn.Module()
    add(model, "embedding.word_embeddings.weight", numbers(8, HIDDEN))
    for rank, rows in ((0, 8), (1, 5), (2, 0)):
        state = ParallelState(tensor_rank=rank, tensor_size=3)
        layout = megatron_layout(model, config(), vocab_size=13, state=state)
        assert sum(shard.box.extent[0] for shard in layout.ranks[0].shards) == rows
        assert layout.ranks[0].tensors[0].elements == 8 * HIDDEN
    with pytest.raises(UsageError, match="word_embeddings.*25 in 24"):
        megatron_layout(model, config(), vocab_size=25, state=state)


def test_what_is_not_known_is_refused_by_name() -> None:
    state = ParallelState()
    strange = model_of({"self_attention.linear_q_down_proj.weight": numbers(4, 4)})
    with pytest.raises(UnsupportedError, match="linear_q_down_proj.*no rule"):
        megatron_layout(strange, config(), state=state)
    one_parameter = model_of({"mlp.experts.linear_fc1.weight": numbers(EXPERTS, 2 * WIDTH, HIDDEN)})
    with pytest.raises(UnsupportedError, match=r"mlp\.experts\.linear_fc1\.weight.*no rule"):
        megatron_layout(one_parameter, config(), state=state)
    skipped = megatron_layout(strange, config(), state=state, skip=["*q_down_proj*"])
    assert (len(skipped.table), len(skipped.ranks[0].tensors)) == (0, 1)
    hybrid = model_of({"mlp.linear_fc1.weight": numbers(32, HIDDEN)})
    hybrid.get_submodule("decoder").layer_type_list = ["-"]  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match="linear_fc1.*hybrid models count"):
        megatron_layout(hybrid, config(), state=state)
    with pytest.raises(UsageError, match=r"linear_fc1.weight.*\[30, 8\].*\[32, 8\] is due"):
        megatron_layout(model_of({"mlp.linear_fc1.weight": numbers(30, HIDDEN)}), config(), state=state)
    with pytest.raises(UsageError, match="expert 4 where the configuration puts 4"):
        megatron_layout(model_of({"mlp.experts.linear_fc1.weight4": numbers(24, HIDDEN)}), config(), state=state)
    with pytest.raises(UnsupportedError, match="output gate"):
        gated = config(attention_output_gate=True)
        megatron_layout(model_of({"self_attention.linear_qkv.weight": numbers(32, HIDDEN)}), gated, state=state)
    with pytest.raises(UnsupportedError, match="one after another"):
        megatron_layout(model_of({"mlp.router.weight": numbers(HIDDEN, EXPERTS).t()}), config(), state=state)
    for option in (
        "layernorm_zero_centered_gamma",
        "rotary_interleaved",
        "moe_mlp_glu_interleave_size",
        "moe_shared_expert_glu_interleave_size",
    ):
        with pytest.raises(UnsupportedError, match=option):
            megatron_layout(torch.nn.Module(), config(**{option: 32}), state=state)
