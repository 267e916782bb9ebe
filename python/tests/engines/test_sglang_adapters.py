# SPDX-License-Identifier: Apache-2.0
"""Adapters into SGLang's own LoRA manager, against fresh loads of saved adapters by SGLang."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import pathlib
import sys
import uuid
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "adapters"))

if importlib.util.find_spec("sglang") is None:  # Only the rank's process imports it.
    pytest.skip("needs sglang", allow_module_level=True)
import sglang_adapters
import sglang_engine
from adapter_files import step
from fork_server import forks_of
from sglang_ranks import DEADLINE, Engine
from sparsecast_ports import held_port

from sparsecast import errors
from sparsecast.adapters import AdapterReceiver, SglangEngine
from sparsecast.torch import Log, Publisher


def test_every_version_is_that_of_a_fresh_load_and_what_is_refused_changes_nothing(tmp_path: pathlib.Path) -> None:
    model = tmp_path / "model"
    tensors = sglang_engine.canonical_tensors(sglang_engine.QWEN2, seed=7)
    sglang_engine.write_checkpoint(model, sglang_engine.QWEN2, tensors)
    with (
        held_port() as port,
        concurrent.futures.ProcessPoolExecutor(1, mp_context=forks_of("sglang_preload")) as pool,
    ):
        found = pool.submit(sglang_adapters.run, model, tmp_path, port.getsockname()[1]).result(DEADLINE)
    assert found["wrong"] == [] and found["moved"] == [] and found["base_untouched"]
    assert found["served"] == ["code"]
    assert "adapter 'wide': SGLang refuses it" in found["refused"] and "rank 16" in found["refused"]
    assert "adapter 'code': SGLang refuses it" in found["went_back"]
    assert found["stands"] and found["recovered"]


class OfRanks:
    """The two calls of `sglang.Engine`, as its tokenizer process does them: it numbers adapters and asks all ranks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.numbers: dict[str, str] = {}

    def load_lora_adapter(self, name: str, path: str) -> SimpleNamespace:
        number = uuid.uuid4().hex
        result = self._ask("load", name, path, number)
        if result.success:
            self.numbers[name] = number
        return result

    def unload_lora_adapter(self, name: str) -> SimpleNamespace:
        return self._ask("unload", name, self.numbers.pop(name))

    def _ask(self, *values: object) -> SimpleNamespace:
        answers = self._engine.call("adapters", *values)
        assert len(set(answers)) == 1, "the ranks disagree"
        return SimpleNamespace(success=answers[0][0], error_message=answers[0][1])


def test_every_tensor_parallel_rank_holds_what_a_fresh_load_gives_it(tmp_path: pathlib.Path) -> None:
    model = tmp_path / "model"
    config = sglang_adapters.WIDE
    sglang_engine.write_checkpoint(model, config, sglang_engine.canonical_tensors(config, seed=7))
    engine = Engine(
        model,
        2,
        enable_lora=True,
        max_lora_rank=8,
        lora_target_modules=list(sglang_adapters.TARGETS),
        lora_backend="torch_native",
        max_loras_per_batch=3,
    )
    try:
        ranks = OfRanks(engine)
        receiver = AdapterReceiver(SglangEngine(ranks), tmp_path / "served")
        base = engine.call("adapters", "base_digest")
        adapters = {n: sglang_adapters.make(n, seed, rank, 128) for n, seed, rank in (("math", 1, 4), ("code", 2, 8))}
        wide = sglang_adapters.make("wide", 3, 16, 128)
        logs = {
            n: Log(str(tmp_path / f"{n}.log"), mirror=str(tmp_path / f"{n}.safetensors")) for n in (*adapters, "wide")
        }
        ends = {n: Publisher(a.tensors.items(), transport=logs[n]) for n, a in (*adapters.items(), ("wide", wide))}

        def are_those_saved(which: str) -> bool:
            saved = {n: sglang_adapters.save(adapters[n], tmp_path / f"{n}-{which}") for n in receiver.versions}
            return all(
                engine.call("adapters", "is_that_of", ranks.numbers[name], model, folder) == [True, True]
                for name, folder in saved.items()
            )

        for name, adapter in adapters.items():
            receiver.add(adapter.spec(), logs[name])
        whole = {tuple(tensor.shape) for tensor in adapters["code"].tensors.values()}
        parts = engine.call("adapters", "shapes", ranks.numbers["code"])[0]
        assert not all(shape in whole for shape in parts.values()), "the ranks have parts"
        for update in range(4):
            name = ("math", "code")[update % 2]
            step(adapters[name], update)
            ends[name].publish()
            receiver.update(name)
            assert are_those_saved(f"update{update}")
        with pytest.raises(errors.UnsupportedError, match="rank 16"):
            receiver.add(wide.spec(), logs["wide"])
        receiver.remove("math")
        assert set(ranks.numbers) == {"code"} and are_those_saved("removed")
        receiver.add(adapters["math"].spec(), logs["math"])
        assert are_those_saved("again") and engine.call("adapters", "base_digest") == base
        the_base_follows_a_log(engine, tmp_path, sglang_engine.canonical_tensors(config, seed=7))
        assert are_those_saved("with another base") and engine.call("adapters", "base_digest") != base
        for served, words in engine.call("adapters", "own_server", tmp_path):
            assert served == ["5", "6"] and "SGLang refuses it: " in words and "rank 16" in words
        receiver.remove("code")
        adapters["code"].spec().save(tmp_path / "code.log.json")
        found = engine.call("adapters", "follows_by_itself", tmp_path / "code.log", tmp_path / "by itself")
        shown = {"log": str(tmp_path / "code.log"), "name": "code", "version": ends["code"].version, "error": ""}
        assert found == [[shown], [shown]]
        for end in ends.values():
            end.close()
    finally:
        engine.close()


def the_base_follows_a_log(engine: Engine, folder: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """The base weights, under the adapters, are those of a version of a log."""
    log = Log(folder / "base log", mirror=folder / "base.safetensors")
    with Publisher(list(tensors.items()), transport=log, positions="packed") as publisher:
        variables = {
            "FOLLOW": str(folder / "base log"),
            "FOLLOW_STATE": str(folder / "state"),
            "FOLLOW_INTERVAL": "0.02",
        }
        assert engine.call("following", "follow", variables)[0]["state"] in ("unproven", "ready")
        for tensor in tensors.values():
            tensor.view(torch.int16).flatten()[::7] += 1
        version = publisher.publish().version
        assert engine.call("following", "apply")[0]["version"] == version
    sglang_engine.write_checkpoint(folder / "next base", sglang_adapters.WIDE, tensors)
    assert engine.call("adapters", "base_differences", folder / "next base") == [[], []]
    engine.call("following", "end")
