#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sparsecast log`, end to end: the built program, a recorded training run, nothing of the library.

    tests/log_cli_test.py PATH_TO_SPARSECAST [unittest arguments]

The weights of every version are computed here with numpy, from the sparse steps alone. SPARSECAST_TRACE names another
folder of the same form (one dense step_*.safetensors, then sparse ones).
"""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import cli_test
from cli_test import apply_sparse, read_safetensors

SPARSECAST = ""
TRACE = pathlib.Path(os.environ.get("SPARSECAST_TRACE", cli_test.TRACE))


def run(*arguments, expect=0, **more):
    command = [SPARSECAST, "log", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **more)
    if done.returncode != expect:
        raise AssertionError(f"{arguments}: exit {done.returncode}, not {expect}\n{done.stdout}\n{done.stderr}")
    return done


def run_json(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def inspect(delta):
    done = subprocess.run([SPARSECAST, "inspect", delta, "--json"], capture_output=True, check=True, timeout=600)
    return json.loads(done.stdout)


def tensors_of(path):
    """Of a file, or of all safetensors files in a directory."""
    path = pathlib.Path(path)
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    result = {}
    for file in files:
        result.update(read_safetensors(file)[0])
    return result


class Run(unittest.TestCase):
    """The whole trace, published once; each test follows it, or breaks a copy of it."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="sparsecast_log_"))
        steps = sorted(TRACE.glob("step_*.safetensors"))
        cls.first = int(steps[0].stem[len("step_") :])
        cls.versions = {cls.first: read_safetensors(steps[0])[0]}
        cls.log = cls.folder / "log"
        cls.follower = cls.folder / "follower"
        run("init", cls.log, steps[0], "--version", cls.first, "--state", cls.folder / "publisher")
        cls.publish_seen = []
        for i, step in enumerate(steps[1:], cls.first + 1):
            cls.versions[i] = apply_sparse(cls.versions[i - 1], step)
            published = run_json(
                "publish",
                cls.log,
                step,
                "--mirror",
                cls.folder / "mirror",
                "--state",
                cls.folder / "publisher",
                "--label",
                step.stem,
            )
            cls.publish_seen.append(published)
            pulled = run_json("follow", cls.log, cls.follower, "--once", "--lease", "follower")
            assert pulled["version"] == i and published["version"] == i, (published, pulled)
            assert tensors_of(cls.follower) == cls.versions[i], f"the follower differs at version {i}"
            assert tensors_of(cls.folder / "mirror") == cls.versions[i], f"the mirror differs at version {i}"
        cls.last = max(cls.versions)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def setUp(self):
        self.here = pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def copy(self):
        return pathlib.Path(shutil.copytree(self.log, self.here / "log"))

    def test_a_log_that_is_new_and_relative_is_published_to_by_the_same_name(self):
        first, second = sorted(TRACE.glob("step_*.safetensors"))[:2]
        shutil.copy(first, self.here / "base.safetensors")
        run("init", "new/log", "base.safetensors", "--version", self.first, cwd=self.here)
        run("publish", "new/log", second, "--base", "base.safetensors", cwd=self.here)

    def test_every_version_is_reached_from_every_form(self):
        for flags in ([], ["--every-version"], ["--copy-on-write"]):
            copy = self.here / f"copy{len(list(self.here.iterdir()))}"
            for version in sorted(self.versions)[:: 2 if flags else 1]:
                done = run_json("pull", self.log, copy, "--version", version, *flags)
                self.assertEqual(done["version"], version)
                self.assertEqual(tensors_of(copy), self.versions[version])

    def test_a_joiner_reads_few_objects(self):
        done = run_json("pull", self.log, self.here / "new.safetensors")
        self.assertLessEqual(done["objects_read"], 8)
        self.assertEqual(tensors_of(self.here / "new.safetensors"), self.versions[self.last])

    def test_a_published_delta_is_about_as_large_as_its_changes(self):
        for published in self.publish_seen:
            self.assertLess(published["bytes_per_change"], 2)
            self.assertFalse(published["already"])
            self.assertEqual(published["maintenance_error"], "")

    def test_context_deltas_take_over_in_the_middle_of_a_stream_and_are_merged_by_the_mirror(self):
        steps = sorted(TRACE.glob("step_*.safetensors"))
        log, mirror, follower = self.here / "log", self.here / "mirror", self.here / "follower"
        state = self.here / "state"
        run("init", log, steps[0], "--state", state)
        run("pull", log, follower)
        merged = 0
        other, held = self.here / "other", self.here / "held"
        for i, step in enumerate(steps[1:5], 1):
            objective = "size" if i > 2 else "speed"
            if i == 4:
                shutil.copytree(log, other)
                shutil.copytree(mirror, held)
                shutil.copy(state, self.here / "other_state")
            published = run_json("publish", log, step, "--mirror", mirror, "--state", state, "--objective", objective)
            self.assertEqual(published["maintenance_error"], "")
            merged += published["merged"]
        self.assertEqual(merged, 1)
        seen = {path.parent.name: inspect(path)["positions"] for path in log.rglob("*.scd")}
        self.assertEqual(seen["merged"], "context")
        self.assertEqual({inspect(path)["positions"] for path in (log / "deltas").iterdir()}, {"auto", "context"})
        kept = [path.name for path in (self.here / "mirror.follow" / "plain").iterdir()]
        self.assertEqual(kept, ["0-4.scd"], "what the span of 16 will take")
        self.assertEqual(run_json("pull", log, follower)["applied"], 1)
        self.assertEqual(tensors_of(follower), self.versions[self.first + 4])
        self.assertTrue(run_json("verify", log)["good"])

        # The same log, led without a mirror.
        run("publish", other, steps[4], "--base", held, "--state", self.here / "other_state")
        alone = run_json("compact", other)
        self.assertEqual((alone["merged"], alone["without_base"]), (0, 1))
        again = run_json("compact", other, "--mirror", self.here / "late")
        self.assertEqual((again["merged"], again["without_base"]), (1, 0))
        [made], [same] = (log / "merged").iterdir(), (other / "merged").iterdir()
        self.assertEqual((made.name, made.read_bytes()), (same.name, same.read_bytes()))

    def test_verify_and_status_agree(self):
        verified = run_json("verify", self.log)
        status = run_json("status", self.log)
        self.assertTrue(verified["good"])
        self.assertEqual(verified["deltas"], status["deltas"]["objects"])
        self.assertEqual(status["version"], self.last)
        self.assertEqual([lease["name"] for lease in status["lease_rows"]], ["follower"])
        self.assertEqual(status["lease_rows"][0]["behind"], 0)

    def test_gc_leaves_what_is_needed(self):
        log = self.copy()
        run("anchor", log, "--checkpoint", self.folder / "mirror")
        (log / "leases" / "follower").unlink()
        done = run_json("gc", log, "--keep", 1, "--grace", 0)
        self.assertEqual(done["floor"], self.last)
        self.assertGreater(done["removed_objects"], 0)
        self.assertTrue(run_json("verify", log)["good"])
        behind = self.here / "behind"
        run("pull", self.log, behind, "--version", self.first)
        self.assertEqual(run_json("pull", log, behind)["version"], self.last)
        self.assertEqual(tensors_of(behind), self.versions[self.last])

    def test_following_runs_a_command_after_each_version(self):
        log = self.copy()
        script = self.here / "notify.sh"
        script.write_text(f'#!/bin/sh\necho "$SPARSECAST_VERSION $1" >> {self.here}/seen\n')
        script.chmod(0o755)
        copy = self.here / "copy"
        run("pull", log, copy, "--version", self.first)
        process = subprocess.Popen(
            [
                SPARSECAST,
                "log",
                "follow",
                log,
                copy,
                "--interval",
                "50ms",
                "--every-version",
                "--notify-command",
                script,
                "--notify-argument",
                "told",
                "--json",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        seen = self.here / "seen"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (seen.exists() and f"{self.last} told" in seen.read_text()):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(json.loads(out.splitlines()[-1])["version"], self.last)
        self.assertIn(f"{self.last} told", seen.read_text())

    def test_two_processes_never_work_on_one_checkpoint(self):
        log = self.copy()
        process = subprocess.Popen(
            [SPARSECAST, "log", "follow", log, self.here / "copy"], stdout=subprocess.PIPE, text=True
        )
        try:
            self.assertIn("version", process.stdout.readline())
            self.assertIn("another", run("pull", log, self.here / "copy", expect=4).stderr)
        finally:
            process.terminate()
            process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)
        run("pull", log, self.here / "copy")

    def test_what_is_broken_is_named(self):
        for kind in ("deltas", "commits", "merged", "anchors"):
            for how in ("truncated", "flipped", "deleted"):
                log = pathlib.Path(shutil.copytree(self.log, self.here / f"{kind}.{how}"))
                objects = sorted(path for path in (log / kind).rglob("*") if path.is_file())
                if not objects:
                    continue
                # Not the head itself: that one, deleted, is as if it had never been.
                broken = objects[len(objects) // 2] if kind != "anchors" else objects[-1]
                data = broken.read_bytes()
                if how == "truncated":
                    broken.write_bytes(data[: len(data) // 2])
                elif how == "flipped":
                    broken.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
                else:
                    broken.unlink()
                verified = subprocess.run([SPARSECAST, "log", "verify", log], capture_output=True, text=True)
                self.assertIn(verified.returncode, (3, 4, 6), (kind, how, verified.stderr))
                self.assertRegex(verified.stderr, r"\[(corrupt|mixed|gone|io|replayed|unsupported)\]")
                # A reader is right, or says that it is not; never silently wrong.
                copy = self.here / f"copy.{kind}.{how}"
                pulled = subprocess.run(
                    [SPARSECAST, "log", "pull", log, copy, "--every-version", "--json"], capture_output=True, text=True
                )
                if pulled.returncode == 0:
                    version = json.loads(pulled.stdout)["version"]
                    self.assertEqual(tensors_of(copy), self.versions[version], (kind, how))
                else:
                    self.assertRegex(pulled.stderr, r"\[[a-z_]+\]")
                shutil.rmtree(log)

    def test_a_copy_that_was_changed_by_hand_is_found_out(self):
        copy = self.here / "copy.safetensors"
        run("pull", self.log, copy, "--version", self.first)
        data = bytearray(copy.read_bytes())
        data[-1] ^= 1
        copy.write_bytes(data)
        run("pull", self.log, copy)
        self.assertEqual(tensors_of(copy), self.versions[self.last])


class Dtypes(cli_test.Folder):
    """Every dtype of safetensors, published and pulled."""

    def test_every_dtype_goes_through_a_log(self):
        seed = int(os.environ.get("SPARSECAST_SEED", random.SystemRandom().getrandbits(32)))
        self.addCleanup(print, f"SPARSECAST_SEED={seed}", file=sys.stderr)
        chance = random.Random(seed)
        log, mirror, new = self.path("log"), self.path("mirror"), self.path("new.safetensors")
        versions = [cli_test.tensors_of_every_dtype(chance)]
        # F4 of a file that is written from a table is U8, and its metadata say what it is.
        as_written = {name: t for name, t in versions[0].items() if name != "f4"}
        cli_test.write_safetensors(self.path("base.safetensors"), versions[0])
        run("init", log, self.path("base.safetensors"))
        for version in range(1, 4):
            versions.append(cli_test.with_changes(versions[-1], chance)[0])
            cli_test.write_safetensors(new, versions[-1])
            options = ["--mirror", mirror] if version > 1 else ["--base", self.path("base.safetensors")]
            run("publish", log, new, *options)
        run("verify", log)
        for version, expected in enumerate(versions):
            pulled = self.path(f"pulled{version}")
            run("pull", log, pulled, "--version", version)
            found = tensors_of(pulled)
            self.assertEqual(found["f4"][2], expected["f4"][2], f"seed {seed}")
            for name in as_written:
                self.assertEqual(found[name], expected[name], f"seed {seed}, {name}, version {version}")


@unittest.skipUnless("SPARSECAST_TEST_BUCKET" in os.environ, "no bucket; tests/s3_server.py starts a server")
class Bucket(unittest.TestCase):
    """The same commands on an S3 server."""

    def test_a_run_is_published_followed_verified_and_cleared(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="sparsecast_log_"))
        self.addCleanup(shutil.rmtree, folder)
        log = f"s3://{os.environ['SPARSECAST_TEST_BUCKET']}/log-{os.getpid()}"
        steps = sorted(TRACE.glob("step_*.safetensors"))
        first = int(steps[0].stem[len("step_") :])
        weights = read_safetensors(steps[0])[0]
        (folder / "publisher.pub").write_text(run("keygen", "-o", folder / "publisher.key").stdout)
        signed = ["--state", folder / "publisher", "--key", folder / "publisher.key"]
        trusting = ["--trust", folder / "publisher.pub"]
        run("init", log, steps[0], "--version", first, *signed)
        for version, step in enumerate(steps[1:], first + 1):
            weights = apply_sparse(weights, step)
            run("publish", log, step, "--mirror", folder / "mirror", *signed)
            run("pull", log, folder / "copy", "--lease", "copy", *trusting)
            self.assertEqual(tensors_of(folder / "copy"), weights, f"version {version}")
        fenced = run(
            "publish",
            log,
            steps[-1],
            "--base",
            folder / "mirror",
            "--state",
            folder / "other",
            "--key",
            folder / "publisher.key",
            expect=5,
        )
        self.assertIn("[fenced]", fenced.stderr)
        run("anchor", log, "--checkpoint", folder / "mirror", "--key", folder / "publisher.key")
        done = run_json("gc", log, "--keep", 1, "--grace", 0, "--key", folder / "publisher.key")
        self.assertEqual(done["floor"], version)
        self.assertTrue(run_json("verify", log, *trusting)["good"])
        run("pull", log, folder / "joiner.safetensors", *trusting)
        self.assertEqual(tensors_of(folder / "joiner.safetensors"), weights)
        self.assertEqual(run_json("status", log)["lease_rows"][0]["behind"], 0)


if __name__ == "__main__":
    SPARSECAST = sys.argv.pop(1)
    unittest.main()
