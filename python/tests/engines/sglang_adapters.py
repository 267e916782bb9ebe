# SPDX-License-Identifier: Apache-2.0
"""SGLang's own LoRA manager and memory pool in a process of its own, on the CPU, behind `SglangEngine`'s calls."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sys
import threading
import unittest.mock
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import sglang_engine
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "adapters"))

from adapter_files import same, step

from sparsecast import errors
from sparsecast.adapters import Adapter, AdapterReceiver, SglangEngine
from sparsecast.adapters.own_server import SglangOwnServer
from sparsecast.torch import Log, Publisher

MODULES = {"self_attn.q_proj": (64, 64), "self_attn.v_proj": (32, 64), "mlp.down_proj": (64, 96)}
# For two ranks on a CPU: SGLang pads other widths there, and then does not cut an adapter as it cuts the base.
WIDE = sglang_engine.QWEN2 | {"intermediate_size": 128}
TARGETS = [module.split(".")[1] for module in MODULES]


def make(name: str, seed: int, rank: int, intermediate: int = 96) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(sglang_engine.QWEN2["num_hidden_layers"]):
        for module, (rows, columns) in (MODULES | {"mlp.down_proj": (64, intermediate)}).items():
            for side, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                tensor = torch.randn(shape, generator=generator)
                tensors[f"base_model.model.model.layers.{layer}.{module}.lora_{side}.weight"] = tensor
    return Adapter(name, {"peft_type": "LORA", "r": rank, "lora_alpha": 12, "target_modules": TARGETS}, tensors)


def _unpinned(make_tensor: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*arguments: Any, **options: Any) -> torch.Tensor:
        options.pop("pin_memory", None)
        return make_tensor(*arguments, **options)

    return made


def unpinned() -> contextlib.ExitStack:
    """While it is entered, memory is not pinned: a machine without a GPU has no such memory."""
    stack = contextlib.ExitStack()
    stack.enter_context(unittest.mock.patch.object(torch, "tensor", _unpinned(torch.tensor)))
    stack.enter_context(unittest.mock.patch.object(torch.Tensor, "pin_memory", lambda tensor, *_: tensor))
    return stack


def held(manager: Any, number: str) -> dict[str, torch.Tensor]:
    """What SGLang's kernels read for an adapter, once a batch has asked for it."""
    manager.fetch_new_loras({number})
    pool = manager.memory_pool
    slot = pool.uid_to_buffer_id[number]
    return {
        f"{module}.{side}.{layer}": tensor[slot].clone()
        for side, buffers in (("a", pool.A_buffer), ("b", pool.B_buffer))
        for module, layers in buffers.items()
        for layer, tensor in enumerate(layers)
    }


class Server:
    """The two calls of `sglang.Engine`, as its tokenizer process does them: it numbers the adapters by name."""

    def __init__(self, folder: Path) -> None:
        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.lora.lora_manager import LoRAManager
        from sglang.srt.runtime_context import get_server_args

        config = ModelConfig(str(folder), dtype="bfloat16")
        self.model = sglang_engine.load_model(folder, config)
        with unpinned():
            self.manager = LoRAManager(
                base_model=self.model,
                base_hf_config=config.hf_config,
                max_loras_per_batch=3,
                load_config=LoadConfig(load_format="safetensors"),
                dtype=torch.bfloat16,
                server_args=get_server_args(),
                lora_backend="torch_native",
                max_lora_rank=8,
                target_modules=TARGETS,
            )
        self.refs: dict[str, Any] = {}

    def load_lora_adapter(self, name: str, path: str) -> Any:
        from sglang.srt.lora.lora_registry import LoRARef

        ref = LoRARef(lora_name=name, lora_path=path, pinned=False)
        result = self.manager.load_lora_adapter(ref)
        if result.success:
            self.refs[name] = ref
        return result

    def unload_lora_adapter(self, name: str) -> Any:
        return self.manager.unload_lora_adapter(self.refs.pop(name))

    def of(self, name: str) -> dict[str, torch.Tensor]:
        return held(self.manager, self.refs[name].lora_id)

    def base(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}


