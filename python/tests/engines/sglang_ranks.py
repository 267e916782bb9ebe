# SPDX-License-Identifier: Apache-2.0
"""The tensor-parallel ranks of a SGLang engine as processes that answer SGLang's own control messages; a trainer."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from fork_server import forks_of
from sparsecast_ports import held_port

DEADLINE = 300.0
"""Seconds after which a test gives up; nothing is measured by it."""


# -- in a rank's process -----------------------------------------------------------------------------------------


class _SchedulerParts:
    """The fields of SGLang's Scheduler that version stamps and pauses touch; the methods are the real ones."""

    def __init__(self) -> None:
        from sglang.srt.managers.scheduler import Scheduler

        self.waiting_queue: list[Any] = []
        self.chunked_req = None
        self.hisparse_coordinator = None
        self._engine_paused = False
        self._pause_started_at = None
        self.collect_inflight_reqs: Callable[[], set[Any]] = set
        self.record_weight_version_change = Scheduler.record_weight_version_change.__get__(self)
        self.pause_generation = Scheduler.pause_generation.__get__(self)
        self.handle_update_weight_version = Scheduler.handle_update_weight_version.__get__(self)


def _install_plugin(folder: Path) -> None:
    """An installed distribution's entry point, for SGLang's own discovery."""
    info = folder / "sparsecast_plugin-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sparsecast-plugin\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nsparsecast_test = sparsecast.engines.sglang.plugin:register\n"
    )
    sys.path.insert(0, str(folder))


