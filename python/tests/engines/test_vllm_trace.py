# SPDX-License-Identifier: Apache-2.0
"""The address map of vLLM's own models and layers, against its own loaders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from sparsecast import Publisher, Subscriber, TensorTable, describe
from sparsecast.engines.refresh.masked_loader import MaskedLoader
from sparsecast.engines.trace.loader import TracedLoader, trace_loader
from sparsecast.engines.vllm.model import refuse_new_ties
from sparsecast.engines.vllm.model import trace as trace_model
from sparsecast.errors import UnsupportedError, UsageError

KV_SCALES = ["*.attn.*_scale"]  # vLLM makes them for every fp8 model, and deletes them after loading.


def trace(
    model: torch.nn.Module, canonical: list[tuple[str, str, tuple[int, ...]]], config: VllmConfig, may_miss: object = ()
) -> TracedLoader:
    """The map alone."""
    return trace_model(model, canonical, config, may_miss)[0]  # type: ignore[arg-type]


def patch_by_map(traced: TracedLoader, tensors: dict[str, torch.Tensor]) -> None:
    """What an apply does, in the plainest way: every shard's elements, through its strides."""
    for shard in traced.shards:
        name = traced.table[shard.tensor][0]
        memory = models.bits_of(traced.tensors[shard.local].memory)
        box = tuple(slice(o, o + n) for o, n in zip(shard.offset, shard.extent, strict=True))
        memory.as_strided(shard.extent, shard.strides, shard.first).copy_(models.bits_of(tensors[name])[box])


@pytest.fixture(params=sorted(models.CONFIGS))
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    config = models.config(request.param)
    models.start(config)
    yield request.param
    models.stop()


@pytest.fixture
def layer_config() -> Iterator[VllmConfig]:
    config = models.config("llama")
    models.start(config)
    with set_current_vllm_config(config):
        yield config
    models.stop()


@pytest.mark.parametrize("weight_is_kept", [True, False])
def test_a_copy_that_a_cpu_kernel_has_packed_is_found_in_the_function_that_uses_it(weight_is_kept: bool) -> None:
    config = models.config("llama")
    models.start(config)
    try:
        model = models.build(config)
        layer = next(module for module in model.modules() if isinstance(module, RowParallelLinear))
        with set_current_vllm_config(config):
            live = layer.weight
            layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, live, bias)
            trace(model, models.canonical("llama"), config, KV_SCALES)
            packed = live.detach().clone()
            layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, packed, bias)
            if not weight_is_kept:
                layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)
            with pytest.raises(UnsupportedError, match=r"1 layers .*cpu_linear.*ONEDNN_MAX_CPU_ISA=AVX2"):
                trace(model, models.canonical("llama"), config, KV_SCALES)
    finally:
        models.stop()


def test_a_patch_through_the_map_is_what_the_engines_own_loader_would_have_loaded(kind: str) -> None:
    config = models.config(kind)
    patched, loaded = models.build(config), models.build(config)
    old, new = models.checkpoint(kind, seed=1), models.checkpoint(kind, seed=2)
    with set_current_vllm_config(config):
        traced = trace(patched, models.canonical(kind), config, KV_SCALES)
        assert all(not models.bits_of(p.data).any() for p in patched.parameters()), "the trace wrote something"
        patched.load_weights(iter(old.items()))
        loaded.load_weights(iter(new.items()))
    assert not traced.unused and not traced.missing and not traced.refused
    assert traced.differences(old.items()) == {}
    assert models.differing(patched, loaded)
    patch_by_map(traced, new)
    assert models.differing(patched, loaded) == []


def test_every_address_is_found_although_the_weights_hold_anything_at_all(kind: str) -> None:
    config = models.config(kind)
    model = models.build(config)
    with set_current_vllm_config(config):
        empty = trace(model, models.canonical(kind), config, KV_SCALES)
        model.load_weights(iter(models.checkpoint(kind, seed=3).items()))
        full = trace(model, models.canonical(kind), config, KV_SCALES)
    assert full.shards == empty.shards


