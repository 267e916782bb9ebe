# SPDX-License-Identifier: Apache-2.0
"""The parameters of real GPTModels are filled from a checkpoint by another conversion, and every address is looked at."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import torch.distributed as dist
from megatron_scenes import (
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEAD,
    HEADS,
    HIDDEN,
    LAYERS,
    SHARED_FFN,
    VOCAB,
    Scene,
    all_is_held,
    boxes,
    build,
    checkpoint,
    configuration,
    fill,
    join_parallel_groups,
    layouts_of,
    look_at_every_address,
    stay_on_the_cpu,
)

from sparsecast import Layout
from sparsecast.megatron import megatron_layout, megatron_tensors

WORLD = 4

SCENES = {
    "dense_tp2_pp2": Scene(tp=2, pp=2, bias=True),
    "tied_tp2_pp2": Scene(tp=2, pp=2, tied=True, padded=128),
    "dense_pp2_vp2": Scene(tp=2, pp=2, vp=2),
    "more_parts_than_kv_groups": Scene(tp=4, groups=2),
    "moe_ep2_tp2": Scene(tp=2, ep=2, etp=2, moe=True),
    "moe_ep4": Scene(tp=2, ep=4, moe=True),
}


def attention_agrees(chunk: torch.nn.Module, scene: Scene, hf: dict[str, torch.Tensor], tp: int) -> None:
    """The package's own split of linear_qkv's output into heads is that of the checkpoint's q, k and v."""
    attention: Any = chunk.get_submodule("decoder.layers.0.self_attention")
    at = f"model.layers.{chunk.get_submodule('decoder.layers.0').layer_number - 1}.self_attn."  # type: ignore[operator]
    tokens = torch.randn(3, 1, HIDDEN, generator=torch.Generator().manual_seed(1))
    norms = attention.q_layernorm, attention.k_layernorm
    attention.q_layernorm = attention.k_layernorm = None  # They are in the way of a plain comparison.
    with torch.no_grad():
        split = attention.get_query_key_value_tensors(tokens, None)
    attention.q_layernorm, attention.k_layernorm = norms
    for of, got in zip("qkv", split[:3], strict=True):
        whole = torch.nn.functional.linear(tokens, hf[f"{at}{of}_proj.weight"], hf.get(f"{at}{of}_proj.bias"))
        expected = whole.reshape(3, 1, -1, HEAD).chunk(scene.tp, dim=2)[tp]
        torch.testing.assert_close(got.reshape(expected.shape), expected)


def mlp_agrees(chunk: torch.nn.Module, hf: dict[str, torch.Tensor], own: str = "mlp", name: str = "mlp") -> None:
    """The package's own MLP takes gate and up, and adds up the parts of down, as the checkpoint's does."""
    at = f"model.layers.{chunk.get_submodule('decoder.layers.0').layer_number - 1}.{name}."  # type: ignore[operator]
    tokens = torch.randn(3, 1, HIDDEN, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        got, _ = chunk.get_submodule(f"decoder.layers.0.{own}")(tokens)
    gate, up, down = (hf[f"{at}{of}_proj.weight"] for of in ("gate", "up", "down"))
    linear = torch.nn.functional.linear
    expected = linear(torch.nn.functional.silu(linear(tokens, gate)) * linear(tokens, up), down)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


def work(rank: int, port: int, directory: str) -> None:
    warnings.simplefilter("ignore")
    stay_on_the_cpu()
    torch.set_num_threads(1)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    from megatron.core import parallel_state as ps

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    for name, scene in SCENES.items():
        place = join_parallel_groups(scene)
        hf, config = checkpoint(scene), configuration(scene)
        chunks = build(scene, config)
        generator = torch.Generator().manual_seed(3)
        noise = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in hf.items()}
        fill(chunks, scene, noise, place)
        if not scene.moe:
            mlp_agrees(chunks[0], noise)
        elif scene.etp == 1:
            expert = place["ep"] * EXPERTS // scene.ep
            mlp_agrees(chunks[0], noise, "mlp.experts.local_experts.0", f"mlp.experts.{expert}")
        if scene.groups >= scene.tp:
            attention_agrees(chunks[0], scene, noise, place["tp"])
        fill(chunks, scene, hf, place)
        layout = megatron_layout(chunks, config, vocab_size=VOCAB, node="trainer0")
        look_at_every_address(layout, megatron_tensors(chunks), hf)
        (Path(directory) / f"{name}.{rank}").write_bytes(layout.serialize())
        ps.destroy_model_parallel()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Layout]:
    """The joined layouts of every scene. Four processes look at every address of theirs."""
    return layouts_of(work, WORLD, SCENES, tmp_path_factory.mktemp("layouts"))


