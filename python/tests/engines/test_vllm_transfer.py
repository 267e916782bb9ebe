# SPDX-License-Identifier: Apache-2.0
"""A trainer and the workers of a vLLM server, through vLLM's own weight-transfer interface: TP 2 by two processes."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

import layout_models as layouts
import vllm_models as models
from safetensors.torch import save_file
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient
from vllm_workers import Workers

from sparsecast import Box, Layout, LocalTensor, RankLayout, Shard, ShardedPublisher, TensorTable, describe
from sparsecast.buffers import dtype_name
from sparsecast.engines.vllm.plugin import register
from sparsecast.engines.vllm.trainer import SparsecastTrainerInitInfo, SparsecastTrainerWeightTransferEngine

SECRET = "a secret of the test"
HAS_KERNELS = importlib.util.find_spec("vllm.model_executor.kernels.linear.mxfp4.pytorch") is not None


class Trainer:
    """One rank that holds the whole checkpoint as Hugging Face names it, and more tensors, of a draft."""

    def __init__(self, kind: str, more: dict[str, torch.Tensor] | None = None, unsent: tuple[str, ...] = ()) -> None:
        more = more or {}
        table = models.canonical(kind) + [(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in more.items()]
        self.tensors = {name: tensor.clone() for name, tensor in {**models.checkpoint(kind, seed=1), **more}.items()}
        pairs = kind in models.low_bit.CELLS  # 4-bit numbers are sent as such.
        sent = {name: models.low_bit.as_sent(name, t)[1] if pairs else t for name, t in self.tensors.items()}
        locals_ = [LocalTensor(name, dtype, sent[name].numel()) for name, dtype, _ in table]
        shards = [
            Shard(i, Box([0] * len(shape), shape), i, 0, sent[name].stride())
            for i, (name, _, shape) in enumerate(table)
        ]
        ties = []
        if models.config_of(kind)["tie_word_embeddings"]:
            table.append(("lm_head.weight", "BF16", models.checkpoint_shapes(kind)["model.embed_tokens.weight"]))
            ties.append(("lm_head.weight", "model.embed_tokens.weight"))
        self.layout = Layout(TensorTable(table), [RankLayout(locals_, shards)], ties)
        dtypes = {name: dtype for name, dtype, _ in table}
        memories = [describe(tensor, dtype=dtypes[name]) for name, tensor in sent.items()]
        self.publisher = ShardedPublisher(self.layout, 0, memories, unsent=list(unsent))
        self.updates = 0
        self.generation = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def init_info(self, **changes: Any) -> SparsecastTrainerInitInfo:
        self.generation += 1
        arguments: dict[str, Any] = {
            "publisher": self.publisher,
            "layout": self.layout,
            "host": "127.0.0.1",
            "port": self.port,
            "secret": SECRET,
            "engine_workers": 2,
            "generation": self.generation,
            "may_miss": ("*.attn.*_scale",),
            "timeout": 60.0,
            "rank": 0,
        }
        return SparsecastTrainerInitInfo(**{**arguments, **changes})

    def connect(self, workers: Workers, **changes: Any) -> SparsecastTrainerWeightTransferEngine:
        register()
        engine = WeightTransferTrainerFactory.trainer_init(self.init_info(**changes), client=workers)
        assert isinstance(engine, SparsecastTrainerWeightTransferEngine)
        return engine

    def step(self) -> None:
        """An optimizer step: some bits of every tensor change in place."""
        for name, tensor in models.random_updates(self.tensors, seed=100 + self.updates).items():
            models.bits_of(self.tensors[name]).copy_(models.bits_of(tensor))
        self.updates += 1


@pytest.fixture(scope="module")
def server() -> Iterator[Workers]:
    workers = Workers(size=2)
    yield workers
    workers.close()


@pytest.fixture
def make_workers(server: Workers, tmp_path: Path) -> Callable[..., Workers]:
    """The server with a model that it was started with: the checkpoint of seed 1."""

    def make(kind: str, **more: Any) -> Workers:
        save_file(models.checkpoint(kind, seed=1), str(tmp_path / "model.safetensors"))
        server.opened += 1
        server.call("open", kind=kind, folder=str(tmp_path), store=str(tmp_path / f"store-{server.opened}"), **more)
        return server

    return make


@pytest.mark.parametrize("kind", ["qwen3-tied", "qwen3-moe-fp8"])
def test_after_every_update_the_workers_hold_what_a_load_of_the_whole_checkpoint_makes(
    kind: str, make_workers: Callable[[str], Workers]
) -> None:
    workers, trainer = make_workers(kind), Trainer(kind)
    assert isinstance(workers, VLLMWeightSyncClient)
    engine = trainer.connect(workers)
    for update in range(1, 4):
        assert workers.call("differing", updates=update - 1) == [[], []]
        trainer.step()
        engine.send_weights(workers.staged if update == 2 else None)
        assert workers.call("differing", updates=update) == [[], []]
        assert workers.weight_version == str(update)
        assert [status["version"] for status in workers.call("status")] == [update, update]
    receipts = workers.call("receipt")
    assert all(r["version"] == 3 and r["base_version"] == 2 and r["elements"] > 0 for r in receipts)
    assert engine.last_report is not None
    assert engine.last_report.changed == sum(max(1, int(t.numel() * 0.02)) for t in trainer.tensors.values())


def test_every_model_of_the_layouts_is_in_the_next_test() -> None:
    assert layouts.models_of_layouts() == set(layouts.CONFIGS)


def expect_two_updates_followed(workers: Workers, trainer: Trainer) -> None:
    """Joins two workers, and compares every parameter of theirs with a fresh load after each of two updates."""
    engine = trainer.connect(workers)
    for update in (1, 2):
        trainer.step()
        engine.send_weights()
        assert workers.call("differing", updates=update) == [[], []]


@pytest.mark.parametrize("cell", layouts.CELLS)
def test_no_model_of_the_layouts_is_refused_and_each_follows_updates_in_place(
    cell: str, make_workers: Callable[[str], Workers]
) -> None:
    workers, trainer = make_workers(cell), Trainer(cell)
    names = {re.sub(r"\.\d+(?=\.)", ".{}", name) for name in models.checkpoint_shapes(cell)}
    assert names == layouts.names_in_layout(cell.split()[0])
    addresses = workers.call("addresses")
    expect_two_updates_followed(workers, trainer)
    assert workers.call("addresses") == addresses


@pytest.mark.parametrize(
    ("kind", "computed", "shadow_bytes"),
    [
        ("deepseek-v3-fp8", "model.layers.1.self_attn.mla_attn.mla_attn.W_UV", 0),
        ("nemotron-h", "model.layers.0.mixer.A", 32 + 128),
    ],
)
def test_tensors_that_the_workers_compute_follow_every_update_and_are_audited(
    kind: str, computed: str, shadow_bytes: int, make_workers: Callable[[str], Workers]
) -> None:
    workers, trainer = make_workers(kind), Trainer(kind)
    addresses = workers.call("addresses")
    modes = {"backbone.norm_f.weight": "shadow"}  # A plain copy otherwise.
    engine = trainer.connect(workers, modes=modes)
    for update in (1, 2):
        trainer.step()
        engine.send_weights()
        assert workers.call("differing", updates=update) == [[], []]
    for status in workers.call("audit"):
        assert computed in status["derived"] and status["shadow_bytes"] == shadow_bytes
    assert all(0 < r["recompute_seconds"] < r["pause_seconds"] for r in workers.call("receipt"))
    workers.call("shutdown_weight_transfer_engine")
    engine = trainer.connect(
        workers, modes=modes
    )  # The files are of version 0 by now: shadows are kept with the weights.
    trainer.step()
    engine.send_weights()
    assert workers.call("differing", updates=3) == [[], []]
    assert workers.call("addresses") == addresses
    workers.call("flip_a_bit_of", live=computed)
    failures = workers.failures("audit")
    assert all(f is not None and f.kind == "DirtyError" and f"{computed} is not what" in str(f) for f in failures)


@pytest.mark.parametrize(
    ("kind", "kernels", "live", "repacked", "in_place"),
    [
        # Norms, embeddings and the head; some shapes.
        ("llama-3.1-405b int4", "", "model.layers.1.mlp.down_proj.weight_scale", 8, 7 + 4),
        # The weights, too: the scales are cast.
        ("llama-3.1-405b fp8-channel", "", "model.layers.1.mlp.down_proj.weight_scale", 0, 7 + 14),
        # All but the experts, which Marlin pads: each worker has 48 of 96 inner rows, and zeros for the biases of one.
        pytest.param(
            *("gpt-oss-20b mxfp4", "marlin", "model.layers.1.mlp.experts.routed_experts.w2_weight", 2, 3 + 2 * 13),
            marks=pytest.mark.skipif(not HAS_KERNELS, reason="vLLM 0.32 has other kernels"),
        ),
    ],
)
def test_parameters_that_kernels_repack_are_made_of_copies_as_loaded_on_every_worker(
    kind: str, kernels: str, live: str, repacked: int, in_place: int, make_workers: Callable[..., Workers]
) -> None:
    workers, trainer = make_workers(kind, kernels=kernels), Trainer(kind)
    addresses = workers.call("addresses")
    expect_two_updates_followed(workers, trainer)
    for status in workers.call("audit"):
        assert (len(status["repacked"]), status["in_place"]) == (repacked, in_place)
    workers.call("shutdown_weight_transfer_engine")
    engine = trainer.connect(workers)  # The files are of version 0 by now: copies are kept with the weights.
    trainer.step()
    engine.send_weights()
    assert workers.call("differing", updates=3) == [[], []]
    assert workers.call("addresses") == addresses
    workers.call("flip_a_bit_of", live=live)
    failures = workers.failures("audit")
    assert all(f is not None and f.kind == "DirtyError" and f"{live} is not what" in str(f) for f in failures)


def test_experts_that_a_kernel_keeps_in_another_order_are_made_of_copies_too(
    make_workers: Callable[..., Workers],
) -> None:
    kind = "qwen3-30b-a3b bf16"
    workers, trainer = make_workers(kind, kernels="swapped"), Trainer(kind)
    addresses = workers.call("addresses")
    for update in (1, 2):
        engine = trainer.connect(workers)  # The second time the files are of no use any more.
        trainer.step()
        engine.send_weights()
        assert workers.call("differing", updates=update) == [[], []]
        experts = [f"model.layers.{layer}.mlp.experts.routed_experts" for layer in (0, 1)]
        assert [status["repacked"] for status in workers.call("audit")] == [experts, experts]
        workers.call("shutdown_weight_transfer_engine")
    assert workers.call("addresses") == addresses


FORCED = {
    "*.q_proj.weight": "nan_masked",  # fp8, of which every worker has some rows of a fused parameter
    "*.k_proj.weight": "dense",
    "*.experts.0.*": "nan_masked",  # a part of a stacked parameter, and its scales
    "*.experts.1.*": "dense",
    "*.experts.2.*": "shadow",
    "*norm.weight": "nan_masked",
    "lm_head.weight": "dense",
}


def test_each_mode_can_be_forced_and_leaves_what_a_load_of_the_whole_checkpoint_makes(
    make_workers: Callable[[str], Workers],
) -> None:
    kind = "qwen3-moe-fp8"
    workers, trainer = make_workers(kind), Trainer(kind)
    addresses = workers.call("addresses")
    engine = trainer.connect(workers, modes=FORCED, entry_bytes=1 << 20)
    for update in (1, 2, 3):
        trainer.step()
        engine.send_weights()
        assert workers.call("differing", updates=update) == [[], []]
    assert workers.call("addresses") == addresses
    for status in workers.call("audit"):
        names = {mode: list(reasons) for mode, reasons in status["modes"].items()}
        assert " ".join(names["nan_masked"]).count("q_proj.weight") == 2 and "lm_head.weight" in names["dense"]
        assert all(".experts.2." in name for name in names["shadow"]) and len(names["shadow"]) == 12
        assert status["in_place"] + sum(map(len, names.values())) == len(trainer.tensors)
        # Random bits have NaNs: tensors with a changed one among them were loaded whole, the others masked.
        assert 0 < len(status["loaded_whole"]) < len(names["nan_masked"])
    workers.call("flip_a_bit_of", live="model.layers.1.self_attn.qkv_proj.weight")
    assert all(f is not None and f.kind == "DirtyError" for f in workers.failures("audit"))


def test_an_engine_on_another_version_refuses_and_is_right_after_it_has_joined_again(
    make_workers: Callable[[str], Workers],
) -> None:
    workers, trainer = make_workers("llama"), Trainer("llama")
    engine = trainer.connect(workers)
    trainer.step()
    workers.start_weight_update()
    sync = ThreadPoolExecutor(1).submit(trainer.publisher.sync, 30.0)
    failures = workers.failures("update_weights", update_info={"base_version": 7})
    assert all(f is not None and f.kind == "VersionGapError" for f in failures)
    assert "is on version 0, and the update starts from 7" in str(failures[0])
    assert sync.exception() is not None
    assert workers.call("differing", updates=0) == [[], []]
    engine = trainer.connect(workers)
    engine.send_weights()
    assert workers.call("differing", updates=1) == [[], []]


def test_a_wrong_secret_lets_no_worker_in(make_workers: Callable[[str], Workers]) -> None:
    workers, trainer = make_workers("llama"), Trainer("llama")
    info = trainer.init_info(timeout=5.0).for_workers()
    meeting = ThreadPoolExecutor(1).submit(lambda: trainer.connect(NobodyToTell(), timeout=5.0))
    failures = workers.failures(
        "init_weight_transfer_engine",
        init_info={**info, "secret": "another secret of the test", "generation": trainer.generation},
    )
    assert meeting.exception() is not None
    assert all(f is not None and f.kind in ("UnauthenticatedError", "DeadlineError") for f in failures)
    assert any(f is not None and f.kind == "UnauthenticatedError" for f in failures)
    assert workers.call("differing", updates=0) == [[], []]


def test_a_trainer_does_not_take_the_engine_back_from_one_that_joined_after_it(
    make_workers: Callable[[str], Workers],
) -> None:
    workers, first, second = make_workers("llama"), Trainer("llama"), Trainer("llama")
    first.connect(workers, trainer="first").reconnect()
    engine = second.connect(workers, trainer="second")
    failures = workers.failures("init_weight_transfer_engine", init_info=first.init_info(trainer="first").for_workers())
    assert [f.kind for f in failures if f is not None] == ["FencedError", "FencedError"]
    assert "second has joined it after first" in str(failures[0])
    second.step()
    engine.send_weights()
    assert workers.call("differing", updates=1) == [[], []], "the group of the second one was disturbed"
    assert second.init_info().trainer != second.init_info().trainer


class NobodyToTell(Workers):
    """A client whose server has been told by somebody else."""

    def __init__(self) -> None:
        pass

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        pass


def test_names_that_the_engine_does_not_know_are_said_by_every_worker(make_workers: Callable[[str], Workers]) -> None:
    workers, trainer = make_workers("llama"), Trainer("llama")
    info = trainer.init_info().for_workers()
    entries = [e if e[0] != "model.norm.weight" else ["model.nrm.weight", *e[1:]] for e in info["tensors"]]
    failures = workers.failures("init_weight_transfer_engine", init_info={**info, "tensors": entries})
    assert [f.kind for f in failures if f is not None] == ["UsageError", "UsageError"]
    assert "no place for 'model.nrm.weight' (nearest: 'model.norm.weight'," in str(failures[0])


def test_weights_that_a_kernel_keeps_in_another_order_are_found_by_their_bytes(
    make_workers: Callable[[str], Workers],
) -> None:
    workers, trainer = make_workers("llama"), Trainer("llama")
    workers.ask(0, "swap_gate_and_up", {})
    info = trainer.init_info().for_workers()
    failures = workers.failures("init_weight_transfer_engine", init_info=info)
    assert [f.kind for f in failures if f is not None] == ["UnsupportedError", "PeerFailedError"]
    assert "'model.layers.0.mlp.gate_proj.weight'" in str(failures[0])
    assert "rank 0: UnsupportedError" in str(failures[1])


def test_an_engine_that_has_started_anew_from_its_checkpoint_is_brought_to_the_trainers_version(
    make_workers: Callable[[str], Workers],
) -> None:
    workers, trainer = make_workers("qwen3-moe"), Trainer("qwen3-moe")
    engine = trainer.connect(workers)
    for _ in range(2):
        trainer.step()
        engine.send_weights()
    make_workers("qwen3-moe")
    assert workers.call("differing", updates=0) == [[], []]
    engine = trainer.connect(workers)
    assert [status["version"] for status in workers.call("status")] == [2, 2]
    assert workers.call("differing", updates=2) == [[], []]
    trainer.step()
    engine.send_weights()
    assert workers.call("differing", updates=3) == [[], []]


def test_vllms_own_order_of_calls_holds(make_workers: Callable[[str], Workers]) -> None:
    workers, trainer = make_workers("llama"), Trainer("llama")
    assert all("before any update" in str(f) for f in workers.failures("start_weight_update"))
    trainer.connect(workers)
    failures = workers.failures("init_weight_transfer_engine", init_info={"host": "127.0.0.1"})
    assert all(f is not None and f.kind == "ValueError" for f in failures)
    assert all("update_weights" in str(f) for f in workers.failures("update_weights", update_info={}))


def test_every_field_of_the_init_info_is_plain_json() -> None:
    info = Trainer("llama").init_info(entry_bytes=1 << 20).for_workers()
    assert json.loads(json.dumps(info)) == info
    assert info["entry_bytes"] == 1 << 20 and "entry_bytes" not in Trainer("llama").init_info().for_workers()


def test_the_trainers_weights_are_what_the_test_thinks() -> None:
    trainer = Trainer("llama")
    trainer.step()
    expected = models.random_updates(models.checkpoint("llama", seed=1), seed=100)
    assert all(torch.equal(models.bits_of(trainer.tensors[n]), models.bits_of(t)) for n, t in expected.items())
