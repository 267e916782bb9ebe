# SPDX-License-Identifier: Apache-2.0
"""A LoRA adapter as PEFT names its tensors, and the description by which a receiver makes room for it."""

from __future__ import annotations

import enum
import json
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..buffers import dtype_name
from ..errors import CorruptError, UnsupportedError, UsageError
from ..torch.owners import LiveTensors, tensors_of

CONFIG_FILE = "adapter_config.json"
TENSOR_FILE = "adapter_model.safetensors"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TENSOR = re.compile(r"base_model\.model\.(?P<module>[^/\\]+)\.lora_(?P<side>[AB])\.weight")
_FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}

#: A tensor's name, safetensors dtype and shape.
Entry = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class AdapterSpec:
    """Description of an adapter: its name, its configuration (the content of ``adapter_config.json``) and its tensor
    table. It is the same for all versions of the adapter. A trainer sends it to receivers in the form of
    :meth:`to_json`.

    Tensors are ``base_model.model.MODULE.lora_A.weight`` ``[rank, in]`` and ``....lora_B.weight`` ``[out, rank]``, F32,
    BF16 or F16. Raises UsageError for a name that cannot be a file name, for an A without its B or a B without its A,
    and for ranks that differ from the configuration; UnsupportedError for anything but A and B (DoRA, biases,
    ``modules_to_save``, embeddings, experts as one tensor).
    """

    name: str
    config: Mapping[str, Any]
    tensors: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(f"the name {self.name!r} of an adapter is letters, digits and ._- only, at most 128")
        _check_config(self.name, self.config)
        pairs = self.pairs()
        if not pairs:
            raise UsageError("it has no tensors", f"adapter '{self.name}'")
        for module, (a, b) in pairs.items():
            rank = self.rank(module)
            if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
                words = (
                    f"A {list(a)} and B {list(b)} are not [{rank}, in] and [out, {rank}]: the configuration says rank"
                )
                raise UsageError(f"{words} {rank}", f"adapter '{self.name}', module '{module}'")

    def pairs(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Returns (shape of A, shape of B) by the name of the module in the base model."""
        found: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, dtype, shape in self.tensors:
            named = _TENSOR.fullmatch(name)
            if named is None:
                raise UnsupportedError(
                    "only tensors 'base_model.model.MODULE.lora_A.weight' and '...lora_B.weight' are published",
                    f"adapter '{self.name}', tensor '{name}'",
                )
            if dtype not in _FLOATS:
                raise UnsupportedError(
                    f"dtype {dtype} is none of {', '.join(_FLOATS)}", f"adapter '{self.name}', tensor '{name}'"
                )
            sides = found.setdefault(named["module"], {})
            if named["side"] in sides:
                raise UsageError("it is there twice", f"adapter '{self.name}', tensor '{name}'")
            sides[named["side"]] = tuple(shape)
        for module, sides in found.items():
            if len(sides) != 2:
                raise UsageError(f"it has only lora_{next(iter(sides))}", f"adapter '{self.name}', module '{module}'")
        return {module: (sides["A"], sides["B"]) for module, sides in found.items()}

    def rank(self, module: str) -> int:
        """Returns the rank of the adapter in a module, as PEFT finds it by ``rank_pattern``."""
        return int(_matching(self.config.get("rank_pattern"), module, self.config["r"]))

    def scale(self, module: str) -> float:
        """Returns the factor by which ``B @ A`` of a module is multiplied, as PEFT finds it by ``alpha_pattern`` and
        ``use_rslora``.
        """
        alpha = float(_matching(self.config.get("alpha_pattern"), module, self.config["lora_alpha"]))
        rank = self.rank(module)
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def empty(self) -> dict[str, torch.Tensor]:
        """Returns new tensors of zeros in host memory, by name, with the dtypes and shapes of the table."""
        return {name: torch.zeros(shape, dtype=_FLOATS[dtype]) for name, dtype, shape in self.tensors}

    def to_json(self) -> dict[str, Any]:
        """Returns the description as JSON values."""
        return {
            "name": self.name,
            "config": dict(self.config),
            "tensors": [[name, dtype, list(shape)] for name, dtype, shape in self.tensors],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the description to a file as JSON. The file appears whole or not at all."""
        part = pathlib.Path(f"{os.fspath(path)}.{os.getpid()}.part")
        part.write_text(json.dumps(self.to_json()))
        os.replace(part, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AdapterSpec:
        """Returns the description in a file that :meth:`save` has written. Raises CorruptError naming the file if it
        cannot be read or is not JSON, and the errors of :meth:`from_json`.
        """
        try:
            value = json.loads(pathlib.Path(path).read_text())
        except (OSError, ValueError) as error:
            raise CorruptError(f"it holds no description of an adapter: {error}", os.fspath(path)) from error
        return cls.from_json(value)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AdapterSpec:
        """Returns the description that :meth:`to_json` has turned into JSON values, which may come from a peer. Raises
        UsageError for values of any other form.
        """
        entries: list[Entry] = []
        try:
            name, config, tensors = value["name"], value["config"], value["tensors"]
            for tensor, dtype, shape in tensors:
                if not isinstance(tensor, str) or not isinstance(dtype, str):
                    raise TypeError("names and dtypes are texts")
                if any(isinstance(n, bool) or not isinstance(n, int) or not 0 < n < 2**31 for n in shape):
                    raise TypeError(f"shape {shape!r}")
                entries.append((tensor, dtype, tuple(shape)))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"it is no description of an adapter: {error}") from None
        return cls(name, config, tuple(entries))


@dataclass(frozen=True)
class Adapter:
    """An adapter of a trainer. For an adapter of a PEFT model, every access to ``tensors`` looks the live tensors up in
    the model. A publisher of these tensors reads them in place at each publication, and notices if the model has
    replaced them.

    Publish it as any other weights: ``sparsecast.torch.Publisher(adapter.tensors.items(), transport=...)``.
    """

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]

    def spec(self, wire_dtype: torch.dtype | None = None) -> AdapterSpec:
        """Returns the description for receivers. ``wire_dtype`` is the ``wire_dtype`` of the publisher; None means the
        dtypes of the tensors.
        """
        return AdapterSpec(
            self.name,
            self.config,
            tuple((name, dtype_name(wire_dtype or t.dtype), tuple(t.shape)) for name, t in self.tensors.items()),
        )

    @classmethod
    def from_peft(cls, model: nn.Module, name: str = "default") -> Adapter:
        """Returns the adapter ``name`` of a model that PEFT has wrapped: its live parameters, not copies, under the
        names that ``save_pretrained`` gives them. Raises UsageError if the model has no such adapter, and the errors of
        :class:`AdapterSpec`.
        """
        configs = getattr(model, "peft_config", None)
        if not isinstance(configs, Mapping) or name not in configs:
            have = f"it has {', '.join(configs)}" if configs else "PEFT has not wrapped it"
            raise UsageError(f"the model has no adapter '{name}': {have}")
        marker = re.compile(rf"\.(lora_[A-Za-z_]+|modules_to_save)\.{re.escape(name)}(?=\.|$)")

        def look() -> dict[str, torch.Tensor]:
            found = tensors_of(model).items()
            return {marker.sub(r".\1", own): tensor.detach() for own, tensor in found if marker.search(own)}

        adapter = cls(name, plain_config(configs[name]), LiveTensors(look))
        adapter.spec()
        return adapter

    @classmethod
    def from_directory(cls, directory: str | os.PathLike[str], name: str = "") -> Adapter:
        """Returns the adapter in a checkpoint of PEFT (``adapter_config.json``, ``adapter_model.safetensors``), read
        into host memory. If ``name`` is empty, the adapter gets the name of the directory. Raises CorruptError naming
        the directory if a file cannot be read, and the errors of :class:`AdapterSpec`.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = pathlib.Path(directory)
        try:
            config = json.loads((folder / CONFIG_FILE).read_text())
            tensors = load_file(folder / TENSOR_FILE)
        except (OSError, ValueError, SafetensorError) as error:
            raise CorruptError(f"it holds no adapter of PEFT: {error}", str(folder)) from error
        adapter = cls(name or folder.name, config, tensors)
        adapter.spec()
        return adapter


def plain_config(config: Any) -> dict[str, Any]:
    """Returns PEFT's configuration object as the JSON values that PEFT would save."""

    def plain(value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, (set, frozenset)):
            return sorted(plain(item) for item in value)
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)

    return {key: plain(value) for key, value in config.to_dict().items()}