def rules(scene: Scene) -> Layout:
    """The same by the rules of docs/layout-format.md, which know Megatron's cuts on their own."""
    at, local = "model.layers.{layer}.", "decoder.layers.{layer}."
    parallel = [f"{at}{name}" for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight")]
    kinds = ["weight", "bias"] if scene.bias else ["weight"]
    shapes: dict[str, list[Any]] = {
        "model.embed_tokens.weight": [VOCAB, HIDDEN],
        "lm_head.weight": [VOCAB, HIDDEN],
        "model.norm.weight": [HIDDEN],
        f"{at}self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD],
    }
    cuts: list[dict[str, Any]] = [
        {"tensors": "model.embed_tokens.weight", "local": "embedding.word_embeddings.weight", "rule": "vocab_parallel",
         "axes": ["tp"], "multiple": scene.padded, "where": {"pp": [0]}},
        {"tensors": "model.embed_tokens.weight" if scene.tied else "lm_head.weight", "local": "output_layer.weight",
         "rule": "vocab_parallel", "axes": ["tp"], "multiple": scene.padded, "where": {"pp": [scene.pp - 1]}},
        {"tensors": "model.norm.weight", "local": "decoder.final_layernorm.weight", "rule": "replicate",
         "where": {"pp": [scene.pp - 1]}},
        {"tensors": f"{at}self_attn.o_proj.weight", "local": f"{local}self_attention.linear_proj.weight",
         "rule": "row_parallel", "axes": ["tp"]},
    ]  # fmt: skip
    norms = {
        "self_attn.q_norm": HEAD,
        "self_attn.k_norm": HEAD,
        "input_layernorm": HIDDEN,
        "post_attention_layernorm": HIDDEN,
    }
    names = ("self_attention.q_layernorm", "self_attention.k_layernorm", "input_layernorm", "pre_mlp_layernorm")
    for (norm, width), own in zip(norms.items(), names, strict=True):
        shapes[f"{at}{norm}.weight"] = [width]
        cuts.append({"tensors": f"{at}{norm}.weight", "local": f"{local}{own}.weight", "rule": "replicate"})
    for kind in kinds:
        three = [f"{at}self_attn.{of}_proj.{kind}" for of in "qkv"]
        for name, rows in zip(three, (HEADS, scene.groups, scene.groups), strict=True):
            shapes[name] = [rows * HEAD, HIDDEN] if kind == "weight" else [rows * HEAD]
        cuts.append({"tensors": three, "local": f"{local}self_attention.linear_qkv.{kind}", "rule": "linear_qkv",
                     "axes": ["tp"], "query_heads": HEADS, "kv_heads": scene.groups})  # fmt: skip
    mlps = [("mlp.", "mlp.", FFN, {})]
    if scene.moe:
        experts = {"experts": {"axes": ["ep"], "stacked": False}}
        mlps = [
            ("mlp.experts.{expert}.", "mlp.experts.{expert}.", EXPERT_FFN, experts),
            ("mlp.shared_expert.", "mlp.shared_experts.", SHARED_FFN, {}),
        ]
        for name, own, rows in (
            ("gate", "router.weight", EXPERTS),
            ("shared_expert_gate", "shared_experts.gate_weight", 1),
        ):
            shapes[f"{at}mlp.{name}.weight"] = [rows, HIDDEN]
            cuts.append({"tensors": f"{at}mlp.{name}.weight", "local": f"{local}mlp.{own}", "rule": "replicate"})
    for stem, own, width, experts in mlps:
        axes = ["etp"] if experts else ["tp"]
        parallel = [f"{at}{stem}gate_proj.weight", f"{at}{stem}up_proj.weight"]
        shapes |= {name: [width, HIDDEN] for name in parallel} | {f"{at}{stem}down_proj.weight": [HIDDEN, width]}
        cuts.append(
            {
                "tensors": parallel,
                "local": f"{local}{own}linear_fc1.weight",
                "rule": "linear_fc1",
                "axes": axes,
                **experts,
            }
        )
        cuts.append({"tensors": f"{at}{stem}down_proj.weight", "local": f"{local}{own}linear_fc2.weight",
                     "rule": "row_parallel", "axes": axes, **experts})  # fmt: skip
    stage = LAYERS // scene.pp // (scene.vp or 1)
    chunks = [[v * stage * scene.pp + p * stage for v in range(scene.vp or 1)] for p in range(scene.pp)]
    return Layout.from_json(
        json.dumps(
            {
                "format": "sparsecast-layout",
                "version": 1,
                "dtype": "F32",
                "repeats": {"layer": LAYERS, "expert": EXPERTS},
                "tensors": [{"name": name, "shape": shape} for name, shape in shapes.items()],
                "ties": [["lm_head.weight", "model.embed_tokens.weight"]] if scene.tied else [],
                "mesh": [
                    [["pp", scene.pp], ["dp", WORLD // scene.pp // scene.tp], ["tp", scene.tp]],
                    [
                        ["pp", scene.pp],
                        ["edp", WORLD // scene.pp // scene.ep // scene.etp],
                        ["ep", scene.ep],
                        ["etp", scene.etp],
                    ],
                ],
                "nodes": {"prefix": "trainer", "ranks": WORLD},
                "stages": {
                    "axis": "pp",
                    "repeat": "layer",
                    "layers": [",".join(f"{b}-{b + stage - 1}" for b in of) for of in chunks],
                },
                "cuts": cuts,
            }
        )
    )


@pytest.mark.parametrize("scene", SCENES)
def test_every_address_holds_the_checkpoints_element_and_all_ranks_together_all_of_them(
    layouts: dict[str, Layout], scene: str
) -> None:
    assert all_is_held(layouts[scene], checkpoint(SCENES[scene]), SCENES[scene].tied)


@pytest.mark.parametrize("scene", SCENES)
def test_the_layout_is_the_one_that_the_rules_of_layout_files_make(layouts: dict[str, Layout], scene: str) -> None:
    assert boxes(layouts[scene]) == boxes(rules(SCENES[scene]))


def test_tied_embeddings_are_one_tensor_on_the_first_and_the_last_stage(layouts: dict[str, Layout]) -> None:
    layout = layouts["tied_tp2_pp2"]
    assert list(layout.ties) == [("lm_head.weight", "model.embed_tokens.weight")]
    assert [any(of[0] == "model.embed_tokens.weight" for of in rank) for rank in boxes(layout)] == [True] * 4
