# SPDX-License-Identifier: Apache-2.0
"""The patch for SkyRL (docs/upstream/skyrl.md), applied to a copy of the released package."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from releases import releases

PATCH = Path(__file__).resolve().parents[3] / "docs/upstream/skyrl.patch"
SYNC = "backends/skyrl_train/weight_sync"


@pytest.fixture
def patched(package: Path, tmp_path: Path) -> Path:
    """The patched package. Git refuses the patch if a line of its context is not there."""
    for name in (SYNC, "train/utils"):
        shutil.copytree(package / name, tmp_path / "skyrl" / name)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", PATCH], cwd=tmp_path, check=True)
    return tmp_path / "skyrl"


def weight_sync(patched: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = patched / SYNC
    spec = importlib.util.spec_from_file_location(
        "patched_weight_sync", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("package", releases("skyrl"))
def test_the_name_chooses_the_backend_and_an_unknown_one_is_refused(
    patched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = weight_sync(patched, monkeypatch)
    chosen = module.get_transfer_strategy
    assert chosen("sparsecast", False) == module.get_vllm_receive_backend("sparsecast", False) == "sparsecast"
    assert [chosen("nccl", False), chosen("nccl", True), chosen("delta", True), chosen("rdt", False)] == [
        "nccl", "ipc", "delta", "sharded_rdt",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="GPUs of their own"):
        chosen("sparsecast", True)
    for wrong in ("sparse_cast", "Sparsecast", "ipc", ""):
        with pytest.raises(ValueError, match=f"Unknown weight_sync_backend '{wrong}'.*'sparsecast'"):
            chosen(wrong, False)


@pytest.mark.parametrize("package", releases("skyrl"))
def test_the_builder_and_the_check_for_megatron_know_it(patched: Path) -> None:
    sync = patched / SYNC
    sources = {each.name: each.read_text() for each in (*sync.glob("*.py"), patched / "train/utils/utils.py")}
    for name in ("__init__.py", "register.py", "weight_senders.py", "sparsecast_sender.py", "utils.py"):
        compile(sources[name], name, "exec")
    built = sources["weight_senders.py"].partition("source = source_factory(dtype, backend)\n")[2]
    assert "build_sparsecast_engine(" in built.partition("WeightTransferTrainerFactory.trainer_init(")[0]
    checked = sources["utils.py"].partition("def validate_megatron_cfg(")[2].partition("assert ie_cfg.backend")[0]
    assert '"sparsecast",' in checked
