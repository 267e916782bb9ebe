# SPDX-License-Identifier: Apache-2.0
"""Wherever a path is taken, any os.PathLike is."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
import torch

import sparsecast as sc
from sparsecast import errors
from sparsecast.adapters.follow import AdapterStream
from sparsecast.torch import Log, Publisher, Subscriber

pytestmark = pytest.mark.skipif(not sc.has_log, reason="built without delta logs")


class OddPath:
    """No string and no pathlib.Path."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


KINDS = [str, pathlib.Path, OddPath]


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_is_published_and_followed_by_paths_of_any_kind(kind: Any, tmp_path: pathlib.Path) -> None:
    def path(name: str) -> Any:
        return kind(tmp_path / name)

    public = sc.generate_key(path("key"))
    model = torch.nn.Linear(3, 2)
    log = Log(path("log"), key=path("key"), trusted_keys=(public,), mirror=path("mirror.safetensors"))
    publisher = Publisher(model, transport=log)
    assert sc.log_head(path("log"), [public]) == publisher.version
    with torch.no_grad():
        model.weight += 1
    publisher.publish()
    publisher.close()
    assert (tmp_path / "mirror.safetensors").is_file()
    engine = torch.nn.Linear(3, 2)
    Subscriber(engine, transport=Log(path("log"), trusted_keys=(public,), state=path("state"))).update()
    assert torch.equal(engine.weight, model.weight)
    assert (tmp_path / "state" / "follower").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_functions_take_paths_of_any_kind(kind: Any, tmp_path: pathlib.Path) -> None:
    table = sc.TensorTable([("w", "F32", (4,))])
    memory = [sc.describe(torch.arange(4.0))]
    sc.write_checkpoint(table, memory, kind(tmp_path / "w.safetensors"))
    anchor = kind(tmp_path / "anchor.safetensors")
    assert sc.create_log(kind(tmp_path / "log"), table, memory, anchor_path=anchor) == 0
    assert (tmp_path / "anchor.safetensors").read_bytes() == (tmp_path / "w.safetensors").read_bytes()
    publisher = sc.LogPublisher(kind(tmp_path / "log"), table, memory, mirror=anchor)
    assert publisher.digest == sc.digest(table, memory)
    (tmp_path / "scratch").mkdir()
    follower = sc.LogFollower(
        kind(tmp_path / "log"), table, memory, state_path=kind(tmp_path / "state"), scratch=kind(tmp_path / "scratch")
    )
    follower.step()
    assert follower.version == publisher.version


def test_descriptions_of_logs_are_equal_whatever_kind_their_paths_are_of() -> None:
    of_text = Log("a/log", key="a/key", mirror="m.safetensors", state="s")
    for kind in (pathlib.Path, lambda text: OddPath(pathlib.Path(text)), os.fsencode):
        log = Log(kind("a/log"), key=kind("a/key"), mirror=kind("m.safetensors"), state=kind("s"))
        assert log == of_text and hash(log) == hash(of_text)
        assert AdapterStream(log, kind("d.json")) == AdapterStream(of_text, "d.json")  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["location", "key", "mirror", "state"])
def test_what_is_no_path_is_refused_by_the_name_of_its_field(field: str) -> None:
    for wrong in (3, ["log"], object()):
        with pytest.raises(errors.UsageError, match=f"{field}: .*not a path"):
            Log(**{"location": "log", field: wrong})  # type: ignore[arg-type]


def test_an_adapter_that_is_served_takes_paths() -> None:
    sync = pytest.importorskip("sparsecast.integrations._adapter_sync")
    served = sync.ServedAdapter(directory=pathlib.Path("d"), log=pathlib.Path("l"), key=pathlib.Path("k"))
    assert (served.directory, served.log, served.key, served.mirror) == ("d", "l", "k", "")
    with pytest.raises(errors.UsageError, match="directory: 3 is not a path"):
        sync.ServedAdapter(directory=3)