def save(adapter: Adapter, folder: Path) -> Path:
    """Writes the adapter as PEFT would."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(adapter.config))
    save_file(dict(adapter.tensors), folder / "adapter_model.safetensors")
    return folder


def _fresh(model: Path, adapter: Adapter, folder: Path) -> dict[str, torch.Tensor]:
    return _fresh_of(model, save(adapter, folder))


def _fresh_of(model: Path, saved: Path) -> dict[str, torch.Tensor]:
    """What another engine holds, in this rank, of a saved adapter."""
    server = Server(model)
    assert server.load_lora_adapter("fresh", str(saved)).success
    return server.of("fresh")


# Calls that tests make in one of several ranks, with the worker of SGLang's scheduler.


def load(worker: Any, name: str, path: str, number: str) -> tuple[bool, str]:
    from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput

    done = worker.load_lora_adapter(LoadLoRAAdapterReqInput(lora_name=name, lora_path=path, lora_id=number))
    return done.success, str(done.error_message)


def unload(worker: Any, name: str, number: str) -> tuple[bool, str]:
    from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput

    done = worker.unload_lora_adapter(UnloadLoRAAdapterReqInput(lora_name=name, lora_id=number))
    return done.success, str(done.error_message)


def is_that_of(worker: Any, number: str, model: Path, saved: Path) -> bool:
    """Whether this rank holds of the adapter what a fresh load of the saved one gives it."""
    now = held(worker.model_runner.lora_manager, number)
    return any(tensor.any() for tensor in now.values()) and same(now, _fresh_of(model, saved))


def base_differences(worker: Any, folder: Path) -> list[str]:
    """Parameters of the base whose bits are not those of a fresh load of this checkpoint."""
    fresh = dict(sglang_engine.load_model(folder, worker.model_runner.model_config).named_parameters())
    live = {n.replace(".base_layer.", "."): tensor for n, tensor in worker.model_runner.model.named_parameters()}
    assert live.keys() == fresh.keys()
    return [n for n in fresh if not torch.equal(live[n].data.view(torch.int16), fresh[n].data.view(torch.int16))]


def _tokenizer(worker: Any) -> Any:
    """SGLang's own handling of adapters in its HTTP process, over this rank."""
    from sglang.srt.lora.lora_registry import LoRARegistry
    from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput
    from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin

    class Tokenizer(TokenizerControlMixin):
        def __init__(self) -> None:
            self.lora_update_lock = asyncio.Lock()
            self.lora_registry = LoRARegistry()
            self.lora_ref_cache: dict[str, Any] = {}
            self.pending_lora_unloads: dict[str, str] = {}

        def auto_create_handle_loop(self) -> None: ...

        async def update_lora_adapter_communicator(self, request: Any) -> list[Any]:
            loads = isinstance(request, LoadLoRAAdapterReqInput)
            return [worker.load_lora_adapter(request) if loads else worker.unload_lora_adapter(request)]

    return Tokenizer()


def own_server(worker: Any, folder: Path) -> tuple[list[str], str]:
    """What is served after two versions, a refusal and an unload in SGLang's HTTP process; and the words of the
    refusal.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    own = SglangOwnServer(_tokenizer(worker), loop)
    places = [save(make("own", seed, 4, 128), folder / f"own {seed} {torch.distributed.get_rank()}") for seed in (5, 6)]
    served = []
    for place in places:
        own.load("own", place, None)
        served.append(own.served()["own"].name.split()[1])
    try:
        own.load("wide", save(make("wide", 7, 16, 128), folder / f"wide {torch.distributed.get_rank()}"), None)
    except errors.UnsupportedError as error:
        words = str(error)
    own.unload("own")
    loop.call_soon_threadsafe(loop.stop)
    return served + list(own.served()), words


def follows_by_itself(worker: Any, log: Path, state: Path) -> list[dict[str, Any]]:
    """What SGLang's HTTP process says of the adapter of a log while it serves, when it has loaded one."""
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.runtime_context import get_lora

    from sparsecast.adapters.following import AdapterSettings
    from sparsecast.engines.sglang.adapters import follow_adapters

    variables = {"ADAPTERS": str(log), "STATE": f"{state} {torch.distributed.get_rank()}", "INTERVAL": "0.02"}
    settings = AdapterSettings.from_environment({f"SPARSECAST_FOLLOW_{n}": v for n, v in variables.items()}, "s")
    assert settings is not None
    with get_lora().override(enable_lora=False):
        try:
            follow_adapters(None, settings)
        except errors.UsageError as error:
            assert "start SGLang with --enable-lora" in str(error)

    @contextlib.asynccontextmanager
    async def nothing(_: Any) -> AsyncIterator[None]:
        yield

    async def serve() -> list[dict[str, Any]]:
        app.router.lifespan_context = nothing
        follow_adapters(_tokenizer(worker), settings)
        async with app.router.lifespan_context(app):
            following = app.state.sparsecast_adapters
            while following.status()[0]["version"] is None:
                await asyncio.sleep(0.01)
            return list(following.status())

    return asyncio.run(asyncio.wait_for(serve(), 60.0))


