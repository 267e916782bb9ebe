# SPDX-License-Identifier: Apache-2.0
"""Lets SGLang choose its kernels for GPUs in this process, which has none: what they do with weights after loading is
torch, and runs here; they themselves do not. Marlin's repack is a kernel, too: here it is SGLang's own reference of it,
in torch.
"""

from __future__ import annotations

import sys
import types
import unittest.mock
from typing import Any

import torch


def choose(capability: tuple[int, int]) -> None:
    """As on a GPU of this capability, in models that are made or loaded from now on."""
    from sglang.srt.hardware_backend.gpu.quantization import gptq_kernels
    from sglang.srt.layers import quantization
    from sglang.srt.layers.quantization import fp8, marlin_utils_fp4, marlin_utils_fp8
    from sglang.srt.layers.quantization.compressed_tensors.schemes import compressed_tensors_wNa16
    from sglang.srt.layers.quantization.mxfp4 import Mxfp4Config
    from sglang.srt.runtime_context import override_platform

    facts = {"is_sm90": capability[0] == 9, "is_sm100": capability[0] == 10, "is_blackwell": capability[0] == 10}
    override_platform(**facts).__enter__()
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(multi_processor_count=1)  # type: ignore
    torch.Tensor.cuda = lambda tensor: tensor  # type: ignore[assignment,method-assign]  # Where it lies already.
    quantization.QUANTIZATION_METHODS["mxfp4"] = Mxfp4Config
    compressed_tensors_wNa16.WNA16_SUPPORTED_TYPES_MAP[4] = _Integers("uint4b8")
    for module in (gptq_kernels, marlin_utils_fp4, marlin_utils_fp8, compressed_tensors_wNa16):
        module.gptq_marlin_repack = _marlin_repack
    if capability < (8, 9):  # Without fp8, which is Marlin's then.
        initialize = fp8.Fp8LinearMethod.__init__

        def with_marlin(method: Any, *arguments: Any) -> None:
            initialize(method, *arguments)
            method.use_marlin = True

        fp8.Fp8LinearMethod.__init__ = with_marlin


def configure() -> None:
    """As SGLang's scheduler does it, once the configuration is published."""
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.layers.quantization.fp4_utils import initialize_fp4_gemm_config

    initialize_moe_config()
    initialize_fp4_gemm_config()


class _Integers(str):
    """A type of SGLang's kernels, of which it has the name alone where they are not installed."""

    size_bits = 4


def _marlin_repack(
    b_q_weight: torch.Tensor, perm: torch.Tensor, size_k: int, size_n: int, num_bits: int
) -> torch.Tensor:
    """The kernel of this name: integers that are packed along the first dimension go into Marlin's tiles."""
    names: Any = types.ModuleType(
        "sgl_kernel.scalar_type"
    )  # The reference imports names of it, and uses them not here.
    names.ScalarType = names.scalar_types = None
    with unittest.mock.patch.dict(sys.modules, {"sgl_kernel": types.ModuleType("sgl_kernel"), names.__name__: names}):
        from sglang.test import test_marlin_utils as reference

    assert not perm.numel()  # An order of activations, which no test has.
    shifts = torch.arange(0, 32, num_bits)[None, :, None]
    values = (b_q_weight[:, None, :].to(torch.int64) >> shifts) & (2**num_bits - 1)
    order = reference.get_weight_perm(num_bits)
    packed: torch.Tensor = reference.marlin_weights(values.reshape(size_k, size_n), size_k, size_n, num_bits, order)
    return packed
