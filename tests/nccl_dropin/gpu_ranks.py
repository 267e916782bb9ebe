#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks on one GPU whose broadcasts over NCCL the drop-in makes sparse, as frameworks call NCCL.

    gpu_ranks.py torch  LIBSPARSECAST_NCCL               torch.distributed, with the library preloaded
    gpu_ranks.py ctypes LIBSPARSECAST_NCCL               the library loaded as vLLM's PyNcclCommunicator does
    gpu_ranks.py ctypes LIBSPARSECAST_NCCL FAKE_LIBNCCL  the same with tensors on the CPU, over a fake NCCL

Each step packs weights into buckets in new memory, in another order, and broadcasts them. Receivers compare every bit
with what the root has sent; the reports of both ranks must say that all but the first step's buckets went as deltas.
Exit code 69: this machine cannot, and the last line says why.
"""

import ctypes
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unique_id import UniqueId, shared_id

REFUSED = 69
SIZE, STEPS, BUCKETS, WEIGHTS = 2, 5, 3, 4 << 20
SECONDS = 120

# Ranks that share a device look like ranks on two machines without InfiniBand to NCCL (docs/nccl.md).
NCCL = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "4",
    "NCCL_DEBUG": "WARN",
}


def refuse(why: str) -> int:
    print(why, flush=True)
    return REFUSED


def torch_broadcast(rank: int, folder: Path) -> tuple[Callable[[Any], None], Callable[[], None]]:
    """Returns what broadcasts a tensor from rank 0 by torch's ProcessGroupNCCL, and what ends it."""
    import torch

    torch.cuda.set_device(0)
    torch.distributed.init_process_group(
        "nccl",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=SIZE,
        timeout=datetime.timedelta(seconds=SECONDS),
    )

    def broadcast(tensor: Any) -> None:
        torch.distributed.broadcast(tensor, src=0)

    return broadcast, torch.distributed.destroy_process_group


def ctypes_broadcast(
    rank: int, folder: Path, library: str, on_device: bool
) -> tuple[Callable[[Any], None], Callable[[], None]]:
    """Returns what broadcasts a tensor from rank 0 by NCCL's functions, and what ends it."""
    import torch

    nccl = ctypes.CDLL(library)
    nccl.ncclGetErrorString.restype = ctypes.c_char_p
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    whole, word, pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p
    nccl.ncclBroadcast.argtypes = [pointer, pointer, word, whole, whole, pointer, pointer]
    nccl.ncclAllReduce.argtypes = [pointer, pointer, word, whole, whole, pointer, pointer]
    nccl.ncclCommDestroy.argtypes = [pointer]

    def check(result: int) -> None:
        if result != 0:
            raise RuntimeError(f"NCCL: {nccl.ncclGetErrorString(result).decode()}")

    unique, comm = shared_id(nccl, rank, folder / "id", SECONDS), ctypes.c_void_p()
    if on_device:
        torch.cuda.set_device(0)
    stream = torch.cuda.Stream() if on_device else None
    queue = stream.cuda_stream if stream is not None else None
    check(nccl.ncclCommInitRank(ctypes.byref(comm), SIZE, unique, rank))
    if on_device:
        # The first collective: a sum of floats.
        ones = torch.ones(1, device="cuda")
        torch.cuda.synchronize()
        check(nccl.ncclAllReduce(ones.data_ptr(), ones.data_ptr(), 1, 7, 0, comm, queue))
        torch.cuda.synchronize()
        assert ones.item() == SIZE

    def broadcast(tensor: Any) -> None:
        data = tensor.view(torch.uint8)
        if on_device:
            torch.cuda.current_stream().synchronize()
        source = data.data_ptr() if rank == 0 else None
        check(nccl.ncclBroadcast(source, data.data_ptr(), data.numel(), 1, 0, comm, queue))
        if stream is not None:
            stream.synchronize()

    return broadcast, lambda: check(nccl.ncclCommDestroy(comm))


