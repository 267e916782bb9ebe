# SPDX-License-Identifier: Apache-2.0
"""Quantised formats of checkpoints, against torch's own casts and tables of their values."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import torch.distributed as dist
import torch.multiprocessing as mp

from sparsecast import Box
from sparsecast.errors import UsageError
from sparsecast.transforms import (
    FP8_CHANNELS,
    MXFP4,
    MXFP8,
    NVFP4,
    QuantFormat,
    Quantize,
    TensorSpec,
    Transforms,
    fp8_blocks,
    int4_groups,
)

NAME = "model.layers.0.mlp.down_proj.weight"
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FORMATS = {
    "fp8 channels": FP8_CHANNELS,
    "fp8 blocks, UE8M0": fp8_blocks((32, 64), rounding="power_up"),
    "fp8 blocks, UE8M0 bytes": fp8_blocks((32, 64), scale="E8M0", rounding="power_up"),
    "mxfp8": MXFP8,
    "mxfp8, rounded": dataclasses.replace(MXFP8, rounding="power_round"),
    "mxfp4": MXFP4,
    "mxfp4, up": dataclasses.replace(MXFP4, rounding="power_up"),
    "nvfp4": NVFP4,
    "int4": int4_groups(),
    "int4, 32": int4_groups(32),
}
MOST = {"E4M3": 448.0, "E2M1": 6.0, "INT4": 7.5}


def random_weights(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Weights with rows of different sizes, a group of zeros, and a group so small that its scale is the least."""
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02
    weights *= torch.logspace(-3, 3, shape[-2])[:, None]
    weights[..., 1, :128] = 0.0
    weights[..., 2, :128] = 1e-37
    weights[..., 0, 0] = -0.0
    return weights.to(torch.bfloat16)


def power_of(amax: torch.Tensor, element: str, rounding: str) -> torch.Tensor:
    """The exponent of a scale that is a power of two, in float64, where nothing is rounded."""
    most = torch.tensor(MOST[element], dtype=torch.float64)
    if rounding == "power_up":
        return torch.ceil(torch.log2(amax / most))
    if rounding == "power_round":
        exponent = torch.floor(torch.log2(amax))
        amax = torch.floor(amax / 2**exponent * 2 + 0.5) / 2 * 2**exponent
    return torch.floor(torch.log2(amax)) - torch.floor(torch.log2(most))


def nearest_e2m1(scaled: torch.Tensor) -> torch.Tensor:
    """The codes of the nearest values, the even one of two as near."""
    distance = (scaled.abs().clamp(max=6.0)[..., None].double() - E2M1).abs()
    nearest = distance.min(dim=-1).values
    code = (distance == nearest[..., None]).int().argmax(dim=-1)
    other = 7 - (distance == nearest[..., None]).int().flip(-1).argmax(dim=-1)
    even = torch.where(code % 2 == 0, code, other)
    return even | torch.signbit(scaled).long() << 3


