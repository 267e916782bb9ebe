# SPDX-License-Identifier: Apache-2.0
"""LoRA training of a small language model: what a merge into bf16 would lose of each step, and bytes of both ways.

    PYTHONPATH=build/release/python .venv/bin/python3 bench/adapters.py [--rate 1e-4]

The base learns the bytes of this repository's documents for a while, and is rounded to bf16. Adapters of rank 16 on all
linears then learn those of its sources with AdamW. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile

import torch
from torch import nn
from torch.nn import functional

from sparsecast.adapters import Adapter, merge_loss
from sparsecast.torch import Log, Publisher

WIDTH, LAYERS, HEADS, LENGTH, BATCH, RANK, ALPHA = 256, 4, 4, 64, 8, 16, 32
REPOSITORY = pathlib.Path(__file__).parents[1]


class Linear(nn.Module):
    """A frozen or learning weight, and an adapter beside it once there is one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)
        self.adapter: tuple[nn.Parameter, nn.Parameter] | None = None

    def adapt(self) -> None:
        self.weight.requires_grad_(False)
        a = nn.Parameter(torch.empty(RANK, self.weight.shape[1]))
        nn.init.kaiming_uniform_(a, a=5**0.5)  # As PEFT begins.
        self.adapter = (a, nn.Parameter(torch.zeros(self.weight.shape[0], RANK)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.linear(x, self.weight.float())
        if self.adapter is not None:
            a, b = self.adapter
            y = y + functional.linear(functional.linear(x, a), b) * (ALPHA / RANK)
        return y


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.up_proj, self.down_proj = Linear(WIDTH, 4 * WIDTH), Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = functional.rms_norm(x, (WIDTH,))
        q, k, v = (
            p(inside).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.o_proj(mixed)
        return x + self.down_proj(functional.gelu(self.up_proj(functional.rms_norm(x, (WIDTH,)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def loss(self, text: torch.Tensor) -> torch.Tensor:
        begins = torch.randint(0, len(text) - LENGTH - 1, (BATCH,))
        batch = torch.stack([text[n : n + LENGTH + 1] for n in begins])
        x = self.tokens(batch[:, :-1]) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), batch[:, 1:].flatten())


def text_of(pattern: str) -> torch.Tensor:
    data = b"".join(path.read_bytes() for path in sorted(REPOSITORY.glob(pattern)))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def train(model: Model, optimizer: torch.optim.Optimizer, text: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = model.loss(text)
    loss.backward()
    optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", type=float, default=1e-4, help="of AdamW, for the adapter")
    parser.add_argument("--base-steps", type=int, default=300)
    parser.add_argument("--steps", type=int, default=40)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    documents, sources = text_of("docs/*.md"), text_of("python/sparsecast/**/*.py")
    losses = [train(model, optimizer, documents) for _ in range(chosen.base_steps)]
    model.requires_grad_(False)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    tensors: dict[str, torch.Tensor] = {}
    for name, linear in linears.items():
        linear.weight = nn.Parameter(linear.weight.bfloat16(), requires_grad=False)
        linear.adapt()
        assert linear.adapter is not None
        for side, tensor in zip("AB", linear.adapter, strict=True):
            tensors[f"base_model.model.{name}.lora_{side}.weight"] = tensor
    adapter = Adapter("bench", {"r": RANK, "lora_alpha": ALPHA}, tensors)
    base = [(f"{name}.weight", linear.weight) for name, linear in linears.items()]
    merged = {name: weight.clone() for name, weight in base}
    optimizer = torch.optim.AdamW(list(tensors.values()), lr=chosen.rate)
    rows: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        ends = [
            Publisher(source, transport=Log(f"{folder}/{n}", mirror=f"{folder}/{n}.safetensors"), wire_dtype=wire)
            for n, source, wire in (("a", tensors.items(), torch.bfloat16), ("m", merged.items(), None))
        ]
        for _ in range(chosen.steps):
            before = Adapter("bench", adapter.config, {name: t.detach().clone() for name, t in tensors.items()})
            loss = train(model, optimizer, sources)
            step = merge_loss(adapter, base, since=before)[-1]
            for name, linear in linears.items():
                a, b = linear.adapter  # type: ignore[misc]
                delta = (b.detach() @ a.detach()) * (ALPHA / RANK)
                merged[f"{name}.weight"].copy_(linear.weight.float() + delta)
            sent, whole = (end.publish() for end in ends)
            rows.append(
                (
                    loss,
                    step.lost_share,
                    step.relative_error,
                    sent.changed / sent.elements,
                    sent.wire_bytes,
                    whole.changed / whole.elements,
                    whole.wire_bytes,
                )
            )
        for end in ends:
            end.close()
    total = merge_loss(adapter, base)[-1]
    weights, elements = sum(w.numel() for _, w in base), sum(t.numel() for t in tensors.values())
    print(
        f"base {weights} weights, loss {losses[0]:.2f} to {losses[-1]:.2f}; adapter {elements}, rate {chosen.rate:g}\n"
    )
    print("| steps | loss | lost of the step | relative error | adapter: changed, bytes | merged: changed, bytes |")
    print("|---|---|---|---|---|---|")
    tenth = max(1, chosen.steps // 4)
    for begin in range(0, chosen.steps, tenth):
        part = rows[begin : begin + tenth]
        loss, lost, error, c, sent, m, whole = (statistics.median(column) for column in zip(*part, strict=True))
        steps = f"{begin + 1} to {begin + len(part)}"
        print(f"| {steps} | {loss:.3f} | {lost:.1%} | {error:.2f} | {c:.1%}, {sent:.0f} | {m:.2%}, {whole:.0f} |")
    print(f"\nall {chosen.steps} steps merged at once: {total.lost_share:.1%} lost, error {total.relative_error:.3f}")


if __name__ == "__main__":
    main()
