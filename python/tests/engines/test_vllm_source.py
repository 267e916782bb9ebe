# SPDX-License-Identifier: Apache-2.0
"""Trainers that hand their weights over as vLLM's `WeightSource`: layout, memory, and updates of real workers."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models
from safetensors.torch import save_file
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory, base
from vllm_workers import Workers

from sparsecast import Box
from sparsecast.engines import vllm_plugin
from sparsecast.engines._vllm_server import Place, settle, worker_states
from sparsecast.engines._vllm_source import SourceWeights, pieces_of
from sparsecast.engines.vllm_trainer import SparsecastTrainerInitInfo, SparsecastTrainerWeightTransferEngine
from sparsecast.errors import UnsupportedError, UsageError

LOCAL = hasattr(base.WeightSource, "iter_local")  # Since vLLM 0.33.
needs_iter_local = pytest.mark.skipif(not LOCAL, reason="this vLLM's sources yield whole tensors only")


class Module(torch.nn.Module):
    """Parameters under the dotted names of a checkpoint."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            owner: torch.nn.Module = self
            *path, leaf = name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner._modules[part]  # type: ignore[assignment]
            owner.register_parameter(leaf, torch.nn.Parameter(tensor.clone(), requires_grad=False))

    def step(self, seed: int) -> None:
        """An optimizer step: some bits of every tensor change in place."""
        tensors = {name: p.data for name, p in self.named_parameters()}
        ordered = {name: tensors[name] for name in sorted(tensors, key=self.order)}
        for name, tensor in models.random_updates(ordered, seed).items():
            models.bits_of(tensors[name]).copy_(models.bits_of(tensor))

    names: list[str] = []

    def order(self, name: str) -> int:
        return self.names.index(name)


def module_of(kind: str) -> Module:
    tensors = models.checkpoint(kind, seed=1)
    module = Module(tensors)
    module.names = list(tensors)
    return module


class Whole(base.WeightSource):
    """Whole tensors, made anew in every pass, for both versions of vLLM."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    if LOCAL:

        @cached_property
        def metadata(self) -> list[Any]:
            return [base.ParamMeta(n, p.dtype, tuple(p.shape)) for n, p in self.module.named_parameters()]

        def iter_full(self) -> Iterator[tuple[str, torch.Tensor]]:
            for name, parameter in self.module.named_parameters():
                yield name, parameter.detach().clone()

    else:

        def metadata(self) -> list[Any]:
            return [base.ParamMeta(n, p.dtype, tuple(p.shape)) for n, p in self.module.named_parameters()]

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            for name, parameter in self.module.named_parameters():
                yield name, parameter.detach().clone()


class Listed:
    """A source by its metadata and what it yields; structural, as the backend reads sources."""

    def __init__(self, metadata: list[Any], passes: Callable[[], list[tuple[str, torch.Tensor]]]) -> None:
        self.metadata = metadata
        self.passes = passes

    def implements_iter_local(self) -> bool:
        return True

    def iter_local(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.passes()


class Meta:
    """`ParamMeta` of vLLM 0.33, for either version."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, **layout: Any) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.owners = layout.get("owners")
        self.mesh_shape = layout.get("mesh_shape")
        self.placements = layout.get("placements")


class Cut:
    def __init__(self, dim: int) -> None:
        self.dim = dim


