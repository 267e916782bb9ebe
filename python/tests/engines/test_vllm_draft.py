# SPDX-License-Identifier: Apache-2.0
"""Drafts of vLLM's own classes as second destinations of the target's version, in one process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("vllm")

import vllm_models as models
from test_vllm_trace import patch_by_map
from test_vllm_transfer import Trainer

# isort: split
import vllm_drafts as drafts
from safetensors.torch import save_file
from vllm.config import set_current_vllm_config
from vllm_workers import WorkerFailedError, Workers

from sparsecast.engines.trace.loader import CanonicalTensor, TracedLoader
from sparsecast.engines.vllm.draft import choose_draft, with_draft, without_draft
from sparsecast.engines.vllm.model import refuse_new_ties, trace
from sparsecast.errors import UnsupportedError, UsageError

PREFIX = "eagle/"


def table(*groups: drafts.Shapes) -> list[CanonicalTensor]:
    return [(name, "BF16", shape) for shapes in groups for name, shape in shapes.items()]


def prefixed(values: dict[str, object]) -> dict[str, object]:
    return {PREFIX + name: value for name, value in values.items()}


def map_of(
    pair: drafts.Pair, canonical: list[CanonicalTensor], prefix: str = "", may_miss: tuple[str, ...] = ()
) -> TracedLoader:
    """What a worker's engine does with the trainer's table."""
    with set_current_vllm_config(pair.config):
        traced = trace(pair.target, without_draft(canonical, prefix), pair.config, may_miss)[0]
        draft = choose_draft(
            pair.config.speculative_config, pair.config.model_config, pair.draft, prefix, can_look=True
        )
        return with_draft(traced, draft, pair.target, canonical, pair.config, may_miss)[0]


class Said(logging.Handler):
    """What sparsecast logs."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def said() -> Iterator[list[str]]:
    handler = Said()
    logger = logging.getLogger("vllm.sparsecast")
    logger.addHandler(handler)
    yield handler.messages
    logger.removeHandler(handler)


@pytest.fixture
def mimo(tmp_path: Path) -> Iterator[list[drafts.Pair]]:
    config = drafts.config("mimo", tmp_path, "mtp")
    models.start(config)
    yield [drafts.build(config), drafts.build(config)]
    models.stop()


@pytest.fixture(params=[False, True], ids=["shared embeddings", "embeddings of its own"])
def eagle(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[drafts.Shapes, list[drafts.Pair]]]:
    shapes = drafts.eagle_shapes(embeddings=request.param)
    config = drafts.config("llama", tmp_path, "eagle", drafts.write_config(tmp_path / "head", drafts.EAGLE_CONFIG))
    models.start(config)
    own = drafts.tensors_of(shapes, seed=9)
    yield shapes, [drafts.build(config, own), drafts.build(config, own)]
    models.stop()


def test_an_mtp_head_in_the_trainers_checkpoint_follows_by_its_own_loader(mimo: list[drafts.Pair]) -> None:
    patched, loaded = mimo
    shapes = {**models.checkpoint_shapes("mimo"), **drafts.mtp_shapes()}
    traced = map_of(patched, table(shapes))
    old, new = drafts.tensors_of(shapes, 1), drafts.tensors_of(shapes, 2)
    patched.load(old, old)
    loaded.load(new, new)
    assert not traced.unused and not traced.refused
    refuse_new_ties(traced, [])
    assert traced.differences(old.items()) == {}
    assert any(name.startswith("draft.") for name in patched.differing(loaded))
    patch_by_map(traced, new)
    assert patched.differing(loaded) == []
    # What both have is written once: no live element is in two shards.
    assert sum(torch.Size(shard.extent).numel() for shard in traced.shards) == sum(t.numel() for t in new.values())
    assert {tensor.name for tensor in traced.tensors} >= {"model.embed_tokens.weight", "lm_head.weight"}
    assert not {"draft.model.embed_tokens.weight", "draft.lm_head.weight"} & {t.name for t in traced.tensors}
    assert sum(layout.elements for layout in traced.layout().ranks[0].tensors) == sum(
        tensor.memory.numel() for tensor in traced.tensors
    )


