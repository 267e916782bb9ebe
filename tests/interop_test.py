#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sparsecast convert` against readers and writers of other systems' layouts that know nothing of sparsecast.

tests/interop_test.py PATH_TO_SPARSECAST [unittest arguments]
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "interop"))
try:
    import foreign_layouts as layouts
except ImportError as missing:  # zstandard and xxhash: tests/requirements.txt
    print(f"skipped: {missing}")
    sys.exit(0)

TRACE = pathlib.Path(__file__).resolve().parent.parent / "testdata" / "trace"
SPARSECAST = ""
SHAPES = {
    "a.weight": ("BF16", [300, 500]),
    "b.weight": ("BF16", [400000]),
    "c.norm": ("F32", [257]),
    "d.scale": ("F64", []),
    "e.codes": ("U8", [1000]),
    "f.fp8": ("F8_E4M3", [40, 33]),
    "g.ids": ("I64", [19]),
    "h.half": ("F16", [1000]),
    "i.empty": ("BF16", [0, 4]),
    "j.flags": ("BOOL", [64]),
}


def random_state(rng, shapes):
    state = {}
    for name, (dtype, shape) in shapes.items():
        count = int(np.prod(shape))
        if dtype == "BOOL":
            data = rng.integers(0, 2, count, dtype=np.uint8).tobytes()
        else:
            data = rng.bytes(count * layouts.SIZES[dtype])
        state[name] = (dtype, shape, data)
    return state


def changed_state(rng, state, density):
    result = {}
    for name, (dtype, shape, data) in state.items():
        copy = layouts.words(dtype, data).copy()
        mask = rng.random(copy.size) < density
        mask[rng.integers(0, max(copy.size, 1), 1)[: copy.size]] |= density > 0
        copy[mask] ^= 1
        result[name] = (dtype, shape, copy.tobytes())
    return result


