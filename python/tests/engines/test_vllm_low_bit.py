# SPDX-License-Identifier: Apache-2.0
"""Models in low-bit formats whose parameters vLLM's own kernels repack, patched as loaded and repacked again by them,
against fresh loads by vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models

# isort: split
import low_bit
import vllm_gpu_kernels
from sglang_ranks import DEADLINE, Trainer
from test_vllm_computed import Live
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader import utils as model_loader

from sparsecast.engines._vllm_model import trace
from sparsecast.engines.receiver import Receiver
from sparsecast.errors import DirtyError, UnsupportedError
from sparsecast.transports import World

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
}
"""Modules that are repacked. Experts in MXFP4 are missing: vLLM serves them by Marlin, whose repack is a kernel."""


@pytest.fixture(params=REPACKED)
def live(request: pytest.FixtureRequest) -> Iterator[Live]:
    config = models.config(request.param)
    models.start(config)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # Of small tensors, several of them make slow work.
    try:
        with vllm_gpu_kernels.chosen():
            yield Live(request.param, config)
    finally:
        torch.set_num_threads(threads)
        models.stop()


def kernel_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What kernels of experts have of a layer beside its parameters: scales, in the form that they want."""
    found: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        config = getattr(getattr(module, "quant_method", None), "moe_quant_config", None)
        for field in ("w1_scale", "w2_scale", "g1_alphas", "g2_alphas", "a1_gscale", "a2_gscale"):
            value = getattr(config, field, None)
            if isinstance(value, torch.Tensor):
                found[f"{name}.{field}"] = value
    return found


def test_repacked_parameters_are_those_of_a_fresh_load_and_at_their_addresses(live: Live) -> None:
    assert len(live.recomputation.repacked) == REPACKED[live.kind]
    weights = [name for name in live.traced.repacked if name.endswith(("weight", "weight_packed"))]
    assert bool(weights) == ("int4" in live.kind)  # The others stay in place: scales are repacked.
    assert live.traced.differences(live.traced.filling(live.tensors.items())) == {}
    live.recomputation.prove(as_loaded=True)
    assert models.differing(live.model, live.fresh()) == [], "the proof changed something"
    addresses, kernels = live.addresses(), kernel_tensors(live.model)
    trainer = Trainer({name: tensor.clone() for name, tensor in live.tensors.items()}, pairs=True)
    receiver = Receiver("e", live.traced.layout(), 0, live.traced.memories(), recomputations=[live.recomputation])
    regrouped = trainer.regroup(2)
    receiver.join(World("127.0.0.1", trainer.port, trainer.secret, size=2, rank_offset=1, interface="lo"), DEADLINE)
    regrouped.result(DEADLINE)
    for update in range(3):
        live.tensors = low_bit.random_updates(live.tensors, seed=update)
        for name, tensor in live.tensors.items():
            trainer.tensors[name].copy_(tensor)
        receiver.start_receive(DEADLINE)
        synced = trainer.sync()
        receiver.wait_staged(DEADLINE)
        receiver.apply(DEADLINE)
        synced.result(DEADLINE)
        fresh = live.fresh()
        assert models.differing(live.model, fresh) == []
        assert all(torch.equal(tensor, kernels[name]) for name, tensor in kernel_tensors(fresh).items())
    assert live.addresses() == addresses
    assert all(tensor is kernels[name] for name, tensor in kernel_tensors(live.model).items())
    receiver.close()
    live.recomputation.audit()
    parameters = dict(live.model.named_parameters())
    name = next(name for name in live.recomputation.derived if name in parameters)
    tensor = parameters[name].data
    models.bits_of(tensor)[(0,) * tensor.dim()] ^= 1
    with pytest.raises(DirtyError, match=f"{name} is not what the engine's"):
        live.recomputation.audit()


def test_a_model_that_vllm_does_not_make_once_more_is_refused_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("there is no other")

    config = models.config("llama-3.1-405b int4")
    models.start(config)
    try:
        model = models.build(config)
        models.load(model, config, models.checkpoint("llama-3.1-405b int4", seed=1))
        monkeypatch.setattr(model_loader, "initialize_model", lambda _: fail())
        with (
            set_current_vllm_config(config),
            pytest.raises(
                UnsupportedError, match=r"8 layers do not keep .*\.qkv_proj, .*RuntimeError: there is no other"
            ),
        ):
            trace(model, models.canonical("llama-3.1-405b int4"), config)
    finally:
        models.stop()
