# SPDX-License-Identifier: Apache-2.0
"""Small models of vLLM's own classes on the CPU, for the tests of one rank and of several.

Import it after `pytest.importorskip("vllm")`, before anything of vLLM: it chooses the platform. With
SPARSECAST_TEST_DEVICE=cuda in the environment, models are made on that device, with all that vLLM chooses there.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DEVICE = os.environ.get("SPARSECAST_TEST_DEVICE", "cpu")
if DEVICE == "cpu":
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")  # Else a build with kernels packs weights on some CPUs.
os.environ.setdefault("VLLM_DIST_IDENT", f"sparsecast-{os.getpid()}")  # vLLM for CPUs names shared memory by it.

import computed_models as computed
import layout_models as layouts
import low_bit
import torch
from vllm.config import DeviceConfig, ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import (
    destroy_distributed_environment,
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization import fp8
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.models import registry
from vllm.platforms.cpu import CpuPlatform

torch.cpu._is_amx_tile_supported = lambda: False  # Nor does vLLM itself, then.

# vLLM looks at each class of models in a process of its own, which imports vLLM anew, and keeps what it has found where
# another version looks, too. There is no GPU here that a look could take hold of.
registry._run_in_subprocess = lambda look: look()

HEADS, KV_HEADS, VOCABULARY, LAYERS, EXPERTS = 4, 2, 100, 2, 4

_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": {**_BASE, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3-tied": {
        **_BASE,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "tie_word_embeddings": True,
    },
    "llama": {**_BASE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "qwen3-moe": {
        **_BASE,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    },
}
_FP8: dict[str, Any] = {
    "hidden_size": 256,
    "head_dim": 128,
    "intermediate_size": 256,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "fmt": "e4m3",
    },
}
CONFIGS["llama-fp8"] = {**CONFIGS["llama"], **_FP8}
_GATES = [f"model.layers.{layer}.mlp.gate" for layer in range(LAYERS)]
CONFIGS["qwen3-moe-fp8"] = {
    **CONFIGS["qwen3-moe"],
    **_FP8,
    "moe_intermediate_size": 256,
    "quantization_config": {**_FP8["quantization_config"], "modules_to_not_convert": [*_GATES, "lm_head"]},
}
COMPUTED = {
    "deepseek-v3": (computed.DEEPSEEK_V3, computed.deepseek_shapes),
    "deepseek-v3-fp8": (computed.DEEPSEEK_V3_FP8, computed.deepseek_shapes),
    "glm-dsa": (computed.GLM_DSA, computed.deepseek_shapes),
    "deepseek-v3.2-fp8": (computed.DEEPSEEK_V32_FP8, computed.deepseek_shapes),
    "nemotron-h": (computed.NEMOTRON_H, computed.nemotron_shapes),
}
"""Models of which vLLM computes tensors: configuration, and the shapes of its checkpoint."""


def config_of(kind: str) -> dict[str, Any]:
    if kind in layouts.CELLS:
        return layouts.config_of(kind)
    if kind in low_bit.CELLS:
        return low_bit.config_of(kind)
    return COMPUTED[kind][0] if kind in COMPUTED else CONFIGS[kind]


def checkpoint_shapes(kind: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's tensors in a Hugging Face checkpoint, without the scales of fp8."""
    if kind in COMPUTED:
        return COMPUTED[kind][1](COMPUTED[kind][0])
    return layouts.shapes_of(config_of(kind))


