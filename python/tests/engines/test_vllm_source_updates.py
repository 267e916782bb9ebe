# SPDX-License-Identifier: Apache-2.0
"""Updates of real workers by trainers that hand their weights over as vLLM's `WeightSource`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import vllm_models as models
from safetensors.torch import save_file
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory, base
from vllm_sources import LOCAL, Whole, module_of
from vllm_workers import Workers

from sparsecast.engines.vllm import plugin
from sparsecast.engines.vllm.trainer import SparsecastTrainerInitInfo, SparsecastTrainerWeightTransferEngine
from sparsecast.errors import UsageError

needs_iter_local = pytest.mark.skipif(not LOCAL, reason="this vLLM's sources yield whole tensors only")


class Server(Workers):
    """Workers that a client can ask for their number."""

    base_url = None

    def get_world_size(self) -> int:
        return len(self.processes)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    workers = Server(size=2)
    yield workers
    workers.close()


@pytest.fixture
def make_workers(server: Server, tmp_path: Path) -> Callable[[str], Server]:
    """The server with a model that it was started with: the checkpoint of seed 1."""

    def make(kind: str) -> Server:
        save_file(models.checkpoint(kind, seed=1), str(tmp_path / "model.safetensors"))
        server.opened += 1
        server.call("open", kind=kind, folder=str(tmp_path), store=str(tmp_path / f"store-{server.opened}"))
        return server

    return make


def connect(workers: Any, source: Any, **fields: Any) -> SparsecastTrainerWeightTransferEngine:
    plugin.register()
    info = SparsecastTrainerInitInfo(rank=0, host="127.0.0.1", may_miss=("*.attn.*_scale",), timeout=60.0, **fields)
    engine = WeightTransferTrainerFactory.trainer_init(info, client=workers, source=source)
    assert isinstance(engine, SparsecastTrainerWeightTransferEngine)
    return engine


@pytest.mark.parametrize(("kind", "source"), [("qwen3-moe", base.ModuleSource), ("qwen3-tied", Whole)])
def test_a_source_keeps_the_workers_bit_for_bit(kind: str, source: Any, make_workers: Callable[[str], Server]) -> None:
    workers, module = make_workers(kind), module_of(kind)
    engine = connect(workers, source(module))
    for update in range(1, 4):
        module.step(seed=99 + update)
        engine.send_weights()
        assert workers.call("differing", updates=update) == [[], []]
        assert workers.weight_version == str(update)
    assert engine.last_report is not None
    assert engine.last_report.changed == sum(max(1, int(p.numel() * 0.02)) for p in module.parameters())
    engine.shutdown()


def test_after_a_failed_transfer_the_trainer_connects_again(make_workers: Callable[[str], Server]) -> None:
    workers, module = make_workers("llama"), module_of("llama")
    engine = connect(workers, base.ModuleSource(module))
    module.step(seed=100)
    workers.call("abandon", reason="a test")
    with pytest.raises(Exception, match=r"."):
        engine.send_weights()
    with pytest.raises(UsageError, match="reconnect"):
        engine.send_weights()
    assert workers.call("differing", updates=0) == [[], []]
    engine.reconnect()
    engine.send_weights()
    assert workers.call("differing", updates=1) == [[], []]
    engine.shutdown()


def test_an_audit_reads_all_weights_and_names_a_tensor_that_is_not_of_the_version(
    make_workers: Callable[[str], Server],
) -> None:
    workers, module = make_workers("llama"), module_of("llama")
    engine = connect(workers, base.ModuleSource(module))
    assert [(s["version"], s["state"]) for s in workers.call("audit")] == [(0, "ready")] * 2
    workers.start_weight_update()
    assert all("an update is under way" in str(f) for f in workers.failures("audit"))
    engine.shutdown()  # Which ends the workers' wait.
    workers.failures("finish_weight_update")
    workers.failures("finish_weight_update")
    workers.ask(1, "flip_a_bit", {})
    failures = workers.failures("audit")
    assert failures[0] is None
    assert failures[1] is not None
    assert failures[1].kind == "DirtyError"
    assert "embed_tokens" in str(failures[1])
    assert [s["state"] for s in workers.call("status")] == ["broken", "dirty"]


def test_an_engine_that_refuses_ends_the_trainers_wait_with_its_reason(make_workers: Callable[[str], Server]) -> None:
    workers, module = make_workers("llama"), module_of("llama")
    workers.ask(0, "swap_gate_and_up", {})
    with pytest.raises(Exception, match=r"the engine failed: .*gate_proj"):
        connect(workers, base.ModuleSource(module), channels="control")


@needs_iter_local
def test_ranks_of_a_sharded_trainer_send_what_they_hold(make_workers: Callable[[str], Server], tmp_path: Path) -> None:
    workers = make_workers("qwen3-moe")
    script = Path(__file__).with_name("vllm_source_rank.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "trainer"), "qwen3-moe"],
            stdin=subprocess.PIPE if rank == 0 else None,
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        served = ThreadPoolExecutor(1).submit(serve, workers, ranks[0])
        for process in ranks:
            assert process.wait(timeout=180) == 0
        assert served.result(30) == 2
    finally:
        for process in ranks:
            process.kill()
    assert workers.call("differing", updates=2) == [[], []]


def serve(workers: Workers, rank0: subprocess.Popen[str]) -> int:
    """Passes the calls of a trainer in another process on to the workers; returns the number of updates."""
    assert rank0.stdin is not None
    assert rank0.stdout is not None
    updates = 0
    for line in rank0.stdout:
        if not line.startswith("CALL "):
            continue
        name, arguments = json.loads(line[5:])
        updates += name == "update_weights"
        try:
            getattr(workers, name)(*arguments)
            answer = ""
        except Exception as error:
            answer = str(error)
        rank0.stdin.write(json.dumps(answer) + "\n")
        rank0.stdin.flush()
    return updates