def be_rank(rank: int, caller: str, library: str, folder: Path, on_device: bool) -> int:
    import torch

    device = "cuda" if on_device else "cpu"
    if caller == "torch":
        broadcast, end = torch_broadcast(rank, folder)
    else:
        broadcast, end = ctypes_broadcast(rank, folder, library, on_device)
    # Both ranks compute what the root sends, as bits of bf16 weights.
    generator = torch.Generator().manual_seed(1)
    order = random.Random(2)
    count = WEIGHTS // BUCKETS // 2 * 2
    buckets = [
        torch.randn(count, generator=generator).to(torch.bfloat16).view(torch.int16) + one for one in range(BUCKETS)
    ]
    for step in range(STEPS):
        for bucket in buckets:
            bucket[torch.randint(count, (count // 100,), generator=generator)] ^= 1
        order.shuffle(buckets)
        buffers = []  # Kept until the step ends, so that a bucket lies at another address in the next.
        for expected in buckets:
            parts = [part.to(device) for part in expected.view(torch.bfloat16).split(count // 7)]
            buffer = torch.cat(parts) if rank == 0 else torch.zeros(count, dtype=torch.bfloat16, device=device)
            broadcast(buffer)
            if not torch.equal(buffer.view(torch.int16).cpu(), expected):
                print(f"rank {rank}, step {step}: other bits have arrived")
                return 1
            buffers.append(buffer)
    end()
    return 0


def run_ranks(caller: str, drop_in: str, fake: str) -> int:
    with tempfile.TemporaryDirectory() as name:
        ranks = []
        for rank in range(SIZE):
            env = NCCL | os.environ
            env |= {
                "NCCL_HOSTID": f"r{rank}",
                "SPARSECAST_NCCL_INTERFACE": "lo",
                "SPARSECAST_NCCL_MEET_TIMEOUT": "60",
                "SPARSECAST_NCCL_TIMEOUT": "60",
                "SPARSECAST_NCCL_REPORT": f"{name}/report.{rank}",
            }
            if fake:
                env |= {"FAKE_NCCL_DIRECTORY": name, "SPARSECAST_NCCL_REAL": fake}
            if caller == "torch":
                env["LD_PRELOAD"] = drop_in
            command = [sys.executable, __file__, "rank", str(rank), caller, drop_in, name, fake]
            ranks.append(subprocess.Popen(command, env=env))
        until = time.monotonic() + SECONDS
        try:
            codes = [rank.wait(max(0, until - time.monotonic())) for rank in ranks]
        except subprocess.TimeoutExpired:
            print(f"the ranks have not ended within {SECONDS} s")
            return 1
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        if codes != [0] * SIZE:
            print(f"the ranks end with {codes}")
            return 1
        for rank in range(SIZE):
            file = Path(name) / f"report.{rank}"
            if not file.exists():
                print(f"rank {rank} has no report: its broadcasts did not reach the drop-in, or were left to NCCL")
                return 1
            report = json.loads(file.read_text("utf-8"))
            print(f"rank {rank}: {report}")
            if (report["broadcasts"], report["sparse"]) != (BUCKETS * STEPS, BUCKETS * (STEPS - 1)):
                print(f"not {BUCKETS * (STEPS - 1)} sparse ones of {BUCKETS * STEPS}")
                return 1
    return 0


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["rank"]:
        rank, caller, library, folder, fake = arguments[1:]
        return be_rank(int(rank), caller, library, Path(folder), not fake)
    if (
        len(arguments) not in (2, 3)
        or arguments[0] not in ("torch", "ctypes")
        or (arguments[0], len(arguments)) == ("torch", 3)
    ):
        print(__doc__, file=sys.stderr)
        return 2
    caller, drop_in, fake = (*arguments, "")[:3]
    try:
        import torch
    except ImportError:
        return refuse(f"no torch for {sys.executable}")
    if not fake and not torch.cuda.is_available():
        return refuse(f"torch {torch.__version__} sees no GPU")
    if caller == "torch" and not torch.distributed.is_nccl_available():
        return refuse(f"torch {torch.__version__} has no ProcessGroupNCCL")
    return run_ranks(caller, os.path.abspath(drop_in), os.path.abspath(fake) if fake else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
