# SPDX-License-Identifier: Apache-2.0
"""Every command that writes, over a random tree: which paths are its own, and what must be there afterwards."""

import os
import pathlib
import re
import shutil

from random_trees import INDEX, read_tensors, status_of, weights_of


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
            return Case(["log", "status", self.tree.names_of(log)], lambda path: False, expect_success=True)
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
