# SPDX-License-Identifier: Apache-2.0
"""Small GPTModels on CPUs, and their parameters from a checkpoint by a conversion of the tests' own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sparsecast import Layout, join_layouts

HIDDEN, HEADS, GROUPS, HEAD, FFN, VOCAB, LAYERS = 24, 8, 4, 6, 40, 90, 4
EXPERTS, EXPERT_FFN, SHARED_FFN = 4, 12, 20


@dataclass(frozen=True)
class Scene:
    tp: int = 1
    pp: int = 1
    vp: int | None = None
    ep: int = 1
    etp: int = 1
    groups: int = GROUPS
    tied: bool = False
    moe: bool = False
    bias: bool = False
    padded: int = 96


def checkpoint(scene: Scene) -> dict[str, torch.Tensor]:
    """Every element of the model has a value of its own, exact in fp32."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    if not scene.tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, rows in (("q", HEADS), ("k", scene.groups), ("v", scene.groups)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (rows * HEAD, HIDDEN)
            if scene.bias:
                shapes[f"{at}self_attn.{name}_proj.bias"] = (rows * HEAD,)
        shapes[f"{at}self_attn.o_proj.weight"] = (HIDDEN, HEADS * HEAD)
        shapes[f"{at}self_attn.q_norm.weight"] = shapes[f"{at}self_attn.k_norm.weight"] = (HEAD,)
        shapes[f"{at}input_layernorm.weight"] = shapes[f"{at}post_attention_layernorm.weight"] = (HIDDEN,)
        mlps = {"mlp.": FFN}
        if scene.moe:
            mlps = {f"mlp.experts.{e}.": EXPERT_FFN for e in range(EXPERTS)} | {"mlp.shared_expert.": SHARED_FFN}
            shapes[f"{at}mlp.gate.weight"] = (EXPERTS, HIDDEN)
            shapes[f"{at}mlp.shared_expert_gate.weight"] = (1, HIDDEN)
        for mlp, width in mlps.items():
            shapes[f"{at}{mlp}gate_proj.weight"] = shapes[f"{at}{mlp}up_proj.weight"] = (width, HIDDEN)
            shapes[f"{at}{mlp}down_proj.weight"] = (HIDDEN, width)
    return distinct(shapes)


