# SPDX-License-Identifier: Apache-2.0
"""A trainer of two ranks and rollout workers as Ray actors, driven by verl's own manager, workers and FSDP engine."""

from __future__ import annotations

import os
import pathlib
import socket
import tempfile
from types import SimpleNamespace
from typing import Any

import verl_package

verl_package.prepare()

import ray
import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from sparsecast_ports import held_port
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker
from verl.single_controller.base import Worker
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.import_utils import import_external_libs
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl_bytes import bytes_of_verl
from verl_model import SERVERS, ServedModel, TrainedModel

from sparsecast.buffers import bits_of

WIDTH = 192
TRAINERS = 2


def configuration(backend: str = "delta_sharded", **options: Any) -> dict[str, Any]:
    return {
        "_target_": "verl.workers.config.CheckpointEngineConfig",
        "backend": backend,
        "custom_backend_module": "sparsecast.integrations.verl",
        "update_weights_bucket_megabytes": 1,
        "engine_kwargs": {backend: {"timeout": 60.0, "threads": 1, **options}},
    }


def new_engine(config: Any, **more: Any) -> Any:
    """As ActorRolloutRefWorker.init_model and CheckpointEngineWorker make it."""
    parsed = omega_conf_to_dataclass(config)
    import_external_libs(parsed.custom_backend_module or None)
    bucket_size = parsed.update_weights_bucket_megabytes << 20
    options = parsed.engine_kwargs.get(parsed.backend, {})
    return CheckpointEngineRegistry.new(parsed.backend, bucket_size=bucket_size, **more, **options)


class Trainer(ActorRolloutRefWorker):
    """One rank. verl's constructor builds models and rollouts on GPUs; this one builds what a sync needs of it."""

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        Worker.__init__(self)
        self.config = OmegaConf.create({"rollout": {"checkpoint_engine": config}})
        dist.init_process_group("gloo")
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        transformer_impl.get_device_id = lambda: "cpu"
        transformer_impl.log_gpu_memory_usage = lambda *_, **__: None
        module = TrainedModel(WIDTH)
        fully_shard(module, mesh=init_device_mesh("cpu", (TRAINERS,)))
        engine = transformer_impl.FSDPEngine.__new__(transformer_impl.FSDPEngine)
        engine.module = module
        engine.model_config = SimpleNamespace(lora={}, hf_config=SimpleNamespace(model_type="qwen2"))
        engine._uses_fsdp2_cpu_offload_policy = engine._is_offload_param = engine._qat_enabled = False
        self.actor = SimpleNamespace(engine=engine)
        self._optimizer = torch.optim.AdamW(module.parameters(), lr=1e-6, weight_decay=0.0)
        self.use(self.config.rollout.checkpoint_engine)

    def use(self, config: Any) -> None:
        """Makes the engine anew by another configuration."""
        self.checkpoint_engine = new_engine(config, is_master=dist.get_rank() == 0)

    def step(self) -> None:
        """An optimizer step of small updates: about one element of a hundred changes in bf16."""
        for parameter in self.actor.engine.module.parameters():
            parameter.grad = torch.randn_like(parameter)
        self._optimizer.step()

    def poison(self) -> None:
        """Makes one weight NaN."""
        with torch.no_grad():
            local = self.actor.engine.module.embed.weight.to_local()
            local[0, 0] = float("nan")

    def heal(self) -> None:
        with torch.no_grad():
            local = self.actor.engine.module.embed.weight.to_local()
            local[0, 0] = 0.5

    def bits(self) -> dict[str, torch.Tensor]:
        state = self.actor.engine.module.state_dict()
        return {name: bits_of(value.full_tensor().to(torch.bfloat16)).clone() for name, value in state.items()}

    def bytes_of_verl(self) -> int:
        return bytes_of_verl(self.actor.engine, dist.get_rank())


