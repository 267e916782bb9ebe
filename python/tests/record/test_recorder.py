# SPDX-License-Identifier: Apache-2.0
"""The recorder against brute force: whole copies of the weights after every step."""

from __future__ import annotations

import json
import os
import pathlib

import pytest

pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")

from record_traces import Model, bits_of

from sparsecast import errors
from sparsecast.record import Recorder, Trace, files


def _train(model, optimizer, steps, after):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(11, (7,))).backward()
        optimizer.step()
        after()


def _wire(tensor, dtype):
    return tensor.detach().to(dtype) if dtype is not None and tensor.is_floating_point() else tensor.detach()


@pytest.mark.parametrize("wire_dtype", [None, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_every_step_reads_back_bit_for_bit(tmp_path, wire_dtype):
    torch.manual_seed(5)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.8, 0.95))
    copies = []

    def copy():
        copies.append({n: bits_of(_wire(t, wire_dtype)) for n, t in model.state_dict().items() if n != "head.weight"})

    copy()
    with Recorder(model, optimizer, directory=tmp_path / "t", wire_dtype=wire_dtype, verify=True) as recorder:
        _train(model, optimizer, 6, copy)
        assert recorder.version == 6
    for version, expected in zip(Trace(tmp_path / "t"), copies, strict=True):
        assert {name: bits.tobytes() for name, bits in version.weights.items()} == expected
        for name in expected:
            assert bits_of(version.torch_tensor(name)) == expected[name]
            assert version.torch_tensor(name).shape == model.state_dict()[name].shape
        assert "untouched" not in version.changes
    assert version.number == 6


def test_only_what_changed_is_stored_and_signs_of_zero_and_payloads_of_nans_count(tmp_path):
    weights = {
        "special": torch.tensor([0x0000, 0x7FC0, 0x3F80, 0x7F80, 0x0001], dtype=torch.int16).view(torch.bfloat16),
        "all": torch.zeros(4, 3),
        "none": torch.ones(3),
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
    }
    recorder = Recorder(weights, directory=tmp_path, version=40)
    weights["special"].view(torch.int16)[:2] = torch.tensor([-32768, 0x7FC1], dtype=torch.int16)
    weights["all"] += 1
    weights["transposed"][2, 0] = 9
    assert recorder.step() == 2 + 12 + 1
    assert recorder.step() == 0
    first, second, third = (
        (v.number, {n: (c.indices.tolist(), c.old.tolist(), c.new.tolist()) for n, c in v.changes.items()})
        for v in Trace(tmp_path)
    )
    assert first == (40, {})
    assert second[0] == 41
    assert second[1]["special"] == ([0, 1], [0, 0x7FC0], [0x8000, 0x7FC1])
    assert second[1]["all"] == (list(range(12)), [0] * 12, [0x3F800000] * 12)
    assert second[1]["transposed"][0] == [4]
    assert "none" not in second[1]
    assert third == (42, {})


def test_the_bits_of_nans_and_of_fully_changed_tensors_come_back(tmp_path):
    generator = torch.Generator().manual_seed(3)
    weights = {"any_bits": torch.randint(-(2**15), 2**15, (300,), generator=generator).to(torch.int16)}
    weights["any_bits"] = weights["any_bits"].view(torch.bfloat16)
    recorder = Recorder(weights, directory=tmp_path, verify=True)
    states = [bits_of(weights["any_bits"])]
    for _ in range(3):
        weights["any_bits"].view(torch.int16).bitwise_not_()
        recorder.step()
        states.append(bits_of(weights["any_bits"]))
    assert [version.weights["any_bits"].tobytes() for version in Trace(tmp_path)] == states


def test_tied_weights_are_stored_once_and_named_in_the_anchor(tmp_path):
    model = Model()
    Recorder(model, directory=tmp_path)
    (anchor,) = Trace(tmp_path)
    assert Trace.ties(anchor) == {"head.weight": "embedding.weight"}
    assert "head.weight" not in anchor.weights


def test_metadata_say_the_optimizer_and_the_rate_that_each_step_used(tmp_path):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, betas=(0.8, 0.95))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with Recorder(model, optimizer, directory=tmp_path):
        _train(model, optimizer, 3, schedule.step)
    versions = [version.metadata for version in Trace(tmp_path)]
    assert [said["lr"] for said in versions] == ["0.5", "0.5", "0.25", "0.125"]
    assert all(said["optimizer"] == "AdamW" and json.loads(said["betas"]) == [0.8, 0.95] for said in versions)
    assert [said["sparse"] for said in versions] == ["False", "True", "True", "True"]
    assert [said["optimizer_step"] for said in versions] == ["0", "1", "2", "3"]


