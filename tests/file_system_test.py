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
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import cli_test
from cli_test import write_safetensors

try:
    import safetensors
except ImportError:
    safetensors = None

SPARSECAST = ""
ROUNDS = int(os.environ.get("SPARSECAST_ROUNDS", "400"))
SEED = int(os.environ.get("SPARSECAST_SEED", "0")) or random.randrange(1 << 30)
INDEX = "model.safetensors.index.json"
NAMES = (
    ["model", "with space", "it's", 'say "hi"', "größe-码", "new\nline", "-dash", "100%", "%s%n", "a..b", "..."]
    + ["semi;colon", "st*r?", "tab\there", "$HOME", "~", "[x]", "back\\slash", "gs:", ".hidden"]
)  # fmt: skip

Entry = collections.namedtuple("Entry", "kind mode inode modified data")


def read_tensors(path):
    """Name -> (dtype, shape, bytes) of a file, or of the files that an index names."""
    path = pathlib.Path(path)
    files = [path]
    if path.is_dir():
        index = path / INDEX
        names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else None
        files = [path / name for name in sorted(names)] if names else sorted(path.glob("*.safetensors"))
    result = {}
    for file in files:
        if safetensors is None:
            result.update(cli_test.read_safetensors(file)[0])
        else:
            for name, tensor in safetensors.deserialize(file.read_bytes()):
                result[name] = (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]))
    return result


def entry_of(path):
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        return Entry("link", 0, status.st_ino, 0, os.readlink(path))
    if kind == stat.S_IFDIR:
        return Entry("directory", stat.S_IMODE(status.st_mode), status.st_ino, 0, b"")
    data = pathlib.Path(path).read_bytes() if kind == stat.S_IFREG else b""
    name = "file" if kind == stat.S_IFREG else "other"
    return Entry(name, stat.S_IMODE(status.st_mode), status.st_ino, status.st_mtime_ns, data)


