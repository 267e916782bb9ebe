# SPDX-License-Identifier: Apache-2.0
"""Flushes through verl's transfer engine into a model of vLLM's: both released packages, in vLLM's environment."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

verl = pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

HERE = pathlib.Path(__file__).parent
PYTHON = pathlib.Path(os.environ.get("SPARSECAST_PYTHON_VLLM", HERE.parents[2] / ".venv-vllm" / "bin" / "python3"))


@pytest.mark.skipif(not PYTHON.exists(), reason="no environment with vLLM (SPARSECAST_PYTHON_VLLM)")
@pytest.mark.parametrize("more", [[], ["whole"]], ids=["flushes", "whole"])
def test_vllms_model_has_the_trainers_bits_after_a_seed_and_sparse_steps(more: list[str]) -> None:
    site = pathlib.Path(verl.__file__).parents[1]
    command = [str(PYTHON), "-W", "ignore", str(HERE / "verl_into_vllm.py"), str(site), "qwen2", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and done.stdout.split()[-1:] == ["same"], done.stdout + done.stderr[-4000:]