@pytest.mark.parametrize("kind", ["llama", "qwen3-moe"], indirect=True)
def test_nan_masked_tensors_go_through_the_engines_own_loader(kind: str) -> None:
    config = models.config(kind)
    model, fresh = models.build(config), models.build(config)
    old = models.checkpoint_without_nans(kind)
    new = models.random_updates(old, seed=5)
    table = TensorTable(models.canonical(kind))
    with set_current_vllm_config(config):
        traced = trace(model, models.canonical(kind), config, KV_SCALES)
        model.load_weights(iter(old.items()))
        loader = MaskedLoader(models.canonical(kind), model.load_weights)
        loader.prove(model)
        views = {
            traced.table[s.tensor][0]: traced.tensors[s.local].memory.as_strided(s.extent, s.strides, s.first)
            for s in traced.shards
        }
        assert len(views) == len(traced.shards), "one box each"
        subscriber = Subscriber(table, [describe(views[name]) for name, _, _ in models.canonical(kind)])
        trainer = {name: tensor.clone() for name, tensor in old.items()}
        publisher = Publisher(table, [describe(tensor) for tensor in trainer.values()])
        for name, tensor in trainer.items():
            models.bits_of(tensor).copy_(models.bits_of(new[name]))
        subscriber.stage(publisher.publish())
        assert subscriber.apply_nan_masked(loader).version == 1
        fresh.load_weights(iter(new.items()))
    assert models.differing(model, fresh) == []


def test_differences_names_the_tensor_whose_bits_were_changed(layer_config: VllmConfig) -> None:
    model = models.build(layer_config)
    tensors = models.checkpoint("llama", seed=1)
    traced = trace(model, models.canonical("llama"), layer_config)
    model.load_weights(iter(tensors.items()))
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = models.random_updates({name: tensors[name]}, seed=5, share=0.001)[name]
    assert list(traced.differences(tensors.items())) == [name]


def layer_map(layer: torch.nn.Module, pieces: dict[str, tuple[tuple[int, ...], object]]) -> TracedLoader:
    """Traces the layer's own weight_loader: `pieces` has for each name its shape and its shard id (None: no id)."""

    def load(weights: object) -> None:
        for name, tensor in weights:  # type: ignore[attr-defined]
            shard_id = pieces[name][1]
            layer.weight.weight_loader(layer.weight, tensor, *(() if shard_id is None else (shard_id,)))

    return trace_loader(layer, [(name, "BF16", shape) for name, (shape, _) in pieces.items()], load)


def test_qkv_is_fused_row_by_row(layer_config: VllmConfig) -> None:
    layer = QKVParallelLinear(32, 8, 4, 2, bias=False, params_dtype=torch.bfloat16)
    traced = layer_map(layer, {"q": ((32, 32), "q"), "k": ((16, 32), "k"), "v": ((16, 32), "v")})
    assert [(s.first, s.extent) for s in traced.shards] == [(0, (32, 32)), (1024, (16, 32)), (1536, (16, 32))]


def test_gate_and_up_are_merged_column_parallel(layer_config: VllmConfig) -> None:
    layer = MergedColumnParallelLinear(32, [48, 48], bias=False, params_dtype=torch.bfloat16)
    traced = layer_map(layer, {"gate": ((48, 32), 0), "up": ((48, 32), 1)})
    assert [s.first for s in traced.shards] == [0, 48 * 32]


def test_a_row_parallel_layer_is_its_checkpoint_tensor(layer_config: VllmConfig) -> None:
    layer = RowParallelLinear(48, 32, bias=False, params_dtype=torch.bfloat16)
    (shard,) = layer_map(layer, {"down": ((32, 48), None)}).shards
    assert (shard.offset, shard.extent, shard.first, shard.strides) == ((0, 0), (32, 48), 0, (48, 1))


def test_padding_of_a_vocabulary_is_in_no_shard(layer_config: VllmConfig) -> None:
    layer = VocabParallelEmbedding(100, 16, params_dtype=torch.bfloat16)
    traced = layer_map(layer, {"embedding": ((100, 16), None)})
    assert traced.tensors[0].memory.numel() == 128 * 16
    assert [s.extent for s in traced.shards] == [(100, 16)]


