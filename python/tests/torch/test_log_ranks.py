# SPDX-License-Identifier: Apache-2.0
"""A log of two ranks that each hold a part of the tensors."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import torch
from sparsecast_ports import free_port

from sparsecast.torch import Log, Subscriber

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from log_ranks import RANKS, weights

SCRIPT = pathlib.Path(__file__).with_name("log_ranks.py")


@pytest.fixture
def said(tmp_path: pathlib.Path) -> list[list[str]]:
    """The lines of each rank."""
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), port, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        answers = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), answers
    return [out.splitlines() for out, _ in answers]


def test_ranks_write_one_log_that_a_reader_follows_and_an_error_of_one_is_all_of_them(
    said: list[list[str]], tmp_path: pathlib.Path
) -> None:
    errors = [line for lines in said for line in lines if "Error" in line]
    assert errors[0].startswith("IoError: ") and errors[1].startswith("PeerFailedError: ") and len(errors) == RANKS
    assert "Not a directory" in errors[0] and "Not a directory" in errors[1]
    versions = [[line for line in lines if "Error" not in line] for lines in said]
    assert versions[0] == versions[1] and len(set(versions[0])) == len(versions[0]) == 5
    held = {name: torch.zeros_like(tensor, dtype=torch.bfloat16) for name, tensor in weights(0).items()}
    reader = Subscriber(held.items(), transport=Log(tmp_path / "log", state=tmp_path / "state"))
    reader.update()
    assert str(reader.version) == versions[0][-1].split()[0]
    for name, tensor in weights(6).items():
        assert torch.equal(held[name], tensor.bfloat16()), name
