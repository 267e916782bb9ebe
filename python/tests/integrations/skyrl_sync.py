# SPDX-License-Identifier: Apache-2.0
"""SkyRL with docs/upstream/skyrl.patch, on CPUs: its FSDP trainer, two ranks, syncs into vLLM servers that it starts.

scripts/skyrl.sh makes the environment and calls it. skyrl_sync.py DIRECTORY [ENGINES REPLICAS]
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import multiprocessing
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "live"))
os.environ["RAY_OVERRIDE_RESOURCES"] = json.dumps({"CPU": 16, "GPU": 16})  # SkyRL asks for them, and nobody uses them.

import httpx
import psutil
import ray
import torch
from live_model import VOCABULARY, make_model
from live_servers import write_metadata
from safetensors.torch import load_file
from skyrl.backends.skyrl_train.inference_servers.setup import build_new_inference_client
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
from skyrl.backends.skyrl_train.workers.worker import PPORayActorGroup
from skyrl.backends.skyrl_train.workers.worker_dispatch import WorkerDispatch
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.utils.utils import initialize_ray
from skyrl.utils.tok import get_tokenizer
from skyrl_on_cpu import PolicyWorker

SYNCS = 4
PROMPT = list(range(5, 165))  # Some blocks of the prefix cache.
PR_SET_CHILD_SUBREAPER = 36
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def make_model_for_replicas(directory: Path) -> Path:
    """Writes a tiny Qwen2-MoE all of whose layers are dense: vLLM takes replicas with a server each only of models that
    know experts, and its CPU kernels pack experts' weights in a way that sparsecast refuses.
    """
    from transformers import AutoTokenizer, Qwen2MoeConfig, Qwen2MoeForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(make_model(directory.with_name("tokenizer"), layers=1))
    tokenizer.save_pretrained(directory)
    config = Qwen2MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        mlp_only_layers=[0, 1],
        num_experts=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    return directory


def configuration(directory: Path, model: Path, engines: int, replicas: int) -> SkyRLTrainConfig:
    trainer = {
        "strategy": "fsdp",
        "policy.model.path": model,
        "policy.optimizer_config.lr": 1e-5,
        "placement.colocate_all": "false",
        "placement.policy_num_gpus_per_node": 2,
        "flash_attn": "false",
        "remove_microbatch_padding": "false",
        "gradient_checkpointing": "false",
        "micro_train_batch_size_per_gpu": 2,
        "log_path": directory / "logs",
    }
    engine = {
        "weight_sync_backend": "sparsecast",
        "num_engines": engines,
        "data_parallel_size": replicas,
        "distributed_executor_backend": "mp",
        "enforce_eager": "true",
        "enable_ray_prometheus_stats": "false",
        "served_model_name": "m",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 1024,
        "engine_init_kwargs.max_model_len": 1024,
        "engine_init_kwargs.kv_cache_memory_bytes": 1 << 26,
        # SkyRL's server takes the worker for CUDA where none is named.
        "engine_init_kwargs.worker_cls": "vllm.v1.worker.cpu_worker.CPUWorker",
    }
    settings = {f"trainer.{name}": value for name, value in trainer.items()}
    settings |= {f"generator.inference_engine.{name}": value for name, value in engine.items()}
    return SkyRLTrainConfig.from_cli_overrides([f"{name}={value}" for name, value in settings.items()])


def post(url: str, path: str, body: Any) -> Any:
    answer = httpx.post(url + path, json=body, timeout=300, trust_env=False)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:500]}"
    return answer.json()


def complete(url: str, **more: Any) -> Any:
    """Generates greedily; returns what identifies the weights, and keeps the prompt in the prefix cache."""
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 5}
    choice = post(url, "/v1/completions", body | more)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]


def compare(live: dict[str, torch.Tensor], trained: dict[str, torch.Tensor]) -> None:
    """Raises unless the parameters of a vLLM worker have the bits of the checkpoint's tensors, all of them."""
    unseen = set(trained)
    for name, tensor in live.items():
        if "._" in name:  # Scales of the KV cache, which are no weights.
            continue
        fused = next((each for each in FUSED if each in name), "")
        parts = [name.replace(fused, part) for part in FUSED[fused]] if fused else [name]
        whole = torch.cat([trained[part] for part in parts])
        assert torch.equal(tensor.view(torch.int16), whole.view(torch.int16)), f"{name} is not what was trained"
        unseen -= set(parts)
    assert not unseen, f"the server has no {unseen}"


