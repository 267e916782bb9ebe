# SPDX-License-Identifier: Apache-2.0
"""Quantised formats against the compressors of compressed-tensors, the library that wrote many checkpoints of vLLM."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")

from sparsecast.transforms import FP8_CHANNELS, MXFP4, MXFP8, NVFP4, QuantFormat, Quantize, Transforms, int4_groups

PROGRAM = pathlib.Path(__file__).parents[3] / "scripts" / "low_bits_golden.py"
NAME = "model.layers.0.mlp.down_proj.weight"
FORMATS: dict[str, QuantFormat] = {
    "fp8_channels": FP8_CHANNELS,
    "mxfp8": dataclasses.replace(MXFP8, rounding="power_round"),
    "mxfp4": dataclasses.replace(MXFP4, rounding="power_round"),
    "nvfp4": NVFP4,
    "int4_128": int4_groups(),
    "int4_32": int4_groups(32),
}


@pytest.fixture(scope="module")
def theirs() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("low_bits_golden", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    torch.compiler.set_stance("default")


@pytest.mark.parametrize("case", FORMATS)
def test_a_format_is_what_compressed_tensors_makes(case: str, theirs: Any) -> None:
    assert theirs.CASES.keys() == FORMATS.keys()
    weight = theirs.random_weights(64, 512, 2)
    expected = theirs.compressed(weight, case)
    results = Transforms([Quantize(FORMATS[case])], [(NAME, "BF16", weight.shape)])(NAME, weight.bfloat16())
    stem = NAME.removesuffix("weight")
    assert {out.removeprefix(stem) for out, _, _ in results} == set(expected)
    for out, tensor, _ in results:
        made = expected[out.removeprefix(stem)]
        if made.dtype == torch.int32:
            tensor = tensor.view(torch.int32).squeeze(-1)
        assert (tensor.dtype, tensor.shape) == (made.dtype, made.shape), out
        assert torch.equal(tensor.contiguous().view(torch.uint8), made.contiguous().view(torch.uint8)), out