class Rollout(CheckpointEngineWorker):
    """One worker. `node` is where it says that it is."""

    def __init__(self, config: dict[str, Any], kind: str, node: str) -> None:
        torch.set_num_threads(1)
        parsed = omega_conf_to_dataclass(OmegaConf.create(config))
        assert isinstance(parsed, CheckpointEngineConfig)
        server = SERVERS[kind](ServedModel(WIDTH))
        super().__init__(RolloutConfig(name=kind, checkpoint_engine=parsed), None, server_adapter=server)
        self._node = node
        self._say_node()

    def use(self, config: Any) -> None:
        """Makes the engine anew by another configuration."""
        self.checkpoint_engine = new_engine(OmegaConf.create(config))
        self._say_node()

    def _say_node(self) -> None:
        prepare = self.checkpoint_engine.prepare
        self.checkpoint_engine.prepare = lambda: {**prepare(), "node": self._node}

    def bits(self) -> dict[str, torch.Tensor]:
        return self.server_adapter.model.bits()

    def flushes(self) -> list[str]:
        return self.server_adapter.flushes

    def fail_at(self, flush: int) -> None:
        self.server_adapter.fail_at = flush

    def has_mirror(self) -> bool:
        return self.checkpoint_engine._mirror is not None

    def flip_mirror(self) -> str:
        """Alters one bit of the copy in host memory, as broken memory would."""
        name = "q_proj.weight"
        self.checkpoint_engine._mirror.flat_bits(name)[7] ^= 1
        return name


class Replica:
    """What verl's manager wants of a rollout replica."""

    def __init__(self, workers: list[Any]) -> None:
        self.workers = workers

    def __getattr__(self, name: str) -> Any:
        async def nothing(*_: Any, **__: Any) -> None:
            pass

        return nothing


class Cluster:
    """Starts everything; `kinds` are (server, node) of the rollout workers."""

    def __init__(self, kinds: list[tuple[str, str]], **options: Any) -> None:
        self.config = configuration(**options)
        self._kinds = kinds
        self._trainer = ray.remote(num_cpus=0)(Trainer)
        self._rollout = ray.remote(num_cpus=0)(Rollout)
        self._held: list[
            socket.socket
        ] = []  # Ports of rendezvous, which begin when the ranks have imported everything.
        port = self._hold_port()
        self.trainers = [
            self._trainer.options(runtime_env=_ranks(rank, TRAINERS, port)).remote(self.config, 5)
            for rank in range(TRAINERS)
        ]
        self.rollouts = [self._start(*kind) for kind in kinds]
        self._step = 0
        self._group = RayWorkerGroup(
            worker_handles=self.trainers, ray_cls_with_init=RayClassWithInitArgs(cls=self._trainer)
        )

    def _start(self, kind: str, node: str) -> Any:
        return self._rollout.options(runtime_env=_ranks(0, 1, self._hold_port())).remote(self.config, kind, node)

    def _hold_port(self) -> int:
        self._held.append(held_port())
        port: int = self._held[-1].getsockname()[1]
        return port

    def restart(self, index: int) -> None:
        ray.kill(self.rollouts[index])
        self.rollouts[index] = self._start(*self._kinds[index])

    def use(self, **options: Any) -> None:
        """Makes the engines of all ranks anew with other options; servers keep what they have."""
        self.config = configuration(**options)
        trainer_config = OmegaConf.create(self.config)
        calls = [trainer.use.remote(trainer_config) for trainer in self.trainers]
        ray.get([*calls, *(rollout.use.remote(self.config) for rollout in self.rollouts)], timeout=300)

    def on_trainers(self, method: str) -> list[Any]:
        return ray.get([getattr(trainer, method).remote() for trainer in self.trainers], timeout=300)

    def on_rollouts(self, method: str) -> list[Any]:
        return ray.get([getattr(rollout, method).remote() for rollout in self.rollouts], timeout=300)

    def sync(self) -> dict[str, float]:
        """One sync, by verl's own manager. Returns the figures that it would log."""
        self._step += 1
        config = omega_conf_to_dataclass(OmegaConf.create(self.config))
        manager = CheckpointEngineManager(config, self._group, [Replica([worker]) for worker in self.rollouts])
        figures: dict[str, float] = manager.update_weights(global_steps=self._step)
        return {name.removeprefix("checkpoint_engine/"): value for name, value in figures.items()}

    def close(self) -> None:
        for actor in [*self.trainers, *self.rollouts]:
            ray.kill(actor)
        for held in self._held:
            held.close()


def _ranks(rank: int, size: int, port: int) -> dict[str, Any]:
    return {
        "env_vars": {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    }


def start_ray() -> str:
    """Returns the directory that Ray writes to, for the caller to remove."""
    here = pathlib.Path(__file__).parent
    paths = [str(here), str(here.parent / "support"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    directory = tempfile.mkdtemp(prefix="ray-")
    ray.init(
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=100 << 20,
        _temp_dir=directory,
        runtime_env={"env_vars": {"TMPDIR": directory}},  # Actors are killed, and leave what they have there.
        _node_ip_address="127.0.0.1",
        log_to_driver=bool(os.environ.get("SPARSECAST_TEST_LOG")),
    )
    return directory
