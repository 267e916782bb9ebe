# SPDX-License-Identifier: Apache-2.0
"""ModelOpt's formats against tensors that ModelOpt made (scripts/modelopt_golden.py)."""

from __future__ import annotations

import pathlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import load_file

from sparsecast import Box
from sparsecast.errors import UsageError
from sparsecast.transforms import (
    FP8_TENSOR,
    MODELOPT_FP8,
    MODELOPT_NVFP4,
    NVFP4,
    QuantFormat,
    Quantize,
    TensorSpec,
    Transforms,
)

GOLDEN = pathlib.Path(__file__).parents[3] / "testdata" / "quantize" / "modelopt.safetensors"
NAME = "model.layers.0.mlp.down_proj.weight"
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def quantised(fmt: QuantFormat, weight: torch.Tensor, pieces: int = 1) -> dict[str, torch.Tensor]:
    """The tensors by the ends of their names, of pieces that are put together."""
    transforms = Transforms([Quantize(fmt, threads=2)], [(NAME, "BF16", weight.shape)])
    rows, columns = weight.shape[0] // pieces, weight.shape[1]
    held = [(weight[rows * i : rows * (i + 1)], Box((rows * i, 0), (rows, columns))) for i in range(pieces)]
    shapes = {spec.name: spec.shape for spec in transforms.specs}
    results: dict[str, torch.Tensor] = {}
    for name, tensor, box in transforms.pieces(NAME, held):
        whole = results.setdefault(name, torch.empty(shapes[name], dtype=tensor.dtype))
        whole[tuple(slice(o, o + e) for o, e in zip(box.offset, box.extent, strict=True))] = tensor
    return {name.removeprefix(NAME.removesuffix("weight")): tensor for name, tensor in results.items()}


def codes_of(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).long()


@pytest.mark.parametrize("pieces", [1, 2])
def test_fp8_of_a_tensor_is_modelopts_byte_for_byte(pieces: int) -> None:
    golden = load_file(GOLDEN)
    results = quantised(MODELOPT_FP8, golden["weight"], pieces)
    assert set(results) == {"weight", "weight_scale"}
    for name, tensor in results.items():
        made = golden[f"fp8.{name}"]
        assert (tensor.dtype, tensor.shape) == (made.dtype, made.shape), name
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), made.reshape(-1).view(torch.uint8)), name


def test_nvfp4_is_modelopts_but_for_ties_and_the_scales_of_zeros() -> None:
    golden = load_file(GOLDEN)
    results = quantised(MODELOPT_NVFP4, golden["weight"])
    assert set(results) == {"weight", "weight_scale", "weight_scale_2"}
    for name, tensor in results.items():
        made = golden[f"nvfp4.{name}"]
        assert (tensor.dtype, tensor.shape) == (made.dtype, made.shape), name
    scale_2 = golden["nvfp4.weight_scale_2"]
    assert torch.equal(results["weight_scale_2"], scale_2)
    theirs, scales = golden["nvfp4.weight_scale"].float(), results["weight_scale"].float()
    zeros = golden["weight"].view(64, 16, 16).abs().amax(dim=-1) == 0
    assert int(zeros.sum()) == 1 and theirs[zeros].tolist() == [1.0] and scales[zeros].tolist() == [0.125]
    assert torch.equal(scales[~zeros], theirs[~zeros])
    # ModelOpt multiplies scales where the others divide: of a quotient in the middle of two numbers either is right.
    own, made = codes_of(results["weight"]), codes_of(golden["nvfp4.weight"])
    differs = own != made
    quotients = golden["weight"].double() / (theirs.double() * scale_2.double()).repeat_interleave(16, dim=1)
    middles = (E2M1[own & 7] + E2M1[made & 7])[differs] / 2
    assert torch.allclose(quotients[differs].abs(), middles.double(), rtol=1e-6)
    assert torch.equal((own & 8)[differs], (made & 8)[differs])
    assert int(differs.sum()) < own.numel() // 500


def test_the_inverse_is_stored_and_what_it_divides_by_is_kept() -> None:
    weight = load_file(GOLDEN)["weight"]
    table = [(NAME, "BF16", weight.shape)]
    results = {}
    for fmt in (NVFP4, MODELOPT_NVFP4):
        transforms = Transforms([Quantize(fmt, global_scales={NAME: 1024.0})], table)
        for _ in range(2):  # The second call finds what the first has stored.
            results[fmt] = [tensor.clone() for _, tensor, _ in transforms(NAME, weight)]
    assert results[NVFP4][2].tolist() == [1024.0] and results[MODELOPT_NVFP4][2].item() == 2.0**-10
    for own, other in zip(results[MODELOPT_NVFP4][:2], results[NVFP4][:2], strict=True):
        assert torch.equal(own.view(torch.uint8), other.view(torch.uint8))


def test_stacks_have_a_number_for_each_matrix_and_shards_of_nothing_none() -> None:
    stack = torch.randn(3, 32, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    for fmt in (MODELOPT_FP8, MODELOPT_NVFP4, FP8_TENSOR):
        transforms = Transforms([Quantize(fmt)], [("experts", "BF16", stack.shape)])
        results = [tensor for _, tensor, _ in transforms("experts", stack)]
        scales = results[-1].view(3)
        for index, matrix in enumerate(stack):
            of_matrix = list(quantised(fmt, matrix).values())[-1]
            assert torch.equal(scales[index], of_matrix.view(()))
    specs = Transforms([Quantize(FP8_TENSOR)], [(NAME, "F32", (8, 16))]).specs
    assert specs[1] == TensorSpec(f"{NAME}_scale", "F32", (1,))
    nothing = Box((0, 0), (0, 64))
    with pytest.raises(UsageError, match=r"down_proj.*number_shape=\(1,\)"):
        Transforms([Quantize(MODELOPT_FP8)], [(NAME, "BF16", (32, 64))])(NAME, stack[0, :0], nothing)
    with pytest.raises(UsageError, match="a rank with a part of it cannot know the scale of the whole: give `group`"):
        Transforms([Quantize(MODELOPT_FP8)], [(NAME, "BF16", (32, 64))])(NAME, stack[0, :8], Box((0, 0), (8, 64)))
