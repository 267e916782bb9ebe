# SPDX-License-Identifier: Apache-2.0
"""What the clients send is what sparsecast's own ends in the engines take: field by field, and by their own parsers."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from sparsecast.control import Endpoint, WorldSpec
from sparsecast.control.endpoints import RESERVED_OPTIONS, Placement
from sparsecast.control.sglang import group_request, phase_request
from sparsecast.control.vllm import init_info, update_info


def world_of(endpoint: Endpoint, *, anchored: bool) -> tuple[WorldSpec, Placement]:
    placement = Placement(endpoint, 2)
    world = WorldSpec(
        host="10.0.0.1",
        port=29600,
        size=4,
        trainer_ranks=2,
        placements=(placement,),
        generation=3,
        trainer="trainer",
        secret="s" * 64,
        channels="nccl",
        tensors=(("w", "BF16", (4, 2)), ("lm_head", "BF16", (4, 2))),
        ties=(("lm_head", "w"),),
        anchored=frozenset({endpoint.name}) if anchored else frozenset(),
        timeout=60.0,
        reach_timeout=20.0,
    )
    return world, placement


def dataclass_fields(module: str, name: str) -> tuple[set[str], set[str]]:
    """All fields of a dataclass in the source of a module of sparsecast.engines, and those without a default. Nothing is
    imported.
    """
    package = importlib.util.find_spec("sparsecast.engines")
    if package is None or not package.submodule_search_locations:
        pytest.skip("sparsecast.engines is not here")
    path = Path(next(iter(package.submodule_search_locations))) / f"{module}.py"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            own = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
            names = {each.target.id for each in own if isinstance(each.target, ast.Name)}
            return names, {e.target.id for e in own if isinstance(e.target, ast.Name) and e.value is None}
    raise AssertionError(f"{path} has no class {name}")


@pytest.mark.parametrize("anchored", [False, True], ids=["in step", "to be seeded"])
def test_vllms_backend_takes_every_field_that_it_is_sent(anchored: bool) -> None:
    world, placement = world_of(Endpoint("h", 1, kind="vllm", options={"proof": "trust"}), anchored=anchored)
    known, required = dataclass_fields("vllm/engine", "SparsecastInitInfo")
    sent = set(init_info(world, placement))
    assert sent <= known and required <= sent
    known, required = dataclass_fields("vllm/engine", "SparsecastUpdateInfo")
    assert required <= set(update_info(7)) <= known


@pytest.mark.parametrize("anchored", [False, True], ids=["in step", "to be seeded"])
def test_sglangs_receiver_reads_what_it_is_sent(anchored: bool) -> None:
    messages = pytest.importorskip("sparsecast.engines.sglang.messages")
    endpoint = Endpoint("h", 1, world_size=2, name="sg", start_version=5, options={"may_miss": ["*.bias"]})
    world, placement = world_of(endpoint, anchored=anchored)
    body = group_request(world, placement)
    assert body["backend"] == messages.BACKEND and messages.is_ours(body["group_name"])
    info = messages.parse_group(body["group_name"])
    assert (info.secret, info.generation, info.channels, info.engine) == ("s" * 64, 3, "nccl", "sg")
    assert (info.version, info.needs_anchor, info.timeout, info.may_miss) == (5, anchored, 60.0, ("*.bias",))
    assert info.tensors == (("w", "BF16", (4, 2)), ("lm_head", "BF16", (4, 2)))
    assert info.ties == frozenset({frozenset({"lm_head", "w"})})
    for name in ("receive", "staged", "apply", "cancel"):
        phase = messages.parse_phase(phase_request(name, 10.0, 7)["action"])
        assert (phase.phase, phase.base_version) == (name, 7) and 0 < phase.timeout <= 10


def test_options_cannot_replace_what_the_control_plane_says() -> None:
    world, placement = world_of(Endpoint("h", 1, options={"proof": "trust"}), anchored=True)
    assert set(init_info(world, placement)) - {"proof"} <= RESERVED_OPTIONS
