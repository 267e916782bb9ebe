# SPDX-License-Identifier: Apache-2.0
"""The parameters of real HybridModels are filled from a checkpoint by another conversion, and every address is looked
at. Only mamba_ssm's kernels and Transformer Engine's norm, which run on GPUs, are written in torch (hybrid_scenes.py).
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core.models.hybrid")
pytest.importorskip("einops")

import torch.distributed as dist
from hybrid_scenes import (
    EXPERT_FFN,
    EXPERTS,
    FFN,
    GROUPS,
    HEAD,
    HEADS,
    HIDDEN,
    KERNEL,
    MAMBA_GROUPS,
    MAMBA_HEAD,
    MAMBA_HEADS,
    SHARED_FFN,
    STATE,
    VOCAB,
    Scene,
    build,
    checkpoint,
    configuration,
    fill,
    without_kernels,
)
from megatron_scenes import (
    all_is_held,
    boxes,
    join_parallel_groups,
    layouts_of,
    look_at_every_address,
    stay_on_the_cpu,
)

from sparsecast import Layout
from sparsecast.megatron import NEMOTRON_H, megatron_layout, megatron_tensors

WORLD = 4
SCENES = {
    "tp2_pp2": Scene("M*-M|M*", tp=2, pp=2),
    "pp2_vp2": Scene("M|*-|M-M|*", tp=2, pp=2, vp=2),
    "moe_ep2_tp2": Scene("ME*E-", tp=2, ep=2, etp=2),
    "moe_tp4_ep4": Scene("MEM", tp=4, ep=4, tied=True, padded=128),
}


def noise(scene: Scene) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: 0.3 * torch.randn(tensor.shape, generator=generator) for name, tensor in checkpoint(scene).items()}


def transformers_model(scene: Scene) -> tuple[Any, Any]:
    """The module that has Hugging Face's model, and its configuration."""
    # torchvision, which transformers imports where it is there, may be compiled for CUDA, beside a CPU build of torch.
    sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
    modeling = pytest.importorskip("transformers.models.nemotron_h.modeling_nemotron_h")
    return modeling, modeling.NemotronHConfig(
        hybrid_override_pattern=scene.pattern.replace("|", ""), vocab_size=VOCAB, hidden_size=HIDDEN,
        tie_word_embeddings=scene.tied, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=HEAD,
        intermediate_size=FFN, mamba_num_heads=MAMBA_HEADS, mamba_head_dim=MAMBA_HEAD, n_groups=MAMBA_GROUPS,
        ssm_state_size=STATE, conv_kernel=KERNEL, chunk_size=4, n_routed_experts=EXPERTS,
        moe_intermediate_size=EXPERT_FFN, moe_shared_expert_intermediate_size=SHARED_FFN,
    )  # fmt: skip


def mixers_output(scene: Scene, tokens: torch.Tensor) -> torch.Tensor:
    """What Hugging Face's first mixer computes of the checkpoint."""
    modeling, config = transformers_model(scene)
    mixer, at = modeling.NemotronHMamba2Mixer(config, layer_idx=0), "backbone.layers.0.mixer."
    mixer.load_state_dict({name[len(at) :]: tensor for name, tensor in noise(scene).items() if name.startswith(at)})
    with torch.no_grad():
        return mixer(tokens.transpose(0, 1)).transpose(0, 1)


def work(rank: int, port: int, directory: str) -> None:
    warnings.simplefilter("ignore")
    stay_on_the_cpu()
    without_kernels()
    torch.set_num_threads(1)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    from megatron.core import parallel_state as ps

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    for name, scene in SCENES.items():
        place = join_parallel_groups(scene)
        hf, config = checkpoint(scene), configuration(scene)
        chunks = build(scene, config)
        if place["pp"] == 0:
            # The package's own mixer, over all tensor-parallel ranks, computes what Hugging Face's does.
            fill(chunks, scene, noise(scene), place)
            tokens, expected = torch.load(Path(directory) / name)
            with torch.no_grad():
                got, _ = chunks[0].get_submodule("decoder.layers.0.mixer")(tokens)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        fill(chunks, scene, hf, place)
        layout = megatron_layout(chunks, config, NEMOTRON_H, vocab_size=VOCAB)
        look_at_every_address(layout, megatron_tensors(chunks), hf)
        (Path(directory) / f"{name}.{rank}").write_bytes(layout.serialize())
        ps.destroy_model_parallel()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Layout]:
    """The joined layouts of every scene. Four processes look at every address of theirs."""
    directory = tmp_path_factory.mktemp("layouts")
    for name, scene in SCENES.items():
        tokens = torch.randn(6, 2, HIDDEN, generator=torch.Generator().manual_seed(1))
        torch.save((tokens, mixers_output(scene, tokens)), directory / name)
    return layouts_of(work, WORLD, SCENES, directory)


@pytest.mark.parametrize("scene", SCENES)
def test_every_address_holds_the_checkpoints_element_and_all_ranks_together_all_of_them(
    layouts: dict[str, Layout], scene: str
) -> None:
    assert all_is_held(layouts[scene], checkpoint(SCENES[scene]), SCENES[scene].tied)


def test_layers_count_over_the_stages_of_the_pattern(layouts: dict[str, Layout]) -> None:
    """Of M | *- | M-M | *, the first stage holds M and M-M, and the second *- and *."""
    layers = [{int(box[0].split(".")[2]) for box in of if ".layers." in box[0]} for of in boxes(layouts["pp2_vp2"])]
    assert layers == [{0, 3, 4, 5}, {0, 3, 4, 5}, {1, 2, 6}, {1, 2, 6}]


@pytest.mark.parametrize("scene", SCENES)
def test_transformers_saves_checkpoints_of_these_names_and_shapes(scene: str, tmp_path: Path) -> None:
    modeling, config = transformers_model(SCENES[scene])
    modeling.NemotronHForCausalLM(config).save_pretrained(tmp_path)
    saved = pytest.importorskip("safetensors.torch").load_file(tmp_path / "model.safetensors")
    expected = checkpoint(SCENES[scene])
    expected.setdefault("lm_head.weight", expected["backbone.embeddings.weight"])  # Saved also where it is tied.
    assert {name: t.shape for name, t in saved.items()} == {name: t.shape for name, t in expected.items()}