def test_every_nth_step_is_recorded_and_a_closed_recorder_records_none(tmp_path):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder(model, optimizer, directory=tmp_path, every=2)
    _train(model, optimizer, 5, lambda: None)
    recorder.close()
    recorder.close()
    _train(model, optimizer, 3, lambda: None)
    versions = list(Trace(tmp_path))
    assert [version.metadata["optimizer_step"] for version in versions] == ["0", "2", "4"]
    assert [version.number for version in versions] == [0, 1, 2]


def test_a_directory_that_is_not_empty_is_refused_and_named(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(errors.UsageError, match=r"notes\.txt"):
        Recorder({"w": torch.zeros(2)}, directory=tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_a_tensor_that_was_replaced_reshaped_or_untied_is_named(tmp_path):
    model = Model()
    recorder = Recorder(model, directory=tmp_path / "a")
    model.middle.weight = torch.nn.Parameter(torch.zeros(6, 6))
    with pytest.raises(errors.UsageError, match=r"middle\.weight: the module has another tensor"):
        recorder.step()
    model = Model()
    recorder = Recorder(model, directory=tmp_path / "b")
    model.head.weight = torch.nn.Parameter(model.embedding.weight.detach().clone())
    with pytest.raises(errors.UsageError, match=r"head\.weight: it no longer shares"):
        recorder.step()
    weights = {"w": torch.zeros(4)}
    recorder = Recorder(weights, directory=tmp_path / "c")
    weights["w"].resize_(2)
    with pytest.raises(errors.UsageError, match=r"w: it was torch.float32 \[4\]"):
        recorder.step()


@pytest.mark.parametrize(
    ("name", "tensor", "error"),
    [
        ("huge", torch.zeros(1, dtype=torch.uint8).expand(2**31 + 1), errors.UnsupportedError),
        ("meta", torch.zeros(2, device="meta"), errors.UsageError),
        ("sparse", torch.eye(2).to_sparse(), errors.UsageError),
        ("w.indices", torch.zeros(2), errors.UsageError),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(tmp_path, name, tensor, error):
    with pytest.raises(error, match=f"^{name}: "):
        Recorder({name: tensor}, directory=tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_a_step_whose_file_cannot_be_written_is_part_of_the_next(tmp_path, monkeypatch):
    weights = {"w": torch.zeros(4)}
    recorder = Recorder(weights, directory=tmp_path)
    weights["w"][1] = 1
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(errors.IoError, match=r"step_000001\.safetensors: No space left"):
            recorder.step()
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_000000.safetensors"]
    weights["w"][2] = 1
    assert recorder.step() == 2
    assert [version.weights["w"].tobytes() for version in Trace(tmp_path)][-1] == bits_of(weights["w"])


@pytest.mark.parametrize("where", ["before_sync", "before_rename"])
def test_a_crash_between_files_leaves_a_readable_prefix(tmp_path, where):
    """The process ends at once, without any clean-up, while it writes version 2."""
    child = os.fork()
    if child == 0:
        weights = {"w": torch.zeros(100)}
        recorder = Recorder(weights, directory=tmp_path)
        weights["w"][3] = 1
        recorder.step()
        if where == "before_sync":
            files._sync = lambda path: os._exit(7)
        else:
            files.os.replace = lambda *_: os._exit(7)
        weights["w"][4] = 1
        recorder.step()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert (tmp_path / "step_000002.safetensors.partial").exists()
    versions = [(version.number, version.weights["w"].nonzero()[0].tolist()) for version in Trace(tmp_path)]
    assert versions == [(0, []), (1, [3])]


def test_a_file_that_does_not_read_back_is_told(tmp_path, monkeypatch):
    from sparsecast.record import recorder as module

    weights = {"w": torch.zeros(4)}
    recorder = Recorder(weights, directory=pathlib.Path(tmp_path), verify=True)
    weights["w"][1] = 1

    def flipped(tensors, path, metadata):
        module_save(
            {name: tensor ^ 1 if name == "w.indices" else tensor for name, tensor in tensors.items()}, path, metadata
        )

    module_save = module.save_file
    monkeypatch.setattr(module, "save_file", flipped)
    with pytest.raises(errors.CorruptError, match="does not read back"):
        recorder.step()