def quantized_by_torch(
    weight: torch.Tensor, fmt: QuantFormat, global_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensors of elements and scales of a finite matrix, as their checkpoints hold them."""
    rows, columns = weight.shape
    block = fmt.block[0] or rows, fmt.block[1] or columns
    blocks = weight.float().reshape(rows // block[0], block[0], columns // block[1], block[1])
    amax = blocks.abs().amax(dim=(1, 3))
    if fmt.rounding == "nearest":
        scale = amax / MOST[fmt.element]
        if fmt.scale == "E4M3":
            assert global_scale is not None
            stored = (scale * global_scale).clamp(max=448.0).to(torch.float8_e4m3fn)
            stored = torch.where(stored.float() == 0, torch.tensor(0.125), stored.float()).to(torch.float8_e4m3fn)
            divisor = stored.float() / global_scale
        else:
            stored = scale.bfloat16() if fmt.scale == "BF16" else scale
            divisor = stored = torch.where(stored < 2.0**-126, torch.ones_like(stored), stored)
    else:
        power = power_of(amax.double(), fmt.element, fmt.rounding).nan_to_num(nan=-127.0).clamp(min=-127)
        divisor = stored = 2**power
        if fmt.scale == "E8M0":
            stored = stored.to(torch.float8_e8m0fnu).view(torch.uint8)
            assert torch.equal(stored.long(), (power + 127).long())
        else:
            divisor = stored = torch.where(power == -127, 1.0, stored).float()
    scaled = (blocks / divisor.float()[:, None, :, None]).reshape(rows, columns)
    if fmt.element == "E4M3":
        return scaled.clamp(-448.0, 448.0).to(torch.float8_e4m3fn), stored
    if fmt.element == "E2M1":
        codes = nearest_e2m1(scaled)
        return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), stored
    codes = torch.round(scaled.clamp(-8.0, 7.0)).long() + 8
    packed = sum(codes[:, k::8] << (4 * k) for k in range(8))
    words = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return words.view(torch.uint8).view(*words.shape, 4), stored


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


def part_of(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(o, o + e) for o, e in zip(box.offset, box.extent, strict=True))]


def in_box(results: list[tuple[str, torch.Tensor, Box]]) -> dict[str, torch.Tensor]:
    for name, tensor, box in results:
        assert tuple(tensor.shape) == tuple(box.extent), name
    return {name: tensor for name, tensor, _ in results}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_what_torchs_casts_and_tables_give(name: str) -> None:
    fmt = FORMATS[name]
    weight = random_weights((64, 256), 1)
    transforms = Transforms([Quantize(fmt, threads=2)], [(NAME, "BF16", weight.shape)])
    results = in_box(transforms(NAME, weight))
    assert [(spec.name, spec.shape) for spec in transforms.specs] == [(n, tuple(t.shape)) for n, t in results.items()]
    elements, scales = list(results.values())[:2]
    global_scale = results.get(f"{NAME}_global_scale")
    expected = quantized_by_torch(weight, fmt, global_scale)
    assert_same(scales, expected[1])
    assert_same(elements, expected[0])
    if global_scale is not None:
        most = torch.tensor([448.0 * 6.0])
        assert_same(global_scale, most / weight.float().abs().max())


def test_tensors_are_named_and_shaped_as_loaders_take_them() -> None:
    def made(fmt: QuantFormat) -> list[TensorSpec]:
        return Transforms([Quantize(fmt)], [(NAME, "BF16", (64, 256))]).specs

    assert made(FP8_CHANNELS) == [
        TensorSpec(NAME, "F8_E4M3", (64, 256)),
        TensorSpec(f"{NAME}_scale", "F32", (64, 1)),
    ]
    assert made(fp8_blocks(scale="E8M0", rounding="power_up")) == [
        TensorSpec(NAME, "F8_E4M3", (64, 256)),
        TensorSpec(f"{NAME}_scale_inv", "U8", (1, 2)),
    ]
    assert made(MXFP8) == [TensorSpec(NAME, "F8_E4M3", (64, 256)), TensorSpec(f"{NAME}_scale", "U8", (64, 8))]
    assert made(MXFP4) == [TensorSpec(f"{NAME}_packed", "F4X2", (64, 128)), TensorSpec(f"{NAME}_scale", "U8", (64, 8))]
    assert made(NVFP4) == [
        TensorSpec(f"{NAME}_packed", "F4X2", (64, 128)),
        TensorSpec(f"{NAME}_scale", "F8_E4M3", (64, 16)),
        TensorSpec(f"{NAME}_global_scale", "F32", (1,)),
    ]
    assert made(int4_groups()) == [
        TensorSpec(f"{NAME}_packed", "I4X2", (64, 32, 4)),
        TensorSpec(f"{NAME}_scale", "BF16", (64, 2)),
        TensorSpec(f"{NAME}_shape", "I64", (2,)),
    ]
    results = Transforms([Quantize(int4_groups())], [(NAME, "BF16", (64, 256))])(NAME, random_weights((64, 256), 2))
    assert results[2][1].tolist() == [64, 256]


def test_a_kept_global_scale_is_used_as_it_is_and_one_computed_anew_follows_the_weights() -> None:
    weight = random_weights((64, 256), 3)
    kept = Transforms([Quantize(NVFP4, global_scales={NAME: 1234.5})], [(NAME, "BF16", weight.shape)])
    anew = Transforms([Quantize(NVFP4)], [(NAME, "BF16", weight.shape)])
    for factor in (1, 4):
        weight *= factor
        results = in_box(kept(NAME, weight))
        assert results[f"{NAME}_global_scale"].tolist() == [1234.5]
        expected = quantized_by_torch(weight, NVFP4, torch.tensor([1234.5]))
        assert_same(results[f"{NAME}_scale"], expected[1])
        assert_same(results[f"{NAME}_packed"], expected[0])
        found = in_box(anew(NAME, weight))[f"{NAME}_global_scale"]
        assert_same(found, torch.tensor([2688.0]) / weight.float().abs().max())
    assert int(results[f"{NAME}_scale"].view(torch.uint8).max()) == 0x7E, "what outgrows a kept scale saturates"


@pytest.mark.parametrize("name", FORMATS)
def test_aligned_shards_give_their_parts_of_the_whole(name: str) -> None:
    fmt = FORMATS[name]
    weight = random_weights((64, 256), 4)
    global_scales = {NAME: 500.0} if fmt.has_global_scale else None
    transforms = Transforms([Quantize(fmt, global_scales=global_scales)], [(NAME, "BF16", weight.shape)])
    whole = {out: tensor.clone() for out, tensor in in_box(transforms(NAME, weight)).items()}
    columns = (0, 256) if fmt.block[1] is None else (128, 128)
    for box in (Box((32, 0), (32, 256)), Box((0, columns[0]), (64, columns[1])), Box((32, 0), (0, 256))):
        for out, tensor, out_box in transforms(NAME, part_of(weight, box), box):
            assert_same(tensor, part_of(whole[out], out_box))


def test_stacked_experts_are_matrices_of_their_own() -> None:
    experts = torch.stack([random_weights((32, 128), 5) * scale for scale in (1, 7, 3)])
    name = "model.layers.0.mlp.experts.gate_up_proj"
    transforms = Transforms([Quantize(NVFP4)], [(name, "BF16", experts.shape)])
    results = in_box(transforms(name, experts[1:], Box((1, 0, 0), (2, 32, 128))))
    kept = Transforms([Quantize(NVFP4, global_scales={name: [1.0, 2.0, 3.0]})], [(name, "BF16", experts.shape)])
    of_kept = in_box(kept(name, experts[1:], Box((1, 0, 0), (2, 32, 128))))
    assert of_kept[f"{name}_global_scale"].tolist() == [[2.0], [3.0]]
    for index in range(2):
        global_scale = results[f"{name}_global_scale"][index]
        assert_same(global_scale, torch.tensor([2688.0]) / experts[1 + index].float().abs().max())
        expected = quantized_by_torch(experts[1 + index], NVFP4, global_scale)
        assert_same(results[f"{name}_packed"][index], expected[0])
        assert_same(results[f"{name}_scale"][index], expected[1])


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_stays_visible(broken: float) -> None:
    weight = random_weights((64, 256), 6)
    weight[5, 40] = broken
    for fmt in (MXFP4, NVFP4, int4_groups(32)):
        transforms = Transforms([Quantize(fmt)], [(NAME, "BF16", weight.shape)])
        scales = in_box(transforms(NAME, weight))[f"{NAME}_scale"]
        values = scales.view(torch.float8_e8m0fnu) if fmt is MXFP4 else scales
        nan = values.float().isnan()
        assert nan[5, 40 // (fmt.block[1] or 1)]
        assert int(nan.sum()) == 1
    results = in_box(Transforms([Quantize(MXFP8)], [(NAME, "BF16", weight.shape)])(NAME, weight))
    assert results[NAME].float().isnan().nonzero().tolist() == [[5, 40]]


def test_what_does_not_fit_a_format_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=f"{NAME}.*80 columns.*groups of 32"):
        Transforms([Quantize(MXFP8)], [(NAME, "BF16", (64, 80))])
    table = [(NAME, "BF16", (64, 256))]
    half = random_weights((64, 256), 7)[:, :128]
    box = Box((0, 0), (64, 128))
    with pytest.raises(UsageError, match=f"{NAME}.*a part of it.*global_scales"):
        Transforms([Quantize(NVFP4)], table)(NAME, half, box)
    with pytest.raises(UsageError, match=f"{NAME}.*columns 0 to 100 of 256"):
        Transforms([Quantize(MXFP8)], table)(NAME, half[:, :100], Box((0, 0), (64, 100)))
    with pytest.raises(UsageError, match=f"{NAME}.*whole numbers of 8"):
        Transforms([Quantize(int4_groups())], table)(NAME, half[:, :100], Box((0, 0), (64, 100)))
    with pytest.raises(UsageError, match=f"{NAME}.*0 numbers"):
        Transforms([Quantize(NVFP4, global_scales={"other": 1.0})], table)(NAME, half, box)
    with pytest.raises(UsageError, match="no global scale"):
        Quantize(MXFP4, global_scales={NAME: 1.0})
    with pytest.raises(UsageError, match=f"{NAME}.*not positive"):
        Quantize(NVFP4, global_scales={NAME: 0.0})
    with pytest.raises(UsageError, match="'E5M2'"):
        QuantFormat("E5M2", "F32").core  # noqa: B018


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


CUTS = {"channels": FP8_CHANNELS, "mxfp4": MXFP4, "nvfp4": NVFP4, "int4": int4_groups()}


def quantize_columns(rank: int, port: int, directory: str) -> None:
    """One of three ranks whose columns cut groups; the last one has none."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
    weight = random_weights((64, 256), 8)
    columns = [(0, 88), (88, 256), (256, 256)][rank]
    box = Box((0, columns[0]), (64, columns[1] - columns[0]))
    results = {}
    for name, fmt in CUTS.items():
        transforms = Transforms([Quantize(fmt, group=dist.group.WORLD)], [(NAME, "BF16", weight.shape)])
        for _ in range(2):
            for out, tensor, out_box in transforms(NAME, part_of(weight, box), box):
                results[f"{name} {out}"] = tensor.contiguous().view(torch.uint8).numpy()
                results[f"{name} {out}/box"] = np.array([out_box.offset, out_box.extent])
    np.savez(Path(directory) / f"{rank}.npz", **results)
    dist.destroy_process_group()


def test_shards_that_cut_groups_take_their_amax_over_the_ranks(tmp_path: Path) -> None:
    mp.spawn(quantize_columns, args=(free_port(), str(tmp_path)), nprocs=3)
    weight = random_weights((64, 256), 8)
    for name, fmt in CUTS.items():
        whole = in_box(Transforms([Quantize(fmt)], [(NAME, "BF16", weight.shape)])(NAME, weight))
        for rank in range(3):
            results = np.load(tmp_path / f"{rank}.npz", allow_pickle=False)
            for out, tensor in whole.items():
                found = torch.from_numpy(results[f"{name} {out}"])
                expected = part_of(tensor, Box(*results[f"{name} {out}/box"].tolist()))
                assert torch.equal(found, expected.contiguous().view(torch.uint8)), f"{name}, rank {rank}, {out}"
