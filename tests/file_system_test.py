#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the commands leave alone: every command that writes, over random trees of files and links.

    tests/file_system_test.py PATH_TO_SPARSECAST [unittest arguments]

A round makes a small tree at random (checkpoints of one file and of shards, caches whose snapshots are links, foreign
weights, hard links, links that dangle or go round in circles, odd names, read-only files) and runs one command with one
of the names that lead there. A model of a few lines says which paths are the command's own. Everything else is compared
by inode, mode, time and content; a refusal may change nothing; and what was made is read by the `safetensors` package
where that is installed. SPARSECAST_SEED names the first round, SPARSECAST_ROUNDS how many there are.
"""

import collections
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import cli_test
from cli_test import write_safetensors
from file_system_cases import COMMANDS, Commands
from random_trees import INDEX, Tree, World, changes, entry_of, launch, read_tensors, run, snapshot, weights_of

ROUNDS = int(os.environ.get("SPARSECAST_ROUNDS", "400"))
SEED = int(os.environ.get("SPARSECAST_SEED", "0")) or random.randrange(1 << 30)


class FileSystem(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(os.path.realpath(tempfile.mkdtemp(prefix="sparsecast_fs_")))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        (cls.folder / "world").mkdir()
        cls.world = World(cls.folder / "world")

    def new_root(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def round(self, seed, tally):
        chance = random.Random(seed)
        root = self.new_root()
        tree = Tree(self.world, chance, root)
        command = chance.choice(COMMANDS)
        case = getattr(Commands(self, tree, self.world, chance), command)()
        before = snapshot(root)
        world_before = snapshot(self.world.root)
        done = launch(*case.arguments, cwd=root)
        after = snapshot(root)
        say = f"SPARSECAST_SEED={seed} {command}: {[str(a) for a in case.arguments]} exit {done.returncode}\n{done.stderr}"
        self.assertIn(done.returncode, (0, 2, 3, 4, 5), say)
        good = done.returncode == 0
        own = case.own if good else case.on_refusal
        self.assertEqual(sorted(path for path in changes(before, after) if not own(path)), [], say)
        self.assertEqual(changes(world_before, snapshot(self.world.root)), set(), say)
        if case.expect_success:
            self.assertTrue(good, say)
        if good:
            try:
                case.check()
            except Exception as error:
                raise AssertionError(f"{say}\n{error!r}") from error
        else:
            self.assertRegex(done.stderr, r"\[[a-z_]+\]", say)
        tally[command, good] += 1
        shutil.rmtree(root)

    def test_a_log_is_not_moved_by_what_follows_it(self):
        root = self.new_root()
        for name in ("run", "run/log"):
            shutil.copytree(self.world.log, root / name)
        (root / "link").symlink_to("run")
        before = snapshot(root)
        for log in (root / "run", root / "run" / "log", root / "link" / "log"):
            for target in ("run", "run/.", "link"):
                done = run("log", "pull", log, target, expect=2, cwd=root)
                self.assertIn("holds the log", done.stderr)
        self.assertEqual(changes(before, snapshot(root)), set())

    def test_nothing_but_its_own_files_changes_by_any_command(self):
        tally = collections.Counter()
        failures = []
        for seed in range(SEED, SEED + ROUNDS):
            try:
                self.round(seed, tally)
            except AssertionError as error:
                failures.append(str(error))
        print(f"seeds from {SEED}: {dict(sorted(tally.items()))}", file=sys.stderr)
        self.assertFalse(failures, f"{len(failures)} rounds failed\n\n" + "\n\n".join(failures[:8]))
        if ROUNDS >= 400:
            for command in set(COMMANDS):
                self.assertGreater(tally[command, True], 0, command)

    def test_what_is_of_others_outlives_kills_of_a_follower(self):
        chance = random.Random(SEED)
        for i in range(6):
            tree = Tree(self.world, chance, self.new_root())
            path = tree.checkpoint(0, chance.choice(["shards", "folder"]), linked=False)
            others = set(os.listdir(path)) - weights_of(path)
            before = {name: entry_of(path / name) for name in others}
            outside = snapshot(tree.outside)
            command = ["log", "pull", self.world.log, path, "--copy-on-write", "--every-version"]
            for _ in range(8):
                child = subprocess.Popen(
                    [cli_test.SPARSECAST, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                time.sleep(0.04 * chance.random())
                child.kill()
                child.wait()
                if path.is_dir() and chance.random() < 0.5:
                    continue
                run("log", "pull", self.world.log, path, "--version", 0, "--allow-rollback", expect=None)
            run(*command)
            say = f"SPARSECAST_SEED={SEED} tree {i}"
            self.assertEqual(read_tensors(path), self.world.states[2], say)
            self.assertEqual({name: entry_of(path / name) for name in others}, before, say)
            self.assertEqual(set(os.listdir(path)), others | weights_of(path), say)
            self.assertEqual(changes(outside, snapshot(tree.outside)), set(), say)


class Torn(unittest.TestCase):
    """An in-place apply that was interrupted is found by every name that leads to a byte of it."""

    def setUp(self):
        self.folder = pathlib.Path(os.path.realpath(tempfile.mkdtemp(prefix="sparsecast_torn_")))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / "world").mkdir()
        self.world = World(self.folder / "world")
        (self.folder / "tree").mkdir()

    def tree(self, seed):
        root = pathlib.Path(tempfile.mkdtemp(dir=self.folder / "tree"))
        return Tree(self.world, random.Random(seed), root)

    def tear(self, path, chance):
        """Leaves what a power loss in the middle of an apply leaves: the undo record, and some new bytes."""
        record = path / "sparsecast.undo.scd" if path.is_dir() else pathlib.Path(f"{path}.undo.scd")
        shutil.copy(self.world.undos[0], record)
        for file in [path / name for name in weights_of(path) - {INDEX}] if path.is_dir() else [path]:
            old, (length,) = bytearray(file.read_bytes()), np.frombuffer(file.read_bytes()[:8], "<u8")
            header = json.loads(old[8 : 8 + length])
            for name, (_, _, data) in self.world.states[1].items():
                if name in header and chance.random() < 0.7:
                    first = 8 + int(length) + header[name]["data_offsets"][0]
                    end = chance.randrange(len(data) // 2 + 1) * 2
                    old[first : first + end] = data[:end]
            with open(file, "r+b") as target:
                target.write(old)
        return record

    def views_of(self, tree, path):
        """Names and other checkpoints that have a file of the torn one."""
        root, views = tree.root, {path, f"./{os.path.relpath(path, tree.root)}"}
        for target in (path, path.parent):
            link, chain = root / f"link {len(views)}", root / f"chain {len(views)}"
            link.symlink_to(os.path.relpath(target, root))
            chain.symlink_to(link)
            views |= {link, chain} if target == path else {link / path.name, chain / path.name}
        folder = tree.folder(root)
        if path.is_dir():
            views |= {path / name for name in weights_of(path) - {INDEX}}
            for name in weights_of(path):
                (folder / name).symlink_to(path / name)
        else:
            (folder / "model.safetensors").symlink_to(path)
            if len(list(path.parent.glob("*.safetensors"))) == 1:
                views |= {path.parent, f"{path.parent}/."}
        return [str(view) for view in sorted(views | {folder}, key=str)]

    def test_what_is_torn_is_refused_by_every_name_and_each_error_says_how_to_end_it(self):
        for seed in range(SEED, SEED + 12):
            tree = self.tree(seed)
            chance, root = tree.chance, tree.root
            path = tree.checkpoint(0, chance.choice(["file", "folder", "shards"]), linked=False)
            if path.is_file() and chance.random() < 0.5:
                path = path.rename(path.with_name("model.safetensors"))
            record = self.tear(path, chance)
            views = self.views_of(tree, path)
            before = snapshot(root)
            for view in views:
                for arguments in (
                    ["digest", view],
                    ["compare", self.world.files[0], view],
                    ["diff", view, self.world.files[1], "-o", root / "out.scd"],
                    ["apply", view, self.world.deltas[0], "-o", root / "out"],
                    ["log", "init", root / "log", view, "--state", root / "state"],
                )[:: chance.choice([1, 2, 4])]:
                    done = launch(*arguments, cwd=root)
                    say = f"SPARSECAST_SEED={seed} {[str(a) for a in arguments]} exit {done.returncode}\n{done.stderr}"
                    self.assertEqual(done.returncode, 3, say)
                    self.assertIn("--recover", done.stderr, say)
                    named = done.stderr.split("--recover ")[1].split("` first")[0]
                    self.assertTrue((root / named).samefile(path), say)
                if not (root / view).samefile(path):
                    # Of another checkpoint nothing may be written either, nor may the record be used for it.
                    for arguments in (["--recover"], [self.world.deltas[0], "--in-place"]):
                        self.assertEqual(launch("apply", view, *arguments, cwd=root).returncode, 3, view)
                    pulled = launch("log", "pull", self.world.log, view, "--copy-on-write", cwd=root)
                    self.assertEqual(pulled.returncode, 3, f"SPARSECAST_SEED={seed} {view}\n{pulled.stderr}")
            own = [path_ for path_ in changes(before, snapshot(root)) if not re.search(r"\.follow(/|$)", path_)]
            self.assertEqual(own, [], f"SPARSECAST_SEED={seed}")
            run("apply", named, "--recover", cwd=root)
            self.assertFalse(record.exists())
            for view in views:
                if (root / view).samefile(path) or os.path.isdir(root / view):
                    self.assertEqual(read_tensors(root / view), self.world.states[0])
                self.assertEqual(launch("digest", view, cwd=root).returncode, 0, view)

    def test_weights_of_others_beside_a_torn_checkpoint_are_not_refused(self):
        tree = self.tree(SEED)
        path = tree.checkpoint(0, "shards", linked=False)
        write_safetensors(path / "draft.safetensors", self.world.states[0])
        self.tear(path, tree.chance)
        run("digest", path / "draft.safetensors")
        run("digest", path, expect=3)

    def test_a_killed_apply_is_found_by_every_name(self):
        """The real thing: killed at random moments of an apply of some megabytes."""
        tree = self.tree(SEED)
        chance = np.random.default_rng(SEED)
        state = {f"t{i}": ("BF16", [1 << 20], chance.integers(0, 0x7F00, 1 << 20, "<u2").tobytes()) for i in range(3)}
        after = {
            name: (dtype, shape, (np.frombuffer(data, "<u2") ^ 1).tobytes())
            for name, (dtype, shape, data) in state.items()
        }
        old, new, delta = self.folder / "old.safetensors", self.folder / "new.safetensors", self.folder / "d.scd"
        write_safetensors(old, state)
        write_safetensors(new, after)
        run("diff", old, new, "-o", delta, "--objective", "speed")
        path = tree.place / "model.safetensors"
        shutil.copy(old, path)
        views = self.views_of(tree, path)
        found = 0
        record = pathlib.Path(f"{path}.undo.scd")
        for _ in range(12):
            shutil.copy(old, path)
            command = [cli_test.SPARSECAST, "apply", tree.chance.choice(views[:2]), delta, "--in-place"]
            child = subprocess.Popen(command, cwd=tree.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while child.poll() is None and not record.exists():
                time.sleep(0.0005)
            time.sleep(0.005 * tree.chance.random())
            child.kill()
            child.wait()
            if not record.exists():
                self.assertIn(read_tensors(path), (state, after))
                continue
            found += 1
            for view in views:
                self.assertIn("--recover", run("digest", view, expect=3, cwd=tree.root).stderr)
            run("apply", path, "--recover")
            self.assertEqual(read_tensors(path), state)
        print(f"{found} of 12 kills left an undo record", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit(__doc__)
    cli_test.SPARSECAST = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
