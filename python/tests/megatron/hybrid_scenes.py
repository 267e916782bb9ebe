# SPDX-License-Identifier: Apache-2.0
"""Small HybridModels on CPUs, and their parameters from a checkpoint by a conversion of the tests' own."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from megatron_scenes import EXPERT_FFN, EXPERTS, FFN, GROUPS, HEAD, HEADS, HIDDEN, SHARED_FFN, VOCAB, distinct

MAMBA_HEADS, MAMBA_HEAD, MAMBA_GROUPS, STATE, KERNEL = 8, 6, 4, 5, 4
INNER, STATES = MAMBA_HEADS * MAMBA_HEAD, MAMBA_GROUPS * STATE


@dataclass(frozen=True)
class Scene:
    pattern: str
    tp: int = 1
    pp: int = 1
    vp: int | None = None
    ep: int = 1
    etp: int = 1
    tied: bool = False
    padded: int = 96


def checkpoint(scene: Scene) -> dict[str, torch.Tensor]:
    """Nemotron-H's tensors. Every element of the model has a value of its own, exact in fp32."""
    shapes: dict[str, tuple[int, ...]] = {
        "backbone.embeddings.weight": (VOCAB, HIDDEN),
        "backbone.norm_f.weight": (HIDDEN,),
    }
    if not scene.tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer, kind in enumerate(scene.pattern.replace("|", "")):
        at = f"backbone.layers.{layer}.mixer."
        shapes[f"backbone.layers.{layer}.norm.weight"] = (HIDDEN,)
        if kind == "M":
            shapes[f"{at}in_proj.weight"] = (2 * INNER + 2 * STATES + MAMBA_HEADS, HIDDEN)
            shapes[f"{at}conv1d.weight"] = (INNER + 2 * STATES, 1, KERNEL)
            shapes[f"{at}conv1d.bias"] = (INNER + 2 * STATES,)
            shapes |= {f"{at}{name}": (MAMBA_HEADS,) for name in ("A_log", "D", "dt_bias")}
            shapes[f"{at}norm.weight"] = (INNER,)
            shapes[f"{at}out_proj.weight"] = (HIDDEN, INNER)
        elif kind == "*":
            for name, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
                shapes[f"{at}{name}_proj.weight"] = (heads * HEAD, HIDDEN)
            shapes[f"{at}o_proj.weight"] = (HIDDEN, HEADS * HEAD)
        elif kind == "E":
            shapes[f"{at}gate.weight"] = (EXPERTS, HIDDEN)
            shapes[f"{at}gate.e_score_correction_bias"] = (EXPERTS,)
        mlps = {"": FFN} if kind == "-" else {}
        if kind == "E":
            mlps = {f"experts.{e}.": EXPERT_FFN for e in range(EXPERTS)} | {"shared_experts.": SHARED_FFN}
        for mlp, width in mlps.items():
            shapes[f"{at}{mlp}up_proj.weight"] = (width, HIDDEN)
            shapes[f"{at}{mlp}down_proj.weight"] = (HIDDEN, width)
    return distinct(shapes)


def loaded(name: str, layer: int, scene: Scene, hf: dict[str, torch.Tensor], place: dict[str, int]) -> torch.Tensor:
    """What Megatron holds under a name of one layer: split into its parts, each cut, joined."""
    at, tp, etp = f"backbone.layers.{layer}.mixer.", (scene.tp, place["tp"]), (scene.etp, place["etp"])

    def cut(tensor: torch.Tensor, dim: int, part: tuple[int, int]) -> torch.Tensor:
        return tensor.chunk(part[0], dim)[part[1]]

    def split(own: str, *widths: int) -> torch.Tensor:
        return torch.cat([cut(one, 0, tp) for one in hf[f"{at}{own}"].split(widths)])

    def mlp(stem: str, part: tuple[int, int]) -> torch.Tensor:
        down = "linear_fc2" in name
        return cut(hf[f"{at}{stem}{'down' if down else 'up'}_proj.weight"], int(down), part)

    if name == "mixer.in_proj.weight":
        return split("in_proj.weight", INNER, INNER, STATES, STATES, MAMBA_HEADS)
    if name.startswith("mixer.conv1d"):
        return split(f"conv1d.{name[len('mixer.conv1d') + 1 :]}", INNER, STATES, STATES)
    if name == "mixer.out_proj.weight":
        return cut(hf[f"{at}out_proj.weight"], 1, tp)
    if name.startswith("mixer."):
        return cut(hf[f"{at}{name[len('mixer.') :]}"], 0, tp)
    if name == "self_attention.linear_qkv.weight":
        three = [hf[f"{at}{of}_proj.weight"].reshape(GROUPS, -1, HIDDEN) for of in "qkv"]
        return cut(torch.cat(three, dim=1).reshape(-1, HIDDEN), 0, tp)
    if name == "self_attention.linear_proj.weight":
        return cut(hf[f"{at}o_proj.weight"], 1, tp)
    if name.startswith("mlp.experts.local_experts."):
        return mlp(f"experts.{place['ep'] * (EXPERTS // scene.ep) + int(name.split('.')[3])}.", etp)
    if name.startswith("mlp.shared_experts."):
        return mlp("shared_experts.", tp)
    if name.startswith("mlp.linear"):
        return mlp("", tp)
    if name.startswith("mlp.router."):
        return hf[f"{at}gate.{'weight' if name.endswith('weight') else 'e_score_correction_bias'}"]
    assert name in ("norm.weight", "input_layernorm.weight", "pre_mlp_layernorm.weight"), name
    return hf[f"backbone.layers.{layer}.norm.weight"]


