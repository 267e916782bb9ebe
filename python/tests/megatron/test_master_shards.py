# SPDX-License-Identifier: Apache-2.0
"""The fp32 masters of the package's own optimizers, of which each makes a step on the CPU."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from bare_models import model_of, numbers
from megatron.core.distributed import DistributedDataParallelConfig, param_and_grad_buffer
from megatron.core.optimizer import OptimizerConfig, layer_wise_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer
from megatron.core.optimizer.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer

from sparsecast.errors import UnsupportedError
from sparsecast.megatron import MasterShard, master_shards, megatron_tensors

HIDDEN = 8
SHAPES = {
    "input_layernorm.weight": (HIDDEN,),
    "mlp.linear_fc1.weight": (32, HIDDEN),
    "mlp.linear_fc2.weight": (HIDDEN, 16),
    "self_attention.linear_proj.weight": (HIDDEN, 16),
}
#: The layer-wise optimizer of this release has parameters in buffers, beside a DistributedOptimizer of the others.
LAYER_WISE_BUFFERS = hasattr(LayerWiseDistributedOptimizer, "compute_full_param_layout")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizers ask by the names of types for tensors on a GPU, put a few scalars there, and ask for a rank."""
    kind, scalar = torch.Tensor.type, torch.tensor

    def type_on_a_gpu(tensor: torch.Tensor, *to: Any, **options: Any) -> Any:
        return kind(tensor, *to, **options) if to or options else kind(tensor).replace("torch.", "torch.cuda.")

    monkeypatch.setattr(torch.Tensor, "type", type_on_a_gpu)
    monkeypatch.setattr(torch, "tensor", lambda *values, device=None, **options: scalar(*values, **options))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 0)
    monkeypatch.setattr(layer_wise_optimizer, "get_pg_size", lambda group: group.size())
    monkeypatch.setattr(layer_wise_optimizer, "get_pg_rank", lambda group: group.rank())
    monkeypatch.setattr(param_and_grad_buffer, "log_on_each_pipeline_stage", lambda *_, **__: None)


def model() -> torch.nn.Module:
    return model_of({name: numbers(*shape).to(torch.bfloat16) for name, shape in SHAPES.items()})


def group_of(rank: int, ranks: int) -> SimpleNamespace:
    """A process group that nothing is sent over."""
    return SimpleNamespace(rank=lambda: rank, size=lambda: ranks)


def config(**options: Any) -> OptimizerConfig:
    return OptimizerConfig(
        **{"optimizer": "sgd", "lr": 0.5, "bf16": True, "use_distributed_optimizer": False} | options
    )


def matrices(chunk: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in chunk.parameters() if parameter.dim() == 2]


def vectors(chunk: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in chunk.parameters() if parameter.dim() == 1]


def muon(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon(parameters, lr=0.5)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def buffer_of(chunk: torch.nn.Module, parameters: Any, ranks: SimpleNamespace, ddp: Any, layout_by: Any) -> Any:
    """A parameter buffer, as either release makes it: the newer one takes a layout that the optimizer has made."""
    names = {parameter: name for name, parameter in chunk.named_parameters()}
    indices = list(range(len(parameters)))
    options: dict[str, Any] = {"params": parameters}
    if "param_layout" in inspect.signature(param_and_grad_buffer._ParamAndGradBuffer).parameters:
        layout = layout_by._compute_per_buffer_param_layout(parameters, 300, ranks.size(), ddp, indices)
        options = {"params_with_names": [(each, names[each]) for each in parameters], "param_layout": layout}
    return param_and_grad_buffer._ParamAndGradBuffer(
        ddp_config=ddp,
        param_dtype=torch.bfloat16,
        grad_dtype=torch.float32,
        data_parallel_group=ranks,
        bucket_size=300,
        param_to_name=names,
        gradient_scaling_factor=1.0,
        param_indices=indices,
        nccl_ub=False,
        pg_collection=SimpleNamespace(tp=ranks, dp_cp=ranks),
        **options,
    )


def distributed(chunk: Any, parameters: Any, ranks: SimpleNamespace, own: OptimizerConfig | None = None) -> Any:
    """A DistributedOptimizer of these parameters, and its parameter buffer."""
    chunk.ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True)
    buffer = buffer_of(chunk, parameters, ranks, chunk.ddp_config, DistributedOptimizer)
    own = own or config(use_distributed_optimizer=True)
    adam = torch.optim.AdamW(parameters, lr=0.5)
    args = (own, None, lambda *_: None, [chunk], {0: [buffer]}, ranks, None, 0, 0)
    return DistributedOptimizer(adam, *args), buffer


def all_steps(optimizer: Any) -> None:
    """Inner step and cast of every optimizer of a chain, without the all-gather after them."""
    if isinstance(optimizer, ChainedOptimizer):
        for one in optimizer.chained_optimizers:
            all_steps(one)
    elif not optimizer.is_stub_optimizer:
        for group in optimizer.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        optimizer.optimizer.step()
        optimizer._copy_main_params_to_model_params()


def owned(optimizer: Any, chunk: torch.nn.Module) -> Iterator[tuple[MasterShard, torch.Tensor]]:
    """Yields the shards, each with its elements in the parameter, after a step that has changed these and no other."""
    before = {name: tensor.clone() for name, tensor in megatron_tensors(chunk).items()}
    shards = master_shards(optimizer, chunk)
    all_steps(optimizer)
    for shard in shards:
        now = megatron_tensors(chunk)[shard.parameter].view(-1)[shard.begin : shard.end]
        assert shard.master is not None
        assert shard.master.dtype == torch.float32
        assert torch.equal(shard.master.to(torch.bfloat16), now), "the cast of the master is in the parameter"
        was = before[shard.parameter].view(-1)[shard.begin : shard.end]
        assert not torch.equal(was, now), "and the step has changed it"
        was.copy_(now)
        yield shard, now
    for name, tensor in megatron_tensors(chunk).items():
        assert torch.equal(tensor, before[name]), f"of {name} nothing else has changed"