def test_a_head_with_files_of_its_own_follows_the_names_under_the_prefix(
    eagle: tuple[drafts.Shapes, list[drafts.Pair]],
) -> None:
    shapes, (patched, loaded) = eagle
    canonical = table(models.checkpoint_shapes("llama"), prefixed(shapes))  # type: ignore[arg-type]
    traced = map_of(patched, canonical, PREFIX)
    target, head = models.checkpoint("llama", seed=1), drafts.tensors_of(shapes, 1)
    patched.load(target, head)
    assert traced.differences([*target.items(), *prefixed(head).items()]) == {}  # type: ignore[list-item]
    new_target, new_head = models.checkpoint("llama", seed=2), drafts.tensors_of(shapes, 2)
    loaded.load(new_target, new_head)
    assert any(name.startswith("draft.") for name in patched.differing(loaded))
    patch_by_map(traced, {**new_target, **prefixed(new_head)})  # type: ignore[dict-item]
    assert patched.differing(loaded) == []
    assert not traced.unused


def test_a_head_that_the_trainer_does_not_have_stays_as_it_is_and_is_named(
    mimo: list[drafts.Pair], said: list[str]
) -> None:
    canonical = table(models.checkpoint_shapes("mimo"))
    traced = map_of(mimo[0], canonical)
    assert not any(tensor.name.startswith("draft.") for tensor in traced.tensors) and not traced.unused
    assert len(said) == 1 and "the trainer's table has no tensors of it" in said[0]
    assert mimo[0].config.speculative_config.draft_model_config.model in said[0]


def test_a_separate_draft_without_a_prefix_stays_as_it_is_and_is_named_with_the_cure(
    eagle: tuple[drafts.Shapes, list[drafts.Pair]], said: list[str]
) -> None:
    canonical = table(models.checkpoint_shapes("llama"))
    traced = map_of(eagle[1][0], canonical)
    assert not any(tensor.name.startswith("draft.") for tensor in traced.tensors)
    assert len(said) == 1 and "draft_prefix" in said[0]


def test_a_worker_that_does_not_show_its_draft_says_how_it_would(mimo: list[drafts.Pair], said: list[str]) -> None:
    config = mimo[0].config
    assert choose_draft(config.speculative_config, config.model_config, None, "", can_look=False) is None
    assert "--worker-extension-cls sparsecast.engines.vllm.WorkerExtension" in said[0]


def test_guesses_without_weights_are_not_called_a_draft(tmp_path: Path, said: list[str]) -> None:
    config = drafts.config("llama", tmp_path, "ngram")
    assert choose_draft(config.speculative_config, config.model_config, None, "", can_look=False) is None
    assert said == []


def test_another_pipeline_stage_than_the_drafts_takes_the_target_alone(mimo: list[drafts.Pair]) -> None:
    config = mimo[0].config
    assert choose_draft(config.speculative_config, config.model_config, None, "", can_look=True) is None
    model = mimo[0].target
    shapes = models.checkpoint_shapes("mimo")
    canonical = [*table(shapes)[:3], (f"{PREFIX}fc.weight", "BF16", (2, 4)), *table(shapes)[3:]]
    with set_current_vllm_config(config):
        traced = with_draft(trace(model, without_draft(canonical, PREFIX), config)[0], None, model, canonical, config)[
            0
        ]
    assert [entry[0] for entry in traced.table] == [entry[0] for entry in canonical]
    assert traced.unused == (f"{PREFIX}fc.weight",)
    tensors = drafts.tensors_of(shapes, 3)
    with set_current_vllm_config(config):
        model.load_weights(iter(tensors.items()))
    assert traced.differences(tensors.items()) == {}


