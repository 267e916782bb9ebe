# SPDX-License-Identifier: Apache-2.0
"""What models on a CPU cannot show: Transformer Engine's names, grouped experts, errors."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bare_models import add, model_of, numbers

sys.path.insert(0, str(Path(__file__).parent.parent / "engines"))

from computed_models import NEMOTRON_H_EXPERTS, nemotron_shapes

from sparsecast.errors import UnsupportedError, UsageError
from sparsecast.megatron import MIXTRAL, NEMOTRON_H, SHARED_EXPERTS, ParallelState, megatron_layout

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


def test_latent_experts_are_as_wide_as_the_latent_projections_make_them() -> None:
    state = ParallelState(expert_rank=1, expert_size=2, expert_tensor_rank=1, expert_tensor_size=2)
    up, down = numbers(WIDTH, 6, first=100), numbers(6, WIDTH, first=300)
    model = model_of(
        {
            "mlp.fc1_latent_proj.weight": numbers(6, HIDDEN),
            "mlp.fc2_latent_proj.weight": numbers(HIDDEN, 6),
            "mlp.experts.linear_fc1.weight1": up[WIDTH // 2 :].clone(),
            "mlp.experts.linear_fc2.weight1": down[:, WIDTH // 2 :].contiguous(),
            "mlp.shared_experts.linear_fc1.weight": numbers(20, HIDDEN, first=500),
        }
    )
    model.get_submodule("decoder").layer_type_list = ["E"]  # type: ignore[assignment]
    got = held(model, state, NEMOTRON_H, gated_linear_unit=False, moe_latent_size=6)
    at = "backbone.layers.2.mixer."
    assert torch.equal(got.pop(f"{at}fc1_latent_proj.weight"), numbers(6, HIDDEN))
    assert torch.equal(got.pop(f"{at}fc2_latent_proj.weight"), numbers(HIDDEN, 6))
    assert torch.equal(got.pop(f"{at}experts.3.up_proj.weight")[WIDTH // 2 :], up[WIDTH // 2 :])
    assert torch.equal(got.pop(f"{at}experts.3.down_proj.weight")[:, WIDTH // 2 :], down[:, WIDTH // 2 :])
    assert torch.equal(got.pop(f"{at}shared_experts.up_proj.weight"), numbers(20, HIDDEN, first=500))
    assert not got
    with pytest.raises(UsageError, match=r"linear_fc1\.weight1.*\[6, 8\] is due"):
        held(model, state, NEMOTRON_H, gated_linear_unit=False)


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


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("conv", ["conv1d.", "conv1d_"], ids=["module", "parameters"])
def test_each_part_of_a_mamba_mixer_is_cut_on_its_own(rank: int, conv: str) -> None:
    """Of 0.16.1's conv1d, which is a module, and of newer ones."""
    heads, inner, states = 4, 12, 10
    options = {"mamba_num_heads": heads, "mamba_head_dim": 3, "mamba_num_groups": 2, "mamba_state_dim": 5}
    whole = {
        "in_proj.weight": numbers(2 * inner + 2 * states + heads, HIDDEN),
        "conv1d.weight": numbers(inner + 2 * states, 1, 4, first=500),
        "conv1d.bias": numbers(inner + 2 * states, first=800),
        "A_log": numbers(heads, first=900),
        "D": numbers(heads, first=910),
        "dt_bias": numbers(heads, first=920),
        "norm.weight": numbers(inner, first=930),
        "out_proj.weight": numbers(HIDDEN, inner, first=1000),
    }
    parts = {"in_proj.weight": [inner, inner, states, states, heads]} | {
        f"conv1d.{kind}": [inner, states, states] for kind in ("weight", "bias")
    }
    cuts = {name: int(name == "out_proj.weight") for name in whole}
    model = model_of(
        {"mixer.in_proj.layer_norm_weight": numbers(HIDDEN, first=2000)}
        | {
            f"mixer.{name.replace('conv1d.', conv)}": torch.cat(
                [part.chunk(2, cuts[name])[rank] for part in tensor.split(parts.get(name, [len(tensor)]))]
            ).contiguous()
            for name, tensor in whole.items()
        }
    )
    model.get_submodule("decoder").layer_type_list = ["M"]  # type: ignore[assignment]
    got = held(model, ParallelState(tensor_rank=rank, tensor_size=2), NEMOTRON_H, **options)
    assert torch.equal(got.pop("backbone.layers.2.norm.weight"), numbers(HIDDEN, first=2000))
    assert set(got) == {f"backbone.layers.2.mixer.{name}" for name in whole}
    for name, tensor in whole.items():
        held_here = got[f"backbone.layers.2.mixer.{name}"]
        for part, of in zip(*(one.split(parts.get(name, [len(tensor)])) for one in (held_here, tensor)), strict=True):
            assert torch.equal(part.chunk(2, cuts[name])[rank], of.chunk(2, cuts[name])[rank]), name
            assert bool((part.chunk(2, cuts[name])[1 - rank] == -1).all()), name
    with pytest.raises(UsageError, match=r"mixer\.(in_proj|conv1d).*is due"):
        held(model, ParallelState(tensor_rank=rank, tensor_size=2), NEMOTRON_H, **{**options, "mamba_state_dim": 3})