def add_up_to_the_model(shards: list[MasterShard]) -> None:
    """Every element of every parameter is in one shard."""
    for name, shape in SHAPES.items():
        ends = sorted((shard.begin, shard.end) for shard in shards if shard.parameter == f"decoder.layers.0.{name}")
        assert [begin for begin, _ in ends] == [0, *(end for _, end in ends[:-1])]
        assert ends[-1][1] == torch.Size(shape).numel()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_distributed_optimizer_cuts_every_parameter_among_the_data_parallel_ranks(ranks: int) -> None:
    found = []
    for rank in range(ranks):
        chunk = model()
        optimizer, buffer = distributed(chunk, list(chunk.parameters()), group_of(rank, ranks))
        stub = DistributedOptimizer(None, optimizer.config, None, None, [chunk], {}, None, None, 0, 0)
        for shard, elements in owned(ChainedOptimizer([optimizer, stub]), chunk):
            assert shard.buffer == 0
            assert shard.buffer_begin is not None
            place = slice(shard.buffer_begin, shard.buffer_begin + shard.end - shard.begin)
            assert buffer.param_data[place].data_ptr() == elements.data_ptr()
            found.append(shard)
    add_up_to_the_model(found)


def test_muon_and_sgd_step_whole_parameters_on_every_rank() -> None:
    chunk = model()
    bases = [muon(matrices(chunk)), sgd(vectors(chunk))]
    own = config()
    optimizer = ChainedOptimizer(
        [Float16OptimizerWithFloat16Params(base, own, None, lambda *_: None) for base in bases]
    )
    found = [shard for shard, _ in owned(optimizer, chunk)]
    assert {(shard.buffer, shard.bucket, shard.buffer_begin) for shard in found} == {(None, None, None)}
    add_up_to_the_model(found)


def test_fp32_parameters_beside_16_bit_ones_have_no_master() -> None:
    chunk = model()
    vectors(chunk)[0].data = vectors(chunk)[0].data.float()
    optimizer = Float16OptimizerWithFloat16Params(sgd(chunk.parameters()), config(), None, lambda *_: None)
    shards = {shard.parameter: shard for shard in master_shards(optimizer, chunk)}
    assert len(shards) == len(SHAPES)
    assert [name for name, shard in shards.items() if shard.master is None] == [
        "decoder.layers.0.input_layernorm.weight"
    ]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_layer_wise_optimizer_gives_every_parameter_to_one_rank(ranks: int) -> None:
    found = []
    for rank in range(ranks):
        chunk = model()
        groups = SimpleNamespace(dp_cp=group_of(rank, ranks), expt_dp=group_of(0, 1))
        optimizer = LayerWiseDistributedOptimizer([muon(matrices(chunk)), sgd(vectors(chunk))], config(), groups)
        found += [shard for shard, _ in owned(optimizer, chunk)]
    assert len(found) == len(SHAPES)
    add_up_to_the_model(found)


@pytest.mark.skipif(not LAYER_WISE_BUFFERS, reason="this Megatron-core has no layer-wise optimizer over buffers")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_layer_wise_optimizer_of_matrices_is_chained_to_a_distributed_one_of_the_others(ranks: int) -> None:
    found = []
    for rank in range(ranks):
        chunk: Any = model()
        here, own = group_of(rank, ranks), config()
        layer_wise_optimizer.tag_params_for_buffer_routing([chunk])
        optimizer, _ = distributed(chunk, vectors(chunk), here, own)
        buffer_of(chunk, matrices(chunk), here, chunk.ddp_config, LayerWiseDistributedOptimizer)
        chunk.full_param_layout = LayerWiseDistributedOptimizer.compute_full_param_layout(
            list(chunk.parameters()), 300, ranks, chunk.ddp_config
        )
        groups = SimpleNamespace(dp_cp=here, expt_dp=group_of(0, 1))
        by_layer = LayerWiseDistributedOptimizer([muon(matrices(chunk))], own, groups, model_chunks=[chunk])
        found += [shard for shard, _ in owned(ChainedOptimizer([by_layer, optimizer]), chunk)]
    assert sum(shard.buffer is None for shard in found) == 3, "the matrices, each of one rank"
    add_up_to_the_model(found)


def test_another_optimizer_or_another_models_parameters_are_refused() -> None:
    chunk = model()
    for optimizer in (
        FP32Optimizer(sgd(chunk.parameters()), config(bf16=False), lambda *_: None),
        muon(matrices(chunk)),
    ):
        with pytest.raises(UnsupportedError, match=f"{type(optimizer).__name__} keeps .*parameters .*can be published"):
            master_shards(ChainedOptimizer([optimizer]), chunk)
    other = model_of({"input_layernorm.weight": numbers(5).to(torch.bfloat16)})
    with pytest.raises(UnsupportedError, match=r"\[5\].*not the model's"):
        master_shards(
            Float16OptimizerWithFloat16Params(sgd(other.parameters()), config(), None, lambda *_: None), chunk
        )
    optimizer, _ = distributed(other, list(other.parameters()), group_of(0, 1))
    with pytest.raises(UnsupportedError, match=r"\[5\].*not the model's"):
        master_shards(optimizer, chunk)
