# SPDX-License-Identifier: Apache-2.0
"""Rules by which Megatron-core shards the parameters of GPTModel and HybridModel, each as in its own layers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UnsupportedError, UsageError
from .naming import Naming


@dataclass(frozen=True)
class ParallelState:
    """Place of this rank in the tensor, expert and expert-tensor parallel groups: in each group it is rank ``*_rank``
    of ``*_size``. Pipeline stages are not here: they are read from the layers themselves.
    """

    tensor_rank: int = 0
    tensor_size: int = 1
    expert_rank: int = 0
    expert_size: int = 1
    expert_tensor_rank: int = 0
    expert_tensor_size: int = 1

    @classmethod
    def current(cls) -> ParallelState:
        """Returns the place of this rank from ``megatron.core.parallel_state``, which must be initialised."""
        from megatron.core import parallel_state as state

        return cls(
            state.get_tensor_model_parallel_rank(),
            state.get_tensor_model_parallel_world_size(),
            state.get_expert_model_parallel_rank(),
            state.get_expert_model_parallel_world_size(),
            state.get_expert_tensor_parallel_rank(),
            state.get_expert_tensor_parallel_world_size(),
        )


@dataclass(frozen=True)
class Part:
    """A box of a Hugging Face tensor, and where its elements lie in a parameter.

    ``name`` and ``shape`` belong to the whole tensor; ``offset`` and ``extent`` are the box. ``first`` is the position
    of the box's first element in the parameter, and ``strides`` are the distances there between neighbours in each
    dimension of the box, both in elements.
    """

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    extent: tuple[int, ...]
    first: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Parameter:
    """A parameter, and everything that its rule needs to know. ``local`` is the name of the parameter in the model and
    ``shape`` its shape on this rank; ``match`` is its name as the pattern of the rule matched it, and ``prefix`` the
    name of its layer in the checkpoint. ``tied`` says whether the output layer shares the embedding.
    """

    local: str
    shape: tuple[int, ...]
    prefix: str
    match: re.Match[str]
    config: Any
    state: ParallelState
    naming: Naming
    vocab_size: int | None
    tied: bool

    @property
    def kind(self) -> str:
        """Kind of the parameter: "weight" or "bias"; empty for one that is neither (Mamba's A_log, for example)."""
        return self.match["kind"] or ""

    def name(self, stem: str, expert: int | None = None) -> str:
        """Returns the full name in the checkpoint of the tensor ``stem`` of this layer, with its suffix. ``expert`` is
        the number of the expert to which the tensor belongs; None if it belongs to no expert. Raises UnsupportedError if
        ``stem`` is empty.
        """
        if not stem:
            raise UnsupportedError("checkpoints of this class have no such tensor", f"parameter '{self.local}'")
        return f"{self.prefix}{stem.format(expert=expert)}.{self.kind}".rstrip(".")

    def expect(self, *shape: int) -> None:
        """Raises UsageError unless the parameter has this shape. A bias must have only the first dimension of the
        shape.
        """
        due = shape[:1] if self.kind == "bias" else shape
        if self.shape != due:
            raise UsageError(
                f"it has the shape {list(self.shape)}; by the configuration and {self.state} {list(due)} is due",
                f"parameter '{self.local}'",
            )

    def rows(self, name: str, rows: int, begin: int, count: int, at: int) -> list[Part]:
        """Returns one part in a list: rows [begin, begin + count) of the tensor ``name``, which has ``rows`` rows. The
        part begins at row ``at`` of the parameter. The list is empty if ``count`` is not positive.
        """
        if count <= 0:
            return []
        rest = self.shape[1:]
        zeros = (0,) * len(rest)
        strides = tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
        return [Part(name, (rows, *rest), (begin, *zeros), (count, *rest), at * strides[0], strides)]


def _replicated(stem: str) -> Callable[[Parameter], list[Part]]:
    def parts(p: Parameter) -> list[Part]:
        return p.rows(p.name(getattr(p.naming, stem)), p.shape[0], 0, p.shape[0], 0)

    return parts


def _vocabulary(stem: str) -> Callable[[Parameter], list[Part]]:
    """Returns the rule of an embedding or output layer: the rows of the vocabulary are padded, and cut into equal parts
    for the tensor-parallel ranks. Rows beyond the real vocabulary belong to no tensor.
    """

    def parts(p: Parameter) -> list[Part]:
        begin = p.state.tensor_rank * p.shape[0]
        padded = p.state.tensor_size * p.shape[0]
        vocab = padded if p.vocab_size is None else p.vocab_size
        if vocab > padded:
            raise UsageError(f"a vocabulary of {vocab} in {padded} padded rows", f"parameter '{p.local}'")
        name = p.name(p.naming.embedding if p.tied else getattr(p.naming, stem))
        return p.rows(name, vocab, begin, min(p.shape[0], vocab - begin), 0)

    return parts


def _qkv(p: Parameter) -> list[Part]:
    """Rule of linear_qkv, which has the weights of query, key and value. Its rows are grouped by KV group: the rows of
    the group's query heads, then its k, then its v. Every rank has an equal part of all rows.
    """
    if getattr(p.config, "attention_output_gate", False):
        raise UnsupportedError("attention with an output gate has another linear_qkv", f"parameter '{p.local}'")
    groups, head = p.config.num_query_groups, p.config.kv_channels
    queries = p.config.num_attention_heads // groups * head
    group_rows = queries + 2 * head
    count = groups * group_rows // p.state.tensor_size
    p.expect(count, p.config.hidden_size)
    begin = p.state.tensor_rank * count
    parts = []
    for group in range(begin // group_rows, -(-(begin + count) // group_rows)):
        at = group * group_rows
        for stem, rows in ((p.naming.query, queries), (p.naming.key, head), (p.naming.value, head)):
            low, high = max(at, begin), min(at + rows, begin + count)
            parts += p.rows(p.name(stem), groups * rows, group * rows + low - at, high - low, low - begin)
            at += rows
    return parts


def _fc1(p: Parameter, gate: str, up: str, width: int, rank: int, size: int, expert: int | None = None) -> list[Part]:
    """Rule of column-parallel fc1: this rank's rows of gate, followed by its rows of up; only the rows of up if there
    is no gate. ``width`` is the number of rows of the whole tensors, which are cut into equal parts for ``size`` ranks.
    """
    stems = (gate, up) if p.config.gated_linear_unit else (up,)
    count = width // size
    p.expect(len(stems) * count, p.config.hidden_size if expert is None else _expert_hidden(p))
    return [
        part
        for i, stem in enumerate(stems)
        for part in p.rows(p.name(stem, expert), width, rank * count, count, i * count)
    ]


def _row_parallel(p: Parameter, name: str, width: int, rank: int, size: int, hidden: int | None = None) -> list[Part]:
    """Rule of row-parallel layers: dimension 1, of ``width`` elements, is cut into equal parts for ``size`` ranks, and
    this is rank ``rank``. The bias is whole on every rank. ``hidden`` is dimension 0 (None: the hidden size).
    """
    count = width // size
    hidden = hidden or p.config.hidden_size
    p.expect(hidden, count)
    if p.kind == "bias":
        return p.rows(name, hidden, 0, hidden, 0)
    return [Part(name, (hidden, width), (0, rank * count), (hidden, count), 0, (count, 1))]


def _projection(p: Parameter) -> list[Part]:
    width = p.config.kv_channels * p.config.num_attention_heads
    return _row_parallel(p, p.name(p.naming.projection), width, p.state.tensor_rank, p.state.tensor_size)


def _mamba_inner(config: Any) -> int:
    """Returns the width of a Mamba-2 mixer: twice the hidden size, unless the number of heads is given."""
    heads = getattr(config, "mamba_num_heads", None)
    return int(heads * config.mamba_head_dim if heads else 2 * config.hidden_size)


def _mamba(p: Parameter) -> list[Part]:
    """Rule of what a Mamba-2 mixer has for each head, channel or group. Parts lie one after another in a parameter (z,
    x, B, C and dt in in_proj; x, B and C in conv1d), and each is cut into equal parts for the tensor-parallel ranks.
    """
    inner, size = _mamba_inner(p.config), p.state.tensor_size
    groups, heads = p.config.mamba_num_groups * p.config.mamba_state_dim, inner // p.config.mamba_head_dim
    of = p.match["of"]
    widths = {"in_proj": [inner, inner, groups, groups, heads], "conv1d": [inner, groups, groups], "norm": [inner]}
    counts = [width // size for width in widths.get(of, [heads])]
    p.expect(sum(counts), *p.shape[1:])
    name, rows, at, parts = p.name(f"{p.naming.mixer}.{of}"), sum(counts) * size, 0, []
    for count in counts:
        parts += p.rows(name, rows, at * size + p.state.tensor_rank * count, count, at)
        at += count
    return parts


def _mamba_output(p: Parameter) -> list[Part]:
    name = p.name(f"{p.naming.mixer}.out_proj")
    return _row_parallel(p, name, _mamba_inner(p.config), p.state.tensor_rank, p.state.tensor_size)


def _mlp(p: Parameter) -> list[Part]:
    n, s, shared = p.naming, p.state, p.match["shared"]
    width = p.config.moe_shared_expert_intermediate_size if shared else p.config.ffn_hidden_size
    if p.match["linear"] == "fc1":
        gate, up = (n.shared_gate, n.shared_up) if shared else (n.gate, n.up)
        return _fc1(p, gate, up, width, s.tensor_rank, s.tensor_size)
    return _row_parallel(p, p.name(n.shared_down if shared else n.down), width, s.tensor_rank, s.tensor_size)


def _expert_width(p: Parameter) -> int:
    return int(p.config.moe_ffn_hidden_size or p.config.ffn_hidden_size)


def _expert_hidden(p: Parameter) -> int:
    return int(getattr(p.config, "moe_latent_size", None) or p.config.hidden_size)


def _experts_here(p: Parameter) -> range:
    count = p.config.num_moe_experts // p.state.expert_size
    return range(p.state.expert_rank * count, (p.state.expert_rank + 1) * count)


def _expert(p: Parameter) -> list[Part]:
    """Rule of a parameter of one expert: in SequentialMLP, or in the grouped linear layers of Transformer Engine."""
    place, here = int(p.match["expert"]), _experts_here(p)
    if place >= len(here):
        raise UsageError(f"expert {place} where the configuration puts {len(here)}", f"parameter '{p.local}'")
    expert, n, s = here[place], p.naming, p.state
    width, rank, size = _expert_width(p), s.expert_tensor_rank, s.expert_tensor_size
    if p.match["linear"] == "fc1":
        return _fc1(p, n.expert_gate, n.expert_up, width, rank, size, expert)
    return _row_parallel(p, p.name(n.expert_down, expert), width, rank, size, _expert_hidden(p))


def _grouped(p: Parameter) -> list[Part]:
    """Rule of GroupedMLP: one parameter has all experts of this rank, each transposed. Its memory is in the order
    [experts of this rank, input, output], whatever its shape.
    """
    hidden, width, s = p.config.hidden_size, _expert_width(p), p.state
    count, here = width // s.expert_tensor_size, _experts_here(p)
    begin = s.expert_tensor_rank * count
    if p.match["number"] == "2":
        p.expect(len(here) * count, hidden)
        return [
            Part(
                p.name(p.naming.expert_down, expert), (hidden, width), (0, begin), (hidden, count),
                place * count * hidden, (1, hidden),
            )
            for place, expert in enumerate(here)
        ]  # fmt: skip
    stems = (p.naming.expert_gate, p.naming.expert_up) if p.config.gated_linear_unit else (p.naming.expert_up,)
    columns = len(stems) * count
    p.expect(hidden, len(here) * columns)
    return [
        Part(
            p.name(stem, expert), (width, hidden), (begin, 0), (count, hidden),
            place * hidden * columns + i * count, (1, columns),
        )
        for place, expert in enumerate(here)
        for i, stem in enumerate(stems)
    ]  # fmt: skip


def _correction(p: Parameter) -> list[Part]:
    return p.rows(f"{p.prefix}{p.naming.router_correction}", p.shape[0], 0, p.shape[0], 0)


_KIND = r"(?P<kind>weight|bias)"
_Rule = tuple[re.Pattern[str], Callable[[Parameter], list[Part]]]


def _rules(table: Sequence[tuple[str, Callable[[Parameter], list[Part]]]]) -> list[_Rule]:
    return [(re.compile(pattern), rule) for pattern, rule in table]


#: Rules by the part of a name after "decoder.layers.N.". Norms are modules of their own, or in the linear layer after
#: them.
LAYER_RULES = _rules([
    (rf"(input_layernorm\.|self_attention\.linear_qkv\.layer_norm_){_KIND}", _replicated("input_norm")),
    (rf"(norm\.|mixer\.in_proj\.layer_norm_){_KIND}", _replicated("input_norm")),
    (rf"mixer\.(?P<of>in_proj|conv1d|norm)[._]{_KIND}", _mamba),
    (r"mixer\.(?P<of>A_log|D|dt_bias)(?P<kind>)", _mamba),
    (rf"mixer\.out_proj\.{_KIND}", _mamba_output),
    (rf"(pre_mlp_layernorm\.|mlp\.linear_fc1\.layer_norm_){_KIND}", _replicated("mlp_norm")),
    (rf"self_attention\.q_layernorm\.{_KIND}", _replicated("query_norm")),
    (rf"self_attention\.k_layernorm\.{_KIND}", _replicated("key_norm")),
    (rf"self_attention\.linear_qkv\.{_KIND}", _qkv),
    (rf"self_attention\.linear_proj\.{_KIND}", _projection),
    (rf"mlp\.(?P<shared>shared_experts\.)?linear_(?P<linear>fc1|fc2)\.{_KIND}", _mlp),
    (rf"mlp\.shared_experts\.gate_{_KIND}", _replicated("shared_router")),
    (rf"mlp\.fc1_latent_proj\.{_KIND}", _replicated("latent_in")),
    (rf"mlp\.fc2_latent_proj\.{_KIND}", _replicated("latent_out")),
    (rf"mlp\.router\.{_KIND}", _replicated("router")),
    (r"mlp\.router\.expert_(?P<kind>bias)", _correction),
    (rf"mlp\.experts\.local_experts\.(?P<expert>\d+)\.linear_(?P<linear>fc1|fc2)\.{_KIND}", _expert),
    (rf"mlp\.experts\.linear_(?P<linear>fc1|fc2)\.{_KIND}(?P<expert>\d+)", _expert),
    (r"mlp\.experts\.(?P<kind>weight)(?P<number>1|2)", _grouped),
])  # fmt: skip
MODEL_RULES = _rules([
    (rf"embedding\.word_embeddings\.{_KIND}", _vocabulary("embedding")),
    (rf"output_layer\.{_KIND}", _vocabulary("output")),
    (rf"decoder\.final_(layer)?norm\.{_KIND}", _replicated("final_norm")),
])  # fmt: skip
