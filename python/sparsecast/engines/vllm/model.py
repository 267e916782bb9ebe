# SPDX-License-Identifier: Apache-2.0
"""What a vLLM model must be to be patched in place: its trace, and the refusals that only vLLM needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec

import torch

from sparsecast.engines.refresh.constants import Constants
from sparsecast.engines.refresh.derived import derived_tensors, packed_copies
from sparsecast.engines.refresh.recompute import Recomputation, Step, loader_steps, steps_that_make
from sparsecast.engines.refresh.repacked import RepackedModules
from sparsecast.engines.trace.loader import CanonicalTensor, LoadWeights, Modes, TracedLoader, trace_loader
from sparsecast.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

P = ParamSpec("P")

_KV_CACHE_ATTRIBUTES = frozenset({"kv_cache"})


def trace(
    model: torch.nn.Module,
    canonical: Sequence[CanonicalTensor],
    vllm_config: VllmConfig,
    may_miss: Sequence[str] = (),
    modes: Modes | None = None,
    repacked_too: Collection[str] = (),
) -> tuple[TracedLoader, Recomputation]:
    """Runs `trace_loader` over a vLLM model, within `set_current_vllm_config`. Returns the address map, and the steps
    of vLLM that compute tensors from weights, not proven yet. `repacked_too` names modules whose parameters are not
    what was loaded, although their form does not show it.

    Raises UnsupportedError naming tensors that cannot be patched, copies of weights that are packed for a CPU, and
    tensors that are derived from weights by no step of vLLM; UsageError for names that do not fit.
    """
    refuse_packed_copies(model)
    repacked = repacked_modules(model, vllm_config, repacked_too)
    with repacked.shown():
        traced = trace_loader(
            model,
            canonical,
            loader_of(model),
            may_miss=may_miss,
            strict=False,
            modes=modes or {},
            several=repacked.parameters,
        )
    traced = repacked.completed(traced)
    recomputation, made = recomputation_of(model, traced, vllm_config, repacked=repacked)
    traced.require_complete(made | traced.may_fill())
    return traced, recomputation


def recomputation_of(
    model: torch.nn.Module,
    traced: TracedLoader,
    vllm_config: VllmConfig,
    model_config: Any = None,
    whose: str = "the model",
    repacked: RepackedModules | None = None,
) -> tuple[Recomputation, set[str]]:
    """Returns the steps of vLLM that compute tensors of `model` from its weights, not proven yet, and the names of the
    tensors that they may make. `traced` is the model's address map. For a draft model, `model_config` is its
    configuration, and `whose` its name in messages.

    Raises UnsupportedError for copies of weights that are packed for a CPU, and for tensors that no step makes.
    """
    refuse_packed_copies(model, whose)
    derived = derived_tensors(model, _KV_CACHE_ATTRIBUTES) | set(traced.untouched)
    # A parameter that nothing fills at all may be derived; whether a step makes it is found by the proof.
    loader = loader_of(model)
    if repacked is not None:
        loader = repacked.around(loader)
        derived = {name for name in derived if not repacked.has(name)}
    load_weights = _in_context(vllm_config, loader)
    steps = loader_steps(model, load_weights, traced)
    if repacked is not None:
        steps = repacked.steps(steps)
    for step in steps_that_make(derived, post_processing(model, model_config or vllm_config.model_config)):
        step.run = _in_context(vllm_config, step.run)
        steps.append(step)
    made = {name for name in derived if any(step.may_make(name) for step in steps if not step.inputs)}
    refuse_derived(derived - made - set(traced.untouched), whose)
    return Recomputation(model, steps, traced, made - set(traced.untouched), load_weights), made


def post_processing(model: torch.nn.Module, model_config: Any) -> Iterator[Step]:
    """Yields the steps that vLLM runs over a model after loading (`process_weights_after_loading`), in the order of its
    loader.
    """
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, QuantizeMethodBase):
            yield Step(name, module, partial(method.process_weights_after_loading, module))
    for name, module in model.named_modules():
        finish: Any = getattr(module, "process_weights_after_loading", None)
        if isinstance(module, AttentionLayerBase) and callable(finish):
            yield Step(name, module, partial(finish, model_config.dtype))
    finish = getattr(model, "process_weights_after_loading", None)
    if callable(finish):
        yield Step("", model, finish)


def repacked_modules(
    model: torch.nn.Module,
    vllm_config: VllmConfig,
    too: Collection[str],
    model_config: Any = None,
    prefix: str = "",
    besides: Collection[torch.nn.Module] = (),
) -> RepackedModules:
    """Returns the modules whose parameters have another form than vLLM recorded before it loaded them, and the modules
    named in `too` that have post-processing, with copies of their parameters as they were loaded.

    For a draft model, `model_config` and `prefix` are the arguments with which vLLM made it. Modules in `besides` are
    left out: they belong to another model as well, and are patched with that model. Raises UnsupportedError naming the
    modules if there are any, and vLLM cannot make the model a second time.
    """
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
    from vllm.model_executor.model_loader.reload.meta import SKIP_TENSORS

    names: list[str] = []
    others = set(besides)
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if (
            module not in others
            and isinstance(method, QuantizeMethodBase)
            and not isinstance(method, BaseKVCacheMethod)
        ):
            recorded = {key: _form(p) for key, p in get_layerwise_info(module).restore_metadata[0].items()}
            now = {key: _form(p) for key, p in module._parameters.items() if p is not None and key not in SKIP_TENSORS}
            if (recorded != now and recorded) or name in too:
                names.append(name)
    if not names:
        return RepackedModules(model, model, {})
    try:
        twin, constants = _twin(vllm_config, model_config, prefix)
        steps = post_processing(twin, model_config or vllm_config.model_config)
        finish = {step.name: _in_context(vllm_config, step.run) for step in steps}
        return RepackedModules(model, twin, {name: finish[name] for name in names}, constants)
    except Exception as error:  # vLLM's code may raise anything; the model that it makes again has no adapters.
        raise UnsupportedError(
            f"{len(names)} layers do not keep their parameters as they were loaded ({', '.join(names[:4])}, ...), and "
            f"vLLM does not make the model once more, for copies that do: {type(error).__name__}: {error}; use a dense "
            "weight-transfer backend (nccl) for this model"
        ) from error


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def _twin(vllm_config: VllmConfig, model_config: Any = None, prefix: str = "") -> tuple[torch.nn.Module, Constants]:
    """Makes the model a second time, on the meta device. Returns this model, and the `Constants` that have the values
    of its constant tensors. vLLM's tables of layers still name the layers of the live model afterwards.
    """
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    compilation = vllm_config.compilation_config
    layers, experts = dict(compilation.static_forward_context), list(compilation.static_all_moe_layers)
    embeddings = dict(_ROPE_DICT)
    compilation.static_forward_context.clear()
    dtype = (model_config or vllm_config.model_config).dtype
    try:
        with set_default_torch_dtype(dtype), torch.device("meta"), Constants() as constants:
            return initialize_model(vllm_config, prefix=prefix, model_config=model_config), constants
    finally:
        compilation.static_forward_context.clear()
        compilation.static_forward_context.update(layers)
        compilation.static_all_moe_layers[:] = experts
        _ROPE_DICT.clear()
        _ROPE_DICT.update(embeddings)


def _in_context(vllm_config: VllmConfig, run: Callable[P, object]) -> Callable[P, object]:
    """Returns a function that calls `run` as vLLM's loader does: without gradients, with vLLM's configuration and the
    default dtype of the model.
    """
    from vllm.config import set_current_vllm_config
    from vllm.utils.torch_utils import set_default_torch_dtype

    def wrapped(*arguments: P.args, **options: P.kwargs) -> object:
        dtype = vllm_config.model_config.dtype
        with torch.no_grad(), set_current_vllm_config(vllm_config), set_default_torch_dtype(dtype):
            return run(*arguments, **options)

    return wrapped


def loader_of(model: torch.nn.Module) -> LoadWeights:
    load_weights: LoadWeights = model.load_weights  # type: ignore[assignment]  # Of every vLLM model.
    return load_weights


def refuse_packed_copies(model: torch.nn.Module, whose: str = "the model") -> None:
    """Raises UnsupportedError if layers of the model compute with a copy of their weights that is packed for this CPU,
    which a patch would not reach. `whose` names the model in the message.
    """
    packed = packed_copies(model)
    if packed:
        listed = ", ".join(sorted(packed)[:4])
        raise UnsupportedError(
            f"{len(packed)} layers of {whose} compute with a copy of their weights that is packed for this CPU "
            f"({listed}, ...), which a patch would not reach; with the environment variable ONEDNN_MAX_CPU_ISA=AVX2 "
            "vLLM makes no such copies: start the server with it"
        )


def refuse_derived(derived: Collection[str], whose: str = "the model") -> None:
    """Raises UnsupportedError naming the tensors in `derived`, which are derived from weights and cannot be computed
    again, if there are any. `whose` names the model in the message.
    """
    if derived:
        listed = ", ".join(sorted(derived)[:8])
        raise UnsupportedError(
            f"{whose} computes with tensors that are derived from its weights after loading: {listed}; a patch "
            "would leave them behind; use a dense weight-transfer backend (nccl) for this model"
        )


def refuse_moving_experts(parallel_config: Any) -> None:
    """Raises UnsupportedError if vLLM may move experts between ranks while it runs, because the address map would be
    wrong after a move.
    """
    if parallel_config.enable_eplb:
        raise UnsupportedError(
            "--enable-eplb: vLLM moves experts, redundant ones among them, between ranks while it runs, and a patch "
            "goes where the loader put them; start vLLM without it, or use a dense weight-transfer backend (nccl)"
        )


def refuse_new_ties(traced: TracedLoader, ties: Sequence[Sequence[str]]) -> None:
    """Raises UnsupportedError if two canonical names share memory in this engine and are not a pair in `ties`, the
    pairs of names that are one tensor at the trainer.
    """
    known = {frozenset(pair) for pair in ties}
    for alias, original in traced.ties:
        if frozenset((alias, original)) not in known:
            raise UnsupportedError(
                f"vLLM keeps {alias!r} and {original!r} in one memory, because they are tied or were equal when they "
                "were loaded, and the trainer has two tensors: name them in ties, or start vLLM from untied weights"
            )


def checkpoint_tensors(
    vllm_config: VllmConfig, model_config: Any, model: torch.nn.Module
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor) of the files from which `model` was loaded, as vLLM's own reader reads them. Raises
    UnsupportedError if the model was not loaded from files.
    """
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    loader = get_model_loader(vllm_config.load_config)
    if not isinstance(loader, DefaultModelLoader):
        raise UnsupportedError(
            f"{type(loader).__name__} reads no checkpoint files to compare the worker's memory with: use proof='trust' "
            "if the kernels of this model keep the loader's layout"
        )
    yield from loader.get_all_weights(model_config, model)