def snapshot(root):
    """Path -> Entry of everything below, without going through links."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            found[path] = entry_of(path)
    return found


def changes(before, after):
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


class World:
    """Three versions of a small model, deltas between them, and a log of them; made once by the commands under test."""

    def __init__(self, root):
        self.root = root
        chance = np.random.default_rng(1)
        state = {
            f"layer.{i}.weight": ("BF16", [rows, 8], chance.integers(0, 0x7F00, rows * 8, dtype="<u2").tobytes())
            for i, rows in enumerate([1, 30, 200, 7])
        }
        self.states = [state]
        for _ in range(2):
            state = dict(state)
            for name, (dtype, shape, data) in state.items():
                words = np.frombuffer(data, "<u2").copy()
                words[chance.random(len(words)) < 0.1] ^= 1
                state[name] = (dtype, shape, words.tobytes())
            self.states.append(state)
        self.files = [root / f"{i}.safetensors" for i in range(3)]
        for path, tensors in zip(self.files, self.states):
            write_safetensors(path, tensors)
        self.deltas, self.undos = [], []
        for i in range(2):
            self.deltas.append(root / f"{i + 1}.scd")
            self.undos.append(root / f"undo-{i + 1}.scd")
            versions = ("--base-version", i, "--version", i + 1)
            run("diff", self.files[i], self.files[i + 1], "-o", self.deltas[-1], *versions)
            versions = ("--base-version", i + 1, "--version", i, "--values", "raw")
            run("diff", self.files[i + 1], self.files[i], "-o", self.undos[-1], *versions)
        self.merged, self.back = root / "merged.scd", root / "back.scd"
        run("compose", *self.deltas, "-o", self.merged, "--base", self.files[0])
        run("invert", self.deltas[0], "-o", self.back, "--base", self.files[0])
        self.log, self.publisher = root / "log", root / "publisher"
        run("log", "init", self.log, self.files[0], "--state", self.publisher)
        for delta in self.published():
            run("log", "publish", self.log, delta, "--base", self.base_of(delta), "--state", self.publisher)

    def published(self):
        return self.files[1:]

    def base_of(self, file):
        return self.files[self.files.index(file) - 1]


def run(*arguments, expect=0, cwd=None):
    done = launch(*arguments, cwd=cwd)
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{arguments}: exit {done.returncode}, not {expect}\n{done.stdout}\n{done.stderr}")
    return done


def status_of(log):
    return json.loads(run("log", "status", log, "--json").stdout)


def launch(*arguments, cwd=None):
    command = [SPARSECAST, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=60, cwd=cwd, stdin=subprocess.DEVNULL
    )


class Tree:
    """A random directory in which a checkpoint of one version lies, with what people have beside it."""

    def __init__(self, world, chance, root):
        self.world, self.chance, self.root = world, chance, root
        self.names = chance.sample(NAMES, len(NAMES))
        self.outside = self.folder(root)
        self.plain = True  # Nothing of it is a reason to refuse.
        (self.outside / "shared.json").write_text('{"shared": true}')
        (self.outside / "shared.json").chmod(0o640)
        self.place = self.folder(root)
        if chance.random() < 0.5:
            (root / "loop").symlink_to("loop")
            (root / "up").symlink_to(".")

    def name(self):
        return self.names.pop()

    def folder(self, parent):
        path = parent / self.name()
        path.mkdir()
        return path

    def maybe(self, share=0.3):
        return self.chance.random() < share

    def file(self, path, tensors, linked=None):
        """Weights, perhaps with other names. `linked`: whether they may be, which in-place commands refuse."""
        write_safetensors(path, tensors)
        if linked is False or not self.maybe(0.2):
            return
        self.plain = False
        if self.maybe(0.5):
            other = self.outside / hashlib.sha256(path.read_bytes()).hexdigest()
            if not other.exists():
                os.link(path, other)
        else:
            blob = self.outside / f"blob-{self.name()}"
            path.rename(blob)
            path.symlink_to(os.path.relpath(blob, path.parent) if self.maybe(0.5) else blob)

    def checkpoint(self, version, kind=None, tensors=None, linked=None):
        """The path of a checkpoint. Of `kind` file, shards, folder (one file without an index) or cache."""
        tensors = tensors or self.world.states[version]
        kind = kind or self.chance.choice(["file", "shards", "shards", "folder", "cache"])
        if kind == "file":
            path = self.place / f"{self.name()}.safetensors"
            self.file(path, tensors, linked)
            return path
        if kind == "cache":
            return self.cache(tensors)
        path = self.folder(self.place)
        if kind == "folder":
            self.file(path / "model.safetensors", tensors, linked)
        else:
            files = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
            placed = {name: files[i % 2] for i, name in enumerate(sorted(tensors))}
            for file in files:
                self.file(path / file, {n: t for n, t in tensors.items() if placed[n] == file}, linked)
            (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
        self.company(path, kind)
        return path

    def cache(self, tensors):
        """As a hub keeps it: snapshots of links into a folder of blobs."""
        self.plain = False
        path = self.folder(self.place)
        blobs, snapshot_folder = path / "blobs", path / "snapshots" / "0123abcd"
        blobs.mkdir()
        snapshot_folder.mkdir(parents=True)
        write_safetensors(blobs / "weights", tensors)
        (blobs / "config").write_text("{}")
        for name, blob in (("model.safetensors", "weights"), ("config.json", "config")):
            (snapshot_folder / name).symlink_to(f"../../blobs/{blob}")
        return snapshot_folder

    def company(self, path, kind):
        """Files of others in the directory of a checkpoint."""
        (path / "config.json").write_text('{"mine": 1}')
        (path / "config.json").chmod(self.chance.choice([0o644, 0o600, 0o444]))
        if self.maybe():
            (path / "tokenizer.json").symlink_to(os.path.relpath(self.outside / "shared.json", path))
        if self.maybe():
            os.link(self.outside / "shared.json", path / "generation_config.json")
        if kind == "shards" and self.maybe():
            write_safetensors(path / "eagle.safetensors", {"draft": ("F32", [2], b"\1\2\3\4\5\6\7\0")})
        if self.maybe():
            (path / self.name()).write_bytes(self.chance.randbytes(40))
        if self.maybe(0.15):
            inner = self.folder(path)
            (inner / "note").write_text("keep")
        if self.maybe(0.1):
            (path / "gone.json").symlink_to("not there")
            self.plain = False

    def names_of(self, path):
        """One of the names that lead to `path`, as an argument for a command in the root; it may make a link."""
        relative = os.path.relpath(path, self.root)
        kind = self.chance.randrange(9)
        if kind == 0:
            return str(path)
        if kind == 1:
            return f"./{relative}"
        if kind == 2:
            return f"./{os.path.relpath(self.outside, self.root)}/../{relative}"
        if kind == 3 and path.is_dir():
            return f"{path}/" if self.maybe(0.5) else f"{path}/."
        if kind in (4, 5, 6):
            link = self.root / f"link {len(list(self.root.iterdir()))}"
            target = path if kind == 4 else path.parent
            link.symlink_to(target if self.maybe(0.5) else os.path.relpath(target, self.root))
            if self.maybe(0.3):
                chain = self.root / f"chain {link.name}"
                chain.symlink_to(link.name)
                link = chain
            return str(link if kind == 4 else link / path.name)
        return str(path)

    def output(self, suffix=""):
        """A path where something may be already: (path, what is there)."""
        path = self.place / f"{self.name()}{suffix}"
        what = self.chance.choice(["nothing"] * 4 + ["text", "folder", "link", "dangling", "loop", "hard link"])
        if what == "text":
            path.write_text("a thesis")
        elif what == "folder":
            path.mkdir()
            (path / "thesis").write_text("a thesis")
        elif what == "link":
            path.symlink_to(self.outside / "shared.json")
        elif what == "dangling":
            path.symlink_to(self.outside / "not there")
        elif what == "loop":
            path.symlink_to(path.name)
        elif what == "hard link":
            os.link(self.outside / "shared.json", path)
        return path, what


def weights_of(path):
    """Names of a directory's own weight files and its index."""
    if not path.is_dir():
        return set()
    if (path / INDEX).exists():
        return set(json.loads((path / INDEX).read_text())["weight_map"].values()) | {INDEX}
    return {file.name for file in path.glob("*.safetensors")}


