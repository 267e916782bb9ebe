# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM choose kernels of its own for GPUs on a CPU: what they do with weights after loading is torch, and runs
here; they themselves do not. Import it after `vllm_models`.
"""

from __future__ import annotations

import contextlib
import importlib
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm.model_executor.kernels import linear
from vllm.platforms.interface import PlatformEnum

_LAYERS = "vllm.model_executor.layers"
_METHODS = f"{_LAYERS}.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe"
_EXPERTS = (
    (f"{_METHODS}_w8a8_fp8", "fp8", "select_fp8_moe_backend", "Fp8MoeBackend", "TRITON"),
    (f"{_METHODS}_wna16", "int_wna16", "select_wna16_moe_backend", "WNA16MoEBackend", "EMULATION"),
    (f"{_METHODS}_w4a4_nvfp4", "nvfp4", "select_nvfp4_moe_backend", "NvFp4MoeBackend", "VLLM_CUTLASS"),
    (f"{_METHODS}_w4a4_mxfp4", "mxfp4", "select_mxfp4_moe_backend", "Mxfp4MoeBackend", "EMULATION"),
    (f"{_LAYERS}.quantization.modelopt", "nvfp4", "select_nvfp4_moe_backend", "NvFp4MoeBackend", "VLLM_CUTLASS"),
)
"""Module that asks for kernels of experts, the one that knows them, its function, and what it answers here."""


def _answer(oracle: str, kinds: str, kind: str) -> Callable[..., Any]:
    module = importlib.import_module(f"{_LAYERS}.fused_moe.oracle.{oracle}")
    backend = getattr(getattr(module, kinds), kind)
    classes = module.backend_to_kernel_cls(backend)
    return lambda *_, **__: (backend, classes[0])


@contextlib.contextmanager
def chosen() -> Iterator[None]:
    """Models that are made or loaded meanwhile get these kernels where a CPU has none; not all are in vLLM 0.32."""
    from vllm.model_executor.kernels.linear.mxfp4.pytorch import TorchMxFp4LinearKernel
    from vllm.model_executor.kernels.linear.nvfp4.pytorch import TorchNvFp4LinearKernel

    with contextlib.ExitStack() as stack:
        patch = unittest.mock.patch
        for kernel in (TorchNvFp4LinearKernel, TorchMxFp4LinearKernel):
            stack.enter_context(patch.object(kernel, "is_supported", classmethod(lambda *_: (True, None))))
            stack.enter_context(patch.object(kernel, "can_implement", classmethod(lambda *_: (True, None))))
        for table, kernel in (("NVFP4", TorchNvFp4LinearKernel), ("MXFP4", TorchMxFp4LinearKernel)):
            possible = getattr(linear, f"_POSSIBLE_{table}_KERNELS")
            stack.enter_context(patch.dict(possible, {PlatformEnum.CPU: [kernel]}))
        for user, oracle, function, kinds, kind in _EXPERTS:
            module = importlib.import_module(user)
            stack.enter_context(patch.object(module, function, _answer(oracle, kinds, kind)))
        stack.enter_context(patch.object(torch.Tensor, "cuda", lambda tensor: tensor))  # Where it lies already.
        yield


@contextlib.contextmanager
def swapped_experts() -> Iterator[None]:
    """Experts in bf16 get the order of FlashInfer's CUTLASS kernels meanwhile, [up, gate], in the same form."""
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    setup = UnquantizedFusedMoEMethod._setup_kernel

    def swapped(method: Any, *arguments: Any, **options: Any) -> None:
        method.unquantized_backend = UnquantizedMoeBackend.FLASHINFER_CUTLASS
        setup(method, *arguments, **options)

    def no_kernel(method: Any, _: object) -> None:
        method.moe_kernel = unittest.mock.MagicMock()

    patch = unittest.mock.patch.object
    with (
        patch(UnquantizedFusedMoEMethod, "_setup_kernel", swapped),
        patch(UnquantizedFusedMoEMethod, "_init_moe_kernel", no_kernel),
    ):
        yield