class Convert(unittest.TestCase):
    seed = int(os.environ.get("SPARSECAST_SEED", random.randrange(1 << 32)))

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sparsecast_")
        self.path = pathlib.Path(self.folder.name)
        self.rng = np.random.default_rng(self.seed)

    def tearDown(self):
        self.folder.cleanup()

    def run_cli(self, *arguments, code=0):
        done = subprocess.run([SPARSECAST, *map(str, arguments)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, f"seed {self.seed}: {done.stdout}{done.stderr}")
        return done

    def write_states(self, *states):
        for i, state in enumerate(states):
            layouts.write_safetensors(self.path / f"s{i}.safetensors", state)

    def chain(self, shapes=SHAPES, densities=(0.01, 0.3)):
        """Three states and the deltas between them, in a directory."""
        states = [random_state(self.rng, shapes)]
        for density in densities:
            states.append(changed_state(self.rng, states[-1], density))
        self.write_states(*states)
        (self.path / "ours").mkdir()
        for i in range(len(densities)):
            self.run_cli(
                "diff",
                self.path / f"s{i}.safetensors",
                self.path / f"s{i + 1}.safetensors",
                "--base-version",
                i,
                "--version",
                i + 1,
                "-o",
                self.path / f"ours/{i + 1}.scd",
            )
        return states

    def to(self, form, *more):
        return self.run_cli(
            "convert",
            self.path / "ours",
            "--to",
            form,
            "--base",
            self.path / "s0.safetensors",
            "-o",
            self.path / form,
            *more,
        )

    def require_back(self, source, states, *more):
        """What is at `source`, converted to deltas and applied, is the last state."""
        out = self.path / "back"
        self.run_cli("convert", source, "--to", "scd", "--base", self.path / "s0.safetensors", "-o", out, *more)
        deltas = sorted(out.glob("*.scd")) if out.is_dir() else [out]
        self.assertEqual(len(deltas), len(states) - 1)
        self.run_cli("apply", self.path / "s0.safetensors", *deltas, "-o", self.path / "result.safetensors")
        result, _ = layouts.read_safetensors(self.path / "result.safetensors")
        self.assertEqual(result, {n: (d, list(s), b) for n, (d, s, b) in states[-1].items()}, f"seed {self.seed}")

    def test_a_trl_receiver_reaches_the_state(self):
        states = self.chain()
        self.to("trl")
        state = states[0]
        for version in (1, 2):
            state, said = layouts.trl_apply(self.path / f"trl/deltas/step_{version:06d}.safetensors", state)
            self.assertEqual((state, said), (states[version], version), f"seed {self.seed}")

    def test_trl_steps_become_deltas(self):
        states = self.chain()
        (self.path / "steps/deltas").mkdir(parents=True)
        for version in (1, 2):
            layouts.trl_write(
                self.path / f"steps/deltas/step_{version:06d}.safetensors",
                states[version - 1],
                states[version],
                version,
            )
        self.require_back(self.path / "steps", states)

    def test_an_anchor_stands_in_for_a_missing_step(self):
        states = self.chain()
        (self.path / "steps/deltas").mkdir(parents=True)
        (self.path / "steps/anchors").mkdir()
        layouts.trl_write(self.path / "steps/deltas/step_000001.safetensors", states[0], states[1], 1)
        layouts.write_safetensors(
            self.path / "steps/anchors/step_000002.safetensors", states[2], {"sparse": "False", "model_version": "2"}
        )
        self.require_back(self.path / "steps", states)

    def test_a_slime_receiver_reaches_the_state(self):
        states = self.chain()
        for form in ("slime-xor", "slime-overwrite"):
            for checksum in ("xxh3-128", "adler32"):
                with self.subTest(form=form, checksum=checksum):
                    out = self.path / f"{form}-{checksum}"
                    self.run_cli(
                        "convert",
                        self.path / "ours",
                        "--to",
                        form,
                        "--checksum",
                        checksum,
                        "--base",
                        self.path / "s0.safetensors",
                        "-o",
                        out,
                    )
                    state = states[0]
                    for version in (1, 2):
                        state, said, base = layouts.slime_apply(out / f"weight_v{version:06d}", state)
                        self.assertEqual(
                            (state, said, base), (states[version], version, version - 1), f"seed {self.seed}"
                        )

    def test_slime_directories_become_deltas(self):
        states = self.chain()
        for encoding in ("xor", "overwrite"):
            for checksum in ("xxh3-128", "adler32"):
                with self.subTest(encoding=encoding, checksum=checksum):
                    shared = self.path / f"shared-{encoding}-{checksum}"
                    for version in (1, 2):
                        layouts.slime_write(
                            shared / f"weight_v{version:06d}",
                            states[version - 1],
                            states[version],
                            version,
                            encoding,
                            checksum,
                        )
                    self.require_back(shared, states)
                    (self.path / "result.safetensors").unlink()

    def test_full_slime_directories_are_versions_too(self):
        states = self.chain()
        shared = self.path / "shared"
        layouts.slime_write(shared / "weight_v000001", states[0], states[1], 1, "xor")
        (shared / "weight_v000002").mkdir()
        layouts.write_safetensors(shared / "weight_v000002/model.safetensors", states[2])
        self.require_back(shared, states)
        self.to("slime-xor", "--full-every", 2)
        full, _ = layouts.read_safetensors(self.path / "slime-xor/weight_v000002/model.safetensors")
        self.assertEqual(full, {n: (d, list(s), b) for n, (d, s, b) in states[2].items()})

    def test_modelexpress_labels_versions_as_it_likes(self):
        states = self.chain()
        shared = self.path / "shared"
        labels = ["v0", "a1b2c3d4", "12345678"]
        for version in (1, 2):
            old, new, pair = states[version - 1], states[version], (labels[version], labels[version - 1])
            layouts.slime_write(shared / f"v{version}", old, new, version, "xor", "adler32", labels=pair)
        self.require_back(shared, states)
        (self.path / "result.safetensors").unlink()
        first, second = ((shared / f"v{i}").rename(shared / name) for i, name in ((1, "first"), (2, "second")))
        convert = ["--to", "scd", "--base", self.path / "s0.safetensors", "-o", self.path / "named"]
        self.run_cli("convert", first, second, *convert)
        refused = self.run_cli("convert", second, first, *convert, code=3).stderr
        self.assertIn("leads from version 'v0', but what comes before it is '12345678' [version_gap]", refused)

    def test_a_modelexpress_receiver_reaches_the_state(self):
        states = self.chain()
        self.to("modelexpress", "--full-every", 2)
        directory = self.path / "modelexpress"
        state, version, base = layouts.slime_apply(directory / "weight_v000001", states[0])
        self.assertEqual((state, version, base), (states[1], 1, 0), f"seed {self.seed}")
        index = json.loads((directory / "weight_v000001/model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["checksum_format"], "adler32")
        full, _ = layouts.read_safetensors(directory / "weight_v000002/model.safetensors")
        index = json.loads((directory / "weight_v000002/model.safetensors.index.json").read_text())
        self.assertEqual(index["weight_map"], dict.fromkeys(full, "model.safetensors"))
        size = sum(len(data) for _, _, data in full.values())
        self.assertEqual(index["metadata"], {"total_size": size, "version": "000002"})
        self.require_back(directory, states)

    def test_a_packed_receiver_reaches_the_state(self):
        states = self.chain()
        for form in ("packed-indices", "packed-deltas", "packed-deltas-zstd"):
            with self.subTest(form=form):
                self.to(form)
                state = states[0]
                for version in (1, 2):
                    state = layouts.packed_apply(self.path / f"{form}/weight_v{version:06d}", state)
                    self.assertEqual(state, states[version], f"seed {self.seed}")

    def test_packed_directories_become_deltas(self):
        states = self.chain()
        for encoding in ("indices", "deltas", "deltas_zstd"):
            for mixed in (False, True):
                with self.subTest(encoding=encoding, mixed=mixed):
                    shared = self.path / f"shared-{encoding}-{mixed}"
                    for version in (1, 2):
                        layouts.packed_write(
                            shared / f"weight_v{version:06d}",
                            states[version - 1],
                            states[version],
                            version,
                            encoding,
                            mixed,
                            checksum=not mixed,
                        )
                    self.require_back(shared, states)
                    (self.path / "result.safetensors").unlink()

    def test_gaps_of_more_than_16_bits_are_said(self):
        shapes = {"w": ("BF16", [300000])}
        old = random_state(self.rng, shapes)
        values = layouts.words("BF16", old["w"][2])
        new = layouts.patched(old, {"w": ([5, 70000, 299999], values[[5, 70000, 299999]] ^ 3)})
        self.write_states(old, new)
        (self.path / "ours").mkdir()
        self.run_cli("diff", self.path / "s0.safetensors", self.path / "s1.safetensors", "-o", self.path / "ours/1.scd")
        self.to("packed-deltas")
        self.assertEqual(layouts.packed_apply(self.path / "packed-deltas/weight_v000001", old), new)
        self.require_back(self.path / "packed-deltas", [old, new])

    def test_nothing_and_everything_changed(self):
        states = self.chain(densities=(0.0, 1.0))
        for form in ("trl", "slime-xor", "slime-overwrite", "packed-indices", "packed-deltas", "packed-deltas-zstd"):
            with self.subTest(form=form):
                self.to(form)
                self.require_back(self.path / form, states)
                (self.path / "result.safetensors").unlink()

    def test_verl_and_vllm_payloads(self):
        shapes = {n: s for n, s in SHAPES.items() if s[0] in ("BF16", "F16")}
        states = [random_state(self.rng, shapes)]
        for name, (dtype, shape, data) in states[0].items():  # Without NaNs, which vLLM cannot take.
            states[0][name] = (dtype, shape, (layouts.words(dtype, data) & 0x3FFF).tobytes())
        states.append(changed_state(self.rng, states[0], 0.05))
        self.write_states(*states)
        (self.path / "ours").mkdir()
        self.run_cli("diff", self.path / "s0.safetensors", self.path / "s1.safetensors", "-o", self.path / "ours/1.scd")
        self.to("verl")
        self.assertEqual(layouts.verl_apply(sorted((self.path / "verl").iterdir()), states[0]), states[1])
        self.to("vllm")
        state, _ = layouts.trl_apply(self.path / "vllm/update_000001.safetensors", states[0])
        self.assertEqual(state, states[1])
        _, metadata = layouts.read_safetensors(self.path / "vllm/update_000001.safetensors")
        info = json.loads(metadata["update_info"])
        want = [(n, layouts.TORCH[d], s, i.size) for n, d, s, i, _ in layouts.patches(*states)]
        self.assertEqual(list(zip(*(info[k] for k in ("names", "dtype_names", "shapes", "num_updates_list")))), want)

    def test_the_recorded_run_goes_through_every_format(self):
        base = TRACE / "step_000012.safetensors"
        self.run_cli("convert", TRACE, "--to", "scd", "--base", base, "--base-version", 12, "-o", self.path / "ours")
        for form in ("trl", "slime-xor", "slime-overwrite", "packed-indices", "packed-deltas", "packed-deltas-zstd"):
            out = self.path / form
            self.run_cli("convert", self.path / "ours", "--to", form, "--base", base, "-o", out)
            self.run_cli("convert", out, "--to", "scd", "--base", base, "-o", self.path / f"back-{form}")
            for delta in sorted((self.path / "ours").iterdir()):
                self.assertEqual((self.path / f"back-{form}" / delta.name).read_bytes(), delta.read_bytes(), form)

    def test_errors_name_what_is_wrong(self):
        states = self.chain(densities=(0.01,))
        shared = self.path / "shared"
        layouts.slime_write(shared / "weight_v000001", states[0], states[1], 1, "xor")
        index = shared / "weight_v000001/model.safetensors.index.json"
        good = index.read_text()
        convert = [
            "convert",
            shared,
            "--to",
            "scd",
            "--base",
            self.path / "s0.safetensors",
            "-o",
            self.path / "out.scd",
        ]
        index.write_text(good.replace("xxh3-128", "blake3"))
        self.assertIn("blake3", self.run_cli(*convert, code=3).stderr)
        index.write_text(good.replace("xxh3-128", "adler32"))
        self.assertIn("[digest_mismatch]", self.run_cli(*convert, code=3).stderr)
        index.write_text(good)
        wrong = [str(x) for x in convert]
        wrong[5] = str(self.path / "s1.safetensors")
        self.assertIn("tensor '", self.run_cli(*wrong, code=3).stderr)
        self.assertIn(
            "[version_gap]", self.run_cli(*convert, "--base-version", "0", self.path / "shared", code=3).stderr
        )
        self.assertFalse((self.path / "out.scd").exists())
        self.assertEqual([p.name for p in self.path.iterdir() if ".work" in p.name or ".partial" in p.name], [])
        self.run_cli(*convert)
        self.to("slime-xor")
        self.assertIn("exists", self.to_again("slime-xor"))

    def to_again(self, form):
        return self.run_cli(
            "convert",
            self.path / "ours",
            "--to",
            form,
            "--base",
            self.path / "s0.safetensors",
            "-o",
            self.path / form,
            code=2,
        ).stderr


if __name__ == "__main__":
    SPARSECAST = sys.argv.pop(1)
    print("seed", Convert.seed)
    unittest.main(verbosity=1)
