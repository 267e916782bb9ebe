# SPDX-License-Identifier: Apache-2.0
"""Builds the layout of this rank from its model and its place in the parallel groups."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .._core import Box, Layout, LocalTensor, RankLayout, Shard, TensorTable
from ..buffers import dtype_name
from ..errors import UnsupportedError, UsageError
from .naming import LLAMA, Naming
from .rules import LAYER_RULES, MODEL_RULES, ParallelState, Parameter, Part

#: Options under which a checkpoint of these families has other values than the parameters, or another order.
_OTHER_VALUES = {
    "layernorm_zero_centered_gamma": "keeps norms minus one",
    "rotary_interleaved": "keeps the rows of q and k in another order",
    "moe_mlp_glu_interleave_size": "keeps blocks of gate and up by turns",
    "moe_shared_expert_glu_interleave_size": "keeps blocks of gate and up by turns",
}
#: Sizes of groups over which Megatron cuts parameters once more (generalized tensor parallelism).
_FURTHER_CUTS = ("gtp_weight_remat_size", "expert_gtp_weight_remat_size")
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.*)")


def megatron_tensors(model_chunks: Any) -> dict[str, torch.Tensor]:
    """Returns the local tensors of :func:`megatron_layout` by name, in its order: contiguous, to be registered with a
    publisher. They are the parameters, and the correction biases of routers.

    ``model_chunks`` is a model, or the list of this rank's virtual stages, wrapped (DDP, Float16Module) or not.
    """
    return {local: tensor for local, _, _, tensor in _tensors(model_chunks)}


def megatron_layout(
    model_chunks: Any,
    config: Any,
    naming: Naming = LLAMA,
    *,
    vocab_size: int | None = None,
    state: ParallelState | None = None,
    skip: Sequence[str] = (),
    node: str = "",
) -> Layout:
    """Returns the layout of this rank, to be joined with the layouts of the other ranks by ``gather_layout``.

    ``config`` is the TransformerConfig of the model. ``naming`` has the names of the checkpoint's tensors.
    ``vocab_size`` is the vocabulary size of the checkpoint; the rows with which Megatron pads it are not part of any
    tensor (None: there is no padding). ``state`` is the place of this rank (None: ``ParallelState.current()``), and
    ``node`` the name of its machine. Local tensors have Megatron's names, with ``chunks.V.`` before the names of
    virtual stage V, and their own dtypes, which must be the engine's. Local tensors whose names match a pattern in
    ``skip`` (fnmatch; the tensors of multi-token prediction, for example) are in the layout without content.

    Raises UnsupportedError naming a parameter without a rule, or of a hybrid model's layers where ``naming`` has no
    mixer (and the other way round), or whose memory is not plain (DTensors, fp8 parameters of Transformer Engine), or an
    option under which values differ (zero-centred norms) or rows lie in another order (interleaved rotary embeddings,
    interleaved gates) or are cut once more (generalized tensor parallelism). Raises UsageError naming a parameter whose
    shape contradicts configuration and parallel state.
    """
    for option, why in _OTHER_VALUES.items():
        if getattr(config, option, False):
            raise UnsupportedError(f"{option} {why}: addresses alone do not make it the checkpoint's")
    for option in _FURTHER_CUTS:
        if getattr(config, option, 1) > 1:
            raise UnsupportedError(f"{option} cuts parameters once more: no rule says where the parts lie")
    state = state or ParallelState.current()
    table: dict[str, tuple[str, str, tuple[int, ...]]] = {}
    index: dict[str, int] = {}
    locals_: list[LocalTensor] = []
    shards: list[Shard] = []
    ties: dict[str, str] = {}
    for local, model, name, tensor in _tensors(model_chunks):
        dtype = _plain_dtype(local, tensor)
        tied = bool(getattr(model, "share_embeddings_and_output_weights", False))
        parts = (
            [] if _matches(local, skip) else _parts(local, model, name, tensor, config, state, naming, vocab_size, tied)
        )
        for part in parts:
            spec = table.setdefault(part.name, (part.name, dtype, part.shape))
            if spec != (part.name, dtype, part.shape):
                raise UsageError(f"'{part.name}' is also held as {spec[1]} {list(spec[2])}", f"parameter '{local}'")
            place = index.setdefault(part.name, len(index))
            shards.append(Shard(place, Box(part.offset, part.extent), len(locals_), part.first, part.strides))
        locals_.append(LocalTensor(local, dtype, tensor.numel()))
        if tied and parts and parts[0].name == f"{naming.embedding}.weight":
            alias = f"{naming.output}.weight"
            table.setdefault(alias, (alias, dtype, parts[0].shape))
            index.setdefault(alias, len(index))
            ties[alias] = parts[0].name
    return Layout(TensorTable(list(table.values())), [RankLayout(locals_, shards, node)], list(ties.items()))


def _tensors(model_chunks: Any) -> Iterator[tuple[str, torch.nn.Module, str, torch.Tensor]]:
    """Yields, for each parameter and correction bias: its local name, its chunk without wrappers, its name in the
    chunk, and the tensor.
    """
    chunks = list(model_chunks) if isinstance(model_chunks, (list, tuple)) else [model_chunks]
    for stage, chunk in enumerate(chunks):
        while hasattr(chunk, "module"):
            chunk = chunk.module
        prefix = f"chunks.{stage}." if len(chunks) > 1 else ""
        for name, parameter in chunk.named_parameters():
            yield prefix + name, chunk, name, parameter.data
        for name, buffer in chunk.named_buffers():
            if name.endswith(".router.expert_bias"):
                yield prefix + name, chunk, name, buffer


def _plain_dtype(local: str, tensor: torch.Tensor) -> str:
    if hasattr(tensor, "to_local") or not tensor.is_contiguous() or tensor.untyped_storage().nbytes() < tensor.nbytes:
        raise UnsupportedError("its elements do not lie one after another in memory", f"parameter '{local}'")
    return dtype_name(tensor.dtype)


def _parts(
    local: str,
    model: torch.nn.Module,
    name: str,
    tensor: torch.Tensor,
    config: Any,
    state: ParallelState,
    naming: Naming,
    vocab_size: int | None,
    tied: bool,
) -> list[Part]:
    """Returns the boxes of Hugging Face tensors that lie in the parameter ``name`` of chunk ``model``, whose local name
    is ``local``. The number of a layer, over all stages, comes from the layer itself. Raises UnsupportedError if no
    rule knows the parameter, or the model is hybrid.
    """
    in_layer = _LAYER.fullmatch(name)
    prefix = ""
    if in_layer:
        if hasattr(model.get_submodule("decoder"), "layer_type_list") != bool(naming.mixer):
            raise UnsupportedError(
                "only hybrid models count attention and MLP as layers of their own, and only names with a mixer "
                "(NEMOTRON_H) do: the numbers of the layers are not the checkpoint's",
                f"parameter '{local}'",
            )
        layer: Any = model.get_submodule(f"decoder.layers.{in_layer[1]}")
        prefix = naming.layer.format(layer=layer.layer_number - 1)
    for pattern, rule in LAYER_RULES if in_layer else MODEL_RULES:
        if match := pattern.fullmatch(in_layer[2] if in_layer else name):
            shape = tuple(tensor.shape)
            return rule(Parameter(local, shape, prefix, match, config, state, naming, vocab_size, tied))
    raise UnsupportedError("no rule says which checkpoint tensor it is; 'skip' leaves it out", f"parameter '{local}'")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
