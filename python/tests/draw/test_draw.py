# SPDX-License-Identifier: Apache-2.0
"""The command ``python -m sparsecast.draw``: pictures of known documents, read back, and documents that are refused."""

from __future__ import annotations

import copy
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import xml.etree.ElementTree

import pytest

from sparsecast.draw.__main__ import main

# A plan in the form of tools/plan/plan_json.cpp, without the fields that no picture shows. It has two trainer ranks. The
# first one sends to both engine ranks, and a delta has half of the dense bytes.
PLAN = {
    "trainer": {"name": "trainer", "file": "layouts/a$b$.json"},
    "engines": [{"file": "layouts/e.json"}],
    "delta_bytes": 3000.0,
    "plan_hash": "00",
    "sync_seconds": 0.007,
    "pause_seconds": 0.003,
    "phases": {
        "detect_seconds": 0.001,
        "encode_seconds": 0.001,
        "wire_seconds": 0.001,
        "verify_seconds": 0.001,
        "agree_seconds": 0.0,
        "apply_seconds": 0.002,
        "vote_seconds": 0.001,
    },
    "model": {"wire_bytes_per_byte": 0.5},
    "groups": [{}, {}],
    "routes": [
        {"source": 0, "group": 0, "destinations": [[2, 0], [2, 1], [3, 0]], "dense_bytes": 4000},
        {"source": 1, "group": 1, "destinations": [[3, 0]], "dense_bytes": 2000},
    ],
    "transfers": [
        {"group": 0, "start_seconds": 0.002, "end_seconds": 0.003},
        {"group": 1, "start_seconds": 0.0025, "end_seconds": 0.003},
    ],
    "ranks": [
        {"rank": 0, "participant": "trainer", "node": "<n&0>"},
        {"rank": 1, "participant": "trainer", "node": "<n&0>"},
        {"rank": 2, "participant": "engine-0", "node": ""},
        {"rank": 3, "participant": "engine-0", "node": ""},
    ],
}

# The status of a log in the form of tools/log/log_text.cpp, without the fields that no picture shows.
LOG = {
    "log": "s3://bucket/run",
    "version": 4,
    "epoch": 2,
    "total_bytes": 1_043_429,
    "anchor_rows": [{"version": 0}],
    "merged_rows": [{"from": 0, "to": 2}],
    "lease_rows": [{"name": "<engine>\u0001", "version": 2}],
    "version_rows": [
        {"version": 0, "kind": "genesis", "epoch": 1, "density": 0.0, "delta_bytes": 0},
        {"version": 1, "kind": "delta", "epoch": 1, "density": 0.011, "delta_bytes": 3_472},
        {"version": 2, "kind": "delta", "epoch": 1, "density": 0.012, "delta_bytes": 3_544},
        {"version": 3, "kind": "takeover", "epoch": 2, "density": 0.0, "delta_bytes": 0},
        {"version": 4, "kind": "delta", "epoch": 2, "density": 0.01, "delta_bytes": 3_400},
    ],
}


def drawn(tmp_path: pathlib.Path, document: object) -> set[str]:
    """Draws a document and returns all texts of the picture."""
    pytest.importorskip("matplotlib")
    source, picture = tmp_path / "document.json", tmp_path / "picture.svg"
    source.write_text(json.dumps(document))
    assert main([str(source), str(picture)]) == 0
    assert sorted(os.listdir(tmp_path)) == ["document.json", "picture.svg"]
    tree = xml.etree.ElementTree.parse(picture)
    return {"".join(text.itertext()).strip() for text in tree.iter("{http://www.w3.org/2000/svg}text")}


def refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], document: object) -> str:
    """Returns the words of a refusal, which names the file in one line and writes nothing."""
    source = tmp_path / "document.json"
    source.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    assert main([str(source), str(tmp_path / "picture.svg")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sparsecast.draw: {source}: ") and error.endswith(" [usage]\n") and error.count("\n") == 1
    assert os.listdir(tmp_path) == ["document.json"]
    return error


def test_a_plan_shows_who_sends_what_to_whom_and_when(tmp_path):
    texts = drawn(tmp_path, PLAN)
    # Half of 4000 and of 2000 bytes leave the senders; a rank that holds two copies gets the bytes once.
    assert {"<n&0>: rank 0: 2.0 kB", "<n&0>: rank 1: 1.0 kB", "rank 2: 2.0 kB", "rank 3: 3.0 kB"} <= texts
    assert {"group 0: 2.0 kB", "group 1: 1.0 kB", "trainer", "engine-0"} <= texts
    assert {"phases", "pause", "detect", "apply", "group 0", "group 1", "2 ms"} <= texts
    assert "a$b$.json to 1 of e.json" in texts
    assert any("engines pause for 3.0 ms" in text for text in texts)


def test_many_ranks_share_boxes_by_node_or_engine(tmp_path):
    plan = copy.deepcopy(PLAN)
    trainer = [{"rank": rank, "participant": "trainer", "node": f"node{rank // 8}"} for rank in range(64)]
    engines = [{"rank": 64 + i, "participant": f"engine-{i // 32}", "node": ""} for i in range(64)]
    plan["ranks"] = trainer + engines
    plan["groups"] = [{}] * 64
    plan["routes"] = [{"source": i, "group": i, "destinations": [[64 + i, 0]], "dense_bytes": 2000} for i in range(64)]
    texts = drawn(tmp_path, plan)
    assert {"node0: ranks 0-7: 8.0 kB", "node7: ranks 56-63: 8.0 kB"} <= texts
    assert {"ranks 64-95: 1.0 kB", "ranks 96-127: 1.0 kB"} <= texts
    assert {"groups 0-7: 8.0 kB", "64 groups, in the order above"} <= texts


@pytest.mark.parametrize("density", [0.5, 0])
def test_a_plan_in_which_nothing_travels_is_drawn(tmp_path, density):
    assert "trainer" in drawn(tmp_path, {**PLAN, "model": {"wire_bytes_per_byte": density}, "transfers": []})
    nothing = {"groups": [], "routes": [], "transfers": [], "ranks": PLAN["ranks"][:2], "engines": []}
    assert "a$b$.json to no engine" in drawn(tmp_path, {**PLAN, **nothing})


def test_a_log_shows_density_bytes_and_ways_to_catch_up(tmp_path):
    texts = drawn(tmp_path, LOG)
    assert "s3://bucket/run: version 4, epoch 2; 1.0 MB in all" in texts
    assert {"anchors", "2 versions in one", "<engine>\ufffd", "epoch 2", "version", "3 kB"} <= texts


@pytest.mark.parametrize("form, begin", [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_the_suffix_selects_the_format_and_an_older_picture_is_replaced(tmp_path, monkeypatch, form, begin):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"log.{form}"
    picture.write_text("an older one")
    for _ in range(2):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(LOG).encode())))
        before = picture.read_bytes()
        assert main(["-", str(picture)]) == 0
        assert picture.read_bytes().startswith(begin)
    assert picture.read_bytes() == before  # The same document gives the same bytes.


@pytest.mark.parametrize("document", [PLAN, LOG])
def test_every_field_that_is_missing_or_of_another_kind_is_named(tmp_path, capsys, document):
    """Takes away, or replaces, each field of the document in turn."""

    def places(value, path):
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            yield [*path, key]
            yield from places(inner, [*path, key])

    for *path, key in places(document, []):
        for wrong in (None, [1], -1, float("nan")):
            if not isinstance(key, str) or key == "plan_hash":  # Of the hash only that there is one is asked.
                continue
            damaged = copy.deepcopy(document)
            owner = damaged
            for step in path:
                owner = owner[step]
            if wrong is None:
                del owner[key]
            else:
                owner[key] = wrong
            assert key in refused(tmp_path, capsys, damaged), (path, key, wrong)


def test_places_of_wrong_fields_are_told_exactly(tmp_path, capsys):
    plan = copy.deepcopy(PLAN)
    plan["routes"][1]["source"] = 2
    assert "routes[1].source is no rank of the trainer" in refused(tmp_path, capsys, plan)
    plan["routes"][1]["source"] = 1
    plan["routes"][1]["destinations"] = [[0, 0]]
    assert "routes[1].destinations has a rank that is no engine's" in refused(tmp_path, capsys, plan)
    plan["routes"][1]["group"] = 2
    assert "routes[1].group is no whole number in its range" in refused(tmp_path, capsys, plan)
    del plan["phases"]["wire_seconds"]
    assert "phases.wire_seconds is missing" in refused(tmp_path, capsys, plan)
    assert "version_rows is empty" in refused(tmp_path, capsys, {**LOG, "version_rows": []})
    assert "merged_rows[0].to is not after from" in refused(
        tmp_path, capsys, {**LOG, "merged_rows": [{"from": 2, "to": 2}]}
    )


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"plan_hash": ' + b"1" * 5000 + b"}"])
def test_what_is_no_json_is_refused(tmp_path, capsys, data):
    assert "the document is no JSON" in refused(tmp_path, capsys, data)


def test_other_documents_are_refused(tmp_path, capsys):
    assert "the document is no JSON object" in refused(tmp_path, capsys, [PLAN])
    assert "neither a plan nor the status of a log" in refused(tmp_path, capsys, {"version": 1})


def test_files_that_cannot_be_read_or_written_and_other_formats_are_named(tmp_path, capsys):
    assert main([str(tmp_path / "absent.json"), str(tmp_path / "picture.svg")]) == 4
    assert "absent.json: No such file or directory [io]" in capsys.readouterr().err
    source = tmp_path / "log.json"
    source.write_text(json.dumps(LOG))
    assert main([str(source), str(source)]) == 2
    assert "ends in .svg, .png or .pdf" in capsys.readouterr().err
    pytest.importorskip("matplotlib")
    assert main([str(source), str(tmp_path / "no" / "folder.svg")]) == 4
    assert "folder.svg: No such file or directory [io]" in capsys.readouterr().err
    assert main([str(source), str(source / "picture.svg")]) == 4
    assert "picture.svg: Not a directory [io]" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["log.json"]


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    source = tmp_path / "log.json"
    source.write_text(json.dumps(LOG))
    assert main([str(source), str(tmp_path / "picture.svg")]) == 2
    assert "pip install matplotlib [usage]" in capsys.readouterr().err


def test_what_the_command_prints_is_drawn(tmp_path):
    command = os.environ.get("SPARSECAST_CLI") or shutil.which("sparsecast")
    if not command:
        pytest.skip("no command sparsecast")
    layouts = pathlib.Path(__file__).resolve().parents[3] / "testdata" / "layouts"
    files = [str(layouts / name) for name in ("small.fsdp2-dp2.json", "small.vllm-tp2.json")]
    printed = subprocess.run([command, "plan", *files, "--json"], capture_output=True, timeout=120, check=True).stdout
    texts = drawn(tmp_path, json.loads(printed))
    assert {"trainer", "engine-0", "group 0"} <= texts
