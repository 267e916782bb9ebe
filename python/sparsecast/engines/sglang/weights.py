# SPDX-License-Identifier: Apache-2.0
"""Checks and maps the live weights of SGLang: whether they are as loaded, where they are, and which tensors its
checkpoint has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec

import torch

from sparsecast.engines.refresh.constants import Constants
from sparsecast.engines.refresh.derived import derived_tensors
from sparsecast.engines.refresh.recompute import Recomputation, Step, loader_steps, steps_that_make
from sparsecast.engines.refresh.repacked import RepackedModules
from sparsecast.engines.sglang.messages import TraceRequest
from sparsecast.engines.trace.loader import CanonicalTensor, TracedLoader, trace_loader
from sparsecast.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from sglang.srt.configs.model_config import ModelConfig

P = ParamSpec("P")

_OTHER_WAY = "load these weights by /update_weights_from_distributed or /update_weights_from_disk"


def refuse_server_wide(model: torch.nn.Module) -> None:
    """Raises UnsupportedError, with the reason, if an option of the server may move weights, or keeps weights elsewhere
    than in the memory of the rank, where a patch would not reach them.
    """
    reason = _server_wide_reason(model)
    if reason is not None:
        raise UnsupportedError(f"{reason}; {_OTHER_WAY}")


def repacked_modules(model: torch.nn.Module, config: ModelConfig, too: Collection[str]) -> RepackedModules:
    """Returns the layers whose weights have another form than the loader gave them, and the modules named in `too` that
    have post-processing, with copies of their parameters as they were loaded.

    Raises UnsupportedError naming the layers and the reasons if there are such layers, and SGLang cannot make the model
    a second time.
    """
    reworked = {name: "not what was loaded" for name in too if hasattr(model.get_submodule(name), "quant_method")}
    reworked |= reworked_layers(model)
    if not reworked:
        return RepackedModules(model, model, {})
    try:
        twin, constants = _twin(config)
        finish = {name: _finish(twin.get_submodule(name), config) for name in reworked}
        return RepackedModules(model, twin, finish, constants)
    except Exception as error:  # SGLang's code may raise anything.
        listed = "; ".join(f"{name}: {why}" for name, why in list(reworked.items())[:4])
        more = f"; and {len(reworked) - 4} more" if len(reworked) > 4 else ""
        raise UnsupportedError(
            f"{len(reworked)} layers do not keep their weights as the checkpoint has them: {listed}{more}; and SGLang "
            f"does not make the model once more, for copies that are: {type(error).__name__}: {error}; {_OTHER_WAY}"
        ) from error


def _finish(module: torch.nn.Module, config: ModelConfig) -> Callable[[], object]:
    method: Any = module.quant_method
    return _in_context(config, partial(method.process_weights_after_loading, module))


def _twin(config: ModelConfig) -> tuple[torch.nn.Module, Constants]:
    """Makes the model a second time, on the meta device. Returns this model, and the `Constants` that have the values
    of its constant tensors.
    """
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.layers.rotary_embedding.factory import _ROPE_DICT
    from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model
    from sglang.srt.model_loader.utils import set_default_torch_dtype

    load_config = LoadConfig()
    embeddings = dict(_ROPE_DICT)
    try:
        with set_default_torch_dtype(config.dtype), torch.device("meta"), Constants() as constants:
            quantisation = _get_quantization_config(config, load_config)
            return _initialize_model(config, load_config, quantisation), constants
    finally:
        _ROPE_DICT.clear()
        _ROPE_DICT.update(embeddings)


def _server_wide_reason(model: torch.nn.Module) -> str | None:
    from sglang.srt.model_loader.loader import QuantizedRLModelLoader

    from sparsecast.engines.sglang.releases import get_exec, get_model

    if getattr(get_model(), "weight_cache_mode", "off") != "off":
        return "the weights are shared with other servers through the weight cache (--weight-cache-mode)"
    experts = get_exec().moe
    if experts.enable_eplb or experts.elastic_ep_backend is not None:
        return "experts move between ranks while the server runs (--enable-eplb, --elastic-ep-backend)"
    if experts.ep_num_redundant_experts > 0:
        return "ranks keep second copies of experts (--ep-num-redundant-experts)"
    if QuantizedRLModelLoader.is_reload_scenario(model):
        return "the server quantises what it loads (--load-format flash_rl)"
    try:
        from sglang.srt.model_executor.model_runner_components.weight_updater import (
            _unsupported_derived_weight_cache_error,
        )
    except ImportError:  # A release before such caches.
        return None
    reason: str | None = _unsupported_derived_weight_cache_error(model)
    return reason


def reworked_layers(model: torch.nn.Module) -> dict[str, str]:
    """Returns the layers whose weights have, or may have, another form than the loader gave them: the reason by name of
    the layer. Only layers with a quantization method that is known to keep the form are left out.
    """
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            reason = _reworked(module, method)
            if reason is not None:
                found[name] = reason
    return found


def _reworked(layer: torch.nn.Module, method: Any) -> str | None:
    from sglang.srt.layers.quantization.fp8 import Fp8LinearMethod, Fp8MoEMethod
    from sglang.srt.layers.quantization.kv_cache import BaseKVCacheMethod
    from sglang.srt.layers.quantization.unquant import (
        UnquantizedEmbeddingMethod,
        UnquantizedFusedMoEMethod,
        UnquantizedLinearMethod,
    )

    if getattr(layer, "use_intel_amx_backend", False):
        return "packed for AMX"
    if isinstance(method, BaseKVCacheMethod):
        return None  # Scales of the KV cache; a checkpoint that has some does not pass the trace.
    if type(method) in (UnquantizedEmbeddingMethod, UnquantizedLinearMethod):
        return None
    if type(method) is UnquantizedFusedMoEMethod:
        if getattr(method, "w13_swiglu_interleaved", False):
            return "gate and up rows are interleaved (unset SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED)"
        if getattr(method, "use_flashinfer_trtllm_moe", False):
            return "experts are in FlashInfer TRT-LLM's blocks (choose another --moe-runner-backend)"
        return None
    if type(method) is Fp8LinearMethod:
        return _fp8_reworked(layer, method, ("weight",))
    if type(method) is Fp8MoEMethod:
        return _fp8_reworked(layer, method, ("w13_weight", "w2_weight"))
    return f"{type(method).__name__} repacks or quantises what was loaded"


def _fp8_reworked(layer: torch.nn.Module, method: Any, weights: Sequence[str]) -> str | None:
    if not method.block_quant:
        return "fp8 with one scale a tensor or channel, which is computed anew after loading (block-wise fp8 is kept)"
    if method.use_mxfp8:
        return "MXFP8 scales are rearranged after loading"
    if getattr(method, "use_marlin", False):
        return "repacked for Marlin"
    if getattr(method, "block_fp8_as_mxfp8", False) or getattr(layer, "deepgemm_mxfp8_input", None):
        return "served through MXFP8 scales that are made after loading"
    if getattr(method, "is_fp4_expert", False):
        return "FP4 experts are repacked after loading"
    for name in weights:
        if getattr(layer, name).dtype != torch.float8_e4m3fn:
            return f"{name} has become {getattr(layer, name).dtype}"
        if getattr(getattr(layer, f"{name}_scale_inv"), "format_ue8m0", False):
            return f"{name} was quantised anew to DeepGEMM's UE8M0 scales"
    return None


def trace_weights(
    model: torch.nn.Module, config: ModelConfig, request: TraceRequest, repacked_too: Collection[str] = ()
) -> tuple[TracedLoader, Recomputation]:
    """Traces `model.load_weights` for the tensors of the request, or of the checkpoint if the request names none.
    Returns the address map, and the steps of SGLang that compute tensors from weights, not proven yet. `repacked_too`
    names modules whose parameters are not what was loaded, although their form does not show it.

    Raises UnsupportedError with the tensors and the reasons, and UsageError for names that do not fit.
    """
    refuse_server_wide(model)
    repacked = repacked_modules(model, config, repacked_too)
    table = list(request.tensors) if request.tensors is not None else checkpoint_table(model, config)
    load_weights: Any = model.load_weights
    with repacked.shown():
        traced = trace_loader(
            model,
            table,
            load_weights,
            may_miss=request.may_miss,
            strict=False,
            modes=request.modes,
            several=repacked.parameters,
        )
    traced = repacked.completed(traced)
    recomputation, made = recomputation_of(model, config, traced, repacked)
    traced.require_complete(made | traced.may_fill())
    for alias, original in traced.ties:
        if frozenset((alias, original)) not in request.ties:
            raise UnsupportedError(
                f"SGLang keeps {alias!r} and {original!r} in one memory, because they are tied or were equal when they "
                "were loaded, and the trainer has two tensors: name them in ties, or start SGLang from untied weights"
            )
    return traced, recomputation


def recomputation_of(
    model: torch.nn.Module, config: ModelConfig, traced: TracedLoader, repacked: RepackedModules
) -> tuple[Recomputation, set[str]]:
    """Returns the steps of SGLang that compute tensors of `model` from its weights, not proven yet, and the names of the
    tensors that they may make. `traced` is the model's address map. Raises UnsupportedError naming tensors that are
    derived from weights and that no step makes.
    """
    loader: Any = model.load_weights
    load_weights = _in_context(config, repacked.around(loader))
    derived = {name for name in derived_tensors(model) if not repacked.has(name)} | set(traced.untouched)
    steps = repacked.steps(loader_steps(model, load_weights, traced))
    finish: Any = getattr(model, "post_load_weights", None)
    if callable(finish):  # What SGLang's loaders call after loading, before post-processing has repacked anything.
        finish = _in_context(config, repacked.around(finish, to_read=True))
        steps += steps_that_make(derived, [Step("", model, finish, places=repacked.places)])
    made = {name for name in derived if any(step.may_make(name) for step in steps if not step.inputs)}
    left = derived - made - set(traced.untouched)
    if left:
        raise UnsupportedError(
            "the model computes with tensors that it has derived from its weights after loading, which a patch would "
            f"leave behind: {', '.join(sorted(left)[:4])}; {_OTHER_WAY}"
        )
    return Recomputation(model, steps, traced, made - set(traced.untouched), load_weights), made


def _in_context(config: ModelConfig, run: Callable[P, object]) -> Callable[P, object]:
    """Returns a function that calls `run` as SGLang's loaders do: without gradients, with the model's default dtype."""
    from sglang.srt.model_loader.utils import set_default_torch_dtype

    def wrapped(*arguments: P.args, **options: P.kwargs) -> object:
        with torch.no_grad(), set_default_torch_dtype(config.dtype):
            return run(*arguments, **options)

    return wrapped


def trace_and_verify(
    model: torch.nn.Module, config: ModelConfig, request: TraceRequest
) -> tuple[TracedLoader, Recomputation, set[str]]:
    """Runs `trace_weights`, compares live memory with the files from which SGLang was started, and fills the copies
    that are kept outside the model. If a kernel keeps the weights of a module in another order than the loader, the
    module is mapped as a repacked module. Returns the address map, the steps, and the names of these modules.

    Raises UnsupportedError naming the tensors that differ from the files even if their modules are mapped as repacked.
    """
    traced, recomputation = trace_weights(model, config, request)
    wrong = traced.differences(traced.filling(checkpoint_tensors(model, config)))
    if not wrong:
        return traced, recomputation, set()
    rearranged = traced.modules_of(wrong)
    traced, recomputation = trace_weights(model, config, request, rearranged)
    if traced.differences(traced.filling(checkpoint_tensors(model, config))):
        listed = ", ".join(f"{name!r} ({count} elements)" for name, count in list(wrong.items())[:8])
        raise UnsupportedError(
            f"{len(wrong)} tensors in the rank's memory are not what its checkpoint has, starting with "
            f"{listed}: a kernel keeps them in another order than the loader writes, and SGLang's post-processing does "
            f"not make it, or they were changed since; {_OTHER_WAY}"
        )
    return traced, recomputation, rearranged


def scales_of_caches(model: torch.nn.Module) -> tuple[str, ...]:
    """Returns the names of the scales of KV caches. No canonical tensor has to fill them: the scales are 1 then."""
    from sglang.srt.layers.quantization.kv_cache import BaseKVCacheMethod

    layers = [
        n for n, module in model.named_modules() if isinstance(getattr(module, "quant_method", None), BaseKVCacheMethod)
    ]
    return tuple(f"{layer}.{name}" for layer in layers for name in ("k_scale", "v_scale"))


def checkpoint_table(
    model: torch.nn.Module, config: ModelConfig, load_format: str | None = None
) -> list[CanonicalTensor]:
    """Returns names, dtypes and shapes of the tensors in the checkpoint from which SGLang has loaded `model`, which has
    the configuration `config`. Reads only the headers of the files. `load_format` is that of a draft model, None that
    of the server. Raises UsageError if a file is not a safetensors file.
    """
    from safetensors import safe_open

    table: list[CanonicalTensor] = []
    for prefix, paths, are_safetensors in _files(_loader(config, load_format), model, config):
        for path in paths:
            if not are_safetensors:
                raise UsageError(
                    f"{path!r} is no safetensors file: start from such files, or name the trainer's tensors in group_name"
                )
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (safe_open is no dict)
                    part = file.get_slice(name)
                    table.append((prefix + name, part.get_dtype(), tuple(part.get_shape())))
    return table


def _files(loader: Any, model: torch.nn.Module, config: ModelConfig) -> Iterator[tuple[str, Sequence[str], bool]]:
    """Yields the prefix of the names, the paths and whether they are safetensors files of each part of a checkpoint."""
    if hasattr(loader, "resolve_model_weights"):
        for part in loader.resolve_model_weights(config, model):
            yield part.source.prefix, part.weight_files, part.use_safetensors
        return
    from sglang.srt.model_loader.loader import maybe_add_mtp_safetensors

    for source in (loader.Source.init_new(config, model), *getattr(model, "secondary_weights", ())):
        folder, paths, are_safetensors = loader._prepare_weights(
            source.model_or_path, source.revision, source.fall_back_to_pt
        )
        if are_safetensors and source.model_config is not None:
            index = "model.safetensors.index.json"
            paths = maybe_add_mtp_safetensors(paths, folder, index, source.model_config.hf_config)
        yield source.prefix, paths, are_safetensors


def checkpoint_tensors(
    model: torch.nn.Module, config: ModelConfig, load_format: str | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors in the checkpoint from which SGLang has loaded `model`, by their names there. `load_format` is
    that of a draft model, None that of the server. Raises UnsupportedError if the server was started without a
    checkpoint.
    """
    yield from _loader(config, load_format)._get_all_weights(config, model)


def _loader(config: ModelConfig, load_format: str | None) -> Any:
    """Returns SGLang's reader for the files of a model; it runs no collectives over the ranks. Raises UnsupportedError if the server was started without a checkpoint."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import DefaultModelLoader, get_model_loader

    from sparsecast.engines.sglang.releases import get_model

    load_format = load_format or get_model().load_format
    load_config = LoadConfig(load_format=load_format)
    load_config.load_group = None  # In older releases no loader has one.
    loader = get_model_loader(load_config, config)
    if not isinstance(loader, DefaultModelLoader):
        raise UnsupportedError(
            f"a server started with --load-format {load_format} has no checkpoint to compare its memory with: start it "
            "from one, or name the trainer's tensors in group_name, with proof 'trust' if this model's kernels keep the "
            "loader's layout"
        )
    return loader