def test_a_part_of_the_draft_that_nothing_fills_is_refused_with_its_name(mimo: list[drafts.Pair]) -> None:
    shapes = {**models.checkpoint_shapes("mimo"), **drafts.mtp_shapes()}
    del shapes["model.mtp_layers.0.self_attn.k_proj.weight"]
    with pytest.raises(UsageError, match=r"fills draft\..*qkv_proj.weight .*may_miss.*draft='keep'"):
        map_of(mimo[0], table(shapes))
    traced = map_of(mimo[0], table(shapes), may_miss=("draft.*",))
    assert any(tensor.name.startswith("draft.") for tensor in traced.tensors)


def test_a_tensor_that_is_no_tensor_of_weights_is_refused_with_the_cure(mimo: list[drafts.Pair]) -> None:
    canonical = table(models.checkpoint_shapes("mimo"), drafts.mtp_shapes())
    name = "model.mtp_layers.0.input_proj.weight"
    canonical = [(n, dtype, shape if n != name else (3, 5)) for n, dtype, shape in canonical]
    with pytest.raises(UnsupportedError, match=rf"{name}.*draft='keep'"):
        map_of(mimo[0], canonical)


def test_a_tensor_that_target_and_draft_both_cast_is_refused_with_the_cure(mimo: list[drafts.Pair]) -> None:
    canonical = table(models.checkpoint_shapes("mimo"), drafts.mtp_shapes())
    name = "model.embed_tokens.weight"
    canonical = [(n, "F32" if n == name else dtype, shape) for n, dtype, shape in canonical]
    with pytest.raises(UnsupportedError, match=rf"'{name}' is computed with by the target and by .*draft='keep'"):
        map_of(mimo[0], canonical)


def test_a_tensor_that_the_loader_of_a_head_casts_follows_from_a_shadow(mimo: list[drafts.Pair]) -> None:
    patched, loaded = mimo
    name = "model.mtp_layers.0.input_proj.weight"
    shapes = {**models.checkpoint_shapes("mimo"), **drafts.mtp_shapes()}
    canonical = [(n, "F32" if n == name else dtype, shape) for n, dtype, shape in table(shapes)]
    old, new = ({n: t.float() if n == name else t for n, t in drafts.tensors_of(shapes, s).items()} for s in (1, 2))
    patched.load(old, old)
    loaded.load(new, new)
    config = patched.config
    with set_current_vllm_config(config):
        traced = trace(patched.target, canonical, config)[0]
        draft = choose_draft(config.speculative_config, config.model_config, patched.draft, "", can_look=True)
        traced, recomputation = with_draft(traced, draft, patched.target, canonical, config)
    assert traced.differences(traced.filling(old.items())) == {} and recomputation is not None
    recomputation.prove(as_loaded=True)
    assert list(traced.shadowed) == [name] and recomputation.derived == ["model.mtp_layers.2.input_proj.weight"]
    patch_by_map(traced, new)
    recomputation.run()
    assert patched.differing(loaded) == []


def test_a_draft_that_computes_with_what_it_derived_from_weights_is_refused(mimo: list[drafts.Pair]) -> None:
    mimo[0].draft.model.w_uv = torch.zeros(4, 4, dtype=torch.bfloat16)
    canonical = table(models.checkpoint_shapes("mimo"), drafts.mtp_shapes())
    with pytest.raises(UnsupportedError, match=r"the draft .* derived from its weights after loading: .*w_uv"):
        map_of(mimo[0], canonical)


def test_a_name_under_the_prefix_that_the_draft_does_not_know_is_refused(
    eagle: tuple[drafts.Shapes, list[drafts.Pair]],
) -> None:
    shapes, pairs = eagle
    canonical = table(models.checkpoint_shapes("llama"), prefixed(shapes))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=f"{PREFIX}fcc.weight"):
        map_of(pairs[0], [*canonical, (f"{PREFIX}fcc.weight", "BF16", (2, 2))], PREFIX)


