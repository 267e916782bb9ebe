# SPDX-License-Identifier: Apache-2.0
"""Trains a causal language model and brings a live vLLM or SGLang server to the new weights after every step.

The server serves the checkpoint that training begins with (docs/tutorials/live-server.md has its command):

    python train.py MODEL http://127.0.0.1:8000 [--kind sglang] [--steps 5]
"""

from __future__ import annotations

import argparse
from urllib.parse import urlparse

import torch
from transformers import AutoModelForCausalLM

from sparsecast.control import ControlPlane, Endpoint, PublisherSource, SyncPolicy
from sparsecast.torch import Publisher


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="directory or name of the checkpoint")
    parser.add_argument("server", help="URL of the server")
    parser.add_argument("--kind", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of the server that hold weights: TP * PP * DP")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--host", default="127.0.0.1", help="address of this machine, as the server reaches it")
    parser.add_argument("--port", type=int, default=29600, help="port of this machine where ranks meet")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)  # fp32 masters; bf16 travels
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    publisher = Publisher(model, optimizer, wire_dtype=torch.bfloat16)
    plane = ControlPlane(
        PublisherSource(publisher), host=options.host, port=options.port, policy=SyncPolicy(pause="retract")
    )
    url = urlparse(options.server)
    assert url.hostname is not None and url.port is not None, "the server's URL needs a host and a port"
    plane.add(Endpoint(url.hostname, url.port, kind=options.kind, world_size=options.ranks))
    plane.sync_now()  # Verifies that the server holds what training begins with.

    for step in range(1, options.steps + 1):
        tokens = torch.randint(0, model.config.vocab_size, (4, 64))  # Your batch, and your loss.
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

        report = plane.sync_now()  # Raises unless the server has verified the new version.
        source, server = report.source, report.endpoints[0]
        print(
            f"step {step}: loss {loss.item():.3f}, {source['density']:.2%} changed, {source['sent_bytes']:,} bytes "
            f"instead of {source['dense_bytes']:,}, paused for {1000 * server.pause_seconds:.0f} ms"
        )
    print(f"the server verified version {publisher.version}, digest {publisher.digest}")
    plane.close()
    publisher.close()


if __name__ == "__main__":
    main()
