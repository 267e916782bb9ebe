#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""End-to-end tests of the `sparsecast` command: the built program, real files, nothing of the library.

    tests/cli_test.py PATH_TO_SPARSECAST [unittest arguments]

What the files should hold is computed here, with numpy, from the format of safetensors alone.
"""

import itertools
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

LAYOUTS = pathlib.Path(__file__).resolve().parent.parent / "layouts"
TRACE = pathlib.Path(__file__).resolve().parent.parent / "testdata" / "trace"
SPARSECAST = ""
MIB = 1 << 20
MEMORY_LIMIT = 512 * MIB


def read_safetensors(path):
    """Name -> (dtype, shape, bytes), and the metadata."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    begin = 8 + length
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[begin + first : begin + last])
    return tensors, metadata


def write_safetensors(path, tensors, metadata=None):
    header = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def apply_sparse(tensors, step):
    """The tensors after a sparse step whose values are 16 bits wide."""
    entries, _ = read_safetensors(step)
    result = dict(tensors)
    for name in sorted(n[: -len(".indices")] for n in entries if n.endswith(".indices")):
        dtype, shape, data = result[name]
        words = np.frombuffer(data, dtype="<u2").copy()
        indices = np.frombuffer(entries[name + ".indices"][2], dtype="<i4")
        words[indices] = np.frombuffer(entries[name + ".values"][2], dtype="<u2")
        result[name] = (dtype, shape, words.tobytes())
    return result