def shapes(worker: Any, number: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in held(worker.model_runner.lora_manager, number).items()}


def base_digest(worker: Any) -> str:
    """Of the bytes of all base weights."""
    digest = hashlib.sha256()
    for name, tensor in worker.model_runner.model.named_parameters():
        digest.update(name.encode() + tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def run(model: Path, folder: Path, port: int) -> dict[str, Any]:
    """Two adapters over four updates and a removal; then what SGLang refuses. Returns what was found."""
    sglang_engine.start_rank(
        model,
        tp_rank=0,
        tp_size=1,
        port=port,
        enable_lora=True,
        max_lora_rank=8,
        lora_target_modules=list(TARGETS),
        lora_backend="torch_native",
        max_loras_per_batch=3,
    )
    server = Server(model)
    base = server.base()
    receiver = AdapterReceiver(SglangEngine(server), folder / "served")
    adapters = {"math": make("math", 1, 4), "code": make("code", 2, 8), "wide": make("wide", 3, 16)}
    logs = {n: Log(str(folder / f"{n}.log"), mirror=str(folder / f"{n}.safetensors")) for n in adapters}
    ends = {n: Publisher(a.tensors.items(), transport=logs[n]) for n, a in adapters.items()}
    for name in ("math", "code"):
        receiver.add(adapters[name].spec(), logs[name])
    found: dict[str, Any] = {"wrong": [], "moved": []}
    for update in range(4):
        name, other = ("math", "code")[update % 2], ("code", "math")[update % 2]
        untouched = server.of(other)
        before = server.of(name)
        step(adapters[name], update)
        ends[name].publish()
        receiver.update(name)
        now = server.of(name)
        if same(now, before) or not same(now, _fresh(model, adapters[name], folder / f"saved{update}")):
            found["wrong"].append(update)
        if not same(server.of(other), untouched):
            found["moved"].append(update)
    receiver.remove("math")
    found["served"] = sorted(server.refs)
    held = server.of("code")
    try:
        receiver.add(adapters["wide"].spec(), logs["wide"])
    except errors.UnsupportedError as error:
        found["refused"] = str(error)

    # A version that SGLang does not read, as when its disk fails: the one before is loaded again.
    step(adapters["code"], 9)
    ends["code"].publish()
    version = receiver.versions["code"]
    load = server.load_lora_adapter
    server.load_lora_adapter = lambda name, path: load(name, path if f"v{version}-" in path else "/nowhere")  # type: ignore[method-assign]
    try:
        receiver.update("code")
    except errors.UnsupportedError as error:
        found["went_back"] = str(error)
    found["stands"] = receiver.versions == {"code": version} and same(server.of("code"), held)
    server.load_lora_adapter = load  # type: ignore[method-assign]
    receiver.update("code")
    found["recovered"] = same(server.of("code"), _fresh(model, adapters["code"], folder / "saved-last"))
    found["base_untouched"] = same(server.base(), base)
    for end in ends.values():
        end.close()
    return found