class RankProcess:
    """What SGLang's scheduler process has of it: configuration, worker, weight updater; without a generation loop."""

    def __init__(self, folder: Path, rank: int, size: int, port: int, server_args: Mapping[str, Any]) -> None:
        import sglang_engine

        sglang_engine.allow_import_without_gpu()
        _install_plugin(folder.parent / f"plugin{rank}")
        from sglang.srt.plugins import load_plugins

        load_plugins()
        sglang_engine.start_rank(
            folder,
            tp_rank=rank,
            tp_size=size,
            port=port,
            load_format="safetensors",
            max_total_tokens=512,
            max_running_requests=4,
            context_length=64,
            disable_overlap_schedule=True,
            sampling_backend="pytorch",
            **server_args,
        )
        from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
        from sglang.srt.managers.tp_worker import TpModelWorker
        from sglang.srt.runtime_context import get_server_args

        with contextlib.ExitStack() as without_pinned_memory:
            if server_args.get("enable_lora"):
                import sglang_adapters

                without_pinned_memory.enter_context(sglang_adapters.unpinned())
            self.worker = TpModelWorker(server_args=get_server_args(), gpu_id=rank, nccl_port=port)
        self.scheduler = _SchedulerParts()
        self.manager = SchedulerWeightUpdaterManager(
            tp_worker=self.worker,
            draft_worker=None,
            memory_saver_adapter=None,
            flush_cache=lambda **_: True,
            is_fully_idle=lambda **_: True,
            scheduler=self.scheduler,
        )
        if not hasattr(SchedulerWeightUpdaterManager.init_weights_update_group, "__wrapped__"):
            raise RuntimeError("SGLang has not found the plug-in")
        # SGLang's own groups wait for two hours: a rank that is left alone is to say so before the test gives up.
        from sglang.srt.runtime_context import get_parallel

        limit = datetime.timedelta(seconds=0.4 * DEADLINE)
        for group in {get_parallel().tp_group.cpu_group, get_parallel().world_group.cpu_group}:
            torch.distributed.distributed_c10d._set_pg_timeout(limit, group)

    def post(self, route: str, body: Mapping[str, Any]) -> tuple[bool, str]:
        """What SGLang's HTTP server, its inter-process messages and its scheduler's dispatcher do with a request."""
        import msgspec
        from pydantic import TypeAdapter
        from sglang.srt.managers import io_struct

        kinds = {
            "/init_weights_update_group": (io_struct.InitWeightsUpdateGroupReqInput, "init_weights_update_group"),
            "/destroy_weights_update_group": (
                io_struct.DestroyWeightsUpdateGroupReqInput,
                "destroy_weights_update_group",
            ),
            "/weights_checker": (io_struct.CheckWeightsReqInput, "check_weights"),
        }
        kind, method = kinds[route]
        request = TypeAdapter(kind).validate_python(dict(body))
        arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=kind)
        answer = getattr(self.manager, method)(arrived)
        return answer.success, answer.message

    def differences(self, folder: Path) -> list[str]:
        """Parameters and buffers whose bits are not those of a fresh load of this checkpoint by SGLang's loader."""
        import sglang_engine

        fresh = dict(_tensors(sglang_engine.load_model(folder, self.worker.model_runner.model_config)))
        live = dict(_tensors(self.worker.model_runner.model))
        if fresh.keys() != live.keys():
            return sorted(fresh.keys() ^ live.keys())
        return [name for name, tensor in live.items() if not torch.equal(_bits(tensor), _bits(fresh[name]))]

    def addresses(self) -> dict[str, int]:
        return {name: tensor.data_ptr() for name, tensor in _tensors(self.worker.model_runner.model)}

    def weight_version(self) -> str:
        from sglang.srt.runtime_context import get_serving

        return str(get_serving().weight_version)

    def generate_in_flight(self, tokens: int) -> None:
        """A request in the scheduler that has `tokens` tokens now; made once, then longer."""
        if not self.scheduler.waiting_queue:
            self.scheduler.waiting_queue.append(_Request())
        request = self.scheduler.waiting_queue[0]
        request.output_ids += [0] * tokens

    def spans(self) -> list[tuple[str, int, int]]:
        """The version spans that SGLang would answer for the request in flight."""
        from sglang.srt.utils.weight_versions import compute_weight_version_spans

        request = self.scheduler.waiting_queue[0]
        found = compute_weight_version_spans(
            request.weight_version_events, self.weight_version(), len(request.output_ids)
        )
        return [(span.version, span.start, span.end) for span in found]

    def only_rank(self, rank: int, name: str, *values: Any) -> Any:
        return getattr(self, name)(*values) if torch.distributed.get_rank() == rank else None

    def ask_tokenizer(self, action: str, answers: list[str]) -> tuple[Any, int]:
        """SGLang's own `/weights_checker` handler in the HTTP process, over a scheduler that answers these in turn."""
        import asyncio

        from sglang.srt.managers.io_struct import CheckWeightsReqInput, CheckWeightsReqOutput
        from sglang.srt.managers.tokenizer_control_mixin import TokenizerControlMixin

        left = iter(answers)
        asked: list[str] = []

        class Tokenizer(TokenizerControlMixin):
            def auto_create_handle_loop(self) -> None: ...

            async def check_weights_communicator(self, request: Any) -> list[Any]:
                asked.append(request.action)
                return [CheckWeightsReqOutput(success=True, message=next(left))]

        return asyncio.run(Tokenizer().check_weights(CheckWeightsReqInput(action=action))), len(asked)

    def internal_state(self) -> dict[str, Any]:
        """What the hook adds to `/server_info`."""
        from types import SimpleNamespace

        from sparsecast.engines.sglang.plugin import add_status

        result = SimpleNamespace(internal_state={"tp_size": 2})
        controller = SimpleNamespace(scheduler=SimpleNamespace(tp_worker=self.worker))
        return dict(add_status(result, controller, None).internal_state)

    def layers(self, check: str) -> Any:
        """Runs a function of sglang_layers in this rank."""
        import sglang_layers

        return getattr(sglang_layers, check)()

    def adapters(self, action: str, *values: Any) -> Any:
        """Runs a function of sglang_adapters over this rank's worker."""
        import sglang_adapters

        return getattr(sglang_adapters, action)(self.worker, *values)

    def following(self, action: str, *values: Any) -> Any:
        """Runs a function of sglang_follow over this rank."""
        import sglang_follow

        return getattr(sglang_follow, action)(self, *values)

    def drafts(self, action: str, *values: Any) -> Any:
        """Runs a function of sglang_drafts over this rank."""
        import sglang_drafts

        return getattr(sglang_drafts, action)(self, *values)

    def next_apply_leaves_half_written_weights(self) -> None:
        from sparsecast.engines.sglang.plugin import end_of
        from sparsecast.errors import DirtyError

        def apply(_: float) -> None:
            raise DirtyError("the weights are half-written")

        end: Any = end_of(self.worker.model_runner)
        end.apply = apply

    def engine_paused(self) -> bool:
        return bool(self.scheduler._engine_paused)

    def forget_weights(self) -> None:
        """As memory is after SGLang has released it and taken it again."""
        for parameter in self.worker.model_runner.model.parameters():
            parameter.data.zero_()

    def flip_bit(self, name: str) -> None:
        tensor = dict(_tensors(self.worker.model_runner.model))[name].data
        _bits(tensor)[(0,) * tensor.dim()] ^= 1


