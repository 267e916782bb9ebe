# SPDX-License-Identifier: Apache-2.0
"""What rides in SGLang's control messages is parsed strictly, and errors name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

import sparsecast
from sparsecast.engines.sglang import messages
from sparsecast.errors import UnsupportedError, UsageError


def group(**fields: Any) -> str:
    return "sparsecast:" + json.dumps(fields)


def test_a_group_message_has_defaults_for_all_but_the_secret() -> None:
    info = messages.parse_group(group(secret="0123456789abcdef"))
    assert (info.generation, info.channels, info.version, info.needs_anchor) == (0, "control", 0, False)
    assert info.tensors is None
    assert info.proof == "checkpoint"


def test_a_group_message_carries_the_trainers_table() -> None:
    info = messages.parse_group(group(secret="s" * 16, tensors=[["w", "BF16", [4, 2]]], ties=[["a", "w"]]))
    assert info.tensors == (("w", "BF16", (4, 2)),)
    assert info.ties == frozenset({frozenset({"a", "w"})})


def test_a_group_message_forces_modes_by_pattern() -> None:
    assert messages.parse_group(group(secret="s" * 16)).modes == {}
    assert messages.parse_group(group(secret="s" * 16, modes={"*norm*": "shadow"})).modes == {"*norm*": "shadow"}
    with pytest.raises(UsageError, match="modes is no object"):
        messages.parse_group(group(secret="s" * 16, modes=["*norm*"]))


def test_a_group_message_bounds_the_memory_of_entries() -> None:
    assert messages.parse_group(group(secret="s" * 16)).entry_bytes is None
    assert messages.parse_group(group(secret="s" * 16, entry_bytes=0)).entry_bytes == 0
    with pytest.raises(UsageError, match="entry_bytes is -1, not a count"):
        messages.parse_group(group(secret="s" * 16, entry_bytes=-1))


def test_the_secret_may_stay_in_the_servers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSECAST_SECRET", "from the environment")
    assert messages.parse_group(group()).secret == "from the environment"
    assert messages.parse_group(group(secret="from the message")).secret == "from the message"


def test_the_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "hidden words" not in repr(messages.parse_group(group(secret="hidden words 123")))


@pytest.mark.parametrize("release", ["1.4.2", "1.4.0", "1.4.77", "1.4.3rc1", "1.4", ""])
def test_releases_that_differ_in_the_patch_number_work_together(monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setattr(sparsecast, "__version__", "1.4.2")
    messages.parse_group(group(secret="s" * 16, release=release))


@pytest.mark.parametrize("release", ["1.5.2", "1.3.2", "2.4.2", "0.4.2", "1.40.2", "14.2.0"])
def test_other_releases_are_refused_by_name_before_their_fields_are_read(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setattr(sparsecast, "__version__", "1.4.2")
    with pytest.raises(UnsupportedError, match=f"the trainer has sparsecast {release}, and this server 1.4.2"):
        messages.parse_group(group(surprise=1, release=release))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weight_update_group", "starts with 'weight_update_group' instead of 'sparsecast:'"),
        ("sparsecast:{", "no JSON"),
        ("sparsecast:[1]", "a JSON list where an object is due"),
        ("sparsecast:" + "[" * 100000, "no JSON"),
        (group(secret="s", surprise=1), "unknown field 'surprise'"),
        (group(secret="s", channels="pigeons"), "channels is 'pigeons'"),
        (group(secret="s", generation=-1), "generation is -1"),
        (group(secret="s", generation=True), "generation is True"),
        (group(secret="s", timeout=0), "timeout is 0"),
        (group(secret="s", timeout=float("nan")), "timeout is nan"),
        (group(secret="s", needs_anchor="yes"), "needs_anchor is 'yes'"),
        (group(secret="s", tensors=[]), "tensors is no list"),
        (group(secret="s", tensors=[["w", "BF16"]]), "['w', 'BF16'] is not [name, dtype, shape]"),
        (group(secret="s", tensors=[["w", "BF16", [4, -2]]]), "shape of 'w' is -2"),
        (group(secret="s", ties=[["a"]]), "ties is no list of [alias, original]"),
        (group(secret="s", proof="hope"), "proof is 'hope'"),
        (group(secret="s", release=1), "release is 1, not a version of sparsecast"),
        (group(secret="s", release="1.x"), "release is '1.x'"),
        (group(secret="s", release="1.2.3 and more"), "release is '1.2.3 and more'"),
        (group(), "no secret: neither in group_name nor in the server's SPARSECAST_SECRET"),
    ],
)
def test_a_group_message_that_is_wrong_says_where(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSECAST_SECRET", raising=False)
    with pytest.raises(UsageError) as raised:
        messages.parse_group(text)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sparsecast:{}", "no field 'phase'"),
        (group(phase="explode"), "phase is 'explode'"),
        (group(phase="apply", timeout=1e9), "not between 0 and 86400 seconds"),
        (group(phase="receive", base_version="7"), "base_version is '7'"),
        (group(phase="receive", force=True), "unknown field 'force'"),
    ],
)
def test_a_step_that_is_wrong_says_where(text: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        messages.parse_phase(text)
    assert words in str(raised.value)


def test_a_step_is_read_as_it_was_written() -> None:
    phase = messages.parse_phase(messages.phase_action("receive", 5.0, base_version=7))
    assert (phase.phase, phase.timeout, phase.base_version) == ("receive", 5.0, 7)


@pytest.mark.parametrize("text", ["weight_update_group", "checksum", "sparsecastle", ""])
def test_other_groups_and_actions_are_not_ours(text: str) -> None:
    assert not messages.is_ours(text)
