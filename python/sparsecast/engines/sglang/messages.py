# SPDX-License-Identifier: Apache-2.0
"""Messages inside the control messages of SGLang: JSON after "sparsecast:", parsed strictly. No pickles.

`/init_weights_update_group` carries it in `group_name`, `/weights_checker` in `action`. Nothing here needs SGLang.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from sparsecast.engines.release import refuse_other_release
from sparsecast.engines.trace.loader import CanonicalTensor
from sparsecast.errors import UsageError
from sparsecast.transports import Channels

PREFIX = "sparsecast:"
GROUP_NAME = "sparsecast"
BACKEND = "sparsecast"
SECRET_VARIABLE = "SPARSECAST_SECRET"
"""Environment variable of the server that holds the secret of the group, for callers that do not send the secret over
HTTP.
"""

RECEIVING = "receiving"
STAGED = "staged"
DEFERRED = "deferred"
"""Answer of a server with pipeline stages while a step is still to be done; phase "result" asks for the step's own
answer.
"""

FollowPhase = Literal["follow", "follow_status", "follow_apply", "follow_drop"]
FOLLOW_PHASES = get_args(FollowPhase)
"""Steps in which the HTTP process of a server that follows a log leads its schedulers; nobody else may ask for them."""

PhaseName = Literal[
    "receive", "staged", "apply", "cancel", "status", "audit", "lease", "held", "expire", "result", FollowPhase
]
_PHASES = get_args(PhaseName)
Proof = Literal["checkpoint", "trust"]


@dataclass(frozen=True, kw_only=True)
class TraceRequest:
    """The tensors that the address map of a model must cover, and how the trace is to treat them."""

    tensors: tuple[CanonicalTensor, ...] | None = None
    """Tensor table of the trainer or the log; None means the table of the checkpoint from which the server was started.
    """
    ties: frozenset[frozenset[str]] = frozenset()
    """Pairs of names that are one tensor in the trainer's model."""
    may_miss: tuple[str, ...] = ()
    """Patterns (fnmatch) of names of SGLang's parameters that the trainer does not have."""
    modes: Mapping[str, str] = field(default_factory=dict)
    """Mode ("in_place", "shadow", "nan_masked", "dense") by pattern (fnmatch) of the names of the trainer's tensors;
    the trace of the loader chooses for other names: docs/engines.md, "Modes".
    """


@dataclass(frozen=True, kw_only=True)
class GroupInfo(TraceRequest):
    """How an engine meets a trainer: the JSON object in `group_name` of `/init_weights_update_group`."""

    secret: str = field(repr=False)
    """Secret that the ranks of the group prove to each other."""
    generation: int = 0
    """Number of the group: grows with every call of the trainer that makes a group."""
    trainer: str = ""
    """Name that no other trainer has (`TrainerFence`). Empty for a trainer without a name: any trainer may follow it,
    and it shuts no other trainer out.
    """
    channels: Channels = "control"
    """Transport that carries the weights: "control", "mpi" or "nccl"."""
    interface: str = ""
    """Network interface of this engine's side of the group; empty for any."""
    engine: str = "sglang"
    """Name of this engine, which no other engine in the world has."""
    reach_timeout: float | None = None
    """Seconds within which the trainer's rank 0 must be reached; None means `timeout`."""
    timeout: float = 300.0
    """Seconds for the meeting, the verification, and, if this engine needs it, the sending of all weights."""
    version: int = 0
    """Version that the engine holds. At the first call it is the version of the checkpoint that the server was started
    from.
    """
    needs_anchor: bool = False
    """Whether the engine's memory holds no usable weights (dummy weights, released memory): then the trainer sends all
    weights.
    """
    entry_bytes: int | None = None
    """Most bytes of each rank's device memory that hold decoded changes between staging and apply; None means a
    sixteenth of the rank's weights. Read at the first call only.
    """
    proof: Proof = "checkpoint"
    """How it is shown that no kernel has repacked weights behind their loader.

    "checkpoint" compares live memory with the files that SGLang was started from, at the first call. "trust" takes the
    caller's word, for servers whose weights have changed since. With `needs_anchor` nothing can be compared, and only
    layers whose form is known to be kept pass.
    """


