# SPDX-License-Identifier: Apache-2.0
"""Models in low-bit formats whose parameters vLLM's own kernels repack, patched as loaded and repacked again by them,
against fresh loads by vLLM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models

# isort: split
import low_bit
import vllm_drafts as drafts
import vllm_gpu_kernels
from safetensors.torch import save_file
from sglang_ranks import DEADLINE, Trainer
from test_vllm_computed import Live
from test_vllm_trace import patch_by_map
from test_vllm_transfer import Trainer as TrainerOfWorkers
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader import utils as model_loader
from vllm_workers import Workers

from sparsecast.buffers import dtype_name
from sparsecast.engines.receiver import Receiver
from sparsecast.engines.vllm.draft import choose_draft, with_draft, without_draft
from sparsecast.engines.vllm.model import trace
from sparsecast.errors import DirtyError, UnsupportedError
from sparsecast.transforms import MODELOPT_NVFP4, Quantize, Transforms
from sparsecast.transports import World

EAGLE = "eagle/"

REPACKED = {
    "llama-3.1-405b fp8-channel": 0,  # Weights are transposed views of what was loaded.
    "llama-3.1-405b int4": 8,
    "llama-3.1-405b mxfp4": 8,
    "llama-3.1-405b nvfp4": 8,
    "llama-3.1-405b modelopt-nvfp4": 8,
    "qwen3-30b-a3b fp8-channel": 0,
    "qwen3-30b-a3b int4": 6,
    "qwen3-30b-a3b nvfp4": 6,
    "qwen3-30b-a3b modelopt-nvfp4": 6,
    "kimi-k2 int4": 1,
    "deepseek-v3 fp8-channel": 0,
    "gpt-oss-20b bf16": 0,
    "gpt-oss-20b mxfp4": 0,  # The kernel that emulates MXFP4 takes the experts as they are loaded.
    "llama-3.1-405b int4 marlin": 8,
    "llama-3.1-405b mxfp4 marlin": 8,
    "llama-3.1-405b nvfp4 marlin": 8,
    "qwen3-30b-a3b int4 marlin": 6,
    "qwen3-30b-a3b mxfp4 marlin": 6,
    "qwen3-30b-a3b nvfp4 marlin": 6,
    "gpt-oss-20b mxfp4 marlin": 2,
    "gpt-oss-20b mxfp4 triton": 2,
}
"""Modules that are repacked, with the kernels that `vllm_gpu_kernels` chooses by the last word."""
IN_PLACE = ("gpt-oss-20b bf16", "gpt-oss-20b mxfp4")
"""Those of which nothing is made again."""


@pytest.fixture(params=REPACKED)
def cell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def multiplies_fp8() -> bool:
    eye, one = torch.eye(16).to(torch.float8_e4m3fn), torch.ones(1)
    try:
        torch._scaled_mm(eye, eye.t(), scale_a=one, scale_b=one, out_dtype=torch.float32)
    except RuntimeError:
        return False
    return True


@pytest.fixture
def live(cell: str) -> Iterator[Live]:
    if cell.endswith("triton"):
        pytest.importorskip("triton", reason="without triton, whose wheel is large, there are no kernels of it")
    model, form, *kernels = cell.split()
    kind = f"{model} {form}"
    if kind == "deepseek-v3 fp8-channel" and not multiplies_fp8():
        pytest.skip("torch multiplies no fp8 on this CPU with ONEDNN_MAX_CPU_ISA=AVX2, and vLLM does so while it loads")
    config = models.config(kind)
    models.start(config)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # Of small tensors, several of them make slow work.
    try:
        with vllm_gpu_kernels.chosen(*kernels):
            yield Live(kind, config)
    finally:
        torch.set_num_threads(threads)
        models.stop()


def kernel_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What kernels have of a layer beside its parameters: of experts scales, in the form that they want, and weights in
    objects of Triton's; factors of MLA.
    """
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        config = getattr(method, "moe_quant_config", None)
        for field in ("w1_scale", "w2_scale", "g1_alphas", "g2_alphas", "a1_gscale", "a2_gscale"):
            with contextlib.suppress(AssertionError):  # Of an object of Triton's, which the next have.
                found[f"{name}.{field}"] = getattr(config, field, None)
        for field in ("w13_precision_config", "w2_precision_config"):
            found[f"{name}.{field}"] = getattr(getattr(method, field, None), "weight_scale", None)
        for field in ("w13_weight", "w2_weight", "W_UV", "W_UK_T"):
            found[f"{name}.{field}"] = getattr(module, field, None)
    memory = {name: getattr(getattr(value, "storage", None), "data", value) for name, value in found.items()}
    return {name: value for name, value in memory.items() if isinstance(value, torch.Tensor)}


