# SPDX-License-Identifier: Apache-2.0
"""Random trees of files and links round a checkpoint, and what is in them: for file_system_test.py."""

import collections
import hashlib
import json
import os
import pathlib
import stat
import subprocess

import numpy as np

import cli_test
from cli_test import write_safetensors

try:
    import safetensors
except ImportError:
    safetensors = None

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
    command = [cli_test.SPARSECAST, *map(str, arguments)]
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