@dataclass(frozen=True)
class Phase:
    """One step of an update: the JSON object in `action` of `/weights_checker`."""

    phase: PhaseName
    timeout: float = 300.0
    """Seconds within which the step must end."""
    base_version: int | None = None
    """For "receive": version from which the trainer updates; an engine at another version fails. None is not
    checked.
    """
    seconds: float = 0.0
    """For "lease": length of the lease in seconds; 0 ends the lease."""
    committed: bool = False
    """For "expire": whether any rank of the server has heard that the version in doubt was committed."""
    goal: int | None = None
    """For "follow" and "follow_status": version beyond which nothing is fetched from the log; None: the newest."""
    settings: Mapping[str, Any] | None = None
    """For "follow": the log that is followed (`FollowSettings.for_worker`)."""
    replicas: tuple[int, ...] = ()
    """For "follow_apply" and "follow_drop": data-parallel replicas whose ranks have all staged a version."""


def is_ours(text: str) -> bool:
    """Returns whether the `group_name` or the `action` of a message is meant for sparsecast."""
    return text == GROUP_NAME or text.startswith(PREFIX)


def parse_group(text: str) -> GroupInfo:
    """Returns the GroupInfo in a `group_name`. If the text has no secret, the secret is the value of the environment
    variable SPARSECAST_SECRET. Raises UsageError naming the field that is wrong, and UnsupportedError if the trainer's
    version of sparsecast (`release`, which may be left out) does not work with the installed version.
    """
    found = _object(text, "group_name")
    refuse_other_release(found.pop("release", ""))  # First: another version may have other fields.
    fields: dict[str, Any] = {
        "secret": _take(found, "secret", os.environ.get(SECRET_VARIABLE, ""), _text),
        "generation": _take(found, "generation", 0, _count),
        "trainer": _take(found, "trainer", "", _text),
        "channels": _take(found, "channels", "control", _one_of("control", "mpi", "nccl")),
        "interface": _take(found, "interface", "", _text),
        "engine": _take(found, "engine", "sglang", _text),
        "timeout": _take(found, "timeout", 300.0, _seconds),
        "reach_timeout": _take(found, "reach_timeout", None, _seconds),
        "version": _take(found, "version", 0, _count),
        "needs_anchor": _take(found, "needs_anchor", False, _flag),
        "tensors": _take(found, "tensors", None, _tensors),
        "ties": _take(found, "ties", frozenset(), _ties),
        "may_miss": _take(found, "may_miss", (), _texts),
        "modes": _take(found, "modes", {}, _modes),
        "entry_bytes": _take(found, "entry_bytes", None, _count),
        "proof": _take(found, "proof", "checkpoint", _one_of("checkpoint", "trust")),
    }
    _refuse_rest(found, "group_name")
    if not fields["secret"]:
        raise UsageError(f"no secret: neither in group_name nor in the server's {SECRET_VARIABLE}")
    return GroupInfo(**fields)


def parse_phase(text: str) -> Phase:
    """Returns the Phase in an `action`. Raises UsageError naming a field that is missing, unknown or wrong."""
    found = _object(text, "action")
    if "phase" not in found:
        raise UsageError(f"action: no field 'phase' (one of {', '.join(_PHASES)})")
    phase = Phase(
        cast(PhaseName, _take(found, "phase", None, _one_of(*_PHASES))),
        _take(found, "timeout", 300.0, _seconds),
        _take(found, "base_version", None, _count),
        _take(found, "seconds", 0.0, _seconds_or_none),
        _take(found, "committed", False, _flag),
        _take(found, "goal", None, _count),
        _take(found, "settings", None, _settings),
        _take(found, "replicas", (), _counts),
    )
    _refuse_rest(found, "action")
    return phase