class Case:
    """One run of a command: its arguments, the paths that are its own, and what must be there when it succeeds."""

    def __init__(self, arguments, own, on_refusal=lambda path: False, expect_success=False, check=lambda: None):
        self.arguments, self.own, self.on_refusal = arguments, own, on_refusal
        self.expect_success, self.check = expect_success, check


def at(path):
    return lambda candidate: candidate == str(path)


def below(path):
    return lambda candidate: candidate == str(path) or candidate.startswith(f"{path}/")


def either(*predicates):
    return lambda candidate: any(predicate(candidate) for predicate in predicates)


def children(folder, names):
    own = {str(folder / name) for name in names}
    return lambda candidate: candidate in own


class Commands:
    """Builds a Case of each command over a tree."""

    def __init__(self, test, tree, world, chance):
        self.test, self.tree, self.world, self.chance = test, tree, world, chance

    def holds(self, path, version):
        self.test.assertEqual(read_tensors(path), self.world.states[version], f"{path} is not version {version}")

    def delta(self, number):
        path = self.tree.place / f"{self.tree.name()}.scd"
        shutil.copy(self.world.deltas[number], path)
        return path

    def apply_copy(self):
        base = self.tree.checkpoint(0)
        sharded = base.is_dir()
        plain = all(not link.is_symlink() or link.exists() for link in base.iterdir()) if sharded else True
        force, what = self.tree.maybe(0.5), "nothing"
        if self.tree.maybe(0.4):
            out, what = self.tree.checkpoint(2), "checkpoint"
        else:
            out, what = self.tree.output("" if sharded else ".safetensors")
        real = pathlib.Path(os.path.realpath(out)) if out.is_dir() and not out.is_symlink() else out
        coming = {name for name in os.listdir(base) if (base / name).is_file()} if sharded else set()
        own = either(at(out), children(real, coming | weights_of(real)))
        data = {name: (base / name).read_bytes() for name in coming - weights_of(base)}

        def check():
            self.test.assertFalse(out.is_symlink())
            self.holds(out, 1)
            for name, bytes_ in data.items():
                self.test.assertEqual((out / name).read_bytes(), bytes_)

        arguments = ["apply", self.tree.names_of(base), self.delta(0), "-o"]
        arguments += [self.tree.names_of(out) if what == "checkpoint" else out] + (["--force"] if force else [])
        return Case(arguments, own, expect_success=plain and what == "nothing", check=check)

    def apply_in_place(self):
        path = self.tree.checkpoint(0)
        files = [path] if path.is_file() else [path / name for name in weights_of(path) - {INDEX}]
        inodes = {file: os.stat(file).st_ino for file in files}
        simple = all(not file.is_symlink() and os.stat(file).st_nlink == 1 for file in files)
        name = self.tree.names_of(path)
        linked = path.is_file() and os.path.islink(os.path.join(self.tree.root, name))

        def check():
            self.holds(path, 2)
            self.test.assertEqual({file: os.stat(file).st_ino for file in files}, inodes)

        own = children(path.parent, [path.name]) if path.is_file() else children(path, weights_of(path) - {INDEX})
        arguments = ["apply", name, self.delta(0), self.delta(1), "--in-place"]
        return Case(arguments, own, expect_success=simple and not linked, check=check)

    def written_delta(self, arguments, expected, plain):
        out, what = self.tree.output(".scd")
        if self.tree.maybe(0.3):
            out, what = self.delta(1), "delta"

        def check():
            self.test.assertEqual(out.read_bytes(), expected.read_bytes())
            self.test.assertFalse(out.is_symlink())

        succeeds = plain and what in ("nothing", "delta")
        return Case([*arguments, "-o", out], at(out), expect_success=succeeds, check=check)

    def diff(self):
        base, new = self.tree.checkpoint(0), self.tree.checkpoint(1)
        names = [self.tree.names_of(base), self.tree.names_of(new)]
        return self.written_delta(["diff", *names, "--base-version", 0, "--version", 1], self.world.deltas[0], True)

    def compose(self):
        base = self.tree.names_of(self.tree.checkpoint(0))
        return self.written_delta(["compose", self.delta(0), self.delta(1), "--base", base], self.world.merged, True)

    def invert(self):
        base = self.tree.names_of(self.tree.checkpoint(0))
        return self.written_delta(["invert", self.delta(0), "--base", base], self.world.back, True)

    def convert(self):
        base = self.tree.checkpoint(0)
        to = self.chance.choice(["scd", "trl", "verl", "slime-xor", "vllm"])
        out, what = self.tree.output()
        before = set(map(str, out.rglob("*"))) if out.is_dir() else set()
        real = os.path.realpath(out)
        deltas = [self.delta(0), self.delta(1)]
        full = ["--full-every", 1] if to == "trl" else []
        arguments = ["convert", *deltas, "--to", to, "--base", self.tree.names_of(base), "-o", out, *full]

        def own(path):
            return (path == str(out) or path.startswith(f"{real}/")) and path not in before

        plain = all(not link.is_symlink() or link.exists() for link in base.iterdir()) if base.is_dir() else True
        # Of several versions each appears by itself, so the first may be there when the second fails.
        return Case(arguments, own, own, expect_success=plain and what in ("nothing", "folder"))

    def log_here(self):
        """A copy of the log, with files of others in it."""
        log = self.tree.folder(self.tree.place)
        shutil.copytree(self.world.log, log, dirs_exist_ok=True, symlinks=True)
        foreign = ["notes.txt", "deltas/mine.scd", "merged/x", "anchors/readme", "lost+found/a", "draft.tmp.old"]
        for name in foreign:
            if self.tree.maybe():
                (log / name).parent.mkdir(exist_ok=True)
                (log / name).write_text("of another")
        if self.tree.maybe(0.2):
            (log / "deltas" / "again").symlink_to("..")
            (log / "round").symlink_to(".")
        return log

    def own_of_log(self, log):
        """Objects of the log, which have the names of its keys."""
        key = re.compile(
            r"|/(catalog|floor|commits/[0-9]+|leases/[^/]+|deltas/[0-9]{10}-[0-9a-f]+\.scd"
            r"|(merged|anchors)/[0-9]{10}-[0-9a-f-]+[^/]*(/[^/]+)?|commits|leases|deltas|merged|anchors)"
        )
        return lambda path: path.startswith(str(log)) and key.fullmatch(path[len(str(log)) :]) is not None

    def state_file(self, weights):
        """The publisher's state beside the weights."""
        pattern = re.compile(r"sparsecast-[0-9a-f]{16}\.publisher")
        return lambda path: pattern.fullmatch(os.path.basename(path)) is not None

    def log_init(self):
        path = self.tree.checkpoint(0)
        log, what = self.tree.output()
        state, there = [], "nothing"
        own_state = self.state_file(path)
        if self.tree.maybe(0.4):
            file, there = self.tree.output()
            state, own_state = ["--state", file], at(file)
        own = either(self.own_of_log(log), self.own_of_log(os.path.realpath(log)), own_state)

        def check():
            self.test.assertEqual(status_of(log)["version"], 0)
            self.test.assertIn(there, ("nothing", "dangling", "loop"), "--state took its place")

        arguments = ["log", "init", log, self.tree.names_of(path), *state]
        return Case(arguments, own, expect_success=what == there == "nothing", check=check)

    def log_publish(self):
        log = self.log_here()
        new = self.tree.names_of(self.tree.checkpoint(0))
        state = self.tree.place / self.tree.name()
        shutil.copy(self.world.publisher, state)
        if self.tree.maybe():  # A delta that somebody keeps under a name like that of the state.
            shutil.copy(self.world.deltas[0], f"{state}.scd")
        own = self.own_of_log(log)
        if self.tree.maybe(0.4):
            mirror = self.tree.checkpoint(
                self.chance.choice([0, 2]), self.chance.choice(["file", "shards"]), linked=False
            )
            base = ["--mirror", mirror]
            own = either(own, below(f"{mirror}.follow"), at(mirror), children(mirror, weights_of(mirror)))
        else:
            base = ["--base", self.tree.names_of(self.tree.checkpoint(2))]
        return Case(
            ["log", "publish", log, new, *base, "--state", state],
            own,
            expect_success=True,
            check=lambda: self.test.assertEqual(status_of(log)["version"], 3),
        )

    def log_upkeep(self):
        log = self.log_here()
        kind = self.chance.choice(["gc", "anchor", "compact", "verify", "status"])
        if kind == "gc":
            arguments = ["log", "gc", self.tree.names_of(log), "--keep", 1, "--grace", 0]
        elif kind == "anchor":
            arguments = ["log", "anchor", self.tree.names_of(log), "--checkpoint", self.tree.checkpoint(2)]
        elif kind in ("compact", "verify"):
            scratch = self.tree.folder(self.tree.place)
            (scratch / "mine").write_text("mine")
            arguments = ["log", kind, self.tree.names_of(log), "--scratch", scratch]
        else:
            page, what = self.tree.output(".html")
            if self.tree.maybe():
                pathlib.Path(f"{page}.scratch").mkdir()
                (pathlib.Path(f"{page}.scratch") / "mine").write_text("mine")
            arguments = ["log", "status", self.tree.names_of(log), "--html", page]
            return Case(arguments, at(page), expect_success=what == "nothing")
        return Case(arguments, self.own_of_log(log), expect_success=True)

    def keygen(self):
        out, what = self.tree.output(".key")
        return Case(["log", "keygen", "-o", out], at(out), expect_success=what == "nothing")

    def log_pull(self):
        flags = [flag for flag in ("--copy-on-write", "--replace", "--every-version") if self.tree.maybe(0.4)]
        what = "checkpoint"
        if self.tree.maybe(0.2):
            tensors = {"another.weight": ("F32", [2], b"\1\2\3\4\5\6\7\0")}
            path, what = self.tree.checkpoint(0, tensors=tensors), "other"
        elif self.tree.maybe(0.3):
            path, what = self.tree.output(self.chance.choice(["", ".safetensors"]))
        else:
            path = self.tree.checkpoint(self.chance.choice([0, 1]))
        name = path if what not in ("checkpoint", "other") else self.tree.names_of(path)
        given = pathlib.Path(os.path.normpath(os.path.join(self.tree.root, name)))
        # A link to a directory is followed, one to a file is the name that is replaced.
        real = pathlib.Path(os.path.realpath(path)) if path.is_dir() else given.parent.resolve() / given.name
        coming = {"model.safetensors", INDEX}
        own_files = either(at(real), children(real, coming | weights_of(real)))
        follow = below(f"{real}.follow")

        def check():
            self.holds(os.path.join(self.tree.root, name), 2)

        weights = [real / file for file in weights_of(real) - {INDEX}] if real.is_dir() else [real]
        single = all(file.exists() and not file.is_symlink() and os.stat(file).st_nlink == 1 for file in weights)
        succeeds = what == "nothing" or (what == "checkpoint" and (single or "--copy-on-write" in flags))
        return Case(
            ["log", "pull", self.world.log, name, *flags],
            either(own_files, follow),
            on_refusal=follow,
            expect_success=succeeds,
            check=check,
        )


COMMANDS = (
    ["apply_copy"] * 5 + ["apply_in_place"] * 3 + ["log_pull"] * 6 + ["log_upkeep"] * 3 + ["log_init", "log_publish"] * 2
    + ["diff", "compose", "invert", "convert", "convert", "keygen"]
)  # fmt: skip


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
                    [SPARSECAST, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
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
            command = [SPARSECAST, "apply", tree.chance.choice(views[:2]), delta, "--in-place"]
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
    SPARSECAST = cli_test.SPARSECAST = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
