# SPDX-License-Identifier: Apache-2.0
"""Low-bit models with the kernels that the engines choose themselves on a CUDA device, whose repacks are kernels, too:
Marlin's, FlashInfer's, DeepGEMM's, CUTLASS's. scripts/gpu_check.sh runs this file where an engine can be imported; which
kernels it shows depends on the device. SPARSECAST_TEST_DEVICE=cpu runs the same without a device, to try the tests.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

DEVICE = os.environ.get("SPARSECAST_TEST_DEVICE", "")
if DEVICE == "" or (DEVICE == "cuda" and not torch.cuda.is_available()):
    pytest.skip("needs SPARSECAST_TEST_DEVICE=cuda, and the device", allow_module_level=True)
CELLS = [
    *(f"{model} {form}" for model in ("llama-3.1-405b", "qwen3-30b-a3b") for form in ("int4", "mxfp4", "nvfp4", "fp8")),
    "qwen3-30b-a3b bf16",  # Experts, which FlashInfer keeps in an order of its own.
    "deepseek-v3 fp8",
    "gpt-oss-20b bf16",
    "gpt-oss-20b mxfp4",
]
UPDATES = (1, 2)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM here")
@pytest.mark.parametrize("cell", CELLS)
def test_what_vllms_kernels_repack_is_that_of_a_fresh_load_and_at_its_address(cell: str) -> None:
    import vllm_models as models

    # isort: split
    import low_bit
    from sglang_engine import canonical_tensors
    from test_vllm_computed import Live
    from test_vllm_low_bit import kernel_tensors
    from test_vllm_trace import patch_by_map
    from vllm.config import set_current_vllm_config

    from sparsecast.engines.vllm.model import trace

    config = models.config(cell)
    models.start(config)
    try:
        finite = cell in models.layouts.CELLS
        tensors = canonical_tensors(models.config_of(cell), seed=1) if finite else models.checkpoint(cell, seed=1)
        try:
            model = models.build(config)
            models.load(model, config, tensors)
        except (NotImplementedError, RuntimeError, ValueError, ModuleNotFoundError) as error:
            pytest.skip(f"vLLM does not load it here: {type(error).__name__}: {error}")
        live = object.__new__(Live)
        live.kind, live.config, live.tensors, live.model = cell, config, tensors, model
        rearranged: set[str] = set()
        for _ in range(2):  # As a join does it: the bytes tell what the form does not.
            with set_current_vllm_config(config):
                traced, recomputation = trace(model, models.canonical(cell), config, ["*.attn.*_scale"], {}, rearranged)
            wrong = traced.differences(traced.filling(tensors.items()))
            rearranged = traced.modules_of(wrong)
            if not wrong:
                break
        assert wrong == {}
        recomputation.prove(as_loaded=True)
        methods = Counter(type(getattr(m, "quant_method", None)).__name__ for m in model.modules())
        print(f"{cell}: {len(recomputation.repacked)} modules are repacked; {dict(methods)}")
        addresses, kernels = live.addresses(), kernel_tensors(model)
        for seed in UPDATES:
            live.tensors = low_bit.random_updates(live.tensors, seed)
            patch_by_map(traced, live.tensors)
            recomputation.run()
            fresh = live.fresh()
            assert models.differing(model, fresh) == []
            assert all(torch.equal(tensor, kernels[name]) for name, tensor in kernel_tensors(fresh).items())
        assert live.addresses() == addresses
        recomputation.audit()
    finally:
        models.stop()


def follow_on_sglang(folder: Path, cell: str) -> str | list[list[str]]:
    """What differs from fresh loads at first and after each update; or why SGLang does not load it."""
    import layout_models as layouts
    import low_bit
    import sglang_engine
    import sglang_ranks
    from test_repacked import patch

    from sparsecast.engines.sglang.weights import trace_and_verify

    if cell in layouts.CELLS:
        config = layouts.config_of(cell)
        tensors = sglang_engine.canonical_tensors(config, seed=7)
    else:
        config = low_bit.config_of(cell)
        tensors = low_bit.tensors_of(config, cell.split()[1], seed=7)
    sglang_engine.write_checkpoint(folder / "v0", config, tensors)
    try:
        process = sglang_ranks.RankProcess(folder / "v0", 0, 1, sglang_ranks.free_port(), {})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    runner = process.worker.model_runner
    asked: Any = SimpleNamespace(tensors=None, may_miss=["*.attn*.?_scale"], modes={}, ties=frozenset())
    traced, recomputation, _ = trace_and_verify(runner.model, runner.model_config, asked)
    recomputation.prove(as_loaded=True)
    print(f"{cell}: {len(recomputation.repacked)} modules are repacked")
    addresses = process.addresses()
    found = [process.differences(folder / "v0")]
    for seed in UPDATES:
        tensors = low_bit.random_updates(tensors, seed)
        patch(traced, tensors)
        recomputation.run()
        sglang_engine.write_checkpoint(folder / f"v{seed}", config, tensors)
        found.append(process.differences(folder / f"v{seed}"))
    recomputation.audit()
    return [*found, sorted(name for name, at in process.addresses().items() if at != addresses[name])]


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="no SGLang here")
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell != "llama-3.1-405b fp8"])  # Its loader drops scales.
def test_what_sglangs_kernels_repack_is_that_of_a_fresh_load_and_at_its_address(cell: str, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:  # SGLang keeps its configuration.
        found = alone.submit(follow_on_sglang, tmp_path, cell).result()
    if isinstance(found, str):
        pytest.skip(f"SGLang does not load it here: {found}")
    assert found == [[], [], [], []]