def distinct(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Tensors of these shapes, each element of which has a value that no other has, exact in fp32."""
    made, first = {}, 1
    for name, shape in shapes.items():
        elements = torch.Size(shape).numel()
        made[name] = torch.arange(first, first + elements, dtype=torch.float32).reshape(shape)
        first += elements
    assert first < 1 << 24
    return made


def loaded(name: str, layer: int, scene: Scene, hf: dict[str, torch.Tensor], place: dict[str, int]) -> torch.Tensor:
    """What Megatron holds under a name of one layer, as its checkpoint converters make it: reshape, join, cut."""
    at, tp, etp = f"model.layers.{layer}.", (scene.tp, place["tp"]), (scene.etp, place["etp"])

    def cut(tensor: torch.Tensor, dim: int, part: tuple[int, int]) -> torch.Tensor:
        return tensor.chunk(part[0], dim)[part[1]]

    def mlp(stem: str, part: tuple[int, int]) -> torch.Tensor:
        if "linear_fc2" in name:
            return cut(hf[f"{at}{stem}down_proj.weight"], 1, part)
        both = (hf[f"{at}{stem}gate_proj.weight"], hf[f"{at}{stem}up_proj.weight"])
        return torch.cat([cut(one, 0, part) for one in both])

    if name.startswith("self_attention.linear_qkv."):
        kind = name.rsplit(".", 1)[1]
        heads = {"q": HEADS // scene.groups, "k": 1, "v": 1}
        split = [
            hf[f"{at}self_attn.{of}_proj.{kind}"].reshape(scene.groups, count * HEAD, -1) for of, count in heads.items()
        ]
        joined = torch.cat(split, dim=1)
        return cut(joined.reshape(-1, HIDDEN) if kind == "weight" else joined.reshape(-1), 0, tp)
    if name == "self_attention.linear_proj.weight":
        return cut(hf[f"{at}self_attn.o_proj.weight"], 1, tp)
    if name.startswith("mlp.experts.local_experts."):
        expert = place["ep"] * (EXPERTS // scene.ep) + int(name.split(".")[3])
        return mlp(f"mlp.experts.{expert}.", etp)
    if name.startswith("mlp.shared_experts.linear"):
        return mlp("mlp.shared_expert.", tp)
    if name.startswith("mlp.linear"):
        return mlp("mlp.", tp)
    same = {
        "input_layernorm": "input_layernorm",
        "pre_mlp_layernorm": "post_attention_layernorm",
        "self_attention.q_layernorm": "self_attn.q_norm",
        "self_attention.k_layernorm": "self_attn.k_norm",
        "mlp.router": "mlp.gate",
        "mlp.shared_experts.gate_weight": "mlp.shared_expert_gate",
    }
    return hf[f"{at}{same[name.removesuffix('.weight')]}.weight"]


def build(scene: Scene, config: Any) -> list[torch.nn.Module]:
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    experts = EXPERTS if scene.moe else None
    spec = get_gpt_layer_local_spec(
        num_experts=experts, moe_grouped_gemm=False, qk_layernorm=True, normalization="RMSNorm"
    )
    chunks = []
    for stage in range(scene.vp or 1):
        vp_stage = stage if scene.vp else None
        chunks.append(
            GPTModel(
                config,
                spec,
                vocab_size=scene.padded,
                max_sequence_length=16,
                pre_process=ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
                post_process=ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
                share_embeddings_and_output_weights=scene.tied,
                position_embedding_type="rope",
                vp_stage=vp_stage,
            )
        )
    return chunks


def configuration(scene: Scene) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    moe = {
        "num_moe_experts": EXPERTS,
        "moe_ffn_hidden_size": EXPERT_FFN,
        "moe_shared_expert_intermediate_size": SHARED_FFN,
        "moe_shared_expert_gate": True,
        "moe_token_dispatcher_type": "allgather",
        "expert_model_parallel_size": scene.ep,
        "expert_tensor_parallel_size": scene.etp,
    }
    return TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_query_groups=scene.groups,
        kv_channels=HEAD,
        ffn_hidden_size=FFN,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=scene.bias,
        normalization="RMSNorm",
        qk_layernorm=True,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=scene.tp,
        pipeline_model_parallel_size=scene.pp,
        virtual_pipeline_model_parallel_size=scene.vp,
        **(moe if scene.moe else {}),
    )


def fill(chunks: list[torch.nn.Module], scene: Scene, hf: dict[str, torch.Tensor], place: dict[str, int]) -> None:
    padding = (0, 0, 0, scene.padded - VOCAB)
    vocabulary = {
        name: torch.nn.functional.pad(hf[name], padding, value=-1.0).chunk(scene.tp)[place["tp"]]
        for name in ("model.embed_tokens.weight", "lm_head.weight")
        if name in hf
    }
    for stage, chunk in enumerate(chunks):
        here = LAYERS // scene.pp // (scene.vp or 1)
        first = stage * here * scene.pp + place["pp"] * here
        for name, parameter in chunk.named_parameters():
            if name == "embedding.word_embeddings.weight":
                value = vocabulary["model.embed_tokens.weight"]
            elif name == "output_layer.weight":
                value = vocabulary["model.embed_tokens.weight" if scene.tied else "lm_head.weight"]
            elif name == "decoder.final_layernorm.weight":
                value = hf["model.norm.weight"]
            else:
                _, _, layer, rest = name.split(".", 3)
                value = loaded(rest, first + int(layer), scene, hf, place)
            assert parameter.shape == value.shape, name
            parameter.data.copy_(value)


def look_at_every_address(layout: Layout, tensors: dict[str, torch.Tensor], hf: dict[str, torch.Tensor]) -> None:
    table, (rank,) = list(layout.table), layout.ranks
    assert [local.name for local in rank.tensors] == list(tensors)
    seen = [torch.zeros(local.elements, dtype=torch.bool) for local in rank.tensors]
    for shard in rank.shards:
        name, dtype, shape = table[shard.tensor]
        memory = tensors[rank.tensors[shard.local].name].flatten()
        there = torch.as_strided(memory, shard.box.extent, shard.strides, shard.first)
        part = hf[name][tuple(slice(o, o + e) for o, e in zip(shard.box.offset, shard.box.extent, strict=True))]
        assert (dtype, tuple(shape)) == ("F32", tuple(hf[name].shape))
        assert torch.equal(there, part), f"{name} {shard}"
        mark = torch.as_strided(seen[shard.local], shard.box.extent, shard.strides, shard.first)
        assert not mark.any(), f"{name} {shard}: named twice"
        mark.fill_(True)
    for local, marks in zip(rank.tensors, seen, strict=True):
        unnamed = tensors[local.name].flatten()[~marks]
        assert bool((unnamed == -1.0).all()), f"{local.name}: {unnamed.numel()} elements, not all of them padding"


def boxes(layout: Layout) -> list[set[tuple[Any, ...]]]:
    """Of each rank: canonical name, box, address. Names of local tensors differ by stages' and experts' numbers."""
    names = [name for name, _, _ in layout.table]
    return [
        {
            (names[s.tensor], tuple(s.box.offset), tuple(s.box.extent), s.first, tuple(s.strides))
            for s in rank.shards
            if s.box.elements
        }
        for rank in layout.ranks
    ]


def all_is_held(layout: Layout, hf: dict[str, torch.Tensor], tied: bool) -> bool:
    """Whether all ranks together hold every element of the checkpoint, and nothing else."""
    seen = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in hf.items()}
    for of in boxes(layout):
        for name, offset, extent, _, _ in of:
            seen[name][tuple(slice(o, o + e) for o, e in zip(offset, extent, strict=True))] = True
    names = set(hf) | ({"lm_head.weight"} if tied else set())
    return all(bool(of.all()) for of in seen.values()) and {name for name, _, _ in layout.table} == names


def join_parallel_groups(scene: Any) -> dict[str, int]:
    """Initialises this rank's parallel groups, and returns its place in them."""
    from megatron.core import parallel_state as ps

    ps.initialize_model_parallel(
        tensor_model_parallel_size=scene.tp,
        pipeline_model_parallel_size=scene.pp,
        virtual_pipeline_model_parallel_size=scene.vp,
        expert_model_parallel_size=scene.ep,
        expert_tensor_parallel_size=scene.etp,
    )
    return {
        "tp": ps.get_tensor_model_parallel_rank(),
        "pp": ps.get_pipeline_model_parallel_rank(),
        "ep": ps.get_expert_model_parallel_rank(),
        "etp": ps.get_expert_tensor_parallel_rank(),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_processes(work: Any, count: int, *args: Any) -> None:
    """Runs work(rank, ...) in processes that are forked from one that has imported these modules: once, not in each."""
    modules = [__name__, "megatron.core.models.gpt.gpt_layer_specs", "sparsecast.torch"]
    modules += ["megatron.core.post_training.modelopt.hybrid.model_specs"]  # Where Megatron-core has it.
    torch.multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    here = str(Path(__file__).parent)
    if here not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # The fork server looks nowhere else.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here]))
    torch.multiprocessing.start_processes(work, args=args, nprocs=count, start_method="forkserver")


def layouts_of(work: Any, world: int, scenes: Iterable[str], directory: Path) -> dict[str, Layout]:
    """The joined layouts of every scene, which the ranks of `work` write into the directory."""
    run_processes(work, world, free_port(), str(directory))
    return {
        scene: join_layouts([Layout.parse((directory / f"{scene}.{rank}").read_bytes()) for rank in range(world)])
        for scene in scenes
    }


def stay_on_the_cpu() -> None:
    """A few lines of the package move tensors to a GPU whatever its configuration says."""
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
