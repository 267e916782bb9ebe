# SPDX-License-Identifier: Apache-2.0
"""The flag: verl's registry and configuration, in every order of imports, each in a process of its own."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("verl", reason="verl is not installed here (python/tests/requirements-verl.txt)")

HERE = pathlib.Path(__file__).parent

OURS = "import_external_libs('sparsecast.integrations.verl')"
WHOSE = "print(CheckpointEngineRegistry.get('delta_sharded').__module__)"
BEGIN = "from verl.utils.import_utils import import_external_libs"
REGISTRY = "from verl.checkpoint_engine import CheckpointEngineRegistry"
ENGINES = ["sparsecast.integrations.verl.engine"]


def run(*lines: str, empty: bool = True) -> list[str]:
    """Runs the lines; without `empty`, as on a machine without cupy, where verl's own engine cannot be imported."""
    prepare = f"import sys; sys.path.insert(0, {str(HERE)!r}); import verl_package; verl_package.prepare()"
    program = "\n".join([prepare if empty else "", *lines])
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


@pytest.mark.parametrize(
    ("lines", "empty"),
    [
        ((BEGIN, OURS, OURS, "import verl.checkpoint_engine.base", REGISTRY, WHOSE), True),
        ((BEGIN, REGISTRY, OURS, WHOSE), False),
    ],
    ids=["ours-first-and-twice", "registry-first-without-cupy"],
)
def test_the_engine_is_ours_in_every_order_of_imports(lines: tuple[str, ...], empty: bool) -> None:
    assert run(*lines, empty=empty)[-1:] == ENGINES


def test_verls_own_engine_is_there_when_nobody_asks_for_ours_and_stays_out_when_it_is_imported_later() -> None:
    theirs = "import verl.checkpoint_engine.delta_checkpoint_engine"
    assert run(BEGIN, REGISTRY, WHOSE, OURS, theirs, WHOSE) == [
        "verl.checkpoint_engine.delta_checkpoint_engine",
        *ENGINES,
    ]


def test_what_a_user_types_reaches_the_engine_through_verls_own_configuration() -> None:
    lines = run(
        BEGIN,
        REGISTRY,
        "import pathlib, verl",
        "from omegaconf import OmegaConf",
        "from verl.utils.config import omega_conf_to_dataclass",
        "tree = OmegaConf.load(pathlib.Path(verl.__file__).parent / 'trainer/config/_generated_ppo_trainer.yaml')",
        "flag = 'actor_rollout_ref.rollout.checkpoint_engine.'",
        "typed = ['backend=delta_sharded', 'custom_backend_module=sparsecast.integrations.verl']",
        "typed += ['engine_kwargs.delta_sharded.threads=3', 'engine_kwargs.delta_sharded.rollout_dtype=float16']",
        "tree = OmegaConf.merge(tree, OmegaConf.from_dotlist([flag + each for each in typed]))",
        "config = omega_conf_to_dataclass(tree.actor_rollout_ref.rollout.checkpoint_engine)",
        # From here as in verl's workers.
        "import_external_libs(config.custom_backend_module or None)",
        "engine_kwargs = config.engine_kwargs.get(config.backend, {})",
        "size = config.update_weights_bucket_megabytes << 20",
        "made = CheckpointEngineRegistry.new(config.backend, bucket_size=size, **engine_kwargs)",
        "print(type(made).__module__, made._threads, made._dtype, made.bucket_size, made.wire_format)",
    )
    assert lines == [*ENGINES, "3", "torch.float16", str(2048 << 20), "delta_flush"]


def test_verl_still_names_the_backend_where_our_name_depends_on_it() -> None:
    """These are why the engine is registered under verl's name: if one goes away, another name may do."""
    import verl

    root = pathlib.Path(verl.__file__).parent
    for path, text in {
        "workers/engine_workers.py": 'effective_mode == "delta_sharded"',
        "workers/rollout/sglang_rollout/async_sglang_server.py": 'ce_backend == "delta_sharded"',
        "workers/rollout/vllm_rollout/vllm_async_server.py": '"backend", None) == "delta_sharded"',
    }.items():
        assert text in (root / path).read_text(), path
