# SPDX-License-Identifier: Apache-2.0
"""Adapters from a trainer to an engine: several at once, over logs and a world; what is refused changes nothing."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import secrets
import sys
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

from adapter_files import SHAPES, ReadingEngine, make, same, step
from sparsecast_ports import free_port

from sparsecast import errors
from sparsecast.adapters import Adapter, AdapterReceiver, AdapterSpec, checkpoint_shapes
from sparsecast.torch import Log, Publisher, World

BASE = {f"{module}.weight": shape for module, shape in SHAPES.items()}


def log_of(folder: pathlib.Path, name: str) -> Log:
    return Log(str(folder / name / "log"), mirror=str(folder / name / "mirror.safetensors"), timeout=60.0)


def publisher_of(adapter: Adapter, folder: pathlib.Path, **options: Any) -> tuple[Publisher, Log]:
    (folder / adapter.name).mkdir(exist_ok=True)
    log = log_of(folder, adapter.name)
    return Publisher(adapter.tensors.items(), transport=log, **options), log


def told(adapter: Adapter, wire_dtype: torch.dtype | None = None) -> AdapterSpec:
    """The description as it travels."""
    return AdapterSpec.from_json(json.loads(json.dumps(adapter.spec(wire_dtype).to_json())))


def test_several_adapters_are_added_updated_and_removed_independently(tmp_path: pathlib.Path) -> None:
    engine = ReadingEngine()
    receiver = AdapterReceiver(engine, tmp_path / "served", base=BASE)
    math, code = make("math", 1), make("code", 2, rank=8)
    with publisher_of(math, tmp_path)[0] as math_end, publisher_of(code, tmp_path)[0] as code_end:
        first = receiver.add(told(math), log_of(tmp_path, "math")).version
        receiver.add(told(code), log_of(tmp_path, "code"))
        held = {name: dict(engine.served[name]) for name in ("math", "code")}
        for seed in range(4):
            changed = step(math, seed)
            report = math_end.publish()
            assert report.changed == changed < report.elements
            update = receiver.update("math")
            assert update.version == first + seed + 1 and update.received_bytes > 0
            assert same(engine.served["math"], dict(math.tensors)) and same(engine.served["code"], held["code"])
        assert len(list(update.directory.parent.glob("v*"))) == 2, "that of now, and that of before"
        assert receiver.update("math").load_seconds == 0.0, "nothing new"
        assert receiver.versions == {"math": first + 4, "code": first}

        receiver.remove("math")
        assert set(engine.served) == {"code"} and not (tmp_path / "served" / "math").exists()
        step(math, 9)
        math_end.publish()
        with pytest.raises(errors.UsageError, match="adapter 'math': it is not served here, was removed"):
            receiver.update("math")
        step(code, 1)
        code_end.publish()
        receiver.update("code")
        assert same(engine.served["code"], dict(code.tensors)) and receiver.versions == {"code": first + 1}
        # It may come back, at a path that no cache knows.
        assert receiver.add(told(math), log_of(tmp_path, "math")).version == first + 5
        assert same(engine.served["math"], dict(math.tensors))


def test_over_a_world_every_adapter_has_its_own_and_masters_are_cast(tmp_path: pathlib.Path) -> None:
    engine = ReadingEngine()
    receiver = AdapterReceiver(engine, tmp_path)
    adapter = make("chat", 3, dtype=torch.float32)
    world = World(host="127.0.0.1", port=free_port(), size=2, secret=secrets.token_hex(16), timeout=60.0)
    publisher = Publisher(adapter.tensors.items(), transport=world, wire_dtype=torch.bfloat16)

    later = dataclasses.replace(world, generation=1, port=free_port())

    def trainer() -> None:
        publisher.regroup()
        step(adapter, 1)
        publisher.publish()
        publisher.regroup(later)
        step(adapter, 2)
        publisher.publish()

    thread = threading.Thread(target=trainer)
    thread.start()
    first = receiver.add(told(adapter, torch.bfloat16), dataclasses.replace(world, rank_offset=1))
    assert receiver.update("chat").version == first.version + 1
    again = receiver.rejoin("chat", dataclasses.replace(later, rank_offset=1))
    assert again.version == first.version + 1 and again.load_seconds == 0.0, "it holds that version already"
    assert receiver.update("chat").version == first.version + 2
    thread.join()
    assert same(engine.served["chat"], {name: t.bfloat16() for name, t in adapter.tensors.items()})
    publisher.close()


def test_another_rank_or_module_is_a_new_adapter_and_nothing_changes(tmp_path: pathlib.Path) -> None:
    engine = ReadingEngine()
    receiver = AdapterReceiver(engine, tmp_path / "served", base=BASE)
    adapter = make("math", 1)
    publisher, log = publisher_of(adapter, tmp_path)
    with publisher:
        receiver.add(told(adapter), log)
        before = dict(engine.served["math"])
        wider = make("math", 1, rank=8)
        with pytest.raises(errors.Error, match="lora_A.weight|table"):  # The trainer finds it first.
            Publisher(wider.tensors.items(), transport=log)
        with pytest.raises(errors.UsageError, match="served already"):
            receiver.add(told(wider), log)
        other = AdapterReceiver(ReadingEngine(), tmp_path / "other")
        with pytest.raises(errors.Error, match="lora_A.weight|table"):
            other.add(told(wider), log)
        assert other.versions == {} and not (tmp_path / "other" / "math").exists()
        step(adapter, 5)
        publisher.publish()
        receiver.update("math")
        assert not same(engine.served["math"], before) and same(engine.served["math"], dict(adapter.tensors))


def test_an_adapter_that_does_not_fit_is_refused_before_anything_is_done(tmp_path: pathlib.Path) -> None:
    engine = ReadingEngine(max_rank=4)
    receiver = AdapterReceiver(engine, tmp_path / "served", base=BASE)
    name = "model.layers.0.self_attn.q_proj"
    narrower = AdapterReceiver(engine, tmp_path / "served", base={**BASE, f"{name}.weight": (24, 8)})
    adapter, wide = make("math", 1), make("wide", 1, rank=8)
    with pytest.raises(errors.UsageError, match=rf"'{name}': B @ A is \[24, 16\], and the base model has \[24, 8\]"):
        narrower.add(told(adapter), log_of(tmp_path, "math"))
    with pytest.raises(errors.UsageError, match=f"'{name}': the base model has no such module"):
        AdapterReceiver(engine, tmp_path / "served", base={"lm_head.weight": (1, 1)}).add(
            told(adapter), log_of(tmp_path, "math")
        )
    assert not (tmp_path / "served").exists()
    with publisher_of(wide, tmp_path)[0], pytest.raises(errors.UnsupportedError, match="rank 8 is above 4"):
        receiver.add(told(wide), log_of(tmp_path, "wide"))
    assert receiver.versions == {} == engine.served and not (tmp_path / "served" / "wide").exists()


def save_base(folder: pathlib.Path, tensors: dict[str, torch.Tensor]) -> pathlib.Path:
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder


def four_bit(shape: tuple[int, ...], state: bytes = b"") -> dict[str, torch.Tensor]:
    """What bitsandbytes writes for a weight of that shape."""
    written = state or json.dumps({"quant_type": "nf4", "blocksize": 64, "shape": list(shape)}).encode()
    return {
        "": torch.zeros(shape[0] * shape[1] // 2, 1, dtype=torch.uint8),
        ".absmax": torch.zeros(-(-shape[0] * shape[1] // 64)),
        ".quant_map": torch.zeros(16),
        ".quant_state.bitsandbytes__nf4": torch.tensor(list(written), dtype=torch.uint8),
    }


def test_a_base_of_bitsandbytes_or_fp8_is_looked_at_by_the_shapes_before(tmp_path: pathlib.Path) -> None:
    packed = {f"{m}.weight{part}": t for m, shape in SHAPES.items() for part, t in four_bit(shape).items()}
    eight = {f"{m}.weight": torch.zeros(shape, dtype=torch.float8_e4m3fn) for m, shape in SHAPES.items()}
    scales = {f"{module}.weight_scale_inv": torch.zeros(1, 1) for module in SHAPES}
    adapter = make("math", 1)
    narrow = {m: (a, b - 2) for m, (a, b) in SHAPES.items()}
    others = {f"{m}.weight{part}": t for m, shape in narrow.items() for part, t in four_bit(shape).items()}
    with publisher_of(adapter, tmp_path)[0]:
        for name, base in (("nf4", packed), ("fp8", {**eight, **scales})):
            shapes = checkpoint_shapes(save_base(tmp_path / name, base))
            assert shapes == BASE
            engine = ReadingEngine()
            AdapterReceiver(engine, tmp_path / "served" / name, base=shapes).add(
                told(adapter), log_of(tmp_path, "math")
            )
            assert same(engine.served["math"], dict(adapter.tensors))
        other = checkpoint_shapes(save_base(tmp_path / "others", others))
        with pytest.raises(errors.UsageError, match=r"B @ A is \[24, 16\], and the base model has \[24, 14\]"):
            AdapterReceiver(ReadingEngine(), tmp_path / "x", base=other).add(told(adapter), log_of(tmp_path, "math"))
    for state in (b"{", b"[]", b'{"shape": [4, "8"]}', b'{"shape": 4}'):
        name = f"damaged{len(state)}"
        damaged = {f"w{part}": tensor for part, tensor in four_bit((4, 8), state).items()}
        with pytest.raises(errors.CorruptError, match=rf"{name}/model.*quant_state.*no quantisation state"):
            checkpoint_shapes(save_base(tmp_path / name, damaged))


def test_a_packed_base_is_looked_at_by_names_alone(tmp_path: pathlib.Path) -> None:
    engine = ReadingEngine()
    packed = {f"{module}.{part}": (7, 3) for module in SHAPES for part in ("weight", "weight_scale")}
    receiver = AdapterReceiver(engine, tmp_path / "served", base=packed)
    adapter = make("math", 1)
    with publisher_of(adapter, tmp_path)[0]:
        receiver.add(told(adapter), log_of(tmp_path, "math"))
    assert same(engine.served["math"], dict(adapter.tensors))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "../x"}, "letters, digits"),
        ({"name": 3}, "letters, digits"),
        ({"tensors": []}, "no tensors"),
        ({"tensors": [["a", "F32"]]}, "no description"),
        ({"tensors": [["base_model.model.q.lora_A.weight", "F32", [4, -1]]]}, "no description"),
        ({"tensors": [["base_model.model.q.lora_A.weight", "F32", [4, 8]]]}, "it has only lora_A"),
        ({"tensors": [["base_model.model.q.lora_A.weight", "I8", [4, 8]]]}, "dtype I8"),
        ({"tensors": [["base_model.model.q.lora_magnitude_vector", "F32", [4]]]}, "only tensors"),
        ({"tensors": [["base_model.model.../../q.lora_A.weight", "F32", [4, 8]]]}, "only tensors"),
        ({"config": {"r": 8, "lora_alpha": 8}}, r"A \[4, 16\] and B \[24, 4\] are not \[8, in\]"),
        ({"config": {"r": 0, "lora_alpha": 8}}, "r is 0"),
        ({"config": {"r": 4}}, "lora_alpha is None"),
        ({"config": {"r": 4, "lora_alpha": 8, "use_dora": True}}, "use_dora is True"),
        ({"config": {"r": 4, "lora_alpha": 8, "bias": "all"}}, "bias is 'all'"),
        ({"config": {"r": 4, "lora_alpha": 8, "rank_pattern": {"(": 3}}}, "no pattern"),
        ({"config": {"r": 4, "lora_alpha": 8, "rank_pattern": {"q": 0}}}, "rank_pattern has 0"),
    ],
)
def test_descriptions_of_peers_are_checked(change: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.Error, match=words):
        AdapterSpec.from_json({**make("math").spec().to_json(), **change})


def test_ranks_and_scales_follow_the_patterns() -> None:
    adapter = make("math")
    config = {**adapter.config, "rank_pattern": {"mlp.down_proj": 2}, "alpha_pattern": {"q_proj": 1}}
    tensors = dict(adapter.tensors)
    prefix = "base_model.model.model.layers.0.mlp.down_proj.lora_"
    tensors[f"{prefix}A.weight"] = tensors[f"{prefix}A.weight"][:2].contiguous()
    tensors[f"{prefix}B.weight"] = tensors[f"{prefix}B.weight"][:, :2].contiguous()
    spec = Adapter("math", config, tensors).spec()
    assert spec.rank("model.layers.0.mlp.down_proj") == 2 and spec.scale("model.layers.0.mlp.down_proj") == 4.0
    assert spec.rank("model.layers.0.self_attn.q_proj") == 4 and spec.scale("model.layers.0.self_attn.q_proj") == 0.25
    assert make("math", use_rslora=True).spec().scale("model.layers.0.mlp.down_proj") == 4.0