def _check_config(name: str, config: Any) -> None:
    where = f"adapter '{name}', {CONFIG_FILE}"
    if not isinstance(config, Mapping):
        raise UsageError("it is not a JSON object", where)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise UsageError(f"r is {rank!r}, not a positive integer", where)
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise UsageError(f"lora_alpha is {alpha!r}, not a number", where)
    for pattern in ("rank_pattern", "alpha_pattern"):
        for key, value in _items(config, pattern, where):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or (pattern[0] == "r" and value < 1):
                raise UsageError(f"{pattern} has {value!r} for '{key}'", where)
    for key in ("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "layer_replication"):
        if config.get(key):
            raise UnsupportedError(f"{key} is {config[key]!r}: only A and B are published", where)
    if config.get("bias") not in (None, "none"):
        raise UnsupportedError(f"bias is {config['bias']!r}: only A and B are published", where)


def _items(config: Mapping[str, Any], pattern: str, where: str) -> Iterator[tuple[str, Any]]:
    table = config.get(pattern) or {}
    if not isinstance(table, Mapping):
        raise UsageError(f"{pattern} is not a JSON object", where)
    for key, value in table.items():
        try:
            re.compile(str(key))
        except re.error as error:
            raise UsageError(f"{pattern} has '{key}', which is no pattern: {error}", where) from None
        yield str(key), value


def _matching(patterns: Any, module: str, default: Any) -> Any:
    """Returns the value of the first pattern (a regular expression) that matches the module's whole name, or the part
    of it after some dot. Returns ``default`` if none does.
    """
    for key, value in (patterns or {}).items():
        if re.fullmatch(rf"(.*\.)?({key})", module):
            return value
    return default
