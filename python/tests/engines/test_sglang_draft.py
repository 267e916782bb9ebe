# SPDX-License-Identifier: Apache-2.0
"""The draft of a SGLang server is named, since it is not updated."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("sglang") is None:
    pytest.skip("needs sglang", allow_module_level=True)
import sglang_engine

from sparsecast.engines.sglang.draft import stale_draft


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What SGLang reads of a model, and of a draft in the folder `head` there, when it is configured."""
    made = tmp_path_factory.mktemp("model")
    weights = sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=7)
    for place in (made, made / "head"):
        sglang_engine.write_checkpoint(place, sglang_engine.QWEN2, weights)
    return made


def configured(folder: Path, algorithm: str | None, draft: str | None) -> str:
    """What is said on a server that was configured so."""
    sglang_engine.allow_import_without_gpu()
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path=str(folder), device="cpu", skip_tokenizer_init=True, disable_cuda_graph=True)
    args.speculative_algorithm, args.speculative_draft_model_path = algorithm, draft
    runtime_context.publish(args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0))
    return stale_draft()


def test_a_draft_with_files_of_its_own_and_a_head_of_the_model_are_named(folder: Path) -> None:
    head = folder / "head"
    assert configured(folder, "EAGLE3", str(head)).startswith(f"the draft model {head} (EAGLE3) is not updated")
    assert configured(folder, "EAGLE", None).startswith(f"the draft model {folder} (EAGLE) is not updated")


def test_nothing_is_said_where_nothing_is_stale(folder: Path) -> None:
    assert configured(folder, None, None) == "" and configured(folder, "NGRAM", None) == ""