class Follower:
    """A trainer that holds the checkpoint of a live model, 4-bit numbers as pairs, and the receiver of the model."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.trainer = Trainer({name: tensor.clone() for name, tensor in live.tensors.items()}, pairs=True)
        memories = live.traced.memories()
        self.receiver = Receiver("e", live.traced.layout(), 0, memories, recomputations=[live.recomputation])
        world = World(
            "127.0.0.1", self.trainer.port, self.trainer.secret, size=2, rank_offset=1, interface="lo", timeout=DEADLINE
        )
        regrouped = self.trainer.regroup(2)
        self.receiver.join(world, DEADLINE)
        regrouped.result(DEADLINE)

    def update(self, tensors: dict[str, torch.Tensor]) -> None:
        self.live.tensors = tensors
        for name, tensor in tensors.items():
            self.trainer.tensors[name].copy_(tensor)
        self.receiver.start_receive(DEADLINE)
        synced = self.trainer.sync()
        self.receiver.wait_staged(DEADLINE)
        self.receiver.apply(DEADLINE)
        synced.result(DEADLINE)


def test_repacked_parameters_are_those_of_a_fresh_load_and_at_their_addresses(cell: str, live: Live) -> None:
    assert len(live.recomputation.repacked) == REPACKED[cell]
    weights = [name for name in live.traced.repacked if name.endswith(("weight", "weight_packed"))]
    # The others stay in place: scales are repacked.
    assert bool(weights) == any(word in cell for word in ("int4", "marlin", "triton"))
    assert live.traced.differences(live.traced.filling(live.tensors.items())) == {}
    live.recomputation.prove(as_loaded=True)
    assert models.differing(live.model, live.fresh()) == [], "the proof changed something"
    addresses, kernels = live.addresses(), kernel_tensors(live.model)
    assert ("deepseek" in cell or "kimi" in cell) == any(name.endswith("W_UV") for name in kernels)
    follower = Follower(live)
    for update in range(3):
        follower.update(low_bit.random_updates(live.tensors, seed=update))
        fresh = live.fresh()
        assert models.differing(live.model, fresh) == []
        assert all(torch.equal(tensor, kernels[name]) for name, tensor in kernel_tensors(fresh).items())
    assert live.addresses() == addresses
    assert all(tensor is kernels[name] for name, tensor in kernel_tensors(live.model).items())
    follower.receiver.close()
    live.recomputation.audit()
    parameters = dict(live.model.named_parameters())
    made = [name for name in live.recomputation.derived if name in parameters]
    assert bool(made) == (cell not in IN_PLACE)
    for name in made[:1]:
        tensor = parameters[name].data
        models.bits_of(tensor)[(0,) * tensor.dim()] ^= 1
        with pytest.raises(DirtyError, match=f"{name} is not what the engine's"):
            live.recomputation.audit()


@pytest.mark.parametrize("cell", ["llama-3.1-405b modelopt-nvfp4"], indirect=True)
def test_modelopts_nvfp4_as_quantize_makes_it_is_followed(live: Live) -> None:
    for _ in live.traced.filling(live.tensors.items()):
        pass
    live.recomputation.prove(as_loaded=True)
    follower = Follower(live)
    names = [name.removesuffix("_scale_2") for name in live.tensors if name.endswith(".weight_scale_2")]
    table = [(name, "BF16", (live.tensors[name].shape[0], 2 * live.tensors[name].shape[1])) for name in names]
    transforms = Transforms([Quantize(MODELOPT_NVFP4)], table)
    for update in range(2):
        random = torch.Generator().manual_seed(update)
        made: dict[str, torch.Tensor] = {}
        for name, _, shape in table:
            weight = torch.randn(shape, generator=random).bfloat16()
            made |= {out: tensor.clone() for out, tensor, _ in transforms(name, weight)}
        assert {name: (t.dtype, t.shape) for name, t in made.items()} == {
            name: (live.tensors[name].dtype, live.tensors[name].shape) for name in made
        }
        follower.update(live.tensors | made)
        assert models.differing(live.model, live.fresh()) == []
    follower.receiver.close()


def test_a_model_that_vllm_does_not_make_once_more_is_refused_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("there is no other")

    config = models.config("llama-3.1-405b int4")
    models.start(config)
    try:
        model = models.build(config)
        models.load(model, config, models.checkpoint("llama-3.1-405b int4", seed=1))
        monkeypatch.setattr(model_loader, "initialize_model", fail)
        with (
            set_current_vllm_config(config),
            pytest.raises(
                UnsupportedError, match=r"8 layers do not keep .*\.qkv_proj, .*RuntimeError: there is no other"
            ),
        ):
            trace(model, models.canonical("llama-3.1-405b int4"), config)
    finally:
        models.stop()


HEADS = {
    "int4 mtp": 4,
    "nvfp4 mtp marlin": 4,
    "fp8-channel eagle": 0,  # Its weights are transposed views, and its scales are cast from shadows.
    "int4 eagle marlin": 4,
}
"""Heads in low-bit formats, an MTP layer of a target in the same format or an EAGLE head in files of its own, with the
kernels of `vllm_gpu_kernels`; and how many of their modules are repacked.
"""


@pytest.mark.parametrize("cell", HEADS)
def test_a_head_in_a_low_bit_format_follows_with_its_repacked_parameters_at_their_addresses(
    cell: str, tmp_path: Path
) -> None:
    form, method, *kernels = cell.split()
    prefix = EAGLE if method == "eagle" else ""
    config, shapes = drafts.low_bit_config(tmp_path, form, method)
    old, new = (drafts.low_bit_tensors(shapes, form, seed) for seed in (1, 2))
    new = {name: old[name] if name.endswith("weight_shape") else tensor for name, tensor in new.items()}
    models.start(config)
    try:
        with vllm_gpu_kernels.chosen(*kernels):
            patched, loaded = (drafts.loaded(config, tensors, prefix) for tensors in (old, new))
            canonical = [(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in old.items()]
            with set_current_vllm_config(config):
                traced, of_target = trace(patched.target, without_draft(canonical, prefix), config)
                draft = choose_draft(
                    config.speculative_config, config.model_config, patched.draft, prefix, can_look=True
                )
                traced, of_draft = with_draft(traced, draft, patched.target, canonical, config)
            assert of_draft is not None and len(of_draft.repacked) == HEADS[cell]
            assert traced.differences(traced.filling(old.items())) == {}
            before = patched.addresses()
            for recomputation in (of_target, of_draft):
                recomputation.prove(as_loaded=True)
            assert any(name.startswith("draft.") for name in patched.differing(loaded))
            patch_by_map(traced, new)
            for recomputation in (of_target, of_draft):
                recomputation.run()
            assert patched.differing(loaded) == [] and patched.addresses() == before
            of_draft.audit()
    finally:
        models.stop()


def test_a_head_that_vllm_does_not_make_once_more_is_refused_with_the_cure_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, shapes = drafts.low_bit_config(tmp_path, "nvfp4", "eagle")
    tensors = drafts.low_bit_tensors(shapes, "nvfp4", seed=1)
    canonical = [(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in tensors.items()]
    models.start(config)
    try:
        with vllm_gpu_kernels.chosen(), set_current_vllm_config(config):
            pair, untouched = (drafts.loaded(config, tensors, EAGLE) for _ in range(2))
            traced, _ = trace(pair.target, without_draft(canonical, EAGLE), config)
            draft = choose_draft(config.speculative_config, config.model_config, pair.draft, EAGLE, can_look=True)
            addresses = pair.addresses()
            with monkeypatch.context() as patch:
                patch.delattr(model_loader, "initialize_model")
                with pytest.raises(UnsupportedError, match=r"the draft .*/head: 4 layers do not keep .*draft='keep'"):
                    with_draft(traced, draft, pair.target, canonical, config)
            fewer = [entry for entry in canonical if entry[0] != f"{EAGLE}layers.0.mlp.down_proj.weight_scale"]
            with pytest.raises(UnsupportedError, match=r"no canonical tensor fills all of .*\.down_proj\.weight_scale"):
                with_draft(traced, draft, pair.target, fewer, config)
            assert pair.addresses() == addresses and pair.differing(untouched) == []
    finally:
        models.stop()


def test_a_low_bit_head_reaches_every_version_with_its_target_through_the_workers_calls(tmp_path: Path) -> None:
    _, shapes = drafts.low_bit_config(tmp_path, "nvfp4", "eagle")
    tensors = low_bit.quantised(shapes["low bit"], "nvfp4", seed=1)
    head = {name.removeprefix(EAGLE): tensors[name] for name in sorted(tensors)}
    save_file(models.checkpoint("llama", seed=1), tmp_path / "model.safetensors")
    save_file(head, tmp_path / "head" / "model.safetensors")
    trainer = TrainerOfWorkers("llama", {EAGLE + name: tensor for name, tensor in head.items()})
    workers = Workers(size=1)
    try:
        workers.call("open_with_low_bit_draft", folder=str(tmp_path), store=str(tmp_path / "store"), form="nvfp4")
        for generation in (1, 2):
            engine = trainer.connect(workers, engine_workers=1, draft_prefix=EAGLE)
            for _ in range(2):
                trainer.step()
                engine.send_weights()
                assert workers.call("draft_differing", updates=trainer.updates) == [[]]
            status = workers.call("audit")[0]
            assert status["version"] == 2 * generation and len(status["repacked"]) == 4
            workers.call("shutdown_weight_transfer_engine")  # Copies are kept: the files are of version 0.
    finally:
        workers.close()