def fill(chunks: list[torch.nn.Module], scene: Scene, hf: dict[str, torch.Tensor], place: dict[str, int]) -> None:
    def vocabulary(name: str) -> torch.Tensor:
        padding = (0, 0, 0, scene.padded - VOCAB)
        return torch.nn.functional.pad(hf[name], padding, value=-1.0).chunk(scene.tp)[place["tp"]]

    segments = scene.pattern.split("|")
    for stage, chunk in enumerate(chunks):
        first = len("".join(segments[: stage * scene.pp + place["pp"]]))
        biases = {name: buffer for name, buffer in chunk.named_buffers() if name.endswith("expert_bias")}
        for name, parameter in {**dict(chunk.named_parameters()), **biases}.items():
            if name == "embedding.word_embeddings.weight":
                value = vocabulary("backbone.embeddings.weight")
            elif name == "output_layer.weight":
                value = vocabulary("backbone.embeddings.weight" if scene.tied else "lm_head.weight")
            elif name == "decoder.final_norm.weight":
                value = hf["backbone.norm_f.weight"]
            else:
                _, _, layer, rest = name.split(".", 3)
                value = loaded(rest, first + int(layer), scene, hf, place)
            assert parameter.shape == value.shape, name
            parameter.data.copy_(value)


class GatedNorm(torch.nn.Module):
    """What mamba_ssm's RMSNorm computes for a gate after the norm's input, and the parameter that it has."""

    def __init__(
        self, width: int, eps: float, group_size: int, norm_before_gate: bool, device: Any, dtype: Any
    ) -> None:
        super().__init__()
        assert not norm_before_gate
        self.eps, self.group_size = eps, group_size
        self.weight = torch.nn.Parameter(torch.ones(width, dtype=dtype))

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        gated = (x * torch.nn.functional.silu(z)).unflatten(-1, (-1, self.group_size))
        return torch.nn.functional.rms_norm(gated, (self.group_size,), eps=self.eps).flatten(-2) * self.weight


def scan(
    x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor, _chunk: int,  # noqa: N803
    *, D: torch.Tensor, dt_bias: torch.Tensor, dt_softplus: bool, **_: Any,  # noqa: N803
) -> torch.Tensor:  # fmt: skip
    """What mamba_ssm's mamba_chunk_scan_combined computes, one token after the other. x: [batch, token, head, channel]
    dt: [batch, token, head]; B and C: [batch, token, group, state].
    """
    assert dt_softplus
    dt = torch.nn.functional.softplus(dt + dt_bias)
    B, C = (of.repeat_interleave(x.shape[2] // of.shape[2], dim=2) for of in (B, C))  # noqa: N806
    state, y = torch.zeros(*x[:, 0].shape, B.shape[-1]), torch.empty_like(x)
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t] * A)[..., None, None]
        state = state * decay + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        y[:, t] = (state * C[:, t, :, None]).sum(-1) + D[:, None] * x[:, t]
    return y


def without_kernels() -> None:
    """Gives the package what it has of mamba_ssm on GPUs, and torch's norm in the place of Transformer Engine's."""
    from megatron.core.models.hybrid import hybrid_block
    from megatron.core.post_training.modelopt.hybrid import model_specs
    from megatron.core.ssm import mamba_mixer
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    mamba_mixer.HAVE_MAMBA_SSM = True
    mamba_mixer.ExtendedRMSNorm, mamba_mixer.mamba_chunk_scan_combined = GatedNorm, scan
    mamba_mixer.get_cuda_rng_tracker = lambda: SimpleNamespace(fork=contextlib.nullcontext)
    hybrid_block.TENorm = model_specs.Norm = WrappedTorchNorm


def configuration(scene: Scene) -> Any:
    from megatron.core.activations import squared_relu
    from megatron.core.transformer.transformer_config import TransformerConfig

    moe = {
        "num_moe_experts": EXPERTS,
        "moe_ffn_hidden_size": EXPERT_FFN,
        "moe_shared_expert_intermediate_size": SHARED_FFN,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_token_dispatcher_type": "allgather",
        "expert_model_parallel_size": scene.ep,
        "expert_tensor_parallel_size": scene.etp,
    }
    return TransformerConfig(
        num_layers=len(scene.pattern.replace("|", "")),
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_query_groups=GROUPS,
        kv_channels=HEAD,
        ffn_hidden_size=FFN,
        activation_func=squared_relu,
        add_bias_linear=False,
        normalization="RMSNorm",
        mamba_num_heads=MAMBA_HEADS,
        mamba_head_dim=MAMBA_HEAD,
        mamba_num_groups=MAMBA_GROUPS,
        mamba_state_dim=STATE,
        use_mamba_mem_eff_path=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        tensor_model_parallel_size=scene.tp,
        pipeline_model_parallel_size=scene.pp,
        virtual_pipeline_model_parallel_size=scene.vp,
        **(moe if "E" in scene.pattern else {}),
    )


def build(scene: Scene, config: Any) -> list[torch.nn.Module]:
    from megatron.core import parallel_state as ps
    from megatron.core.models.hybrid.hybrid_model import HybridModel
    from megatron.core.post_training.modelopt.hybrid.model_specs import get_hybrid_stack_modelopt_spec

    return [
        HybridModel(
            config,
            get_hybrid_stack_modelopt_spec(local_core_attention=True),
            vocab_size=scene.padded,
            max_sequence_length=16,
            hybrid_layer_pattern=scene.pattern,
            pre_process=ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
            post_process=ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
            share_embeddings_and_output_weights=scene.tied,
            vp_stage=stage,
        )
        for stage in (range(scene.vp) if scene.vp else [None])
    ]
