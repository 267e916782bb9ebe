# SPDX-License-Identifier: Apache-2.0
"""Adapters into SGLang's own LoRA manager, against fresh loads of saved adapters by SGLang."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import pathlib

import pytest

if importlib.util.find_spec("sglang") is None:  # Only the rank's process imports it.
    pytest.skip("needs sglang", allow_module_level=True)
import sglang_adapters
import sglang_engine
from fork_server import forks_of
from sparsecast_ports import free_port


def test_every_version_is_that_of_a_fresh_load_and_what_is_refused_changes_nothing(tmp_path: pathlib.Path) -> None:
    model = tmp_path / "model"
    tensors = sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=7)
    sglang_engine.write_checkpoint(model, sglang_engine.QWEN2, tensors)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=forks_of("sglang_preload")) as pool:
        found = pool.submit(sglang_adapters.run, model, tmp_path, free_port()).result(240)
    assert found["wrong"] == [] and found["moved"] == [] and found["base_untouched"]
    assert found["served"] == ["code"]
    assert "adapter 'wide': SGLang refuses it" in found["refused"] and "rank 16" in found["refused"]
    assert "adapter 'code': SGLang refuses it" in found["went_back"]
    assert found["stands"] and found["recovered"]
