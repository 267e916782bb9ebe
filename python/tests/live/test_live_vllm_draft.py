# SPDX-License-Identifier: Apache-2.0
"""A live vLLM server that guesses with the MTP layer of its model, which the trainer trains, too."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM for CPUs is not installed here", allow_module_level=True)

import httpx
import torch
import transformers
from conftest import Start
from live_load import Load, probe
from live_model import make_mtp_model, save_mtp_model, with_mtp_layer
from live_servers import LiveServer
from live_trainer import POLICY, Trainer

SPECULATION = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}')


class MtpTrainer(Trainer):
    """Trains an MTP layer, too."""

    def load(self, directory: Path) -> torch.nn.Module:
        from safetensors.torch import load_file

        config = transformers.Qwen2Config.from_pretrained(directory)
        model = with_mtp_layer(transformers.Qwen2ForCausalLM(config))
        model.load_state_dict(load_file(str(directory / "model.safetensors")))
        return model.float()

    def step(self) -> None:
        self.model.zero_grad()
        sum(parameter.square().mean() for parameter in self.model.model.mtp_layers.parameters()).backward()
        super().step()

    def save(self, directory: Path) -> Path:
        shutil.copytree(self.directory, directory)
        save_mtp_model(self.model, directory)
        return directory


def test_the_mtp_draft_of_a_server_is_at_the_version_of_its_target(start: Start, tmp_path: Path) -> None:
    model = make_mtp_model(tmp_path / "model")
    # The module of the extension lies beside this one.
    watcher = {"extension": "live_extension.DraftWatcher", "packages": (Path(__file__).parent,)}
    server = start(model, *SPECULATION, **watcher).wait()
    trainer = MtpTrainer(model)

    def draft(of: LiveServer) -> dict[str, str]:
        return dict(of.post("/collective_rpc", {"method": "draft_hashes"})["results"][0])

    try:
        trainer.add(server)
        assert trainer.plane.sync_now().result == "ok"
        old, before = draft(server), probe(server)
        load = Load([server], 4)
        with load.running():
            assert trainer.sync(replace(POLICY, pause="retract")).result == "ok"
        assert not load.failures
        server.post("/collective_rpc", {"method": "sparsecast_audit"})
        now, new = probe(server), draft(server)
        matrices = [name for name in old if "mtp_layers" in name and name.endswith("proj.weight")]
        assert now != before and matrices and all(new[name] != old[name] for name in matrices)
        drafted = httpx.get(f"{server.url}/metrics", timeout=60).text
        assert any(
            line.startswith("vllm:spec_decode_num_draft_tokens_total") and not line.endswith(" 0.0")
            for line in drafted.splitlines()
        )
        checkpoint = trainer.save(tmp_path / "checkpoint")
        server.kill()
        fresh = start(checkpoint, *SPECULATION, **watcher).wait()
        assert draft(fresh) == new and probe(fresh) == now
    finally:
        trainer.close()
        server.kill()