def test_a_head_tied_to_the_embedding_is_a_tie(layer_config: VllmConfig) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = VocabParallelEmbedding(100, 16, params_dtype=torch.bfloat16)
            self.head = ParallelLMHead(100, 16, params_dtype=torch.bfloat16)
            self.head = self.head.tie_weights(self.embedding)

        def load(self, weights: object) -> None:
            for name, tensor in weights:  # type: ignore[attr-defined]
                parameter = getattr(self, name).weight
                parameter.weight_loader(parameter, tensor)

    model = Tied()
    table = [("embedding", "BF16", (100, 16)), ("head", "BF16", (100, 16))]
    traced = trace_loader(model, table, model.load)
    assert traced.ties == (("head", "embedding"),)
    assert len(traced.shards) == 1


def test_an_embedding_and_a_head_that_vllm_has_joined_are_a_tie_that_the_trainer_must_know(
    layer_config: VllmConfig,
) -> None:
    model = models.build(layer_config)
    tensors = models.checkpoint("llama", seed=1)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    model.load_weights(iter(tensors.items()))
    model.lm_head = model.lm_head.tie_weights(model.model.embed_tokens)  # As maybe_retie_word_embeddings does.
    traced = trace(model, models.canonical("llama"), layer_config)
    assert traced.ties == (("lm_head.weight", "model.embed_tokens.weight"),)
    refuse_new_ties(traced, [["model.embed_tokens.weight", "lm_head.weight"]])
    with pytest.raises(UnsupportedError, match=r"'lm_head.weight' and 'model.embed_tokens.weight' in one memory"):
        refuse_new_ties(traced, [])


def test_names_that_the_model_does_not_know_are_listed_with_the_nearest(layer_config: VllmConfig) -> None:
    model = models.build(layer_config)
    table = [*models.canonical("llama"), ("model.layers.1.mlp.down_prj.weight", "BF16", (64, 96))]
    with pytest.raises(UsageError, match=r"down_prj.*nearest: 'model.layers.1.mlp.down_proj.weight'"):
        trace(model, table, layer_config)


def test_a_checkpoint_without_a_part_of_a_fused_tensor_is_refused(layer_config: VllmConfig) -> None:
    model = models.build(layer_config)
    table = [entry for entry in models.canonical("llama") if entry[0] != "model.layers.0.self_attn.k_proj.weight"]
    with pytest.raises(UsageError, match=r"model.layers.0.self_attn.qkv_proj.weight', 2048 of 8192 elements"):
        trace(model, table, layer_config)


def test_a_tensor_of_another_dtype_is_kept_beside_the_model_and_cast_by_the_loader(layer_config: VllmConfig) -> None:
    model = models.build(layer_config)
    table = [
        (name, "F32" if name == "model.norm.weight" else dtype, shape)
        for name, dtype, shape in models.canonical("llama")
    ]
    traced, recomputation = trace_model(model, table, layer_config)
    assert "casts torch.float32 to torch.bfloat16" in traced.shadowed["model.norm.weight"]
    recomputation.prove(as_loaded=True)
    assert recomputation.derived == ["model.norm.weight"]
    traced.shadows()["model.norm.weight"].fill_(1.5)
    recomputation.run()
    assert torch.equal(model.model.norm.weight.data, torch.full((64,), 1.5, dtype=torch.bfloat16))


def test_a_tensor_of_another_shape_is_refused_in_the_loaders_words(layer_config: VllmConfig) -> None:
    model = models.build(layer_config)
    table = [(n, d, (65,) if n == "model.norm.weight" else s) for n, d, s in models.canonical("llama")]
    with pytest.raises(UnsupportedError, match=r"'model.norm.weight': the engine's loader failed.*65"):
        trace(model, table, layer_config)


def test_tensors_derived_from_weights_are_refused_by_name(layer_config: VllmConfig) -> None:
    model = models.build(layer_config)
    model.model.layers[0].self_attn.W_UV = torch.zeros(4, 4, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match=r"model.layers.0.self_attn.W_UV"):
        trace(model, models.canonical("llama"), layer_config)