def canonical(kind: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """The checkpoint as a table for `trace_loader`: with fp8, the quantised weights and their scales."""
    if kind in low_bit.CELLS:
        sent = {name: low_bit.as_sent(name, tensor) for name, tensor in low_bit.checkpoint(kind, 1).items()}
        return [(name, dtype, tuple(tensor.shape)) for name, (dtype, tensor) in sent.items()]
    table: list[tuple[str, str, tuple[int, ...]]] = []
    for name, shape in checkpoint_shapes(kind).items():
        if "quantization_config" in config_of(kind) and computed.is_quantised(name):
            table.append((name, "F8_E4M3", shape))
            table.append((f"{name}_scale_inv", "F32", tuple(-(-n // 128) for n in shape)))
        elif computed.is_float32(name):
            table.append((name, "F32", shape))
        else:
            table.append((name, "BF16", shape))
    return table


_BITS = {
    "BF16": (torch.bfloat16, torch.int16),
    "F8_E4M3": (torch.float8_e4m3fn, torch.uint8),
    "F32": (torch.float32, torch.int32),
}


def checkpoint(kind: str, seed: int) -> dict[str, torch.Tensor]:
    """Random bits, NaNs and all, in every tensor; values of their formats in low-bit ones."""
    if kind in low_bit.CELLS:
        return low_bit.checkpoint(kind, seed)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, dtype, shape in canonical(kind):
        meaning, carrier = _BITS[dtype]
        limits = torch.iinfo(carrier)
        bits = torch.randint(limits.min, limits.max + 1, shape, dtype=torch.int64, generator=generator)
        tensors[name] = bits.to(carrier).view(meaning)
    return tensors


def checkpoint_without_nans(kind: str, seed: int = 1) -> dict[str, torch.Tensor]:
    """The checkpoint of that seed with zeros for all NaNs, and for all that one bit makes a NaN."""
    tensors = checkpoint(kind, seed)
    return {name: torch.where(tensor.isfinite(), tensor, 0.0).to(tensor.dtype) for name, tensor in tensors.items()}


def random_updates(tensors: dict[str, torch.Tensor], seed: int, share: float = 0.02) -> dict[str, torch.Tensor]:
    """Copies with about `share` of the elements of every tensor changed, at least one, by one bit."""
    generator = torch.Generator().manual_seed(seed)
    changed: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        bits = bits_of(tensor).clone().view(-1)
        count = max(1, int(bits.numel() * share))
        where = torch.randperm(bits.numel(), generator=generator)[:count]
        bits[where] ^= 1
        changed[name] = bits.view(tensor.dtype).view(tensor.shape)
    return changed


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def differing(model: torch.nn.Module, other: torch.nn.Module) -> list[str]:
    """Names of parameters and buffers that are not bit for bit the same in two models of one kind."""
    pairs = zip(
        [*model.named_parameters(), *model.named_buffers()], [*other.parameters(), *other.buffers()], strict=True
    )
    return [name for (name, a), b in pairs if not torch.equal(bits_of(a.data), bits_of(b.data))]


def config(kind: str, tensor_parallel: int = 1, folder: Path | None = None) -> VllmConfig:
    """vLLM's configuration of the model; `folder` is where its checkpoint is, if there is one."""
    folder = folder or Path(tempfile.mkdtemp(prefix="sparsecast-vllm-"))
    (folder / "config.json").write_text(json.dumps(config_of(kind)))
    model = ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=64, enforce_eager=True
    )
    return VllmConfig(
        model_config=model,
        parallel_config=ParallelConfig(
            tensor_parallel_size=tensor_parallel, distributed_executor_backend="external_launcher"
        )
        if tensor_parallel > 1
        else ParallelConfig(),
        device_config=DeviceConfig(device=DEVICE),
    )


def start(vllm_config: VllmConfig, rank: int = 0, store: str = "") -> None:
    """Makes vLLM's process groups; `store` is a file that all ranks share."""
    size = vllm_config.parallel_config.tensor_parallel_size
    store = store or tempfile.mktemp(prefix="sparsecast-vllm-store-")
    with set_current_vllm_config(vllm_config):
        init_distributed_environment(size, rank, f"file://{store}", rank, "gloo" if DEVICE == "cpu" else "nccl")
        initialize_model_parallel(size, 1)


def stop() -> None:
    """Undoes `start`: a model with experts has groups that others do not have."""
    destroy_model_parallel()
    destroy_distributed_environment()


_backend_of = CpuPlatform.get_attn_backend_cls


def _dense_backend(*arguments: Any, **options: Any) -> str:
    """The attention that a CPU has: only the parameters around it matter here."""

    def dense(argument: Any) -> Any:
        return argument._replace(use_sparse=False) if hasattr(argument, "use_sparse") else argument

    chosen = _backend_of(*map(dense, arguments), **{name: dense(option) for name, option in options.items()})
    return str(chosen)


class _NoKernel:
    """A kernel that leaves the weights as they were loaded."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None: ...


def _no_setup(*_: object, **__: object) -> None: ...


def load(
    model: torch.nn.Module, vllm_config: VllmConfig, tensors: dict[str, torch.Tensor], *, with_experts: bool = False
) -> None:
    """Loads a checkpoint and runs vLLM's post-processing over the model; without kernels for experts, which the Python
    part of vLLM does not have on a CPU, unless the caller has chosen some.
    """
    patch = unittest.mock.patch.object
    with set_current_vllm_config(vllm_config), contextlib.ExitStack() as stack:
        model.load_weights(iter(tensors.items()))
        if not with_experts and DEVICE == "cpu":
            stack.enter_context(patch(UnquantizedFusedMoEMethod, "_setup_kernel", _no_setup))
            stack.enter_context(patch(fp8.Fp8MoEMethod, "_setup_kernel", _no_setup))
        process_weights_after_loading(model, vllm_config.model_config, torch.device(DEVICE))


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Models are made as on a CPU with nothing of its own: without fp8 kernels, AMX and sparse attention."""
    if DEVICE != "cpu":
        yield
        return
    with (
        unittest.mock.patch.object(fp8, "init_fp8_linear_kernel", lambda **_: _NoKernel()),
        unittest.mock.patch.object(torch.cpu, "_is_amx_tile_supported", lambda: False),
        unittest.mock.patch.object(CpuPlatform, "get_attn_backend_cls", staticmethod(_dense_backend)),
    ):
        yield


def build(vllm_config: VllmConfig) -> torch.nn.Module:
    """The model with zeros in all weights, as vLLM makes it.

    Only the choice of kernels is left out; the parameters and their loaders are others' concern.
    """
    vllm_config.compilation_config.static_forward_context.clear()  # It refuses a second model with the same layers.
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with without_kernels(), set_current_vllm_config(vllm_config), torch.device(DEVICE):
            model = initialize_model(vllm_config)
    finally:
        torch.set_default_dtype(before)
    for tensor in model.parameters():
        tensor.data.zero_()
    return model
