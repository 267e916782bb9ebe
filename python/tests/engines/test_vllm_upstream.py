# SPDX-License-Identifier: Apache-2.0
"""The patch for vLLM's own tree (docs/upstream/vllm.md), applied to a copy of the installed release."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

vllm = pytest.importorskip("vllm")
if not vllm.__version__.startswith("0.33."):
    pytest.skip("the patch is for vLLM 0.33", allow_module_level=True)

from vllm.distributed import weight_transfer

from sparsecast.engines.vllm import plugin
from sparsecast.engines.vllm.engine import SparsecastWeightTransferEngine
from sparsecast.engines.vllm.trainer import SparsecastTrainerWeightTransferEngine

PACKAGE = "vllm/distributed/weight_transfer"
ENGINE = "vllm.distributed.weight_transfer.sparsecast_engine"
PATCH = Path(__file__).resolve().parents[3] / "docs/upstream/vllm.patch"


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    """The folder of the patched files."""
    folder = tmp_path / PACKAGE
    folder.mkdir(parents=True)
    shutil.copy(Path(str(weight_transfer.__file__)).parent / "factory.py", folder)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "--unidiff-zero", PATCH], cwd=tmp_path, check=True)
    return folder


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_both_engines_are_made_by_name_and_the_plug_in_adds_only_what_is_missing(
    patched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = load(patched / "factory.py", "patched_factory")
    engines, trainers = factory.WeightTransferEngineFactory, factory.WeightTransferTrainerFactory
    monkeypatch.setitem(sys.modules, ENGINE, load(patched / "sparsecast_engine.py", ENGINE))
    assert engines._registry["sparsecast"]() is SparsecastWeightTransferEngine
    assert trainers._registry["sparsecast"]() is SparsecastTrainerWeightTransferEngine
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.factory", factory)
    plugin.register()
    assert plugin.STOCK_BACKEND in trainers._registry
    assert trainers._registry["sparsecast"]() is SparsecastTrainerWeightTransferEngine


def test_without_the_package_it_says_what_to_install(patched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "sparsecast" or name.startswith("sparsecast.")]:
        monkeypatch.delitem(sys.modules, name)

    class Absent:
        @staticmethod
        def find_spec(name: str, *unused: object) -> None:
            if name == "sparsecast":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Absent, *sys.meta_path])
    with pytest.raises(ImportError, match="pip install sparsecast"):
        load(patched / "sparsecast_engine.py", ENGINE)
