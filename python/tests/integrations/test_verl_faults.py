# SPDX-License-Identifier: Apache-2.0
"""Syncs that are broken in the middle: what is said, and that nothing is handed to a rollout."""

from __future__ import annotations

import pathlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

import verl_package

verl_package.prepare()

import torch
from verl_threads import Threads, healed, random_step, small_tensors

from sparsecast import errors
from sparsecast.integrations import _checkpoint_engine as engine_module
from sparsecast.integrations import _checkpoint_group as group_module
from sparsecast.integrations import _node_files as files_module
from sparsecast.integrations.verl import receiver as receiver_module


def broken(threads: Threads, random: torch.Generator, message: str) -> None:
    """One sync that fails everywhere."""
    before = threads.copies()
    random_step(threads.trained.tensors, random, 0.02)
    with pytest.raises(errors.Error):
        threads.sync()
    assert all(error is not None for error in threads.errors)
    assert any(message in str(error) for error in threads.errors), [str(error) for error in threads.errors]
    assert threads.taken == [[], [], []]
    threads.assert_untouched(before)


def test_many_random_steps_are_bit_for_bit_the_trainers(threads: Threads, random: torch.Generator) -> None:
    for density in (0.01, 0.0, 0.3, 1.0, 0.001, 0.05):
        changed = random_step(threads.trained.tensors, random, density)
        figures = threads.sync()
        assert figures["changed_elems"] == changed and figures["seed"] == 0
        threads.assert_same()
        for taken in threads.taken:
            assert [is_last for _, is_last in taken] == [False] * (len(taken) - 1) + [True] * bool(taken)
    assert threads.meetings == 1


def test_a_step_that_changes_nothing_hands_nothing_over(threads: Threads) -> None:
    figures = threads.sync()
    assert figures["changed_elems"] == 0 and figures["payload_mbytes"] < 0.002
    assert threads.taken == [[], [], []]


def test_flushes_are_cut_at_the_bucket_and_say_which_is_the_last(
    random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads(small_tensors(random), ["a", "b"], monkeypatch, bucket_size=4096)
    threads.sync()
    assert all(len(taken) > 3 for taken in threads.taken)
    random_step(threads.trained.tensors, random, 0.2)
    assert threads.sync()["flushes"] > 3
    threads.assert_same()
    for taken in threads.taken:
        assert len(taken) > 3 and [is_last for _, is_last in taken] == [False] * (len(taken) - 1) + [True]
        assert max(sum(value.nbytes for _, value in named[1:]) for named, _ in taken) < 2 * 4096


def test_other_dtypes_and_shapes_travel_too(random: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small_tensors(random)
    made["scalar"] = torch.tensor(0.5, dtype=torch.bfloat16)
    made["empty"] = torch.empty(0, 4, dtype=torch.bfloat16)
    made["counts"] = torch.arange(40, dtype=torch.int64)
    threads = Threads(made, ["a", "a"], monkeypatch)
    threads.sync()
    threads.assert_same()
    made["scalar"].fill_(-0.0)
    made["counts"][3] = -7
    threads.sync()
    threads.assert_same()
    assert len(threads.taken[0]) == 2  # One dtype each: verl's own flush would promote them.


def on_the_way(monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]) -> None:
    """Changes the first message that names the tensors of a chunk, before the sender's channel has it."""
    original = group_module._encode
    armed = [True]

    def encode(fields: Any) -> bytes:
        data = original(fields)
        if armed and "tensors" in fields:
            armed.clear()
            data = change(data)
        return data

    monkeypatch.setattr(group_module, "_encode", encode)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.replace(b"layers.0.weight", b"layers.9.weight"), "tensor 'layers.9.weight'"),
        (lambda m: m.replace(b"[67,129]", b"[67,128]"), "tensor 'layers.0.weight'"),
        (lambda m: m.replace(b'"BF16"', b'"F16"', 1), "tensor 'layers.0.weight'"),
        (lambda m: m.replace(b'"BF16"', b'"PICKLE"', 1), "is no tensor"),
        (lambda m: m.replace(b"[67,129]", b"[999999999999999,129]"), "no tensor has the shape"),
        (lambda m: m.replace(b"false", b"true"), "the export has this tensor twice"),
        (lambda m: m[:-9], "not JSON"),
        (lambda m: b"[" * 100000, "not JSON"),
        (lambda m: b'{"new":false,"tensors":[]}', "a chunk names no tensors"),
        (lambda m: b'{"tensors":[]}', "whether its tensors are new"),
    ],
    ids=["name", "shape", "dtype", "word", "huge", "new", "torn", "deep", "empty", "fields"],
)
def test_a_message_that_is_wrong_is_refused_and_nothing_is_applied(
    threads: Threads,
    random: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[bytes], bytes],
    message: str,
) -> None:
    with monkeypatch.context() as patch:
        on_the_way(patch, change)
        broken(threads, random, message)
    healed(threads, random)