def test_pieces_are_cut_as_torch_chunk_cuts_them() -> None:
    tensor = torch.arange(7 * 5).view(7, 5)
    meta = Meta("w", (7, 5), owners=(3, 1, 0, 2), mesh_shape=(2, 2), placements=(Cut(0), Cut(0)))
    (piece,) = pieces_of(Listed([meta], list), ranks=4)
    for position, owner in enumerate((3, 1, 0, 2)):
        expected = tensor.chunk(2)[position // 2].chunk(2)[position % 2]
        box = piece.boxes[owner]
        assert box is not None
        (top, left), (rows, columns) = box.offset, box.extent
        assert torch.equal(tensor[top : top + rows, left : left + columns], expected)


@needs_iter_local
def test_the_metadata_of_vllm_gives_the_boxes() -> None:
    meta = base.ParamMeta(
        "w",
        torch.bfloat16,
        (4, 6),
        owners=(0, 1, 2, 3),
        mesh_shape=(2, 2),
        placements=(base.Replicate(), base.Shard(1)),
    )
    (piece,) = pieces_of(Listed([meta], list), ranks=4)
    assert piece.boxes == (Box([0, 0], [4, 3]), Box([0, 3], [4, 3])) * 2


def test_whole_tensors_are_published_by_one_rank_each_in_turn() -> None:
    module = module_of("llama")
    pieces = pieces_of(Whole(module), ranks=2)
    owners = [[rank for rank, box in enumerate(piece.boxes) if box is not None] for piece in pieces]
    assert owners[:4] == [[0], [1], [0], [1]]


def test_an_owner_that_is_no_rank_of_the_trainer_is_named() -> None:
    with pytest.raises(UsageError, match="rank 4 owns it, and the trainer has 2 ranks"):
        pieces_of(Listed([Meta("w", (4,), owners=(0, 4))], list), ranks=2)


def weights(tensors: list[tuple[str, torch.Tensor]], **options: Any) -> SourceWeights:
    metadata = [Meta(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors]
    return SourceWeights(Listed(metadata, lambda: tensors), 0, 1, **options)


def test_memory_that_a_source_keeps_is_published_where_it_is() -> None:
    module = module_of("llama")
    source = base.ModuleSource(module)
    held = SourceWeights(source, 0, 1)
    addresses = {p.data_ptr() for p in module.parameters()}
    assert held.copied == 0
    assert {t.data_ptr() for t in held.tensors} == addresses


def test_what_a_pass_makes_is_copied() -> None:
    module = module_of("llama")
    held = SourceWeights(Whole(module), 0, 1)
    assert held.copied == len(held.tensors)
    held.refresh()
    module.step(seed=5)
    held.refresh()
    for tensor, parameter in zip(held.tensors, module.parameters(), strict=True):
        assert torch.equal(models.bits_of(tensor), models.bits_of(parameter.data.view(-1)))


def test_a_buffer_that_all_tensors_go_through_is_not_taken_for_their_memory() -> None:
    buffer = torch.zeros(6, dtype=torch.bfloat16)

    def passes() -> Iterator[tuple[str, torch.Tensor]]:
        for value, name in enumerate("abc"):
            yield name, buffer[: 4 + value].fill_(value)

    metadata = [Meta(name, (4 + value,)) for value, name in enumerate("abc")]
    held = SourceWeights(Listed(metadata, passes), 0, 1)  # type: ignore[arg-type]
    held.refresh()
    assert [t.tolist() for t in held.tensors] == [[0] * 4, [1] * 5, [2] * 6]


def test_weights_that_move_are_named_unless_they_are_copied() -> None:
    tensors = [("a", torch.ones(4, dtype=torch.bfloat16)), ("b", torch.ones(4, dtype=torch.bfloat16))]
    in_place, copied = weights(tensors), weights(tensors, copy=True)
    assert (in_place.copied, copied.copied) == (0, 2)
    tensors[1] = ("b", torch.full((4,), 2.0, dtype=torch.bfloat16))
    with pytest.raises(UsageError, match=r"copy=True") as refused:
        in_place.refresh()
    assert "'b'" in str(refused.value)
    copied.refresh()
    assert copied.tensors[1].tolist() == [2.0] * 4


def test_fp32_stays_a_master_of_bf16_and_other_casts_are_copied() -> None:
    masters = weights([("a", torch.ones(4))], wire_dtype=torch.bfloat16)
    assert (masters.has_masters, masters.copied) == (True, 0)
    halves = weights([("a", torch.full((4,), 1.5, dtype=torch.float64))], wire_dtype=torch.float16)
    halves.refresh()
    assert (halves.has_masters, halves.copied) == (False, 1)
    assert halves.tensors[0].dtype == torch.float16
    assert halves.tensors[0].tolist() == [1.5] * 4


@pytest.mark.parametrize(
    ("yielded", "words"),
    [
        ([("a", torch.zeros(3))], "by its metadata rank 0 has"),
        ([("a", torch.zeros(4, dtype=torch.int32))], "torch.int32 is not cast"),
        ([], "has not yielded 1 tensors"),
        ([("a", torch.zeros(4)), ("a", torch.zeros(4))], "yields it twice"),
        ([("b", torch.zeros(4))], "its metadata does not have it"),
    ],
)
def test_a_source_that_does_not_yield_what_it_declares_is_refused(yielded: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SourceWeights(Listed([Meta("a", (4,), torch.float32)], lambda: yielded), 0, 1)


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._say({"world_size": 6})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say({"results": [{"state": "staged"}, {"state": "receiving"}]})

    def _say(self, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *unused: Any) -> None:
        pass


def test_the_server_is_asked_for_what_the_init_info_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSECAST_SECRET", raising=False)
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        client = base_client(f"http://127.0.0.1:{server.server_port}")
        place = settle(Place("", 0, "", 0), client, rank=0, ranks=1)
        assert worker_states(client) == ["staged", "receiving"]
        server.shutdown()
    assert (place.host, place.engine_workers) == ("127.0.0.1", 6)
    assert place.port > 0
    assert len(place.secret) >= 32
    with pytest.raises(UsageError, match="give engine_workers"):
        settle(Place("h", 1, "s" * 16, 0), object(), rank=0, ranks=1)
    with pytest.raises(UsageError, match="must be told host, secret"):
        settle(Place("", 1, "", 2), client, rank=0, ranks=2)


def base_client(url: str) -> Any:
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

    return HTTPVLLMWeightSyncClient(url)


def test_versions_that_are_not_tested_are_said(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    import vllm

    assert vllm_plugin.TESTED[0] <= (vllm_plugin._parsed(vllm.__version__) or (0, 0)) <= vllm_plugin.TESTED[1]
    said: list[str] = []
    monkeypatch.setattr(vllm_plugin._logger, "warning", lambda words, *values: said.append(words % values))
    vllm_plugin.check_version()
    assert said == []
    monkeypatch.setattr(vllm, "__version__", "0.40.1")
    monkeypatch.setattr(vllm_plugin, "_said", False)
    vllm_plugin.check_version()
    vllm_plugin.check_version()
    assert said == ["sparsecast is tested with vLLM 0.32 to 0.33; this is 0.40.1, which may differ"]
    monkeypatch.setattr(vllm, "__version__", "0.31.0")
    with pytest.raises(UnsupportedError, match="has another weight-transfer interface"):
        vllm_plugin.check_version()


def test_servers_that_move_experts_are_refused() -> None:
    from vllm.config import ParallelConfig

    from sparsecast.engines.vllm import refuse_moving_experts

    parallel = ParallelConfig()
    refuse_moving_experts(parallel)
    parallel.enable_eplb = True
    with pytest.raises(UnsupportedError, match="--enable-eplb"):
        refuse_moving_experts(parallel)


# -- updates of workers ------------------------------------------------------------------------------------------------


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
    vllm_plugin.register()
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


@pytest.mark.parametrize("draft", [None, "a-draft"])
def test_a_draft_model_that_stays_behind_is_said(draft: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsecast.engines import vllm as worker

    said: list[str] = []
    monkeypatch.setattr(worker._logger, "warning", lambda words, *values: said.append(words % values))
    engine = object.__new__(worker.SparsecastWeightTransferEngine)
    engine.receiver = None
    model = types.SimpleNamespace(model=draft) if draft else None
    engine.vllm_config = types.SimpleNamespace(speculative_config=types.SimpleNamespace(draft_model_config=model))
    engine._say_stale_draft()
    assert [words.partition(" is not")[0] for words in said] == (["the draft model a-draft"] if draft else [])
    assert not worker.SparsecastWeightTransferEngine.supports_draft_weight_update


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