class _Request:
    """The fields of SGLang's Req that version stamps touch."""

    def __init__(self) -> None:
        self.output_ids: list[int] = []
        self.weight_version_events: list[Any] = []


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, and what attention layers have derived from them."""
    yield from model.named_parameters()
    yield from model.named_buffers()
    for layer, module in model.named_modules():
        for name in ("w_kc", "w_vc", "w_scale"):
            derived = getattr(module, name, None)
            if isinstance(derived, torch.Tensor):
                yield f"{layer}.{name}", derived


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(whole[tensor.element_size()])


def _serve(commands: Connection, arguments: tuple[Any, ...]) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    torch.set_num_threads(1)
    process = RankProcess(*arguments)
    commands.send(("ok", None))
    while True:
        name, values = commands.recv()
        if name == "exit":
            return
        faulthandler.dump_traceback_later(0.8 * DEADLINE)  # A rank that stands still says where.
        try:
            commands.send(("ok", getattr(process, name)(*values)))
        except Exception as error:
            commands.send(("failed", f"{type(error).__name__}: {error}"))
        faulthandler.cancel_dump_traceback_later()


# -- in the test's process ---------------------------------------------------------------------------------------


class Engine:
    """All ranks of an engine; `call` runs a method of RankProcess on every one at the same time."""

    def __init__(self, folder: Path, size: int, **server_args: Any) -> None:
        context = forks_of("sglang_preload")
        self.size = size
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._port = held_port()  # For the rendezvous, which begins when the ranks have imported and configured SGLang.
        port = self._port.getsockname()[1]
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, (folder, rank, size, port, server_args)), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self._answers()

    def call(self, name: str, *values: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((name, values))
        return self._answers()

    def post(self, route: str, body: Mapping[str, Any]) -> tuple[bool, str]:
        """The answer of rank 0, which is what SGLang's client gets."""
        return tuple(self.call("post", route, body)[0])  # type: ignore[return-value]

    def _answers(self) -> list[Any]:
        until = time.monotonic() + DEADLINE
        answers: list[Any] = []
        for pipe in self._pipes:  # All are asked: the answer of one rank may say why another is silent.
            try:
                answers.append(pipe.recv() if pipe.poll(max(0.0, until - time.monotonic())) else None)
            except EOFError:
                answers.append(("failed", "its process has ended"))
        if None in answers:
            raise TimeoutError(f"not all ranks have answered: {answers}")
        failed = [f"rank {rank}: {value}" for rank, (kind, value) in enumerate(answers) if kind != "ok"]
        if failed:
            raise RuntimeError("; ".join(failed))
        return [value for _, value in answers]

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            with contextlib.suppress(OSError):
                pipe.send(("exit", ()))
            process.join(10)
            if process.is_alive():
                process.kill()
        self._port.close()


class Trainer:
    """Rank 0 of the world, with whole canonical tensors; `sync` and `regroup` run in the background."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], *, version: int = 0, pairs: bool = False) -> None:
        """With `pairs`, 4-bit numbers are sent as such."""
        import low_bit

        import sparsecast
        from sparsecast.buffers import dtype_name

        self.tensors = dict(tensors)
        self._port = held_port()  # For a meeting that begins whenever the test wants it.
        self.port = self._port.getsockname()[1]
        self.secret = "a secret of this test"
        sent = {name: low_bit.as_sent(name, t) if pairs else (dtype_name(t.dtype), t) for name, t in tensors.items()}
        self.table = [(name, dtype, tuple(t.shape)) for name, (dtype, t) in sent.items()]
        locals_ = [sparsecast.LocalTensor(name, dtype, t.numel()) for name, (dtype, t) in sent.items()]
        shards = [
            sparsecast.Shard(i, sparsecast.Box([0] * t.dim(), list(t.shape)), i, 0, list(t.stride()))
            for i, (_, t) in enumerate(sent.values())
        ]
        layout = sparsecast.Layout(sparsecast.TensorTable(self.table), [sparsecast.RankLayout(locals_, shards)])
        memories = [sparsecast.describe(t, dtype=dtype) for dtype, t in sent.values()]
        self.publisher = sparsecast.ShardedPublisher(layout, 0, memories, version=version)

    def regroup(self, size: int, generation: int = 0, timeout: float = DEADLINE / 2) -> Future[Any]:
        import sparsecast

        def run() -> None:
            world = sparsecast.meet(
                "127.0.0.1",
                self.port,
                rank=0,
                size=size,
                secret=self.secret,
                generation=generation,
                interface="127.0.0.1",
                timeout=timeout,
            )
            self.publisher.regroup(world, timeout=timeout)

        return in_background(run)

    def sync(self) -> Future[Any]:
        return in_background(lambda: self.publisher.sync(timeout=DEADLINE / 2))


def in_background(work: Callable[[], Any]) -> Future[Any]:
    """Like an executor's submit, in a thread that does not keep the test alive."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
