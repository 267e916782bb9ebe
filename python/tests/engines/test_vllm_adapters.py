# SPDX-License-Identifier: Apache-2.0
"""Adapters into vLLM's own LoRA manager and layers, against fresh loads of saved adapters by vLLM."""

from __future__ import annotations

import asyncio
import pathlib
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "adapters"))

import vllm_models as models
from adapter_files import same, step
from vllm.config import VllmConfig
from vllm_adapters import RANKS, Server, fresh, kind_of, make, save, with_adapters
from vllm_workers import Workers

from sparsecast import errors
from sparsecast.adapters import Adapter, AdapterReceiver, VllmEngine, checkpoint_shapes
from sparsecast.adapters.own_server import VllmOwnServer
from sparsecast.torch import Log, Publisher


@pytest.fixture(scope="module", params=["llama", "llama-fp8"])
def config(request: pytest.FixtureRequest) -> Iterator[VllmConfig]:
    chosen = with_adapters(models.config(request.param))
    models.start(chosen)
    try:
        yield chosen
    finally:
        models.stop()


@pytest.mark.parametrize("wire_dtype", [torch.bfloat16, None])
def test_every_version_is_that_of_a_fresh_load_and_the_base_is_untouched(
    config: VllmConfig, tmp_path: pathlib.Path, wire_dtype: torch.dtype | None
) -> None:
    server = Server(config)
    base, stacks = server.base(), server.stacks()
    engine = VllmEngine(server)
    receiver = AdapterReceiver(engine, tmp_path / "served")
    adapters = {name: make(kind_of(config), name, seed, rank) for seed, (name, rank) in enumerate(RANKS.items())}
    ends: dict[str, Publisher] = {}
    logs: dict[str, Log] = {}
    for name, adapter in adapters.items():
        logs[name] = Log(str(tmp_path / f"{name}.log"), mirror=str(tmp_path / f"{name}.safetensors"))
        ends[name] = Publisher(adapter.tensors.items(), transport=logs[name], wire_dtype=wire_dtype)
        receiver.add(adapter.spec(wire_dtype), logs[name])
    for update in range(4):
        name = ("math", "code")[update % 2]
        other = ("code", "math")[update % 2]
        untouched = server.of(engine.request(other).lora_int_id)
        step(adapters[name], update)
        ends[name].publish()
        path = engine.request(name).lora_path
        receiver.update(name)
        assert engine.request(name).lora_path != path, "vLLM's prefix cache knows versions by their path"
        expected = fresh(config, name, save(adapters[name], tmp_path / f"saved{update}"))
        assert same(server.of(engine.request(name).lora_int_id), expected)
        assert same(server.of(engine.request(other).lora_int_id), untouched)
    assert any(tensor.any() for tensor in expected.values())
    number = engine.request("math").lora_int_id
    receiver.remove("math")
    assert server.list_loras() == {engine.request("code").lora_int_id} and number not in server.list_loras()
    step(adapters["code"], 9)
    ends["code"].publish()
    receiver.update("code")
    expected = fresh(config, "code", save(adapters["code"], tmp_path / "saved-last"))
    assert same(server.of(engine.request("code").lora_int_id), expected)
    receiver.add(adapters["math"].spec(wire_dtype), logs["math"])
    assert len(server.list_loras()) == 2
    assert same(server.base(), base) and server.stacks() == stacks
    for end in ends.values():
        end.close()


