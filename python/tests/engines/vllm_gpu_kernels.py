# SPDX-License-Identifier: Apache-2.0
"""Lets vLLM choose kernels of its own for GPUs on a CPU: what they do with weights after loading is torch, and runs
here; they themselves do not. Marlin's repack is a kernel, too: here it is vLLM's own reference of it, in torch. Import
it after `vllm_models`.
"""

from __future__ import annotations

import contextlib
import importlib
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm import _custom_ops
from vllm.model_executor.kernels import linear
from vllm.platforms.interface import PlatformEnum

_LAYERS = "vllm.model_executor.layers"
_METHODS = f"{_LAYERS}.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe"
_EXPERTS = (
    (f"{_METHODS}_w8a8_fp8", "fp8", "select_fp8_moe_backend", "Fp8MoeBackend", "TRITON"),
    (f"{_METHODS}_wna16", "int_wna16", "select_wna16_moe_backend", "WNA16MoEBackend", "EMULATION"),
    (f"{_METHODS}_w4a4_nvfp4", "nvfp4", "select_nvfp4_moe_backend", "NvFp4MoeBackend", "VLLM_CUTLASS"),
    (f"{_LAYERS}.quantization.modelopt", "nvfp4", "select_nvfp4_moe_backend", "NvFp4MoeBackend", "VLLM_CUTLASS"),
    (f"{_LAYERS}.quantization.mxfp4", "mxfp4", "select_mxfp4_moe_backend", "Mxfp4MoeBackend", "EMULATION"),
)
"""Module that asks for kernels of experts, the one that knows them, its function, and what it answers here. MXFP4 of
compressed-tensors is Marlin's without being asked.
"""


def _answer(oracle: str, kinds: str, kind: str) -> Callable[..., Any]:
    module = importlib.import_module(f"{_LAYERS}.fused_moe.oracle.{oracle}")
    backend = getattr(getattr(module, kinds), kind)
    classes = module.backend_to_kernel_cls(backend)
    return lambda *_, **__: (backend, classes[0])


@contextlib.contextmanager
def chosen(kernels: str = "") -> Iterator[None]:
    """Models that are made or loaded meanwhile get these kernels where a CPU has none; with "marlin" Marlin's for all of
    INT4, MXFP4 and NVFP4, with "triton" Triton's for gpt-oss, in the layouts of Hopper. Not all are in vLLM 0.32.
    """
    from vllm.model_executor.kernels.linear.mxfp4.marlin import MarlinMxFp4LinearKernel
    from vllm.model_executor.kernels.linear.mxfp4.pytorch import TorchMxFp4LinearKernel
    from vllm.model_executor.kernels.linear.nvfp4.marlin import MarlinNvFp4LinearKernel
    from vllm.model_executor.kernels.linear.nvfp4.pytorch import TorchNvFp4LinearKernel

    marlin = kernels == "marlin"
    tables: dict[str, Any] = {
        "_POSSIBLE_NVFP4_KERNELS": MarlinNvFp4LinearKernel if marlin else TorchNvFp4LinearKernel,
        "_POSSIBLE_MXFP4_KERNELS": MarlinMxFp4LinearKernel if marlin else TorchMxFp4LinearKernel,
    }
    if marlin:
        tables["_POSSIBLE_KERNELS"] = linear.MarlinLinearKernel
    with contextlib.ExitStack() as stack:
        patch = unittest.mock.patch
        for table, kernel in tables.items():
            stack.enter_context(patch.dict(getattr(linear, table), {PlatformEnum.CPU: [kernel]}))
            for question in ("is_supported", "can_implement"):
                yes = classmethod(lambda *_: (True, None))
                stack.enter_context(patch.object(kernel, question, yes, create=True))
        for user, oracle, function, kinds, kind in _EXPERTS:
            module = importlib.import_module(user)
            has_it = kernels and (oracle == "mxfp4" or (marlin and oracle != "fp8"))
            answer = _answer(oracle, kinds, kernels.upper() if has_it else kind)
            stack.enter_context(patch.object(module, function, answer))
        stack.enter_context(patch.object(torch.Tensor, "cuda", lambda tensor: tensor))  # Where it lies already.
        mxfp4 = importlib.import_module(f"{_LAYERS}.fused_moe.oracle.mxfp4")
        stack.enter_context(patch.object(mxfp4, "_validate_mxfp4_experts_config", lambda *_: None))
        utilities = importlib.import_module(f"{_LAYERS}.quantization.utils.marlin_utils")
        stack.enter_context(patch.object(utilities, "num_compute_units", lambda _: 1))
        if kernels == "triton":
            stack.enter_context(_layouts_of_hopper())
        stack.enter_context(patch.object(_custom_ops, "gptq_marlin_repack", _marlin_repack))
        stack.enter_context(patch.object(_custom_ops, "gptq_marlin_moe_repack", _marlin_repack_of_experts))
        yield


@contextlib.contextmanager
def _layouts_of_hopper() -> Iterator[None]:
    from triton_kernels.tensor_details import layout

    def of_weights(mx_axis: int) -> tuple[Any, dict[str, int]]:
        return layout.HopperMXValueLayout, {"mx_axis": mx_axis, "mma_version": 3}

    def of_scales(mx_axis: int, num_warps: int) -> tuple[Any, dict[str, int]]:
        return layout.HopperMXScaleLayout, {"mx_axis": mx_axis, "num_warps": num_warps}

    patch = unittest.mock.patch.object
    with (
        patch(layout, "make_default_matmul_mxfp4_w_layout", of_weights),
        patch(layout, "make_default_matmul_mxfp4_w_scale_layout", of_scales),
    ):
        yield


def _marlin_repack(
    b_q_weight: torch.Tensor, size_k: int, size_n: int, num_bits: int, is_a_8bit: bool = False
) -> torch.Tensor:
    """The kernel of this name: integers that are packed along the first dimension go into Marlin's tiles."""
    from vllm.model_executor.layers.quantization.utils import marlin_utils_test as reference

    shifts = torch.arange(0, 32, num_bits)[None, :, None]
    values = (b_q_weight[:, None, :].to(torch.int64) >> shifts) & (2**num_bits - 1)
    order = reference.get_weight_perm(num_bits, is_a_8bit)
    packed: torch.Tensor = reference.marlin_weights(
        values.reshape(size_k, size_n), size_k, size_n, num_bits, order, is_a_8bit
    )
    return packed


def _marlin_repack_of_experts(b_q_weight: torch.Tensor, *sizes: Any, **named: Any) -> torch.Tensor:
    return torch.stack([_marlin_repack(each, *sizes, **named) for each in b_q_weight])


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
