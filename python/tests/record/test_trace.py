# SPDX-License-Identifier: Apache-2.0
"""Traces that are damaged are refused by file and tensor."""

from __future__ import annotations

import pytest

pytest.importorskip("safetensors")

from record_traces import REAL_TRACE, sparse_step, write_safetensors

from sparsecast import errors
from sparsecast.record import Trace


def _anchor(directory, number=0):
    write_safetensors(directory / f"step_{number:06d}.safetensors", {"w": ("BF16", [2, 3], bytes(12))})


def test_a_real_trace_reads_to_its_end_with_all_its_versions():
    numbers = [(version.number, len(version.changes) > 0) for version in Trace(REAL_TRACE)]
    assert numbers == [(12, False), *((number, True) for number in range(13, 19))]


def test_whole_checkpoints_are_read_as_their_differences(tmp_path):
    _anchor(tmp_path)
    write_safetensors(tmp_path / "step_000001.safetensors", {"w": ("BF16", [2, 3], b"\0\0\1\0" + bytes(8))})
    _, second = Trace(tmp_path)
    assert second.changes["w"].indices.tolist() == [1]
    assert second.weights["w"].tolist() == [[0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"w": ([0, 6], [1, 1])}, "within the tensor's 6 elements"),
        ({"w": ([2, 1], [1, 1])}, "do not increase"),
        ({"w": ([-1], [1])}, "do not increase"),
        ({"w": ([1], [1, 2])}, "1 indices for 2 values"),
        ({"v": ([1], [1])}, "has no such tensor"),
    ],
)
def test_a_step_that_does_not_fit_the_anchor_is_refused(tmp_path, changes, sentence):
    _anchor(tmp_path)
    sparse_step(tmp_path / "step_000001.safetensors", changes)
    with pytest.raises(errors.CorruptError, match=rf"step_000001\.safetensors: .*{sentence}"):
        list(Trace(tmp_path))


def test_half_a_pair_and_another_dtype_are_refused(tmp_path):
    _anchor(tmp_path)
    step = tmp_path / "step_000001.safetensors"
    write_safetensors(step, {"w.indices": ("I32", [0], b"")})
    with pytest.raises(errors.CorruptError, match="indices without values"):
        list(Trace(tmp_path))
    write_safetensors(step, {"w.values": ("BF16", [0], b"")})
    with pytest.raises(errors.CorruptError, match="values without indices"):
        list(Trace(tmp_path))
    write_safetensors(step, {"w.indices": ("I32", [1], bytes(4)), "w.values": ("F16", [1], bytes(2))})
    with pytest.raises(errors.CorruptError, match="expected I32 indices and BF16 values"):
        list(Trace(tmp_path))


def test_a_torn_file_a_missing_version_and_an_empty_directory_are_told_apart(tmp_path):
    with pytest.raises(errors.UsageError, match="there is no step_"):
        Trace(tmp_path)
    with pytest.raises(errors.IoError, match="absent"):
        Trace(tmp_path / "absent")
    _anchor(tmp_path)
    (tmp_path / "step_000001.safetensors").write_bytes((tmp_path / "step_000000.safetensors").read_bytes()[:-1])
    with pytest.raises(errors.CorruptError, match="step_000001"):
        list(Trace(tmp_path))
    sparse_step(tmp_path / "step_000003.safetensors", {})
    with pytest.raises(errors.VersionGapError, match="version 2 is missing"):
        Trace(tmp_path)


def test_a_file_under_another_versions_name_is_refused(tmp_path):
    _anchor(tmp_path)
    sparse_step(tmp_path / "step_000002.safetensors", {})
    (tmp_path / "step_000002.safetensors").rename(tmp_path / "step_000001.safetensors")
    with pytest.raises(errors.CorruptError, match="says that it is version '2'"):
        list(Trace(tmp_path))
