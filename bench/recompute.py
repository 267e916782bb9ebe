#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time that an update spends in computing or repacking an engine's tensors again, by number of layers.

    PYTHONPATH=build/release/python .venv-vllm/bin/python3 bench/recompute.py [--models NAME ...] [--json FILE]

Models of vLLM's own classes on the CPU, of the tests' sizes but for what is computed: DeepSeek-V3 in block fp8, with 16
of its 128 heads (kv_b_proj of 4096 x 512, the share of a rank at TP 8), Nemotron-H with Mamba-2 layers alone, and Llama,
1024 wide, in formats that vLLM repacks: INT4 for its own kernel for CPUs (weights and scales), NVFP4 (scales). Each round
times, in turns: the recomputation; a copy of the derived tensors, which is the least that any way of refreshing
them writes; and vLLM's own way, `load_weights` of the whole checkpoint into a new model, with its post-processing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python" / "tests" / "engines"))

import computed_models as computed
import layout_models as layouts
import low_bit
import vllm_models as models

# isort: split
import torch
import vllm_gpu_kernels
from vllm.config import set_current_vllm_config

from sparsecast.buffers import dtype_name
from sparsecast.engines.vllm.model import trace

DEEPSEEK = computed.DEEPSEEK_V3_FP8 | {
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def deepseek(layers: int) -> dict[str, Any]:
    return DEEPSEEK | {"num_hidden_layers": layers, "first_k_dense_replace": layers}


def nemotron(layers: int) -> dict[str, Any]:
    return computed.NEMOTRON_H | {"num_hidden_layers": layers, "hybrid_override_pattern": "M" * layers}


def llama(form: str) -> Callable[[int], dict[str, Any]]:
    def make(layers: int) -> dict[str, Any]:
        size = {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 4}
        config = layouts.config_of("llama-3.1-405b bf16") | size | {"num_hidden_layers": layers}
        return config | {"quantization_config": low_bit.CONFIGS[form]}

    return make


MODELS: dict[str, tuple[Callable[[int], dict[str, Any]], Any]] = {
    "deepseek-v3-fp8": (deepseek, computed.deepseek_shapes),
    "nemotron-h": (nemotron, computed.nemotron_shapes),
    "llama-int4": (llama("int4"), None),
    "llama-nvfp4": (llama("nvfp4"), None),
}
"""Configuration by number of layers, and the shapes of the checkpoint if they are those of `computed_models`."""


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def measure(name: str, config: dict[str, Any], shapes: Any, rounds: int) -> dict[str, Any]:
    kind = f"{name}-{config['num_hidden_layers']}"
    models.COMPUTED[kind] = (config, shapes)
    vllm_config = models.config(kind)
    models.start(vllm_config)
    try:
        form = name.rpartition("-")[2]
        tensors = models.checkpoint(kind, seed=1) if shapes else low_bit.tensors_of(config, form, seed=1)
        table = [(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in tensors.items()]
        model = models.build(vllm_config)
        models.load(model, vllm_config, tensors)
        with set_current_vllm_config(vllm_config):
            traced, recomputation = trace(model, table, vllm_config)
        if traced.differences(traced.filling(tensors.items())):
            raise RuntimeError(f"{kind}: the model is not what was loaded")
        proof = seconds(lambda: recomputation.prove(as_loaded=True))
        derived = [slot.data for step in recomputation.steps for slot in step.derived]
        copies = [tensor.clone() for tensor in derived]

        def copy() -> None:
            for to, source in zip(copies, derived, strict=True):
                to.copy_(source)

        taken: dict[str, list[float]] = {"recompute": [], "copy": [], "load": []}
        for _ in range(rounds):
            fresh = models.build(vllm_config)  # What is repacked is not loaded again.
            works = {"recompute": recomputation.run, "copy": copy}
            works["load"] = partial(models.load, fresh, vllm_config, tensors)
            for key, work in works.items():
                taken[key].append(seconds(work))
        median = {key: statistics.median(values) for key, values in taken.items()}
        return {
            "model": name,
            "layers": config["num_hidden_layers"],
            "derived_bytes": sum(tensor.numel() * tensor.element_size() for tensor in derived),
            "shadow_bytes": recomputation.shadow_bytes,
            "proof_seconds": proof,
            **{f"{key}_seconds": value for key, value in median.items()},
            "recompute_over_copy": statistics.median(
                r / c for r, c in zip(taken["recompute"], taken["copy"], strict=True)
            ),
            "recompute_over_load": statistics.median(
                r / c for r, c in zip(taken["recompute"], taken["load"], strict=True)
            ),
        }
    finally:
        models.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with vllm_gpu_kernels.chosen():
        rows = [
            measure(name, MODELS[name][0](layers), MODELS[name][1], arguments.rounds)
            for name in arguments.models
            for layers in arguments.layers
        ]
    print("| model | layers | derived | shadows | recompute | a layer | / copy | / load | proof |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['model']} | {row['layers']} | {row['derived_bytes'] / 2**20:.3g} MiB | {row['shadow_bytes']} B | "
            f"{row['recompute_seconds'] * 1e3:.3g} ms | {row['recompute_seconds'] * 1e3 / row['layers']:.3g} ms | "
            f"{row['recompute_over_copy']:.3g} | {row['recompute_over_load']:.3g} | "
            f"{row['proof_seconds'] * 1e3:.3g} ms |"
        )
    if arguments.json is not None:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        machine = {"processor": platform.processor(), "cores": os.cpu_count(), "torch": torch.__version__}
        record = {"commit": commit.stdout.strip(), "arguments": vars(arguments) | {"json": None}, "machine": machine}
        arguments.json.write_text(json.dumps(record | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
