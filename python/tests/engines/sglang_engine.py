# SPDX-License-Identifier: Apache-2.0
"""A rank of SGLang on the CPU, made of its own classes: configuration, process groups, models, loader. With
SPARSECAST_TEST_DEVICE=cuda in the environment it is on that device, with all that SGLang chooses there.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

DEVICE = os.environ.get("SPARSECAST_TEST_DEVICE", "cpu")
_REGISTERED: list[torch.library.Library] = []


def allow_import_without_gpu() -> None:
    """Names two things that only a GPU build has, so that SGLang's modules import; nothing here calls them.

    torchvision's wheel finds no CUDA runtime, and then its own Python part misses two operators. Off the known
    platforms SGLang's rotary embedding imports its kernel from vLLM.
    """
    if _REGISTERED or DEVICE != "cpu":
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _REGISTERED.append(library)
    if importlib.util.find_spec("vllm") is None:
        kernels = types.ModuleType("vllm._custom_ops")
        kernels.rotary_embedding = _missing_kernel  # type: ignore[attr-defined]
        sys.modules["vllm._custom_ops"] = kernels
        sys.modules["vllm"] = types.ModuleType("vllm")


def _missing_kernel(*_: object) -> None:
    raise RuntimeError("this kernel needs a GPU")


QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Two layers, an odd vocabulary that SGLang pads, and fewer key heads than query heads."""

QWEN3_MOE: dict[str, Any] = QWEN2 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "attention_bias": False,
}


def write_checkpoint(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """A Hugging Face checkpoint folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(folder / "model.safetensors"))


def canonical_tensors(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Random weights of a checkpoint with this configuration, by their names in it; with block-fp8 weights and scales
    if it says so.
    """
    import computed_models as computed
    import layout_models as layouts

    nemotron = config["model_type"] == "nemotron_h"
    shapes = (computed.nemotron_shapes if nemotron else layouts.shapes_of)({"head_dim": 16, **config})
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if "quantization_config" in config and computed.is_quantised(name):
            tensors[name] = values.to(torch.float8_e4m3fn)
            scales = torch.rand([-(-n // 128) for n in shape], generator=generator)
            tensors[f"{name}_scale_inv"] = scales
        else:
            tensors[name] = values if computed.is_float32(name) else values.bfloat16()
    return tensors


def start_rank(
    folder: Path,
    *,
    tp_rank: int,
    tp_size: int,
    port: int,
    capability: tuple[int, int] = (9, 0),
    gpu_kernels: bool = False,
    **server_args: Any,
) -> None:
    """Publishes SGLang's configuration for one tensor-parallel rank of this process and opens its gloo groups.

    `capability` is that of the GPU for which SGLang chooses kernels where it does not look at the device before, and
    with `gpu_kernels` everywhere.
    """
    allow_import_without_gpu()
    import sglang_gpu_kernels

    if gpu_kernels and DEVICE == "cpu":
        sglang_gpu_kernels.choose(capability)
    if not torch.cuda.is_available():
        # SGLang asks for it before it looks at the device, for models with sparse attention and for FP4.
        torch.cuda.get_device_capability = lambda *_: capability  # type: ignore[assignment]
    from sglang.srt import runtime_context
    from sglang.srt.distributed import parallel_state
    from sglang.srt.server_args import ServerArgs

    chosen: dict[str, Any] = {"attention_backend": "torch_native", "dtype": "bfloat16", **server_args}
    args = ServerArgs(
        model_path=str(folder),
        device="cpu",
        tp_size=tp_size,
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        **chosen,
    )
    runtime_context.publish(args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=tp_rank))
    if gpu_kernels or DEVICE != "cpu":
        sglang_gpu_kernels.configure()
    backend = "gloo" if DEVICE == "cpu" else "nccl"
    parallel_state.init_distributed_environment(
        world_size=tp_size,
        rank=tp_rank,
        local_rank=tp_rank,
        distributed_init_method=f"tcp://127.0.0.1:{port}",
        backend=backend,
        timeout=300,
    )
    parallel_state.initialize_model_parallel(backend=backend)


def load_model(folder: Path, like: Any) -> torch.nn.Module:
    """A new model of this rank, from the checkpoint, by SGLang's own loader; `like` is the live model's ModelConfig."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import get_model_loader

    config = copy.copy(like)
    config.model_path = str(folder)
    loader = get_model_loader(LoadConfig(load_format="safetensors"), config)
    return loader.load_model(model_config=config, device_config=DeviceConfig(DEVICE))