@pytest.mark.parametrize(
    ("rank", "config_of", "words"),
    [
        (16, {}, "LoRA rank 16 is greater than max_lora_rank 8"),
        (4, {"alora_invocation_tokens": [1, 2]}, "Activated LoRA"),
        (4, {"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
    ],
)
def test_what_vllm_refuses_changes_nothing(
    config: VllmConfig, tmp_path: pathlib.Path, rank: int, config_of: dict[str, Any], words: str
) -> None:
    server = Server(config)
    engine = VllmEngine(server)
    receiver = AdapterReceiver(engine, tmp_path / "served")
    kind = kind_of(config)
    good, bad = make(kind, "good", 1, 4), make(kind, "bad", 2, rank, **config_of)
    logs = {a.name: Log(str(tmp_path / f"{a.name}.log"), mirror=str(tmp_path / f"{a.name}.st")) for a in (good, bad)}
    with Publisher(good.tensors.items(), transport=logs["good"]), Publisher(bad.tensors.items(), transport=logs["bad"]):
        receiver.add(good.spec(), logs["good"])
        before = server.of(1)
        with pytest.raises(errors.UnsupportedError, match=f"adapter 'bad': vLLM refuses it: .*{words}"):
            receiver.add(bad.spec(), logs["bad"])
    assert receiver.versions.keys() == {"good"} and server.list_loras() == {1} and same(server.of(1), before)
    with pytest.raises(errors.UsageError, match="no such adapter"):
        engine.request("bad")


def test_layers_that_vllm_would_pass_over_are_refused_by_the_shapes_of_the_checkpoint(
    config: VllmConfig, tmp_path: pathlib.Path
) -> None:
    server = Server(config)
    receiver = AdapterReceiver(VllmEngine(server), tmp_path / "served", base=models.checkpoint_shapes(kind_of(config)))
    adapter = make(kind_of(config), "deep", 1, 4, layers=models.LAYERS + 1)
    with pytest.raises(
        errors.UsageError, match=r"'model.layers.2.self_attn.q_proj': the base model has no such module"
    ):
        receiver.add(adapter.spec(), Log(str(tmp_path / "deep.log")))
    assert server.list_loras() == set()


def test_an_adapter_trained_over_four_bits_is_served_over_a_base_in_bf16(
    config: VllmConfig, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("bitsandbytes")
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

    if kind_of(config) != "llama":
        pytest.skip("its sizes in bitsandbytes' blocks are those of the other base")
    torch.manual_seed(5)
    LlamaForCausalLM(LlamaConfig(**models.config_of("llama"))).bfloat16().save_pretrained(tmp_path / "base")
    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", quantization_config=packed, device_map="cpu", dtype=torch.bfloat16
    )
    model.save_pretrained(tmp_path / "packed")
    shapes = checkpoint_shapes(tmp_path / "packed")
    assert {name: shapes[name] for name in models.checkpoint_shapes("llama")} == models.checkpoint_shapes("llama")
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)

    def train() -> None:
        tokens = torch.arange(12)[None]
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def four_bits() -> dict[str, torch.Tensor]:
        """The packed base as it would be saved: for passes bitsandbytes arranges it otherwise on some CPUs."""
        state = model.state_dict()
        return {name: each.clone() for name, each in state.items() if name.endswith((".base_layer.weight", ".absmax"))}

    train()  # In its first pass bitsandbytes arranges scales for the CPU.
    trained_over = four_bits()
    assert sum(each.dtype == torch.uint8 for each in trained_over.values()) >= 3 * models.LAYERS
    server = Server(config)
    base = server.base()
    engine = VllmEngine(server)
    receiver = AdapterReceiver(engine, tmp_path / "served", base=shapes)
    adapter = Adapter.from_peft(model)
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"))
    with Publisher(adapter.tensors.items(), transport=log, wire_dtype=torch.bfloat16) as end:
        receiver.add(adapter.spec(torch.bfloat16), log)
        for update in range(3):
            train()
            assert end.publish().changed > 0
            receiver.update("default")
            model.save_pretrained(tmp_path / f"saved{update}")
            expected = fresh(config, "default", tmp_path / f"saved{update}")
            assert same(server.of(1), expected) and any(tensor.any() for tensor in expected.values())
    assert same(server.base(), base) and same(four_bits(), trained_over)
    narrow = {**shapes, "model.layers.0.self_attn.q_proj.weight": (64, 32)}
    with pytest.raises(errors.UsageError, match=r"B @ A is \[64, 64\], and the base model has \[64, 32\]"):
        AdapterReceiver(engine, tmp_path / "other", base=narrow).add(adapter.spec(torch.bfloat16), log)


class OfWorkers:
    """The two calls of a vLLM engine, which reach every worker."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def add_lora(self, request: Any) -> None:
        self._workers.call(
            "add_lora",
            adapter=request.lora_name,
            number=request.lora_int_id,
            path=request.lora_path,
            load_inplace=request.load_inplace,
        )

    def remove_lora(self, number: int) -> None:
        self._workers.call("remove_lora", number=number)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers(2)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["llama", "llama-fp8"])
@pytest.mark.parametrize("fully_sharded", [False, True])
def test_every_tensor_parallel_rank_holds_what_a_fresh_load_gives_it(
    workers: Workers, tmp_path: pathlib.Path, kind: str, fully_sharded: bool
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    store = str(tmp_path / "store")
    workers.call("open_with_adapters", kind=kind, folder=str(model), store=store, fully_sharded=fully_sharded)
    engine = VllmEngine(OfWorkers(workers))
    receiver = AdapterReceiver(engine, tmp_path / "served")
    adapters = {name: make(kind, name, seed, rank) for seed, (name, rank) in enumerate(RANKS.items())}
    logs = {n: Log(str(tmp_path / f"{n}.log"), mirror=str(tmp_path / f"{n}.safetensors")) for n in adapters}
    ends = {name: Publisher(adapter.tensors.items(), transport=logs[name]) for name, adapter in adapters.items()}

    def are_those_saved(which: str, update: int) -> bool:
        saved = {name: save(adapters[name], tmp_path / f"{name}{which}{update}") for name in receiver.versions}
        return all(
            workers.call("is_that_of", number=engine.request(name).lora_int_id, saved=str(folder)) == [True, True]
            for name, folder in saved.items()
        )

    for name, adapter in adapters.items():
        receiver.add(adapter.spec(), logs[name])
    shapes = workers.call("shapes", number=engine.request("math").lora_int_id)[0]
    whole = {tuple(tensor.shape) for tensor in adapters["math"].tensors.values()}
    assert not all(shape in whole for shape in shapes.values()), "the ranks have parts"
    for update in range(4):
        name = ("math", "code")[update % 2]
        step(adapters[name], update)
        ends[name].publish()
        receiver.update(name)
        assert are_those_saved("update", update)
    receiver.remove("math")
    number = engine.request("code").lora_int_id
    assert workers.call("state") == [([number], True)] * 2 and are_those_saved("removed", 0)
    receiver.add(adapters["math"].spec(), logs["math"])
    assert are_those_saved("again", 0)
    assert [untouched for _, untouched in workers.call("state")] == [True, True]
    for end in ends.values():
        end.close()


@pytest.mark.parametrize("config", ["llama"], indirect=True)
@pytest.mark.parametrize("version", ["0.33.0", "0.32.0"])
def test_a_servers_own_process_loads_each_version_under_its_name(
    config: VllmConfig, tmp_path: pathlib.Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    monkeypatch.setattr(vllm, "__version__", version)
    server = Server(config)

    async def add_lora(request: Any) -> None:
        server.add_lora(request)

    client: Any = SimpleNamespace(
        model_config=config.model_config, renderer=None, input_processor=None, add_lora=add_lora
    )
    models_of_server = OpenAIServingModels(client, [BaseModelPath("m", "m")])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        own = VllmOwnServer(lambda: models_of_server, loop)
        receiver = AdapterReceiver(own, tmp_path / "served")
        adapter = make("llama", "math", 1, RANKS["math"])
        log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "mirror.safetensors"))
        with Publisher(adapter.tensors.items(), transport=log) as publisher:
            receiver.add(adapter.spec(), log)
            for update in range(2):
                step(adapter, update)
                publisher.publish()
                directory = receiver.update("math").directory
                assert own.served() == {"math": directory.absolute()}
                request = models_of_server.lora_requests["math"]
                expected = fresh(config, "math", save(adapter, tmp_path / f"saved{update}"))
                assert same(server.of(request.lora_int_id), expected) and not request.load_inplace
        wide = make("llama", "wide", 1, 16)
        with pytest.raises(errors.UnsupportedError, match="vLLM refuses it: .*16"):
            own.load("wide", save(wide, tmp_path / "wide"), None)
        own.unload("math")
        assert own.served() == {}
        with pytest.raises(errors.UnsupportedError, match="math"):
            own.unload("math")
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