class Run:
    """What SkyRL's own program does before the first step, by the same calls."""

    def __init__(self, directory: Path, engines: int, replicas: int) -> None:
        self._directory = directory
        model = (make_model if replicas == 1 else make_model_for_replicas)(directory / "model")
        self._cfg = cfg = configuration(directory, model, engines, replicas)
        initialize_ray(cfg)
        self._tokenizer = get_tokenizer(str(model))
        self.client, self.servers = build_new_inference_client(cfg, self._tokenizer)
        self.urls: list[str] = self.client.server_urls
        self.policy = PPORayActorGroup(cfg.trainer, 1, 2, PolicyWorker)
        ray.get(self.policy.async_init_model(str(model), num_training_steps=10))
        self.dispatch = WorkerDispatch(cfg, self.policy, inference_engine_client=self.client)
        self.dispatch.init_weight_sync_state(self.client)
        self._number = 0

    def step(self) -> None:
        """One step of the trainer on random tokens."""
        tokens = torch.randint(3, VOCABULARY, (4, 32))
        answer = torch.ones(4, 16)
        masks = {"loss_mask": answer / answer.numel(), "response_mask": answer.long()}
        batch = TrainingInputBatch({"sequences": tokens, "attention_mask": torch.ones_like(tokens), **masks})
        batch.metadata = {"response_length": 16}
        self.dispatch.forward_backward("policy", batch, loss_fn="cross_entropy")
        self.dispatch.optim_step("policy")

    def export(self) -> dict[str, torch.Tensor]:
        """The trainer's weights as SkyRL exports them, in the dtype of the servers."""
        self._number += 1
        exported = self._directory / f"exported-{self._number}"
        self.dispatch.save_hf_model("policy", str(exported), self._tokenizer)
        return {name: tensor.to(torch.bfloat16) for name, tensor in load_file(exported / "model.safetensors").items()}

    def check(self, server: int, trained: dict[str, torch.Tensor]) -> None:
        """Holds what vLLM writes of a worker's memory to the trainer's weights."""
        self._number += 1
        dump = self._directory / f"live-{self._number}"
        dump.mkdir()
        post(self.urls[server], "/collective_rpc", {"method": "save_sharded_state", "kwargs": {"path": str(dump)}})
        live = {name: tensor for part in dump.glob("*.safetensors") for name, tensor in load_file(part).items()}
        compare(live, trained)


async def sync(run: Run) -> None:
    """A step and a sync; every server then has the trainer's bits, and no stale prefix."""
    before = [complete(url) for url in run.urls]
    run.step()
    started = time.monotonic()
    await run.dispatch.save_weights_for_sampler()
    seconds = time.monotonic() - started
    reports = ray.get(run.policy.async_run_ray_method("pass_through", "last_report"))
    trained = run.export()
    for server, url in enumerate(run.urls):
        run.check(server, trained)
        new = complete(url)
        assert new != before[server], f"{url} answers as before the sync"
        assert new == complete(url, cache_salt="another"), f"{url} answers with keys and values of old weights"
    whole = sum(tensor.nbytes for tensor in trained.values())
    elements = sum(tensor.numel() for tensor in trained.values())
    sent, changed = (sum(report[name] for report in reports) for name in ("sent_bytes", "changed"))
    print(f"sync to version {reports[0]['version']}: {seconds:.2f} s, {changed} of {elements} elements, ", end="")
    print(f"{sent} bytes sent, a whole copy has {whole}; {len(run.urls)} servers have the trainer's bits", flush=True)


async def sync_with_a_death(run: Run) -> None:
    """The last server dies after the pause. The sync raises, and the others keep what they had."""
    trained = run.export()
    run.step()
    port = int(run.urls[-1].rpartition(":")[2])
    listening = {each.laddr.port: each.pid for each in psutil.net_connections("tcp") if each.status == "LISTEN"}
    victim = psutil.Process(listening[port])
    pause = run.client.pause_generation

    async def pause_and_die() -> Any:
        answer = await pause()
        for process in [*victim.children(recursive=True), victim]:
            process.kill()
        return answer

    run.client.pause_generation = pause_and_die
    started = time.monotonic()
    try:
        await run.dispatch.save_weights_for_sampler()
    except Exception as error:
        seconds, failed = time.monotonic() - started, error
        while not isinstance(failed, ray.exceptions.RayTaskError):  # SkyRL resumes all servers, which fails as well.
            assert failed.__context__ is not None, f"the transfer itself did not fail: {error!r}"
            failed = failed.__context__
        print(f"a server died: after {seconds:.1f} s {str(failed).strip().splitlines()[-1][:300]}", flush=True)
    else:
        raise AssertionError("a server died in a sync, and nobody was told")
    for server in range(len(run.urls) - 1):
        run.check(server, trained)


async def use(run: Run) -> None:
    for _ in range(SYNCS):
        await sync(run)
    await sync_with_a_death(run)
    await run.client.teardown()


def main() -> int:
    directory = Path(sys.argv[1])
    engines, replicas = (int(each) for each in sys.argv[2:4]) if len(sys.argv) > 3 else (1, 1)
    torch.manual_seed(0)
    os.environ["PYTHONPATH"] = f"{write_metadata(directory / 'metadata')}:{os.environ['PYTHONPATH']}"
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # A vLLM outlives an actor that is killed.
    try:
        asyncio.run(use(Run(directory, engines, replicas)))
        print("SkyRL: all as expected", flush=True)
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for process in psutil.Process().children(recursive=True):
            process.kill()


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")  # As SkyRL's own programs do.
    os._exit(main())  # Ray has nobody left to say goodbye to.
