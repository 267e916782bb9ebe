# SPDX-License-Identifier: Apache-2.0
"""Trainers that hand their weights over as vLLM's `WeightSource`: layout, memory, versions and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models
from vllm.distributed.weight_transfer import base
from vllm_sources import LOCAL, Whole, module_of

from sparsecast import Box
from sparsecast.engines import release
from sparsecast.engines.vllm import plugin
from sparsecast.engines.vllm.meeting import Place, settle, worker_states
from sparsecast.engines.vllm.source import SourceWeights, pieces_of
from sparsecast.errors import UnsupportedError, UsageError

needs_iter_local = pytest.mark.skipif(not LOCAL, reason="this vLLM's sources yield whole tensors only")


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

    assert plugin.SUPPORTED[0] <= (release.parse_version(vllm.__version__, 2) or (0, 0)) <= plugin.SUPPORTED[1]
    said: list[str] = []
    monkeypatch.setattr(plugin._logger, "warning", lambda words, *values: said.append(words % values))
    plugin.check_version()
    assert said == []
    monkeypatch.setattr(vllm, "__version__", "0.40.1")
    monkeypatch.setattr(release, "_said", set())
    plugin.check_version()
    plugin.check_version()
    assert said == ["sparsecast is made for vLLM 0.28 to 0.33; this is 0.40.1, which may differ"]
    monkeypatch.setattr(vllm, "__version__", "0.27.1")
    with pytest.raises(UnsupportedError, match="has another weight-transfer interface"):
        plugin.check_version()


def test_what_an_older_vllm_lacks_is_said_once_with_what_that_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.engine.protocol import EngineClient

    said: list[str] = []
    monkeypatch.setattr(plugin._logger, "warning", lambda words, *values: said.append(words % values))
    before = plugin.missing()
    for name in ("shutdown_weight_transfer_engine", "release_kv_cache_memory"):
        monkeypatch.delattr(EngineClient, name)
    monkeypatch.setattr(release, "_said", set())
    plugin.say_what_is_missing()
    plugin.say_what_is_missing()
    assert len(said) == len(before) + 2
    assert "leave their group" in said[-2] and "KV cache sleep alone" in said[-1]


def test_servers_that_move_experts_are_refused() -> None:
    from vllm.config import ParallelConfig

    from sparsecast.engines.vllm.model import refuse_moving_experts

    parallel = ParallelConfig()
    refuse_moving_experts(parallel)
    parallel.enable_eplb = True
    with pytest.raises(UnsupportedError, match="--enable-eplb"):
        refuse_moving_experts(parallel)
