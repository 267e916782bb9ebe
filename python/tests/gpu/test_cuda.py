# SPDX-License-Identifier: Apache-2.0
"""What only a CUDA device can show of the Python package; scripts/gpu_check.sh runs these."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from sparsecast_ports import free_port
from torch import nn

import sparsecast as sc
from sparsecast.torch import LoaderSource, Log, Publisher, Subscriber, World
from sparsecast.transforms import FP8_CHANNELS, MXFP4, MXFP8, NVFP4, Quantize, Transforms, fp8_blocks, int4_groups

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device answers")
TIMEOUT = 60.0
FORMATS = {
    "fp8 blocks": fp8_blocks(),
    "fp8 channels": FP8_CHANNELS,
    "mxfp8": MXFP8,
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
    "int4": int4_groups(),
}


def make_model(seed: int, device: str = "cuda") -> nn.Module:
    torch.manual_seed(seed)
    layers = (nn.Embedding(500, 96), nn.Linear(96, 333), nn.LayerNorm(333), nn.Linear(333, 500, bias=False))
    return nn.Sequential(*layers).to(device)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randint(0, 500, (32,), device="cuda")).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def same_bits(trainer: nn.Module, engine: nn.Module) -> bool:
    pairs = zip(trainer.state_dict().values(), engine.state_dict().values(), strict=True)
    return all(torch.equal(a.to(b.dtype).cpu(), b.cpu()) for a, b in pairs)


@pytest.mark.parametrize("entry_bytes", [None, 0])
@pytest.mark.parametrize("detector", ["snapshot", "pinned", "fused_cast"])
def test_a_device_publisher_makes_the_frames_of_the_host(detector: str, entry_bytes: int | None) -> None:
    torch.manual_seed(1)
    master = torch.randn(1000, 257, device="cuda")
    on_device = master.bfloat16()
    held = on_device.clone()
    on_host = on_device.cpu()
    table = sc.TensorTable([("w", "BF16", (1000, 257))])
    stream = torch.cuda.current_stream().cuda_stream or 1
    masters = [sc.describe(master)] if detector == "fused_cast" else None
    publisher = sc.Publisher(table, [sc.describe(on_device)], detector=detector, masters=masters, stream=stream)
    host = sc.Publisher(table, [sc.describe(on_host)])
    subscriber = sc.Subscriber(table, [sc.describe(held)], stream=stream, entry_bytes=entry_bytes)
    for _ in range(5):
        master += torch.randn_like(master) * 1e-3
        if detector != "fused_cast":
            on_device.copy_(master)
        torch.cuda.synchronize()
        delta = publisher.publish()
        on_host.copy_(master.bfloat16().cpu())
        assert delta.records() == host.publish().records()
        for record in delta.records():
            subscriber.stage(record)
        assert subscriber.apply().digest == delta.digest
        publisher.commit(delta.version)
        host.commit(delta.version)
        assert torch.equal(held.view(torch.int16), master.bfloat16().view(torch.int16))


def test_a_torch_trainer_on_a_stream_of_its_own_reaches_engines_on_device_and_host() -> None:
    world = World("127.0.0.1", free_port(), "a secret of sixteen or more", size=3, timeout=TIMEOUT)
    engines = [make_model(1).bfloat16(), make_model(2, "cpu").bfloat16()]
    failures: list[BaseException] = []

    def follow(rank: int) -> None:
        try:
            place = dataclasses.replace(world, rank_offset=rank)
            subscriber = Subscriber(engines[rank - 1], transport=place, engine=f"e{rank}", needs_anchor=True)
            for _ in range(5):
                subscriber.receive()
                subscriber.apply()
            subscriber.audit()
        except BaseException as failure:  # noqa: BLE001 - for the main thread
            failures.append(failure)

    threads = [threading.Thread(target=follow, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    model = make_model(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch.cuda.stream(torch.cuda.Stream()):
        publisher = Publisher(model, optimizer, transport=world, wire_dtype=torch.bfloat16)
        for _ in range(5):
            train(model, optimizer)
            publisher.publish()
    for thread in threads:
        thread.join(2 * TIMEOUT)
    torch.cuda.synchronize()
    if failures:
        raise failures[0]
    assert all(same_bits(model, engine) for engine in engines)


@pytest.mark.parametrize("detector", ["auto", "pinned"])
def test_a_log_is_written_from_a_device_and_followed_on_one(detector: str, tmp_path: Any) -> None:
    log = Log(str(tmp_path / "log"), mirror=str(tmp_path / "m.safetensors"), state=str(tmp_path / "state"))
    model, engine, late = make_model(0), make_model(0).bfloat16(), make_model(1).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    publisher = Publisher(model, optimizer, transport=log, wire_dtype=torch.bfloat16, detector=detector)
    subscriber = Subscriber(engine, transport=log)
    for _ in range(4):
        train(model, optimizer)
        with torch.cuda.stream(torch.cuda.Stream()):
            publisher.publish()
        subscriber.update()
        assert same_bits(model, engine)
    # One that begins with other weights is seeded by the anchor.
    follower = Subscriber(late, transport=dataclasses.replace(log, state=str(tmp_path / "late")))
    follower.update()
    assert same_bits(model, late)
    publisher.close()


@pytest.mark.parametrize("shape", [(300, 517), (300, 512), (2, 64, 256)])
@pytest.mark.parametrize("name", FORMATS)
def test_quantised_weights_of_a_device_are_those_of_the_host(name: str, shape: tuple[int, ...]) -> None:
    if shape[-1] % 8 and not name.startswith("fp8"):
        pytest.skip("groups are whole")
    torch.manual_seed(3)
    weight = torch.randn(shape, device="cuda").bfloat16()
    box = sc.Box((0,) * len(shape), shape)
    results = []
    for tensor in (weight, weight.cpu()):
        transforms = Transforms([Quantize(FORMATS[name])], [("w.weight", "BF16", shape)])
        results.append({made: out.clone() for made, out, _ in transforms("w.weight", tensor, box)})
    torch.cuda.synchronize()
    assert results[0].keys() == results[1].keys()
    for made, out in results[0].items():
        assert torch.equal(out.cpu().view(torch.uint8), results[1][made].view(torch.uint8)), made


def _nccl_rank(rank: int, world: World, answers: Any) -> None:
    os.environ["NCCL_HOSTID"] = f"rank-{rank}"  # Several ranks share the device.
    try:
        place = dataclasses.replace(world, rank_offset=rank)
        torch.manual_seed(0)
        weight = torch.randn(4096, 64, device="cuda").bfloat16()
        if rank == 0:
            with Publisher([("w", weight)], transport=place) as publisher:
                for step in range(5):
                    weight[step::7] += 1
                    torch.cuda.synchronize()
                    publisher.publish()
        else:
            weight.zero_()
            subscriber = Subscriber([("w", weight)], transport=place, needs_anchor=True)
            for _ in range(5):
                subscriber.update()
        torch.cuda.synchronize()
        answers.put((rank, weight.cpu().view(torch.int16).sum().item()))
    except BaseException as failure:  # noqa: BLE001 - told to the parent
        answers.put((rank, repr(failure)))


@pytest.mark.skipif(not sc.has_nccl, reason="this build has no NCCL")
def test_records_travel_over_nccl_between_processes_on_one_device() -> None:
    world = World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2, channels="nccl", timeout=TIMEOUT)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_nccl_rank, args=(rank, world, answers)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    told = dict(answers.get(timeout=2 * TIMEOUT) for _ in ranks)
    for process in ranks:
        process.join(TIMEOUT)
    assert isinstance(told[0], int) and told[0] == told[1], told


class Fused(nn.Module):
    """A model whose loader fuses two tensors, and casts a third."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.Parameter(torch.zeros(300, 64, dtype=torch.bfloat16, device="cuda"), requires_grad=False)
        self.norm = nn.Parameter(torch.zeros(64, dtype=torch.bfloat16, device="cuda"), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            {"q": self.qk.data[:200], "k": self.qk.data[200:], "norm": self.norm.data}[name].copy_(tensor)


@pytest.mark.parametrize("modes", [{}, {"q": "nan_masked"}, {"q": "dense", "k": "nan_masked"}, {"*": "dense"}])
def test_copies_in_pinned_host_memory_are_patched_by_the_device_and_loaded(modes: dict[str, str]) -> None:
    table = [("q", "BF16", (200, 64)), ("k", "BF16", (100, 64)), ("norm", "F32", (64,))]
    generator = torch.Generator(device="cuda").manual_seed(1)
    held = {name: torch.randn(shape, generator=generator, device="cuda") for name, _, shape in table}
    held = {name: tensor if name == "norm" else tensor.bfloat16() for name, tensor in held.items()}
    engine = Fused()
    engine.load_weights(held.items())
    addresses = [p.data_ptr() for p in engine.parameters()]
    source = LoaderSource(engine, engine.load_weights, table, modes=modes, checkpoint=held.items())
    world = World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2, timeout=TIMEOUT)
    subscriber = Subscriber(source, transport=dataclasses.replace(world, rank_offset=1))
    publisher = Publisher(list(held.items()), transport=world)
    with ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(publisher.regroup)
        subscriber.regroup()
        meeting.result()
        for version in (1, 2, 3):
            for tensor in held.values():
                tensor[version] *= 1.5
            publishing = pool.submit(publisher.publish)
            assert subscriber.update().version == version
            publishing.result()
            fresh = Fused()
            fresh.load_weights(held.items())
            assert same_bits(fresh, engine)
    subscriber.audit()
    assert [p.data_ptr() for p in engine.parameters()] == addresses
