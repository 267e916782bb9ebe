# SPDX-License-Identifier: Apache-2.0
"""Live vLLM servers of several workers, by pipeline stages and by data-parallel replicas."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM for CPUs is not installed here", allow_module_level=True)

from conftest import Start
from live_load import Load, probe, reload
from live_servers import LiveServer
from live_trainer import POLICY, Trainer


def checksums(server: LiveServer) -> dict[str, str]:
    """vLLM's own checksums of all workers' parameters."""
    found: dict[str, str] = server.post("/weight_checker", {"action": "checksum"})["checksums"]
    return found


@pytest.mark.parametrize(("cut", "pause"), [("pipeline", "retract"), ("data", "keep")])
def test_every_worker_holds_its_part_of_what_vllm_would_have_loaded(
    start: Start, model: Path, tmp_path: Path, cut: str, pause: str
) -> None:
    server = start(model, ranks=2, cut=cut).wait()
    replicas = [0, 1] if cut == "data" else [None]
    trainer = Trainer(model)
    try:
        trainer.add(server)
        first = trainer.plane.sync_now()
        assert first.result == "ok" and first.source["changed"] == 0
        before = [probe(server, replica) for replica in replicas]
        load = Load([server], 4)
        with load.running():
            report = trainer.sync(replace(POLICY, pause=pause))
        assert report.result == "ok" and report.endpoints[0].lease is True and not load.failures
        server.post("/reset_prefix_cache")
        now = [probe(server, replica) for replica in replicas]
        held = checksums(server)
        assert now != before and len(set(now)) == 1 and server.version() == "2"
        reload(server, trainer.save(tmp_path / "checkpoint"))
        assert [probe(server, replica) for replica in replicas] == now
        assert checksums(server) == held
        states = server.states()
        assert all(state["version"] == 2 and state["state"] == "ready" for state in states)
        layers = {name.split(":")[0] if cut == "data" else name.split(":")[1] for name in held}
        if cut == "data":  # vLLM shows the workers of the first replica only.
            assert layers == {"dp0", "dp1"} and [state["rank"] for state in states] == [0]
        else:
            assert layers == {"pp0", "pp1"} and [state["rank"] for state in states] == [0, 1]
            received = [state["received_bytes"] for state in states]
            assert all(0 < one < 0.75 * report.source["sent_bytes"] for one in received)
    finally:
        trainer.close()
        server.kill()