def test_a_hybrid_models_tensors_are_those_that_the_engines_loaders_take() -> None:
    """Those of the checkpoint that test_vllm_computed.py (but experts) and test_sglang_computed.py load with the released
    loaders.
    """
    of = NEMOTRON_H_EXPERTS
    hidden, ffn, vocab, head = of["hidden_size"], of["intermediate_size"], of["vocab_size"], of["head_dim"]
    heads, groups, mamba_heads = of["num_attention_heads"], of["num_key_value_heads"], of["mamba_num_heads"]
    inner, states = mamba_heads * of["mamba_head_dim"], of["n_groups"] * of["ssm_state_size"]
    experts, latent, width = of["n_routed_experts"], of["moe_latent_size"], of["moe_intermediate_size"]
    shared = of["moe_shared_expert_intermediate_size"]
    layers = {
        "M": {
            "mixer.in_proj.layer_norm_weight": (hidden,),
            "mixer.in_proj.weight": (2 * inner + 2 * states + mamba_heads, hidden),
            "mixer.conv1d_weight": (inner + 2 * states, 1, of["conv_kernel"]),
            "mixer.conv1d_bias": (inner + 2 * states,),
            **{f"mixer.{name}": (mamba_heads,) for name in ("A_log", "D", "dt_bias")},
            "mixer.norm.weight": (inner,),
            "mixer.out_proj.weight": (hidden, inner),
        },
        "*": {
            "self_attention.linear_qkv.layer_norm_weight": (hidden,),
            "self_attention.linear_qkv.weight": ((heads + 2 * groups) * head, hidden),
            "self_attention.linear_proj.weight": (hidden, heads * head),
        },
        "-": {
            "mlp.linear_fc1.layer_norm_weight": (hidden,),
            "mlp.linear_fc1.weight": (ffn, hidden),
            "mlp.linear_fc2.weight": (hidden, ffn),
        },
        "E": {
            "pre_mlp_layernorm.weight": (hidden,),
            "mlp.router.weight": (experts, hidden),
            "mlp.fc1_latent_proj.weight": (latent, hidden),
            "mlp.fc2_latent_proj.weight": (hidden, latent),
            **{f"mlp.experts.linear_fc1.weight{expert}": (width, latent) for expert in range(experts)},
            **{f"mlp.experts.linear_fc2.weight{expert}": (latent, width) for expert in range(experts)},
            "mlp.shared_experts.linear_fc1.weight": (shared, hidden),
            "mlp.shared_experts.linear_fc2.weight": (hidden, shared),
        },
    }
    model = torch.nn.Module()
    add(model, "embedding.word_embeddings.weight", torch.empty(vocab, hidden))
    for layer, kind in enumerate(of["hybrid_override_pattern"]):
        for name, shape in layers[kind].items():
            add(model, f"decoder.layers.{layer}.{name}", torch.empty(shape))
        if kind == "E":
            add(model, f"decoder.layers.{layer}.mlp.router.expert_bias", torch.empty(experts), buffer=True)
        model.get_submodule(f"decoder.layers.{layer}").layer_number = layer + 1  # type: ignore[assignment]
    add(model, "decoder.final_norm.weight", torch.empty(hidden))
    add(model, "output_layer.weight", torch.empty(vocab, hidden))
    model.get_submodule("decoder").layer_type_list = list(of["hybrid_override_pattern"])  # type: ignore[assignment]
    options = config(
        hidden_size=hidden, ffn_hidden_size=ffn, gated_linear_unit=False, num_attention_heads=heads,
        num_query_groups=groups, kv_channels=head, mamba_num_heads=None, mamba_head_dim=of["mamba_head_dim"],
        mamba_num_groups=of["n_groups"], mamba_state_dim=of["ssm_state_size"], num_moe_experts=experts,
        moe_latent_size=latent, moe_ffn_hidden_size=width, moe_shared_expert_intermediate_size=shared,
    )  # fmt: skip
    layout = megatron_layout(model, options, NEMOTRON_H, state=ParallelState())
    assert {name: tuple(shape) for name, _, shape in layout.table} == nemotron_shapes(of)


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
    with pytest.raises(UnsupportedError, match="linear_fc1.*only hybrid models count"):
        megatron_layout(hybrid, config(), state=state)
    with pytest.raises(UnsupportedError, match="linear_fc1.*only hybrid models count"):
        megatron_layout(model_of({"mlp.linear_fc1.weight": numbers(32, HIDDEN)}), config(), NEMOTRON_H, state=state)
    with pytest.raises(UnsupportedError, match="linear_fc1.*have no such tensor"):  # Nemotron-H's MLPs have no gate.
        megatron_layout(hybrid, config(), NEMOTRON_H, state=state)
    with pytest.raises(UnsupportedError, match="fc1_latent_proj.*have no such tensor"):
        megatron_layout(model_of({"mlp.fc1_latent_proj.weight": numbers(6, HIDDEN)}), config(), state=state)
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
    for option in ("gtp_weight_remat_size", "expert_gtp_weight_remat_size"):
        megatron_layout(torch.nn.Module(), config(**{option: 1}), state=state)
        with pytest.raises(UnsupportedError, match=f"{option} cuts"):
            megatron_layout(torch.nn.Module(), config(**{option: 2}), state=state)
