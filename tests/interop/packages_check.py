#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sparsecast convert` held to other systems' own code: what they read of ours, what we read of theirs.

    tests/interop/packages_check.py SPARSECAST [--vllm DIR] [--verl DIR] [--trl DIR] [--sglang DIR] [--modelexpress DIR]
                                    [--slime-receiver FILE] [--slime-publisher FILE] [--nemo-codec FILE]

The directories are unpacked wheels (scripts/interop_packages.sh fetches them); only the modules that matter are imported,
none of their dependencies but torch and numpy; ModelExpress is imported whole, and stores in an S3 server. FILE: a `local_checkpoint.py` and a `disk_delta.py` of a slime or miles
checkout, which no package has; and NeMo-RL's weight_transfer_sparse_codec.py, to measure it. Prints a line for each comparison, with processor times
of all threads.
"""

import argparse
import ast
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import foreign_layouts as layouts

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent.parent))
import s3_server

TRACE = pathlib.Path(__file__).resolve().parent.parent.parent / "testdata" / "trace"
TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def load_module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def bare_package(name, path):
    """A package whose __init__ is not run, so that one of its modules can be imported without its dependencies."""
    module = types.ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module


def timed(call, repeats=5):
    best, result = float("inf"), None
    for _ in range(repeats):
        began = time.process_time()
        result = call()
        best = min(best, time.process_time() - began)
    return result, best * 1000


def as_tensors(state):
    return {n: torch.frombuffer(bytearray(b), dtype=TORCH_DTYPES[d]).view(s) for n, (d, s, b) in state.items()}


def same_bits(tensors, state):
    return all(
        tensors[n].contiguous().view(torch.uint8).numpy().tobytes() == b if tensors[n].dim() else True
        for n, (_, _, b) in state.items()
    )


class Model(torch.nn.Module):
    """Holds tensors under their checkpoint names, and loads as engines do in the end: by copy_."""

    def __init__(self, state):
        super().__init__()
        self.weights = as_tensors(state)

    @torch.no_grad()
    def load_weights(self, weights):
        names = set()
        for name, tensor in weights:
            self.weights[name].copy_(tensor)
            names.add(name)
        return names


class Check:
    def __init__(self, sparsecast, folder):
        self.sparsecast, self.path = sparsecast, pathlib.Path(folder)
        self.base = TRACE / "step_000012.safetensors"
        self.run("convert", TRACE, "--to", "scd", "--base", self.base, "--base-version", 12, "-o", self.path / "ours")
        self.states = [layouts.read_safetensors(self.base)[0]]
        for step in sorted(TRACE.glob("step_*.safetensors"))[1:]:
            self.states.append(layouts.trl_apply(step, self.states[-1])[0])
        self.failures = 0

    def run(self, *arguments):
        subprocess.run([self.sparsecast, *map(str, arguments)], check=True, capture_output=True, timeout=300)

    def to(self, form, *more):
        self.run("convert", self.path / "ours", "--to", form, "--base", self.base, "-o", self.path / form, *more)
        return self.path / form

    def versions(self):
        return range(13, 13 + len(self.states) - 1)

    def require(self, holds, what, **times):
        self.failures += not holds
        text = ", ".join(f"{name} {value:.2f} ms" for name, value in times.items())
        print(f"{'ok    ' if holds else 'FAILED'} {what}{': ' + text if text else ''}")

    def require_back(self, source, what):
        out = self.path / ("back-" + pathlib.Path(source).name)
        self.run("convert", source, "--to", "scd", "--base", self.base, "-o", out)
        same = all((out / d.name).read_bytes() == d.read_bytes() for d in (self.path / "ours").iterdir())
        self.require(same, what)

    def safetensors(self):
        for form in ("trl", "slime-xor", "packed-deltas"):
            for path in sorted(self.to(form).rglob("*.safetensors")):
                mine, _ = layouts.read_safetensors(path)
                theirs = safetensors.torch.load_file(path)
                good = theirs.keys() == mine.keys() and all(
                    t.contiguous().view(torch.uint8).numpy().tobytes() == mine[n][2] for n, t in theirs.items()
                )
                if not good:
                    self.require(False, f"safetensors reads {path}")
        self.require(True, "safetensors (torch) reads every file that we write")
        steps = self.path / "steps"
        steps.mkdir()
        for version in self.versions():
            tensors = {}
            for name, dtype, _, indices, values in layouts.patches(
                self.states[version - 13], self.states[version - 12]
            ):
                tensors[name + ".indices"] = torch.from_numpy(indices.astype(np.int32))
                tensors[name + ".values"] = torch.from_numpy(values.view(np.int16).copy()).view(TORCH_DTYPES[dtype])
            safetensors.torch.save_file(
                tensors, steps / f"step_{version:06d}.safetensors", {"sparse": "True", "model_version": str(version)}
            )
        self.require_back(steps, "we read sparse steps that safetensors (torch) wrote")

    def vllm(self, wheel):
        loader = load_module("vllm_patch", wheel / "vllm/model_executor/model_loader/checkpoint_weight_patch.py")
        source = (wheel / "vllm/distributed/weight_transfer/sparse_nccl_engine.py").read_text()
        info_class = next(
            n for n in ast.parse(source).body if getattr(n, "name", "") == "SparseNCCLWeightTransferUpdateInfo"
        )
        info_class.bases = []
        from dataclasses import dataclass

        scope = {"dataclass": dataclass}
        exec(compile(ast.Module([info_class], []), "vllm", "exec"), scope)
        model, out, total = Model(self.states[0]), self.to("vllm"), 0.0
        for version in self.versions():
            path = out / f"update_{version:06d}.safetensors"
            with safetensors.safe_open(path, "pt") as file:
                info = scope["SparseNCCLWeightTransferUpdateInfo"](**json.loads(file.metadata()["update_info"]))
                patches = []
                for name, dtype, shape, count in zip(
                    info.names, info.dtype_names, info.shapes, info.num_updates_list, strict=True
                ):
                    indices, values = file.get_tensor(name + ".indices"), file.get_tensor(name + ".values")
                    assert (
                        indices.dtype == torch.int32
                        and values.dtype == getattr(torch, dtype)
                        and len(indices) == count == len(values)
                    )
                    patches.append(loader.CheckpointWeightPatch(name, tuple(shape), values.dtype, values, indices))
            began = time.process_time()
            loader.load_checkpoint_weight_patches(model, patches)
            total += time.process_time() - began
            self.require(
                same_bits(model.weights, self.states[version - 12]),
                f"vLLM's patch loader reaches version {version} from our update",
                apply=(time.process_time() - began) * 1000,
            )

    def verl(self, wheel):
        for name, path in (("verl", "verl"), ("verl.checkpoint_engine", "verl/checkpoint_engine")):
            bare_package(name, wheel / path)
        loader = load_module("verl_loader", wheel / "verl/workers/rollout/sglang_rollout/delta_loader.py")
        model, out = Model(self.states[0]), self.to("verl")
        for version in self.versions():
            flushes = [safetensors.torch.load_file(p) for p in sorted(out.glob(f"flush_{version:06d}_*.safetensors"))]
            began = time.process_time()
            for flush in flushes:
                loader.apply_delta(model, flush.items())
            spent = (time.process_time() - began) * 1000
            self.require(
                same_bits(model.weights, self.states[version - 12]),
                f"verl's SGLang loader reaches version {version} from our flush",
                apply=spent,
            )

    def slime_receiver(self, path):
        receiver = load_module("slime_receiver", path)
        base = self.path / "hf"
        base.mkdir()
        layouts.write_safetensors(base / "model.safetensors", self.states[0])
        cases = [(form, check, 0) for form in ("slime-xor", "slime-overwrite") for check in ("xxh3-128", "adler32")]
        for form, checksum, full_every in [*cases, ("slime-xor", "adler32", 4)]:
            shared = self.path / f"{form}-{checksum}-{full_every}"
            more = ["--checksum", checksum, "--full-every", full_every, "--base", self.base, "-o", shared]
            self.run("convert", self.path / "ours", "--to", form, *more)
            # The receiver's first version is 0, ours 12: it holds the base as that one.
            local = self.path / f"local-{shared.name}"
            (local / ".weight_sync").mkdir(parents=True)
            receiver._reset_checkpoint(str(base), str(local), 12)
            for version in self.versions():
                began = time.process_time()
                receiver.pull(str(local), str(base), str(shared), version)
                spent = (time.process_time() - began) * 1000
                result, _ = layouts.read_safetensors(local / "model.safetensors")
                want = {n: (d, list(s), b) for n, (d, s, b) in self.states[version - 12].items()}
                kind = f"full every {full_every}" if full_every else checksum
                what = f"slime's receiver pulls version {version} of our {form} ({kind})"
                self.require(result == want, what, pull=spent)

    def slime_publisher(self, path):
        publisher = load_module("slime_publisher", path)
        import zstandard

        for encoding in ("xor", "overwrite"):
            shared = self.path / f"theirs-{encoding}"
            for version in self.versions():
                old, new = self.states[version - 13], self.states[version - 12]

                def encode():
                    tensors, checksums = {}, {}
                    for name in new:
                        before, after = (np.frombuffer(s[name][2], np.uint8) for s in (old, new))
                        mask = before != after
                        if not mask.any():
                            continue
                        body = before ^ after if encoding == "xor" else publisher.overwrite_encode(after, mask)
                        tensors[name] = np.frombuffer(zstandard.ZstdCompressor(level=1).compress(body), np.uint8)
                        checksums[name] = publisher.checksum("xxh3-128", after)
                    return safetensors.numpy.save(tensors, metadata=checksums), tensors

                (blob, tensors), spent = timed(encode)
                directory = shared / f"weight_v{version:06d}"
                directory.mkdir(parents=True)
                (directory / "model-00000-of-00001.safetensors").write_bytes(blob)
                index = {
                    "metadata": {
                        "version": f"{version:06d}",
                        "base_version": f"{version - 1:06d}",
                        "delta_encoding": encoding,
                        "compression_format": "zstd",
                        "checksum_format": "xxh3-128",
                    },
                    "weight_map": {n: "model-00000-of-00001.safetensors" for n in tensors},
                }
                (directory / "model.safetensors.index.json").write_text(json.dumps(index))
                print(f"       slime's encoder, {encoding}, version {version}: {len(blob)} bytes, {spent:.2f} ms")
            self.require_back(shared, f"we read what slime's encoder wrote ({encoding})")

    def modelexpress(self, wheel):
        """Its receiver, up to the checkpoint that an engine reloads, and its publisher; both with its own S3 client."""
        sys.path.insert(0, str(wheel))
        with s3_server.S3Server() as server:
            os.environ.update({name: value for name, value in server.environment.items() if value})
            from modelexpress_rl.s3 import S3Client

            s3 = S3Client(endpoint_url=server.endpoint, region_name="us-east-1")
            try:
                self.modelexpress_receiver(s3)
                self.modelexpress_publisher(s3)
            finally:
                s3.close()

    def modelexpress_receiver(self, s3):
        from modelexpress_rl.inference import receiver
        from modelexpress_rl.object_storage import ObjectStorageType
        from modelexpress_rl.train import WeightPayloadFormat

        seed = self.path / "seed"
        seed.mkdir()
        layouts.write_safetensors(seed / "model.safetensors", self.states[0])
        for full_every in (0, 4):
            root = f"s3://{s3_server.BUCKET}/ours-{full_every}"
            out = self.path / f"modelexpress-{full_every}"
            more = ["--to", "modelexpress", "--base", self.base, "--full-every", full_every, "-o", out]
            self.run("convert", self.path / "ours", *more)
            for path in sorted(out.rglob("*.*")):
                s3.put(uri=f"{root}/{path.relative_to(out)}", data=path.read_bytes())
            cache = self.path / f"cache-{full_every}"
            config = receiver.ObjectStorageGeneratorConfig(ObjectStorageType.S3, "000012", seed, cache)
            local = receiver._LocalCheckpoint(model_name="model", config=config, s3=s3)
            local.initialize()
            for version in self.versions():
                full = full_every != 0 and version % full_every == 0
                name, base = f"{version:06d}", None if full else f"{version - 1:06d}"
                form = WeightPayloadFormat.FULL_HF_CHECKPOINT if full else WeightPayloadFormat.XOR_DELTA
                uri = f"{root}/weight_v{name}/model.safetensors.index.json"
                began = time.process_time()
                prepared = local.prepare(receiver._S3Version(name, base, form, uri))
                spent = (time.process_time() - began) * 1000
                local.activate(prepared)
                result, _ = layouts.read_safetensors(prepared.path / "model.safetensors")
                want = {n: (d, list(s), b) for n, (d, s, b) in self.states[version - 12].items()}
                kind = "full checkpoint" if full else "delta"
                self.require(result == want, f"ModelExpress prepares version {version} of our {kind}", prepare=spent)

    def modelexpress_publisher(self, s3):
        """Labels as its server makes them, directories as its trainers name them, one version a full checkpoint."""
        import torch.distributed as dist
        from modelexpress_rl import refit_pb2
        from modelexpress_rl.object_storage import ObjectStorageType
        from modelexpress_rl.train.client import ObjectStorageConfig
        from modelexpress_rl.train.methods.canonical_delta import CanonicalDeltaPublicationMethod
        from modelexpress_rl.utils import make_tensor_reader
        from modelexpress_rl.version import WeightVersionRef

        root = f"s3://{s3_server.BUCKET}/theirs"
        known = {}

        class Catalogue:  # What the publisher asks of the server, which is no part of the package.
            def GetWeightVersion(self, request, timeout):
                return refit_pb2.GetWeightVersionResponse(version=known[request.uid])

        def buckets(state):
            tensors = list(as_tensors(state).items())
            return [tensors[i : i + 5] for i in range(0, len(tensors), 5)]

        dist.init_process_group("gloo", init_method=f"file://{self.path}/group", rank=0, world_size=1)
        publisher = CanonicalDeltaPublicationMethod(
            config=ObjectStorageConfig(ObjectStorageType.S3, root, "v12", self.path / "seed"),
            model_name="model",
            service=Catalogue,
            rpc_timeout_seconds=30,
            process_group=None,
            read_seed_tensor=make_tensor_reader(self.path / "seed")[0],
            s3=s3,
        )
        publisher.prepare_base(hf_tensor_iter=buckets(self.states[0]))
        shared, base = self.path / "theirs", "v12"
        for version in self.versions():
            label, uri = f"{version * 0x5DEECE66D % 2**32:08x}", f"{root}/v{version}/model.safetensors.index.json"
            known[label] = refit_pb2.WeightVersion(uid=label, model_name="model")
            known[label].object_storage.uri = uri
            known[label].object_storage.storage_type = refit_pb2.OBJECT_STORAGE_TYPE_S3
            if version == 16:
                known[label].payload_format = refit_pb2.WEIGHT_PAYLOAD_FORMAT_FULL_HF_CHECKPOINT
            else:
                known[label].payload_format = refit_pb2.WEIGHT_PAYLOAD_FORMAT_XOR_DELTA
                known[label].base_version_id = base
            reference, base = WeightVersionRef(label), label
            began = time.process_time()
            staged = publisher.stage(version=reference, hf_tensor_iter=buckets(self.states[version - 12]))
            spent = (time.process_time() - began) * 1000
            publisher.publish(version=reference, staged=staged)
            print(
                f"       ModelExpress publishes version {version}: {staged.wire_bytes} bytes, {spent:.2f} ms to stage"
            )
            directory = shared / f"v{version}"
            directory.mkdir(parents=True)
            index = s3.get(uri)
            for name in ("model.safetensors.index.json", *set(json.loads(index)["weight_map"].values())):
                (directory / name).write_bytes(s3.get(f"{uri.rsplit('/', 1)[0]}/{name}"))
        dist.destroy_process_group()
        self.require_back(shared, "we read what ModelExpress published")

    def nemo_codec(self, path):
        """Sizes and times only: no direction is converted. Theirs: locations, values, torch.save, zstd level 1."""
        import io

        import zstandard

        for name in ("nemo_rl", "nemo_rl.models", "nemo_rl.models.generation", "nemo_rl.models.generation.vllm"):
            bare_package(name, "")
        config = types.ModuleType("nemo_rl.models.generation.vllm.config")
        config.VllmSparseRefitConfig = object
        sys.modules[config.__name__] = config
        codec = load_module("nemo_codec", path)
        for version in self.versions():
            old, new = as_tensors(self.states[version - 13]), as_tensors(self.states[version - 12])

            def encode():
                infos = []
                for name, tensor in new.items():
                    before, after = codec.integer_view(old[name]).view(-1), codec.integer_view(tensor).view(-1)
                    places = after.ne(before).nonzero().view(-1)
                    if places.numel():
                        infos.append((name, tensor, places, after[places].bitwise_xor(before[places]), "xor"))
                buffer = io.BytesIO()
                torch.save(codec.encode_sparse_infos(infos), buffer)
                return zstandard.ZstdCompressor(level=1).compress(buffer.getvalue())

            def decode(body):
                raw = zstandard.ZstdDecompressor().decompress(body)
                locations, groups, items = torch.load(io.BytesIO(raw), weights_only=True)
                for item in items:
                    places = codec.sparse_locations_for_item(item, locations, device="cpu")
                    values = groups[item["value_group"]][item["value_start"] : item["value_end"]]
                    bits = codec.integer_view(live[item["name"]]).view(-1)
                    bits.index_copy_(0, places, bits[places].bitwise_xor(values))

            body, encoded = timed(encode)
            decoded = float("inf")
            for _ in range(5):
                live = {n: t.clone() for n, t in old.items()}
                decoded = min(decoded, timed(lambda: decode(body), 1)[1])
            self.require(
                same_bits(live, self.states[version - 12]),
                f"NeMo-RL's codec alone, version {version}, {len(body)} bytes",
                encode=encoded,
                decode=decoded,
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sparsecast")
    for name in ("vllm", "verl", "trl", "sglang", "modelexpress", "slime-receiver", "slime-publisher", "nemo-codec"):
        parser.add_argument("--" + name, type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="sparsecast_") as folder:
        check = Check(options.sparsecast, folder)
        print(f"torch {torch.__version__}, safetensors {safetensors.__version__}, numpy {np.__version__}")
        check.safetensors()
        for name in ("vllm", "verl", "modelexpress", "slime_receiver", "slime_publisher", "nemo_codec"):
            if getattr(options, name):
                getattr(check, name)(getattr(options, name))
            else:
                print(f"       {name}: left out")
        for name, word in (("trl", "changed_params"), ("sglang", "delta_encoding")):
            if getattr(options, name):
                files = [p for p in getattr(options, name).rglob("*.py") if word in p.read_text(errors="ignore")]
                print(f"       {name}: this release has {'no ' if not files else ''}code of the layout ('{word}')")
    sys.exit(check.failures != 0)


if __name__ == "__main__":
    main()