def parse_follow(text: str) -> dict[str, Any] | None:
    """Returns the JSON object in a `group_name` that names a log to follow in its field "follow"; None if the text is
    for a group. Raises UsageError if the text is no such object.
    """
    found = _object(text, "group_name")
    return found if "follow" in found else None


def phase_action(
    phase: PhaseName, timeout: float, *, base_version: int | None = None, committed: bool | None = None
) -> str:
    """Returns the text of an `action` with this phase, for `parse_phase` to read. `timeout` is in seconds; fields that
    are None are left out.
    """
    fields: dict[str, Any] = {"phase": phase, "timeout": timeout}
    if base_version is not None:
        fields["base_version"] = base_version
    if committed is not None:
        fields["committed"] = committed
    return PREFIX + json.dumps(fields)


def _object(text: str, where: str) -> dict[str, Any]:
    body = text.removeprefix(PREFIX)
    if body == text:
        raise UsageError(f"{where}: starts with {text[:20]!r} instead of {PREFIX!r} and a JSON object")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: what follows {PREFIX!r} is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}: a JSON {type(value).__name__} where an object is due")
    return value


def _take(fields: dict[str, Any], name: str, default: Any, parse: Callable[[str, Any], Any]) -> Any:
    if name not in fields:
        return default
    return parse(name, fields.pop(name))


def _refuse_rest(fields: dict[str, Any], where: str) -> None:
    if fields:
        raise UsageError(f"{where}: unknown field {next(iter(fields))!r}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is a {type(value).__name__} where a text is due")
    return value


def _counts(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{name} is a {type(value).__name__} where a list of counts is due")
    return tuple(_count(name, item) for item in value)


def _settings(name: str, value: Any) -> dict[str, Any]:
    parsers: dict[str, Callable[[str, Any], Any]] = dict.fromkeys(("location", "state", "draft", "draft_prefix"), _text)
    parsers |= {"keys": lambda key, texts: list(_texts(key, texts)), "interval": _seconds}
    if not isinstance(value, dict) or value.keys() != parsers.keys():
        raise UsageError(f"{name} is no object with {', '.join(parsers)}")
    return {key: parse(key, value[key]) for key, parse in parsers.items()}


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{name} is a {type(value).__name__} where a list of texts is due")
    return tuple(_text(name, item) for item in value)


def _modes(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(mode, str) for mode in value.values()):
        raise UsageError(f"{name} is no object of patterns and modes")
    return dict(value)


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise UsageError(f"{name} is {value!r}, not a count")
    return value


def _seconds(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 86400:
        raise UsageError(f"{name} is {value!r}, not between 0 and 86400 seconds")
    return float(value)


def _seconds_or_none(name: str, value: Any) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else _seconds(name, value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}, neither true nor false")
    return value


def _one_of(*choices: str) -> Callable[[str, Any], str]:
    def parse(name: str, value: Any) -> str:
        if value not in choices:
            raise UsageError(f"{name} is {value!r}, none of {', '.join(choices)}")
        return str(value)

    return parse


def _tensors(name: str, value: Any) -> tuple[CanonicalTensor, ...]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{name} is no list of [name, dtype, shape], or empty")
    table: list[CanonicalTensor] = []
    for entry in value:
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[2], list):
            raise UsageError(f"{name}: {entry!r} is not [name, dtype, shape]")
        shape = tuple(_count(f"{name}, shape of {entry[0]!r}", extent) for extent in entry[2])
        table.append((_text(name, entry[0]), _text(name, entry[1]), shape))
    return tuple(table)


def _ties(name: str, value: Any) -> frozenset[frozenset[str]]:
    if not isinstance(value, list):
        raise UsageError(f"{name} is no list of [alias, original]")
    pairs = [_texts(name, pair) for pair in value]
    if any(len(pair) != 2 for pair in pairs):
        raise UsageError(f"{name} is no list of [alias, original]")
    return frozenset(frozenset(pair) for pair in pairs)
