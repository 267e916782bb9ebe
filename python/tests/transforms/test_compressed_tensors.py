# SPDX-License-Identifier: Apache-2.0
"""Quantised formats against the compressors of compressed-tensors, the library that wrote many checkpoints of vLLM."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")

from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from sparsecast.transforms import FP8_CHANNELS, MXFP4, MXFP8, NVFP4, QuantFormat, Quantize, Transforms, int4_groups

NAME = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(autouse=True)
def eager() -> Any:
    """Its cast to fp4 is compiled otherwise, which takes a minute."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


def random_weights(shape: tuple[int, int], seed: int) -> torch.Tensor:
    """Weights of bf16 in fp32, in which the library computes what it is given; no group is zero."""
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02
    return (weights * torch.logspace(-3, 3, shape[0])[:, None]).bfloat16().float()


def compressed(weight: torch.Tensor, compressor: str, args: QuantizationArgs) -> dict[str, torch.Tensor]:
    """What the library makes of a weight, scales by its own observers' arithmetic."""
    group = args.group_size or weight.shape[1]
    groups = weight.unflatten(-1, (-1, group))
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    state = {"weight": weight}
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = generate_gparam(weight.min(), weight.max())
    scale, _ = calculate_qparams(low, high, args, global_scale=state.get("weight_global_scale"))
    state["weight_scale"] = scale.bfloat16().float() if args.type == "int" else scale
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    return dict(BaseCompressor.get_value_from_registry(compressor).compress(state, scheme))


def args(**words: Any) -> QuantizationArgs:
    return QuantizationArgs(symmetric=True, **words)


CASES: dict[str, tuple[QuantFormat, str, QuantizationArgs]] = {
    "fp8 channels": (FP8_CHANNELS, "float-quantized", args(num_bits=8, type="float", strategy="channel")),
    "mxfp8": (
        dataclasses.replace(MXFP8, rounding="power_round"),
        "mxfp8-quantized",
        args(num_bits=8, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8),
    ),
    "mxfp4": (
        dataclasses.replace(MXFP4, rounding="power_round"),
        "mxfp4-pack-quantized",
        args(num_bits=4, type="float", strategy="group", group_size=32, scale_dtype=torch.uint8),
    ),
    "nvfp4": (
        NVFP4,
        "nvfp4-pack-quantized",
        args(num_bits=4, type="float", strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn),
    ),
    "int4, 128": (int4_groups(), "pack-quantized", args(num_bits=4, type="int", strategy="group", group_size=128)),
    "int4, 32": (int4_groups(32), "pack-quantized", args(num_bits=4, type="int", strategy="group", group_size=32)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_format_is_what_compressed_tensors_makes(name: str) -> None:
    fmt, compressor, arguments = CASES[name]
    weight = random_weights((64, 512), 1)
    expected = compressed(weight, compressor, arguments)
    results = Transforms([Quantize(fmt)], [(NAME, "BF16", weight.shape)])(NAME, weight.bfloat16())
    stem = NAME.removesuffix("weight")
    assert {out.removeprefix(stem) for out, _, _ in results} == set(expected)
    for out, tensor, _ in results:
        theirs = expected[out.removeprefix(stem)]
        if theirs.dtype == torch.float32 and tensor.dtype == torch.bfloat16:
            theirs = theirs.bfloat16()
        assert (tensor.dtype, tensor.shape) == (theirs.dtype, theirs.shape), out
        assert torch.equal(tensor.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8)), out