def run(*arguments, expect=0):
    done = subprocess.run([SPARSECAST, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    if done.returncode != expect:
        raise AssertionError(f"{arguments}: exit {done.returncode}, not {expect}\n{done.stdout}\n{done.stderr}")
    return done


def run_json(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sparsecast_cli_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name):
        return self.folder / name


@unittest.skipUnless(TRACE.is_dir(), "testdata/trace is absent")
class RealTrace(Folder):
    def setUp(self):
        super().setUp()
        steps = sorted(TRACE.glob("step_*.safetensors"))
        self.anchor, self.steps = steps[0], steps[1:]
        state, _ = read_safetensors(self.anchor)
        self.states = [state]
        for step in self.steps:
            self.states.append(apply_sparse(self.states[-1], step))
        self.checkpoints = [self.anchor]
        for i, state in enumerate(self.states[1:], 1):
            self.checkpoints.append(self.path(f"full_{i}.safetensors"))
            write_safetensors(self.checkpoints[-1], state)

    def deltas(self, *flags):
        """One delta a step, made from full checkpoints."""
        made = []
        for i in range(1, len(self.checkpoints)):
            made.append(self.path(f"{i}.scd"))
            run(
                "diff",
                self.checkpoints[i - 1],
                self.checkpoints[i],
                "-o",
                made[-1],
                "--base-version",
                i - 1,
                "--version",
                i,
                *flags,
            )
        return made

    def test_every_codec_takes_the_anchor_to_the_last_step(self):
        for positions in ("auto", "packed", "gap16", "index32"):
            for values in ("ulp", "xor", "raw"):
                for zstd in (0, 3):
                    with self.subTest(positions=positions, values=values, zstd=zstd):
                        deltas = self.deltas("--positions", positions, "--values", values, "--zstd", zstd)
                        out = self.path("out.safetensors")
                        run("apply", self.anchor, *deltas, "-o", out, "--force")
                        tensors, metadata = read_safetensors(out)
                        self.assertEqual(tensors, self.states[-1])
                        self.assertEqual(metadata, read_safetensors(self.anchor)[1])

    def test_a_sparse_step_gives_the_same_delta_as_the_full_checkpoint(self):
        for i, step in enumerate(self.steps):
            sparse, full = self.path("sparse.scd"), self.path("full.scd")
            report = run_json("diff", self.checkpoints[i], step, "-o", sparse)
            run("diff", self.checkpoints[i], self.checkpoints[i + 1], "-o", full)
            self.assertEqual(sparse.read_bytes(), full.read_bytes())
            self.assertGreater(report["changed"], 0)

    def test_the_json_of_diff_is_what_it_says(self):
        delta = self.path("d.scd")
        report = run_json("diff", self.anchor, self.checkpoints[1], "-o", delta)
        elements = sum(len(data) // 2 for _, _, data in self.states[0].values())
        changed = sum(
            int(np.count_nonzero(np.frombuffer(data, "<u2") != np.frombuffer(self.states[1][name][2], "<u2")))
            for name, (_, _, data) in self.states[0].items()
        )
        self.assertEqual(report["elements"], elements)
        self.assertEqual(report["changed"], changed)
        self.assertAlmostEqual(report["density"], changed / elements)
        self.assertEqual(report["dense_bytes"], 2 * elements)
        self.assertEqual(report["delta_bytes"], delta.stat().st_size)
        self.assertAlmostEqual(report["bytes_per_change"], delta.stat().st_size / changed)
        self.assertAlmostEqual(report["ratio"], 2 * elements / delta.stat().st_size)
        self.assertEqual(report["base_digest"], run_json("digest", self.anchor)["digest"])
        self.assertEqual(report["result_digest"], run_json("digest", self.checkpoints[1])["digest"])
        self.assertGreater(report["seconds"], 0)
        shown = run_json("inspect", delta, "--tensors")
        self.assertEqual(shown["changed"], changed)
        self.assertEqual(sum(row["changed"] for row in shown["tensor_rows"]), changed)

    def test_in_place_reaches_the_last_step_and_says_when_it_is_there_already(self):
        live = self.path("live.safetensors")
        shutil.copy(self.anchor, live)
        deltas = self.deltas()
        first = run_json("apply", live, *deltas[:2], "--in-place")
        self.assertEqual(first["applied"], 2)
        rest = run("apply", live, *deltas, "--in-place", "--json")
        self.assertIn("already applied", rest.stderr)
        self.assertEqual(json.loads(rest.stdout)["already_applied"], 2)
        self.assertEqual(read_safetensors(live)[0], self.states[-1])
        self.assertEqual(run_json("apply", live, *deltas, "--in-place")["applied"], 0)
        self.assertEqual(sorted(p.name for p in self.folder.glob("live*")), ["live.safetensors"])

    def test_compose_and_invert_follow_the_group_laws(self):
        for values in ("ulp", "xor", "raw"):
            with self.subTest(values=values):
                deltas = self.deltas("--values", values, "--objective", "speed")
                merged, back = self.path("merged.scd"), self.path("back.scd")
                run("compose", *deltas, "-o", merged)
                self.assertEqual(list(self.folder.glob("merged.scd.*")), [])
                out, restored = self.path("out.safetensors"), self.path("restored.safetensors")
                run("apply", self.anchor, merged, "-o", out, "--force")
                self.assertEqual(read_safetensors(out)[0], self.states[-1])
                if values == "raw":
                    refused = run("invert", merged, "-o", back, expect=2)
                    self.assertIn("--base", refused.stderr)
                    run("invert", merged, "-o", back, "--base", self.checkpoints[1], expect=3)
                    context = ("--base", self.anchor, "--positions", "context")
                    self.assertIn("'ulp'", run("invert", merged, "-o", back, *context, expect=2).stderr)
                run("invert", merged, "-o", back, *(["--base", self.anchor] if values == "raw" else []))
                run("apply", out, back, "-o", restored, "--force")
                self.assertEqual(read_safetensors(restored)[0], self.states[0])
                self.assertEqual(run("compare", restored, self.anchor).returncode, 0)

    def test_context_deltas_are_smaller_and_need_their_base(self):
        packed = self.deltas("--objective", "speed")
        sizes = [pathlib.Path(delta).stat().st_size for delta in packed]
        explicit = [pathlib.Path(delta).read_bytes() for delta in self.deltas("--positions", "context")]
        deltas = self.deltas()
        self.assertEqual([pathlib.Path(delta).read_bytes() for delta in deltas], explicit)
        for delta, size in zip(deltas, sizes):
            self.assertLess(pathlib.Path(delta).stat().st_size, 0.8 * size)
        report = run_json("inspect", deltas[0])
        self.assertGreater(report["blocks"]["context"], 0)
        self.assertTrue(report["needs_base"])
        self.assertIn(report["base_digest"], run("inspect", deltas[0]).stdout.split("needs")[1].splitlines()[0])
        out, restored = self.path("out.safetensors"), self.path("restored.safetensors")
        run("apply", self.anchor, *deltas, "-o", out)
        self.assertEqual(read_safetensors(out)[0], self.states[-1])
        run("apply", self.anchor, deltas[-1], "-o", restored, expect=3)

        merged, back = self.path("merged.scd"), self.path("back.scd")
        refused = run("compose", *deltas, "-o", merged, expect=2).stderr
        self.assertIn(run_json("digest", self.anchor)["digest"], refused)
        run("compose", *deltas, "-o", merged, "--base", self.checkpoints[1], expect=3)
        run("compose", *deltas, "-o", merged, "--base", self.anchor)
        self.assertGreater(run_json("inspect", merged)["blocks"]["context"], 0)
        run("apply", self.anchor, merged, "-o", out, "--force")
        self.assertEqual(read_safetensors(out)[0], self.states[-1])
        self.assertIn("--base", run("invert", merged, "-o", back, expect=2).stderr)
        run("invert", merged, "-o", back, "--base", self.anchor)
        run("apply", out, back, "-o", restored)
        self.assertEqual(read_safetensors(restored)[0], self.states[0])
        self.assertIn(
            "'ulp'",
            run("diff", self.anchor, out, "-o", back, "--positions", "context", "--values", "raw", expect=2).stderr,
        )

    def test_convert_writes_deltas_anew_by_their_base(self):
        packed = [pathlib.Path(delta).read_bytes() for delta in self.deltas("--positions", "packed")]
        deltas = self.deltas()
        out = self.path("out")
        flags = ("--to", "scd", "--base", self.anchor)
        run("convert", *deltas, *flags, "--positions", "packed", "-o", out)
        self.assertEqual([path.read_bytes() for path in sorted(out.iterdir())], packed)
        back = self.path("back.scd")
        run("convert", out / "step_000001.scd", *flags, "-o", back)
        self.assertEqual(back.read_bytes(), deltas[0].read_bytes())
        self.assertFalse(run_json("inspect", out / "step_000001.scd")["needs_base"])
        wrong = run("convert", deltas[1], *flags, "-o", back, expect=3).stderr
        self.assertIn(run_json("digest", self.checkpoints[1])["digest"], wrong)
        self.assertIn("stay", run("convert", deltas[0], *flags, "--values", "raw", "-o", back, expect=2).stderr)
        run("convert", deltas[0], "--to", "trl", "--base", self.anchor, "-o", self.path("trl"))
        [step] = self.path("trl").rglob("*.safetensors")
        self.assertEqual(apply_sparse(self.states[0], step), self.states[1])

    def test_a_link_is_weighed_by_its_rate(self):
        sizes = {}
        for objective in ("speed", "10Gb/s", "10Gb/s --block-changes 512", "100Mb/s", "size"):
            sizes[objective] = run_json(
                "diff", self.anchor, self.steps[0], "-o", self.path("d.scd"), "--objective", *objective.split()
            )["delta_bytes"]
        self.assertEqual(sizes["speed"], sizes["10Gb/s --block-changes 512"])
        self.assertLess(sizes["10Gb/s"], sizes["speed"])
        self.assertEqual(sizes["size"], sizes["100Mb/s"])
        self.assertLess(sizes["size"], sizes["speed"])
        wrong = run("diff", self.anchor, self.steps[0], "-o", self.path("d.scd"), "--objective", "fast", expect=2)
        self.assertIn("--objective", wrong.stderr)

    def test_compare_names_what_differs(self):
        report = json.loads(run("compare", self.anchor, self.checkpoints[1], "--json", expect=1).stdout)
        self.assertFalse(report["identical"])
        for row in report["tensor_rows"]:
            old = np.frombuffer(self.states[0][row["name"]][2], "<u2")
            new = np.frombuffer(self.states[1][row["name"]][2], "<u2")
            different = np.flatnonzero(old != new)
            self.assertEqual(row["differing"], len(different))
            self.assertEqual(row["first_index"], different[0])
            self.assertEqual(row["first_bits"], f"0x{old[different[0]]:04x}")
            self.assertEqual(row["second_bits"], f"0x{new[different[0]]:04x}")
        self.assertIn("different", run("compare", self.anchor, self.checkpoints[1], expect=1).stdout)

    def test_an_in_place_apply_killed_at_any_moment_is_rolled_back(self):
        seed = random.randrange(1 << 30)
        print(f"kill seed {seed}", file=sys.stderr)
        chance = random.Random(seed)
        deltas = self.deltas()
        live = self.path("live.safetensors")
        began = time.monotonic()
        shutil.copy(self.anchor, live)
        run("apply", live, *deltas, "--in-place")
        usual = time.monotonic() - began
        interrupted = 0
        for _ in range(25):
            shutil.copy(self.anchor, live)
            child = subprocess.Popen(
                [SPARSECAST, "apply", live, *deltas, "--in-place"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(chance.uniform(0, usual))
            child.kill()
            child.wait()
            undo = self.path("live.safetensors.undo.scd")
            if undo.exists():
                interrupted += 1
                self.assertIn("--recover", run("digest", live, expect=3).stderr)
                self.assertTrue(run_json("apply", live, "--recover")["recovered"])
            self.assertFalse(undo.exists())
            self.assertIn(read_safetensors(live)[0], self.states)
            run("apply", live, *deltas, "--in-place")
            self.assertEqual(read_safetensors(live)[0], self.states[-1])
        print(f"{interrupted} of 25 kills left an undo record", file=sys.stderr)


@unittest.skipUnless(TRACE.is_dir(), "testdata/trace is absent")
class Links(Folder):
    """Names that lead to other files: what lies behind them is neither removed nor changed."""

    def setUp(self):
        super().setUp()
        self.base, step = sorted(TRACE.glob("step_*.safetensors"))[:2]
        state, _ = read_safetensors(self.base)
        self.next = self.path("next.safetensors")
        write_safetensors(self.next, apply_sparse(state, step))
        self.delta = self.path("1.scd")
        run("diff", self.base, self.next, "-o", self.delta)
        self.real = self.path("real.safetensors")
        shutil.copy(self.base, self.real)

    def sharded(self, name):
        """A directory of one indexed file, and a file that is no weights."""
        directory = self.path(name)
        directory.mkdir()
        file = "model-00001-of-00001.safetensors"
        shutil.copy(self.base, directory / file)
        tensors, _ = read_safetensors(self.base)
        index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, file)}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        (directory / "config.json").write_text("{}")
        return directory

    def tree(self):
        return {
            str(path.relative_to(self.folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_symlink() or path.is_file()
        }

    def refused(self, *arguments, words, expect=2):
        before = self.tree()
        self.assertIn(words, run(*arguments, expect=expect).stderr)
        self.assertEqual(self.tree(), before)

    def test_an_output_that_is_a_link_is_refused_and_what_it_leads_to_stays(self):
        base = self.sharded("step_100")
        for target in ("step_100", base, "nowhere"):
            link = self.path("latest")
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            self.refused("apply", base, self.delta, "-o", link, "--force", words="is a link to")

    def test_the_base_is_no_output(self):
        base = self.sharded("step_100")
        self.path("run").symlink_to(".")
        self.refused("apply", base, self.delta, "-o", self.path("run/step_100"), "--force", words="is the base itself")
        self.refused("apply", self.real, self.delta, "-o", self.real, "--force", words="is the base itself")

    def test_weights_that_the_index_does_not_name_are_copied_and_named(self):
        base = self.sharded("step_100")
        (base / "consolidated.safetensors").write_bytes(b"of some version")
        said = run("apply", base, self.delta, "-o", self.path("out")).stderr
        self.assertIn("consolidated.safetensors' is not of the checkpoint's index", said)
        self.assertEqual((self.path("out") / "consolidated.safetensors").read_bytes(), b"of some version")

    def test_a_pipe_is_not_waited_for(self):
        base = self.sharded("step_100")
        os.mkfifo(base / "pipe")
        os.mkfifo(self.path("pipe.safetensors"))
        for arguments in (
            ["apply", base, self.delta, "-o", self.path("out")],
            ["digest", self.path("pipe.safetensors")],
        ):
            self.assertIn("not a regular file", run(*arguments, expect=4).stderr)
        self.assertFalse(self.path("out").exists())

    def test_a_log_replaces_no_other_model_without_a_word(self):
        log, target = self.path("log"), self.sharded("other")
        draft = target / "draft.safetensors"
        write_safetensors(draft, {"d": ("F32", [2], b"\0" * 8)})
        run("log", "init", log, self.real)
        write_safetensors(target / "model-00001-of-00001.safetensors", {"x": ("F32", [1], b"\0" * 4)})
        (target / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": {"x": "model-00001-of-00001.safetensors"}})
        )
        before = {path: path.read_bytes() for path in target.iterdir()}
        for flags in ([], ["--copy-on-write"]):
            self.assertIn("--replace", run("log", "pull", log, target, *flags, expect=2).stderr)
        self.assertIn("move it away", run("log", "pull", log, target, "--replace", expect=2).stderr)
        self.assertEqual({path: path.read_bytes() for path in target.iterdir()}, before)
        draft.unlink()
        run("log", "pull", log, target, "--replace")
        self.assertEqual(sorted(path.name for path in target.iterdir()), ["config.json", "model.safetensors"])
        self.assertEqual(run_json("digest", target)["digest"], run_json("digest", self.real)["digest"])

    def test_a_link_to_nothing_is_called_that(self):
        link = self.path("dangling.safetensors")
        link.symlink_to("blobs/gone")
        for command in (
            ["digest", link],
            ["compare", self.real, link],
            ["diff", self.real, link, "-o", self.path("new.scd")],
            ["apply", link, self.delta, "--in-place"],
            ["log", "init", self.path("log"), link],
        ):
            with self.subTest(command=command):
                message = run(*command, expect=4).stderr
                self.assertIn("dangling.safetensors: a link to 'blobs/gone', where nothing is", message)

    def test_a_file_with_other_names_is_not_changed_in_place(self):
        link, twin = self.path("link.safetensors"), self.path("twin.safetensors")
        link.symlink_to(self.real.name)
        self.refused("apply", link, self.delta, "--in-place", words="it is a link to")
        twin.hardlink_to(self.real)
        self.refused("apply", self.real, self.delta, "--in-place", words="has 2 names (hard links)")
        twin.unlink()
        run("apply", self.real, self.delta, "--in-place")
        self.assertEqual(read_safetensors(self.real)[0], read_safetensors(self.next)[0])

    def test_a_directory_of_links_is_not_changed_in_place(self):
        snapshot = self.sharded("snapshot")
        file = snapshot / "model-00001-of-00001.safetensors"
        blob = self.path("blob")
        file.rename(blob)
        file.symlink_to(blob)
        self.refused("apply", snapshot, self.delta, "--in-place", words="it is a link to")
        run("apply", snapshot, self.delta, "-o", self.path("out"))
        self.assertEqual(blob.read_bytes(), self.base.read_bytes())

    def test_a_torn_file_is_refused_by_the_names_that_lead_to_it(self):
        link, folder = self.path("link.safetensors"), self.path("elsewhere")
        link.symlink_to(self.real.name)
        folder.symlink_to(".")
        self.path("real.safetensors.undo.scd").write_bytes(self.delta.read_bytes())
        for name in (self.real, link, folder / "real.safetensors", folder / "link.safetensors"):
            self.refused("digest", name, words="an in-place apply was interrupted", expect=3)


class Plans(Folder):
    PAIR = (LAYOUTS / "qwen2.5-7b.fsdp2-dp8.json", LAYOUTS / "qwen2.5-7b.vllm-tp4.json")

    def test_every_receiver_gets_what_a_sender_sends(self):
        plan = run_json("plan", *self.PAIR, "--engines", 2)
        self.assertEqual(sum(route["dense_bytes"] for route in plan["routes"]), plan["dense_bytes"])
        self.assertAlmostEqual(sum(rank["sent_bytes"] for rank in plan["ranks"]), plan["delta_bytes"], delta=1)
        for route in plan["routes"]:
            group = plan["groups"][route["group"]]
            self.assertIn(route["source"], group["sources"])
            self.assertTrue({rank for rank, _ in route["destinations"]} <= set(group["receivers"]))
        self.assertAlmostEqual(sum(plan["phases"].values()), plan["sync_seconds"])
        staged = max(rank["staged_seconds"] for rank in plan["ranks"])
        self.assertLess(max(transfer["end_seconds"] for transfer in plan["transfers"]), staged)


# Of every dtype of safetensors: the bytes of an element, or of F4 and F6 those of which shapes count more numbers.
ELEMENT_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("F4", "F6_E2M3", "F6_E3M2"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


def tensors_of_every_dtype(chance):
    """Name -> (dtype, shape, bytes), random, in rows of a multiple of four numbers."""
    tensors = {}
    for dtype, size in ELEMENT_BYTES.items():
        shape = [chance.randrange(1, 40), 4 * chance.randrange(1, 200)]
        data = chance.randbytes(shape[0] * shape[1] * BITS.get(dtype, 8 * size) // 8)
        tensors[dtype.lower()] = (dtype, shape, data)
    return tensors


def with_changes(tensors, chance):
    """Other tensors, of random densities, and how many elements differ."""
    result, count = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        words = np.frombuffer(data, f"<u{ELEMENT_BYTES[dtype]}").copy()
        density = 10 ** chance.uniform(-3.5, 0)
        for i in range(len(words)):
            if chance.random() < density:
                words[i] ^= words.dtype.type(chance.getrandbits(8 * words.itemsize) or 1)
                count += 1
        result[name] = (dtype, shape, words.tobytes())
    return result, count


class Dtypes(Folder):
    """Every dtype of safetensors, whose bits are moved."""

    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("SPARSECAST_SEED", random.SystemRandom().getrandbits(32)))
        self.addCleanup(print, f"SPARSECAST_SEED={self.seed}", file=sys.stderr)
        self.chance = random.Random(self.seed)

    def test_every_dtype_goes_through_a_delta(self):
        base, new, delta, out = map(self.path, ("base.safetensors", "new.safetensors", "d.scd", "out.safetensors"))
        before = tensors_of_every_dtype(self.chance)
        after, changed = with_changes(before, self.chance)
        write_safetensors(base, before, {"format": "pt"})
        write_safetensors(new, after, {"format": "pt"})
        for positions, values in itertools.product(("auto", "packed", "bitmap", "context"), ("ulp", "xor", "raw")):
            if positions == "context" and values != "ulp":
                continue
            with self.subTest(positions=positions, values=values, seed=self.seed):
                options = ["--positions", positions, "--values", values]
                self.assertEqual(run_json("diff", base, new, "-o", delta, *options)["changed"], changed)
                self.assertEqual(run_json("inspect", delta)["changed"], changed)
                run("apply", base, delta, "-o", out, "--force")
                self.assertEqual(out.read_bytes(), new.read_bytes())
                shutil.copy(base, out)
                run("apply", out, delta, "--in-place")
                self.assertEqual(out.read_bytes(), new.read_bytes())
        self.assertEqual(run_json("digest", out)["digest"], run_json("digest", new)["digest"])
        differences = json.loads(run("compare", base, new, "--json", expect=1).stdout)
        self.assertEqual(differences["differing_elements"], changed)

    def test_tensors_that_share_bytes_with_others_of_their_rows_are_refused_by_name(self):
        path = self.path("odd.safetensors")
        for dtype, shape in (("F4", [2, 3]), ("F6_E2M3", [2, 2]), ("F6_E3M2", [2, 6])):
            write_safetensors(path, {"w": (dtype, shape, bytes(shape[0] * shape[1] * BITS[dtype] // 8))})
            message = run("digest", path, expect=3).stderr
            for word in ("odd.safetensors", "'w'", dtype, "multiple of"):
                self.assertIn(word, message)


class Errors(Folder):
    def test_wrong_use_is_exit_code_2(self):
        write_safetensors(self.path("a.safetensors"), {"w": ("F32", [2], b"\0" * 8)})
        for arguments in (
            [],
            ["nonsense"],
            ["diff"],
            ["diff", "a", "b"],
            ["diff", "a", "b", "-o", "c", "--values", "q"],
            ["apply", "a", "b"],
            ["apply", "a", "b", "-o", "c", "--in-place"],
            ["compose", "a", "-o", "b"],
        ):
            with self.subTest(arguments=arguments):
                run(*arguments, expect=2)

    def test_inspect_says_what_a_file_is_that_is_no_delta(self):
        path = self.path("a.safetensors")
        write_safetensors(path, {"w": ("F32", [2], b"\0" * 8)})
        self.assertIn("is no delta but a checkpoint of 1 tensors", run("inspect", path, expect=2).stderr)
        run("log", "init", self.path("log"), path)
        self.assertIn("is no delta but a delta log", run("inspect", self.path("log"), expect=2).stderr)
        os.mkdir(self.path("empty"))
        self.assertIn("a directory that is no checkpoint", run("inspect", self.path("empty"), expect=2).stderr)

    def test_a_missing_file_is_exit_code_4_and_named(self):
        for arguments in (
            ["digest", "none.safetensors"],
            ["inspect", "none.scd"],
            ["diff", "none.safetensors", "none.safetensors", "-o", "d.scd"],
        ):
            with self.subTest(arguments=arguments):
                self.assertIn("none", run(*arguments, expect=4).stderr)

    def test_bad_input_is_exit_code_3_and_named(self):
        bad = self.path("bad.safetensors")
        bad.write_bytes(b"\xff" * 100)
        self.assertIn("bad.safetensors", run("digest", bad, expect=3).stderr)
        broken = self.path("broken.scd")
        broken.write_bytes(b"SCH1" + b"\0" * 50)
        self.assertIn("broken.scd", run("inspect", broken, expect=3).stderr)

    def test_checkpoints_with_other_tensors_are_explained(self):
        a, b = self.path("a.safetensors"), self.path("b.safetensors")
        write_safetensors(a, {"layer.0.weight": ("F32", [2], b"\0" * 8), "same": ("BF16", [1], b"\0\0")})
        write_safetensors(b, {"layer.0.weigth": ("F32", [2], b"\0" * 8), "same": ("F16", [1], b"\0\0")})
        message = run("diff", a, b, "-o", self.path("d.scd"), expect=3).stderr
        for word in ("layer.0.weight", "nearest: 'layer.0.weigth'", "same", "BF16", "F16"):
            self.assertIn(word, message)
        self.assertFalse(self.path("d.scd").exists())
        self.assertEqual(run("compare", a, b, expect=1).returncode, 1)

    def test_help_teaches_with_examples(self):
        self.assertIn("sparsecast diff", run("--help").stdout)
        for command in ("diff", "apply", "inspect", "compose", "invert", "digest", "compare", "plan"):
            text = run(command, "--help").stdout
            self.assertIn("Example", text)
            self.assertIn(f"sparsecast {command}", text)
        self.assertRegex(run("--version").stdout, r"^sparsecast \d+\.\d+\.\d+")


class Memory(Folder):
    """Checkpoints far larger than the memory that may be used; the files are sparse, so the disk is not filled."""

    BYTES = 1536 * MIB

    def big_checkpoint(self, name, changes):
        path = self.path(name)
        count = 3
        each = self.BYTES // count
        header = {
            f"t{i}": {"dtype": "BF16", "shape": [each // 2], "data_offsets": [i * each, (i + 1) * each]}
            for i in range(count)
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + self.BYTES)
            for offset, data in changes:
                file.seek(8 + len(text) + offset)
                file.write(data)
        return path

    def peak_memory(self, *arguments):
        """Peak resident bytes of one run, measured by a parent of its own."""
        probe = (
            "import resource,subprocess,sys;"
            "code=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL).returncode;"
            "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss*1024)"
        )
        done = subprocess.run(
            [sys.executable, "-c", probe, SPARSECAST, *map(str, arguments)], capture_output=True, text=True, check=True
        )
        code, peak = map(int, done.stdout.split())
        self.assertEqual(code, 0, done.stderr)
        return peak

    def test_diff_apply_and_compare_stay_far_below_the_size_of_the_checkpoint(self):
        chance = random.Random(7)
        changes = [(2 * chance.randrange(self.BYTES // 2), b"\x01\x3c") for _ in range(20000)]
        base = self.big_checkpoint("base.safetensors", [])
        new = self.big_checkpoint("new.safetensors", changes)
        delta = self.path("d.scd")
        peaks = {
            "diff": self.peak_memory("diff", base, new, "-o", delta),
            "compare": self.peak_memory("compare", new, new),
            "apply": self.peak_memory("apply", base, delta, "--in-place"),
        }
        print({name: f"{peak / MIB:.0f} MiB" for name, peak in peaks.items()}, file=sys.stderr)
        for name, peak in peaks.items():
            self.assertLess(peak, MEMORY_LIMIT, name)
        self.assertEqual(run_json("compare", base, new)["differing_elements"], 0)


class PythonCommands(Folder):
    """`sparsecast record` becomes the program sparsecast-record on the PATH."""

    def run_with_path(self, *arguments):
        environment = {**os.environ, "PATH": str(self.folder)}
        return subprocess.run([SPARSECAST, *arguments], env=environment, capture_output=True, text=True, timeout=60)

    def install(self, name, script):
        program = self.path(name)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def test_the_program_gets_all_arguments_as_they_are_and_its_exit_code_is_ours(self):
        for name in ("record", "control"):
            self.install(f"sparsecast-{name}", 'echo "$0|$#|$1|$2|$3|$4"; echo to stderr >&2; exit 7')
            result = self.run_with_path(name, "report", "--help", "--", "a b")
            program = self.path(f"sparsecast-{name}")
            self.assertEqual(result.stdout, f"{program}|4|report|--help|--|a b\n")
            self.assertEqual((result.returncode, result.stderr), (7, "to stderr\n"))

    def test_a_program_that_is_not_installed_is_named_with_what_to_install(self):
        result = self.run_with_path("record", "report", "trace")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("sparsecast-record, which is not on the PATH", result.stderr)
        self.assertIn("pip install sparsecast", result.stderr)

    def test_a_program_that_cannot_be_run_is_an_error_of_the_system(self):
        self.path("sparsecast-record").write_text("no program")
        result = self.run_with_path("record")
        self.assertEqual(result.returncode, 4)
        self.assertIn("sparsecast-record", result.stderr)

    def test_no_other_name_is_looked_for(self):
        self.install("sparsecast-other", "exit 7")
        self.assertEqual(self.run_with_path("other").returncode, 2)

    def test_help_lists_them(self):
        text = run("--help").stdout
        self.assertIn("sparsecast-record of the Python package", " ".join(text.split()))
        self.assertIn("sparsecast-control of the Python package", " ".join(text.split()))


if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit(__doc__)
    SPARSECAST = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
