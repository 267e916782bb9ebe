# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import torch.distributed as dist
import torch.multiprocessing as mp

from sparsecast import Box
from sparsecast.errors import UsageError
from sparsecast.transforms import (
    DequantizeMerge,
    Fp8BlockQuantize,
    LoraAdapter,
    LoraMerge,
    Piece,
    TensorSpec,
    Transforms,
)

NAME = "model.layers.0.mlp.down_proj.weight"
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def random_weights(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.02).to(dtype)


def quantized_by_torch(weight: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of float8_e4m3fn and the scales, by torch's own cast."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // block[0]), -(-columns // block[1]))
    fp8 = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            where = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
            part = weight[where].float()
            amax = part.abs().max()
            scales[i, j] = amax / 448.0 if amax > 0 else 1.0
            fp8[where] = (part / scales[i, j]).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return fp8.view(torch.uint8), scales


def part_of(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    return tensor[tuple(slice(o, o + e) for o, e in zip(box.offset, box.extent, strict=True))]


def whole_numbers(shape: tuple[int, ...], seed: int, most: int) -> torch.Tensor:
    """Small integers: every sum of their products is exact, whatever its order."""
    return torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_blocks_are_those_of_torchs_own_cast(dtype: str) -> None:
    weight = random_weights((300, 200), 1, DTYPES[dtype])
    weight[128:256, :128] = 0
    transforms = Transforms([Fp8BlockQuantize(threads=2)], [(NAME, dtype, weight.shape)])
    assert transforms.specs == [
        TensorSpec(NAME, "F8_E4M3", (300, 200)),
        TensorSpec(f"{NAME}_scale_inv", "F32", (3, 2)),
    ]
    (name, fp8, box), (scale_name, scales, scale_box) = transforms(NAME, weight)
    assert (name, scale_name) == (NAME, f"{NAME}_scale_inv")
    assert (tuple(box.extent), tuple(scale_box.extent)) == ((300, 200), (3, 2))
    expected, expected_scales = quantized_by_torch(weight, (128, 128))
    assert torch.equal(scales, expected_scales)
    assert fp8.dtype == torch.float8_e4m3fn
    assert torch.equal(fp8.view(torch.uint8), expected)


def test_a_strided_source_is_quantised_as_it_lies() -> None:
    fused = random_weights((260, 400), 2)
    transforms = Transforms([Fp8BlockQuantize(block=(64, 32))], [(NAME, "BF16", (400, 130))])
    out = transforms(NAME, fused[::2].t())
    expected, scales = quantized_by_torch(fused[::2].t(), (64, 32))
    assert torch.equal(out[0][1].view(torch.uint8), expected)
    assert torch.equal(out[1][1], scales)


def test_aligned_shards_along_both_dimensions_give_their_parts_of_the_whole() -> None:
    weight = random_weights((256, 320), 3)
    expected, scales = quantized_by_torch(weight, (64, 64))
    transforms = Transforms([Fp8BlockQuantize(block=(64, 64))], [(NAME, "BF16", weight.shape)])
    for box in (Box((128, 0), (128, 320)), Box((0, 192), (256, 128)), Box((192, 64), (64, 64)), Box((0, 0), (0, 320))):
        (_, fp8, fp8_box), (_, scale, scale_box) = transforms(NAME, part_of(weight, box), box)
        assert fp8_box == box
        assert torch.equal(fp8.view(torch.uint8), part_of(expected, box))
        assert torch.equal(scale, part_of(scales, scale_box))


def test_a_shard_that_cuts_a_block_without_a_group_is_refused_by_name() -> None:
    transforms = Transforms([Fp8BlockQuantize()], [(NAME, "BF16", (256, 256))])
    with pytest.raises(UsageError, match=rf"{NAME}.*rows 0 to 100 of 256"):
        transforms(NAME, random_weights((100, 256), 4), Box((0, 0), (100, 256)))


def test_boxes_that_share_a_block_on_one_rank_are_quantised_together() -> None:
    weight = random_weights((256, 96), 17)
    expected, scales = quantized_by_torch(weight, (64, 64))
    transforms = Transforms([Fp8BlockQuantize(block=(64, 64))], [(NAME, "BF16", weight.shape)])
    boxes = [Box((begin, 0), (32, 96)) for begin in (64, 96, 128, 160)]
    results = transforms.pieces(NAME, [(part_of(weight, box), box) for box in boxes])
    assert [name for name, _, _ in results] == [NAME] * 4 + [f"{NAME}_scale_inv"] * 4
    for name, tensor, box in results:
        bits, whole = (tensor.view(torch.uint8), expected) if name == NAME else (tensor, scales)
        assert torch.equal(bits, part_of(whole, box))
    with pytest.raises(UsageError, match="rows 64 to 96 of 256"):
        transforms.pieces(NAME, [(part_of(weight, box), box) for box in (boxes[0], boxes[1], boxes[3])])


def test_stacked_experts_are_matrices_of_their_own() -> None:
    experts = random_weights((3, 96, 80), 5)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    transforms = Transforms([Fp8BlockQuantize(block=(64, 64))], [(name, "BF16", experts.shape)])
    box = Box((1, 0, 0), (2, 96, 80))
    (_, fp8, _), (_, scales, scale_box) = transforms(name, experts[1:], box)
    assert (tuple(scale_box.offset), tuple(scale_box.extent)) == ((1, 0, 0), (2, 2, 2))
    for expert in range(2):
        expected, expected_scales = quantized_by_torch(experts[1 + expert], (64, 64))
        assert torch.equal(fp8[expert].view(torch.uint8), expected)
        assert torch.equal(scales[expert], expected_scales)


def test_the_skip_list_and_small_shapes_are_left_as_the_very_same_tensors() -> None:
    table = [
        ("model.embed_tokens.weight", "BF16", (64, 64)),
        ("model.layers.0.input_layernorm.weight", "BF16", (64,)),
        ("model.layers.0.self_attn.q_proj.weight", "BF16", (64, 64)),
        ("counts", "I32", (8, 8)),
    ]
    transforms = Transforms([Fp8BlockQuantize(skip=["*embed_tokens*"])], table)
    names = transforms.names()
    assert names["model.embed_tokens.weight"] == ["model.embed_tokens.weight"]
    assert names["counts"] == ["counts"]
    assert len(names["model.layers.0.self_attn.q_proj.weight"]) == 2
    weight = random_weights((64, 64), 6)
    assert transforms("model.embed_tokens.weight", weight)[0][1] is weight


def test_outputs_stay_at_their_addresses_and_hold_the_newest_values() -> None:
    transforms = Transforms([Fp8BlockQuantize()], [(NAME, "BF16", (128, 256))])
    first = transforms(NAME, random_weights((128, 256), 7))
    addresses = [tensor.data_ptr() for _, tensor, _ in first]
    weight = random_weights((128, 256), 8)
    again = transforms(NAME, weight)
    assert [tensor.data_ptr() for _, tensor, _ in again] == addresses
    assert torch.equal(again[0][1].view(torch.uint8), quantized_by_torch(weight, (128, 128))[0])


def adapters(seed: int, out: int = 96, into: int = 64) -> list[LoraAdapter]:
    return [
        LoraAdapter(whole_numbers((4, into), seed, 3), whole_numbers((out, 4), seed + 1, 3), 0.5),
        LoraAdapter(whole_numbers((2, into), seed + 2, 3), whole_numbers((out, 2), seed + 3, 3), 2.0),
    ]


@pytest.mark.parametrize("box", [None, Box((32, 0), (40, 64)), Box((0, 16), (96, 24)), Box((5, 7), (11, 13))])
def test_a_merge_adds_the_matching_rows_and_columns_of_every_adapter(box: Box | None) -> None:
    base = whole_numbers((96, 64), 9, 50).to(torch.bfloat16)
    of = adapters(10)
    exact = base.double() + sum(a.scale * (a.b.double() @ a.a.double()) for a in of)
    box = box or Box((0, 0), (96, 64))
    local = part_of(base, box)
    before = local.clone()
    ((name, merged, out_box),) = Transforms([LoraMerge({NAME: of})], [(NAME, "BF16", (96, 64))])(NAME, local, box)
    assert (name, out_box, merged.dtype) == (NAME, box, torch.bfloat16)
    assert torch.equal(merged, part_of(exact, box).to(torch.bfloat16)), "summed in fp32, rounded once"
    assert torch.equal(local, before)


def test_an_adapter_of_parts_serves_the_shards_that_it_covers_and_refuses_others() -> None:
    base = whole_numbers((96, 64), 20, 9)
    a, b = whole_numbers((4, 64), 21, 3), whole_numbers((96, 4), 22, 3)
    part = LoraAdapter(a[:, 32:], b[48:], 1.0, row_offset=48, column_offset=32)
    transforms = Transforms([LoraMerge({NAME: [part]})], [(NAME, "F32", (96, 64))])
    box = Box((48, 32), (48, 32))
    assert torch.equal(transforms(NAME, part_of(base, box), box)[0][1], part_of(base + b @ a, box))
    with pytest.raises(UsageError, match=f"{NAME}.*does not hold"):
        transforms(NAME, base, None)


def test_a_merge_in_pieces_is_the_merge_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    base, of = whole_numbers((96, 64), 30, 9), adapters(31)
    table = [(NAME, "F32", (96, 64))]
    at_once = Transforms([LoraMerge({NAME: of})], table)(NAME, base)[0][1]
    monkeypatch.setattr("sparsecast.transforms.lora._MERGE_ELEMENTS", 700)
    assert torch.equal(Transforms([LoraMerge({NAME: of})], table)(NAME, base)[0][1], at_once)


def test_qlora_dequantises_what_the_rank_stores_and_merges_it() -> None:
    of = adapters(40)
    stored = torch.randint(0, 255, (48 * 64,), dtype=torch.uint8, generator=torch.Generator().manual_seed(41))

    def dequantize(name: str, local: torch.Tensor, box: Box) -> torch.Tensor:
        assert name in (NAME, "other.weight")
        return (local.float() - 127).reshape(tuple(box.extent))

    table = [(NAME, "BF16", (96, 64)), ("other.weight", "BF16", (48, 64)), ("norm.weight", "BF16", (64,))]
    transforms = Transforms([DequantizeMerge(dequantize, {NAME: of}, ["other.*"])], table)
    box = Box((48, 0), (48, 64))
    merged = transforms(NAME, stored, box)[0][1]
    base = (stored.double() - 127).reshape(48, 64)
    exact = base + sum(a.scale * (a.b.double() @ a.a.double())[48:] for a in of)
    assert torch.equal(merged, exact.to(torch.bfloat16))
    assert torch.equal(transforms("other.weight", stored)[0][1], base.to(torch.bfloat16))
    with pytest.raises(UsageError, match="norm.weight.*U8"):
        transforms("norm.weight", stored[:64])
    wrong = Transforms([DequantizeMerge(lambda *_: torch.zeros(3), {NAME: of})], table)
    with pytest.raises(UsageError, match=f"{NAME}.*its extent is due"):
        wrong(NAME, stored, box)


def test_a_merge_and_a_quantisation_in_a_row_are_the_quantised_merge() -> None:
    base, of = whole_numbers((96, 64), 50, 50).to(torch.bfloat16), adapters(51)
    table = [(NAME, "BF16", (96, 64)), ("lm_head.weight", "BF16", (8, 8))]
    transforms = Transforms([LoraMerge({NAME: of}), Fp8BlockQuantize(block=(32, 32))], table)
    merged = Transforms([LoraMerge({NAME: of})], table)(NAME, base)[0][1]
    expected, scales = quantized_by_torch(merged, (32, 32))
    results = transforms(NAME, base)
    addresses = [tensor.data_ptr() for _, tensor, _ in results]
    assert torch.equal(results[0][1].view(torch.uint8), expected)
    assert torch.equal(results[1][1], scales)
    assert [tensor.data_ptr() for _, tensor, _ in transforms(NAME, base)] == addresses


def test_a_result_of_an_early_step_stays_where_it_is_when_a_later_step_takes_only_its_sibling() -> None:
    class Double:
        """Takes the scales of the step before."""

        def specs(self, spec: TensorSpec) -> list[TensorSpec] | None:
            return [spec] if spec.name.endswith("_scale_inv") else None

        def boxes(self, spec: TensorSpec, box: Box) -> list[Box]:
            return [box]

        def reads_packed(self, spec: TensorSpec) -> bool:
            return False

        def run(self, spec: TensorSpec, pieces: Sequence[Piece]) -> None:
            for piece in pieces:
                piece.outputs[0].copy_(piece.local * 2)

    weight = random_weights((64, 64), 60)
    transforms = Transforms([Fp8BlockQuantize(), Double()], [(NAME, "BF16", (64, 64))])
    first, again = transforms(NAME, weight), transforms(NAME, weight)
    assert [tensor.data_ptr() for _, tensor, _ in first] == [tensor.data_ptr() for _, tensor, _ in again]
    assert torch.equal(again[1][1], 2 * quantized_by_torch(weight, (128, 128))[1])


def test_what_does_not_fit_the_table_is_refused_by_name() -> None:
    transforms = Transforms([Fp8BlockQuantize()], [(NAME, "BF16", (64, 64))])
    with pytest.raises(UsageError, match="'unknown'"):
        transforms("unknown", torch.zeros(3))
    with pytest.raises(UsageError, match=f"{NAME}.*F32"):
        transforms(NAME, torch.zeros(64, 64))
    with pytest.raises(UsageError, match=f"{NAME}.*does not lie"):
        transforms(NAME, random_weights((64, 64), 1), Box((1, 0), (64, 64)))
    with pytest.raises(UsageError, match=f"{NAME}.*shape"):
        transforms(NAME, random_weights((64, 32), 1))
    with pytest.raises(UsageError, match="twice"):
        Transforms([], [(NAME, "BF16", (1,)), (NAME, "BF16", (1,))])
    with pytest.raises(UsageError, match="comes from"):
        Transforms([Fp8BlockQuantize()], [("w", "BF16", (2, 2)), ("w_scale_inv", "F32", (1, 1))])
    with pytest.raises(UsageError, match="matrix"):
        Transforms([LoraMerge({NAME: adapters(1)})], [(NAME, "BF16", (64,))])
    with pytest.raises(UsageError, match=r"\[rank, in\]"):
        LoraMerge({NAME: [LoraAdapter(torch.zeros(3, 4), torch.zeros(4, 2), 1.0)]}).specs(
            TensorSpec(NAME, "F32", (4, 4))
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def quantize_shards(rank: int, port: int, directory: str) -> None:
    """One of three ranks whose shards of dimension 0, and of 1, cut blocks; the last one's shards may be empty."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
    weight, experts = random_weights((100, 90), 70), random_weights((2, 70, 50), 71)
    step = Fp8BlockQuantize(block=(32, 32), group=dist.group.WORLD)
    transforms = Transforms([step], [("rows.weight", "BF16", (100, 90)), ("experts.weight", "BF16", (2, 70, 50))])
    rows = [(0, 45), (45, 100), (100, 100)][rank]
    columns = [(0, 17), (17, 40), (40, 50)][rank]
    boxes = {
        "rows.weight": Box((rows[0], 0), (rows[1] - rows[0], 90)),
        "experts.weight": Box((0, 0, columns[0]), (2, 70, columns[1] - columns[0])),
    }
    results = {}
    for name, whole in (("rows.weight", weight), ("experts.weight", experts)):
        for out_name, tensor, box in transforms(name, part_of(whole, boxes[name]), boxes[name]):
            results[out_name] = (tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor).numpy()
            results[f"{out_name}/box"] = np.array([box.offset, box.extent])
    np.savez(Path(directory) / f"{rank}.npz", **results)
    dist.destroy_process_group()


def test_shards_that_cut_blocks_take_their_amax_over_the_group(tmp_path: Path) -> None:
    mp.spawn(quantize_shards, args=(free_port(), str(tmp_path)), nprocs=3)
    expected = {}
    expected["rows.weight"], expected["rows.weight_scale_inv"] = quantized_by_torch(
        random_weights((100, 90), 70), (32, 32)
    )
    stacked = [quantized_by_torch(expert, (32, 32)) for expert in random_weights((2, 70, 50), 71)]
    expected["experts.weight"], expected["experts.weight_scale_inv"] = (
        torch.stack(of) for of in zip(*stacked, strict=True)
    )
    seen = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in expected.items()}
    for rank in range(3):
        results = np.load(tmp_path / f"{rank}.npz", allow_pickle=False)
        for name, whole in expected.items():
            box = Box(*results[f"{name}/box"].tolist())
            assert torch.equal(torch.from_numpy(results[name]), part_of(whole, box)), f"rank {rank}, {name}"
            part_of(seen[name], box).fill_(True)
    assert all(bool(of.all()) for of in seen.values())