def test_a_quantised_copy_of_the_head_is_refused() -> None:
    class Config:
        model, revision, draft_lm_head_quantization = "m", None, "fp8"

    class Speculative:
        method = "mtp"
        draft_model_config = Config
        draft_lm_head_quantization = "fp8"

    with pytest.raises(UnsupportedError, match=r"draft_lm_head_quantization.*draft='keep'"):
        choose_draft(Speculative, Config, torch.nn.Linear(1, 1), "", can_look=True)


def test_target_and_draft_reach_every_version_together_through_the_workers_calls(tmp_path: Path) -> None:
    head = drafts.tensors_of(drafts.eagle_shapes(embeddings=True), seed=9)
    save_file(models.checkpoint("llama", seed=1), str(tmp_path / "model.safetensors"))
    (tmp_path / "head").mkdir()
    save_file(head, str(tmp_path / "head" / "model.safetensors"))
    trainer = Trainer("llama", {PREFIX + name: tensor for name, tensor in head.items()})
    workers = Workers(size=1)
    try:
        workers.call("open_with_draft", folder=str(tmp_path), store=str(tmp_path / "store"))
        with pytest.raises(WorkerFailedError, match=f"no place for '{PREFIX}"):
            workers.init_weight_transfer_engine(trainer.init_info(engine_workers=1).for_workers())
        engine = trainer.connect(workers, engine_workers=1, draft_prefix=PREFIX)
        for update in (1, 2):
            trainer.step()
            engine.send_weights()
            assert workers.call("draft_differing", updates=update) == [[]]
        assert workers.call("audit")[0]["version"] == 2
        with pytest.raises(WorkerFailedError, match="does not support draft model weight updates"):
            workers.call("start_draft_weight_update")
        workers.call("flip_a_bit_of_the_draft")
        with pytest.raises(WorkerFailedError, match="DirtyError"):
            workers.call("audit")
        # And as it is, if the user wants that.
        workers.call("open_with_draft", folder=str(tmp_path), store=str(tmp_path / "another store"))
        trainer = Trainer("llama", {PREFIX + name: tensor for name, tensor in head.items()}, (f"{PREFIX}*",))
        engine = trainer.connect(workers, engine_workers=1, draft_prefix=PREFIX, draft="keep")
        trainer.step()
        engine.send_weights()
        assert workers.call("draft_differing", updates=0)[0]
        kept = workers.call("draft_differing", updates=1)[0]
        assert kept and all(name.startswith("draft.") for name in kept)
    finally:
        workers.close()


def test_what_vllm_computes_of_an_mtp_heads_weights_follows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (
        models.computed.DEEPSEEK_V3_FP8 | {"num_nextn_predict_layers": 1},
        models.computed.deepseek_with_mtp_shapes,
    )
    monkeypatch.setitem(models.COMPUTED, "deepseek-mtp-fp8", shape)
    config = drafts.config("deepseek-mtp-fp8", tmp_path, "mtp")
    models.start(config)
    try:
        patched, loaded = drafts.build(config), drafts.build(config)
        canonical = models.canonical("deepseek-mtp-fp8")
        old, new = (models.checkpoint("deepseek-mtp-fp8", seed) for seed in (1, 2))
        for pair, tensors in ((patched, old), (loaded, new)):
            models.load(pair.draft, config, tensors)
            models.load(pair.target, config, tensors)
        with set_current_vllm_config(config):
            traced, of_target = trace(patched.target, canonical, config)
            draft = choose_draft(config.speculative_config, config.model_config, patched.draft, "", can_look=True)
            traced, of_draft = with_draft(traced, draft, patched.target, canonical, config)
        assert traced.differences(traced.filling(old.items())) == {}
        assert of_draft is not None
        for recomputation in (of_target, of_draft):
            recomputation.prove(as_loaded=True)
        assert [name for name in of_draft.derived if "_scale" not in name] == [
            f"model.layers.2.mtp_block.self_attn.mla_attn.mla_attn.{name}" for name in ("W_UV", "W_UK_T")
        ]
        patch_by_map(traced, new)
        for recomputation in (of_target, of_draft):
            recomputation.run()
        assert patched.differing(loaded) == []
    finally:
        models.stop()
