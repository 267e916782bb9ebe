# SPDX-License-Identifier: Apache-2.0
"""Stitch's own publisher and store take versions that `sparsecast convert --to slime-xor` wrote.

Stitch has no package: SPARSECAST_STITCH_SOURCE is the folder `src` of a checkout. SPARSECAST_CLI is our command.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

SOURCE = os.environ.get("SPARSECAST_STITCH_SOURCE", "")
COMMAND = os.environ.get("SPARSECAST_CLI", "sparsecast")
TRACE = pathlib.Path(__file__).parents[3] / "testdata" / "trace"
FIRST = TRACE / "step_000012.safetensors"
STEPS = sorted(TRACE.glob("step_*.safetensors"))[1:]

pytestmark = pytest.mark.skipif(not SOURCE, reason="no source of Stitch (SPARSECAST_STITCH_SOURCE)")


def convert(*arguments: object) -> None:
    subprocess.run([COMMAND, "convert", *map(str, arguments)], check=True, capture_output=True, timeout=60)


@pytest.fixture
def stitch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SOURCE)
    names = ("publish", "stores.modal_volume", "types")
    return SimpleNamespace(**{name.rpartition(".")[2]: importlib.import_module(f"stitch.{name}") for name in names})


def test_its_publisher_and_store_take_our_versions_and_ours_reads_them_back(
    stitch: Any, tmp_path: pathlib.Path
) -> None:
    written, back = tmp_path / "written", tmp_path / "back"
    convert(*STEPS, "--from", "trl", "--to", "slime-xor", "--base", FIRST, "--base-version", 12, "-o", written)
    store = stitch.modal_volume.ModalVolumeStore(tmp_path / "store", run_id="run")
    stitch.publish.claim_run(store, None, "run", boot_version=12)
    directories = sorted(written.iterdir())
    for number, directory in enumerate(directories, start=13):
        ref = stitch.publish.publish_version(store, None, str(directory), run_id="run")
        assert ref == store.read_pointer() == stitch.types.VersionRef("run", number)
        manifest = store.read_manifest(ref)
        assert manifest.kind is stitch.types.VersionKind.DELTA and manifest.files
        materialised = pathlib.Path(store.materialize(ref))
        assert {each.name for each in materialised.iterdir()} == {each.name for each in directory.iterdir()}
    with pytest.raises(stitch.types.PointerRewind):
        stitch.publish.publish_version(store, None, str(directories[0]), run_id="run")
    held = tmp_path / "store" / "updates"
    convert(held, "--from", "slime", "--to", "scd", "--base", FIRST, "--base-version", 12, "-o", back)
    assert len(list(back.glob("*.scd"))) == len(directories) == 6


def test_a_full_version_of_ours_is_an_anchor_there(stitch: Any, tmp_path: pathlib.Path) -> None:
    written = tmp_path / "written"
    arguments = ["--from", "trl", "--to", "slime-xor", "--base", FIRST, "--base-version", 12, "--full-every", 15]
    convert(*STEPS, *arguments, "-o", written)
    store = stitch.modal_volume.ModalVolumeStore(tmp_path / "store", run_id="run")
    stitch.publish.claim_run(store, None, "run", boot_version=12)
    kinds = {}
    for directory in sorted(written.iterdir()):
        manifest = store.read_manifest(stitch.publish.publish_version(store, None, str(directory), run_id="run"))
        kinds[directory.name] = manifest.kind
        assert {directory / name for name in manifest.files} == set(directory.glob("*.safetensors"))
    fulls = [name for name, kind in kinds.items() if kind is stitch.types.VersionKind.FULL]
    assert fulls == ["weight_v000015"] and len(kinds) == 6