def test_another_release_is_refused_by_name(
    threads: Threads, random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "own_release", lambda: "99.1.0")
        broken(threads, random, "sparsecast 99.1.0")
    healed(threads, random)


@pytest.mark.parametrize("leader", [0, 2])
def test_a_copy_that_is_not_the_senders_is_refused_before_anything_is_written(
    threads: Threads, random: torch.Generator, leader: int
) -> None:
    mirror = threads.receivers[leader]._mirror
    assert mirror is not None
    mirror.flat_bits("layers.3.weight")[5] ^= 1
    broken(threads, random, "the copy of the weights in this node's memory is not the sender's")
    healed(threads, random)


class Proxy:
    """Passes a TCP stream on, and flips one bit of what the server says once it is told to."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.flip = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._target)
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, alters: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if alters and self.flip.is_set():
                    self.flip.clear()
                    data = data[:-1] + bytes([data[-1] ^ 1])
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()


def test_a_bit_that_flips_on_the_way_is_refused(random: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(small_tensors(random), ["a", "b", "c"], monkeypatch)
    proxies: list[Proxy] = []

    def through_a_proxy(meeting: dict[str, Any]) -> dict[str, Any]:
        proxies.append(Proxy(meeting["host"], meeting["port"]))
        return {**meeting, "port": proxies[-1].port}

    threads.alter_meeting = through_a_proxy
    threads.sync()
    threads.assert_same()
    before = threads.copies()
    random_step(threads.trained.tensors, random, 0.02)
    meet = threads.meet

    def meet_and_flip() -> None:
        meet()
        proxies[1].flip.set()

    monkeypatch.setattr(threads, "meet", meet_and_flip)
    with pytest.raises(errors.Error):
        threads.sync()
    assert all(error is not None for error in threads.errors)
    threads.assert_untouched(before)
    monkeypatch.setattr(threads, "meet", meet)
    healed(threads, random)


def test_nan_is_refused_by_name_before_anything_is_sent(threads: Threads, random: torch.Generator) -> None:
    threads.trained.tensors["layers.2.weight"][3, 3] = float("nan")
    before = threads.copies()
    with pytest.raises(errors.UsageError, match=r"tensor 'layers.2.weight': a changed element is NaN"):
        threads.sync()
    threads.assert_untouched(before)
    threads.trained.tensors["layers.2.weight"][3, 3] = 0.5
    healed(threads, random)


def test_a_tensor_that_was_not_in_the_first_sync_is_named(threads: Threads) -> None:
    value = torch.ones(4, dtype=torch.bfloat16)
    threads.trained.tensors["adapter.weight"] = value
    threads.trained._delta_shard_snap["adapter.weight"] = torch.zeros(4, dtype=torch.bfloat16)
    with pytest.raises(errors.UsageError, match=r"tensor 'adapter.weight': it was not in the first sync"):
        threads.sync()


def test_a_model_that_the_machine_cannot_hold_twice_is_refused_with_the_way_out(
    random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparsecast.integrations import _mirror as mirror_module

    monkeypatch.setattr(mirror_module, "_physical_bytes", lambda: 50_000)
    threads = Threads(small_tensors(random), ["a"], monkeypatch)
    with pytest.raises(errors.UnsupportedError, match="leaving out custom_backend_module"):
        threads.sync()


def test_the_full_export_is_compared_with_what_was_sent_every_so_often(
    random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = Threads(small_tensors(random), ["a"], monkeypatch, verify_every=2)
    threads.sync()
    random_step(threads.trained.tensors, random, 0.02)
    threads.sync()
    # A snapshot that has the new value already: the sparse export does not see the change.
    for name, place in (("layers.1.weight", 11), ("layers.4.weight", 3)):
        threads.trained.tensors[name].view(-1)[place] = 3.0
        threads.trained._delta_shard_snap[name][place] = 3.0
    before = threads.copies()
    with pytest.raises(errors.DigestMismatchError, match=r"tensor 'layers.1.weight': 1 of 8710 elements"):
        threads.sync()
    threads.assert_untouched(before)


def test_a_file_of_the_leader_that_is_not_what_it_says_is_refused(
    threads: Threads, random: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = files_module.parse_note
    with monkeypatch.context() as patch:
        patch.setattr(files_module, "parse_note", lambda data: {**parse(data), "size": parse(data)["size"] + 1})
        random_step(threads.trained.tensors, random, 0.02)
        with pytest.raises(errors.Error):
            threads.sync()
    assert any("it is not the leader's file" in str(error) for error in threads.errors)
    healed(threads, random)


@pytest.mark.parametrize("where", ["leader", "neighbour"])
def test_a_directory_that_is_not_shared_is_named_with_the_way_out(
    random: torch.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, where: str
) -> None:
    threads = Threads(small_tensors(random), ["a", "a"], monkeypatch, shared_dir=str(tmp_path))
    missing = str(tmp_path / "missing")
    threads.receivers[0 if where == "leader" else 1]._shared_dir = missing
    with pytest.raises(errors.Error):
        threads.sync()
    said = [str(error) for error in threads.errors if isinstance(error, errors.IoError)]
    assert len(said) == 1 and "missing" in said[0] and "engine_kwargs.delta_sharded.shared_dir" in said[0]
    threads.receivers[0]._shared_dir = threads.receivers[1]._shared_dir = str(tmp_path)
    healed(threads, random)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "note",
    [
        b"{",
        b"[]",
        b'{"file": "../etc/passwd", "size": 6}',
        b'{"file": "sparsecast-x", "size": -6}',
        b'{"file": "sparsecast-x", "size": "6"}',
    ],
)
def test_notes_of_a_leader_are_checked(note: bytes) -> None:
    with pytest.raises(errors.CorruptError):
        files_module.parse_note(note)


@pytest.mark.parametrize(
    "fields",
    [
        {"sizes": [1, -2, 3], "dtype": "bfloat16"},
        {"sizes": [1, 2], "dtype": "bfloat16"},
        {"sizes": [1, 2, 3], "dtype": "load"},
    ],
)
def test_parts_of_a_flush_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(errors.CorruptError):
        receiver_module.parse_parts(fields)


def test_options_that_do_not_exist_are_refused(threads: Threads) -> None:
    with pytest.raises(errors.UsageError, match="channels is 'control' or 'nccl'"):
        type(threads.sender)(bucket_size=1, channels="smoke")
    with pytest.raises(errors.UsageError, match="torch has no dtype"):
        type(threads.sender)(bucket_size=1, rollout_dtype="bf17")
    with pytest.raises(TypeError, match="verify_evry"):
        type(threads.sender)(bucket_size=1, verify_evry=3)
