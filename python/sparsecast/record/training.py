# SPDX-License-Identifier: Apache-2.0
"""Records what fine-tuning does to real weights: a small language model of bytes, pretrained here, then fine-tuned.

The optimizer moves fp32 masters; forward and backward see their bf16 roundings, which is what is recorded. So it is in
reinforcement learning of language models, but for the size of the model and where the gradient comes from.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from ..errors import UsageError
from .corpus import standard_library_text
from .files import write_atomically
from .recorder import Recorder


@dataclass(frozen=True)
class Size:
    """Shape of the model; with the defaults it has 2.5 million parameters."""

    width: int = 256
    layers: int = 3
    heads: int = 4
    context: int = 64


@dataclass(frozen=True)
class FineTuning:
    """One fine-tuning run: ``skip`` optimizer steps that are not recorded (Adam's moments settle), followed by
    ``steps`` steps that are recorded.
    """

    learning_rate: float
    steps: int = 30
    skip: int = 12
    batch: int = 16
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 1
    from_rounded: bool = (
        False  #: Masters begin as the rounded weights: the first steps after loading a bf16 checkpoint.
    )
    optimizer: str = "adamw"  #: "adamw", "muon" or "sgd"; see :func:`optimizers`.


class Block(nn.Module):
    """Layer of the model: pre-norm attention and MLP."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.attention_out = nn.Linear(size.width, size.width, bias=False)
        self.mlp_norm = nn.LayerNorm(size.width)
        self.mlp_up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.mlp_down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden: torch.Tensor = self.mlp_down(functional.gelu(self.mlp_up(self.mlp_norm(x))))
        return x + hidden


class ByteModel(nn.Module):
    """A decoder-only transformer over bytes; its loss is in nats per byte."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, 256, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                narrow = name.endswith(("attention_out.weight", "mlp_down.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * size.layers) if narrow else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss of predicting each byte of ``tokens`` (batch, context + 1; int64) from those before it."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.embedding(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


Sampler = Callable[[], torch.Tensor]


def sampler(text: bytes, context: int, batch: int, seed: int) -> Sampler:
    """Returns a function that draws random sequences of ``text`` each time it is called: (batch, context + 1) bytes,
    the same series for equal seeds.
    """
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    random = torch.Generator().manual_seed(seed)
    offsets = torch.arange(context + 1)

    def draw() -> torch.Tensor:
        starts = torch.randint(len(data) - context - 1, (batch, 1), generator=random)
        return data[starts + offsets].long()

    return draw


def pretrain(
    size: Size, steps: int, *, seed: int = 0, rate: float = 1e-3, batch: int = 16, say: Callable[[str], None] = print
) -> ByteModel:
    """Returns a model that was trained from random weights for ``steps`` steps. The learning rate warms up to ``rate``
    and then decays by a cosine. ``say`` is called with sentences about the progress.
    """
    torch.manual_seed(seed)
    model = ByteModel(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = min(20, max(1, steps // 10))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
    )
    draw = sampler(standard_library_text(held_out=False), size.context, batch, seed)
    for step in range(steps):
        loss = model(draw())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps - 1:
            say(f"pretraining step {step}: loss {loss.item():.3f} nats a byte")
    return model


def optimizers(run: FineTuning, masters: dict[str, torch.Tensor]) -> list[torch.optim.Optimizer]:
    """Returns the optimizers of ``masters``, each of some of them, in the order of their steps.

    adamw  AdamW for all.
    muon   Muon for the matrices inside of the blocks, whose updates it scales to the size of AdamW's at the same rate
           (as Moonlight does); AdamW for embeddings, head and norms.
    sgd    SGD with momentum 0.9 for all.
    """
    adamw = partial(torch.optim.AdamW, lr=run.learning_rate, betas=run.betas, weight_decay=run.weight_decay)
    if run.optimizer == "adamw":
        return [adamw(masters.values())]
    if run.optimizer == "sgd":
        return [torch.optim.SGD(masters.values(), lr=run.learning_rate, momentum=0.9, weight_decay=run.weight_decay)]
    if run.optimizer != "muon":
        raise UsageError(f"the optimizer is adamw, muon or sgd, not {run.optimizer!r}")
    matrices = {name: weight for name, weight in masters.items() if name.startswith("blocks.") and weight.dim() == 2}
    others = [weight for name, weight in masters.items() if name not in matrices]
    muon = torch.optim.Muon(
        matrices.values(), lr=run.learning_rate, weight_decay=run.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [adamw(others), muon]


def fine_tune(
    model: ByteModel, size: Size, run: FineTuning, directory: pathlib.Path, *, say: Callable[[str], None] = print
) -> None:
    """Fine-tunes a copy of ``model``'s weights and records the steps in ``directory``; at the end ``model``
    has its initial weights again. ``say`` is called with sentences about the progress.
    """
    initial = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    masters = {name: (w.bfloat16().float() if run.from_rounded else w.clone()) for name, w in initial.items()}
    chain = optimizers(run, masters)
    draw = sampler(standard_library_text(held_out=True), size.context, run.batch, run.seed)
    recorder: Recorder | None = None
    try:
        for step in range(run.skip + run.steps):
            if step == run.skip:
                recorder = Recorder(masters, chain[-1], directory=directory, wire_dtype=torch.bfloat16, version=step)
            loss = _step(model, masters, chain, draw(), run.clip)
            if step % 10 == 0 or step == run.skip + run.steps - 1:
                say(f"{run.optimizer}, rate {run.learning_rate:g}, step {step}: loss {loss:.3f} nats a byte")
    finally:
        if recorder is not None:
            recorder.close()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(initial[name])


def _step(
    model: ByteModel,
    masters: dict[str, torch.Tensor],
    chain: list[torch.optim.Optimizer],
    tokens: torch.Tensor,
    clip: float,
) -> float:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(masters[name].bfloat16())
    model.zero_grad()
    loss: torch.Tensor = model(tokens)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    for name, weight in model.named_parameters():
        masters[name].grad = weight.grad
    for optimizer in chain:
        optimizer.step()
    return loss.item()


def pretrained(
    path: pathlib.Path, size: Size, steps: int, *, seed: int = 0, say: Callable[[str], None] = print
) -> ByteModel:
    """Returns the model whose weights (fp32) are in the file ``path``. If there is no such file, returns the model of
    :func:`pretrain`, and stores its weights there.

    Raises UsageError if there is no file and ``steps`` is 0, or if the file holds a model of another size.
    """
    if not path.exists():
        if steps == 0:
            raise UsageError("there are no pretrained weights, and no steps to make them", str(path))
        model = pretrain(size, steps, seed=seed, say=say)
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        write_atomically(path, lambda partial: save_file(weights, partial))
        return model
    model = ByteModel(size)
    try:
        model.load_state_dict(load_file(path))
    except (RuntimeError, SafetensorError) as error:
        raise UsageError(f"these are no weights of this model: {error}", str(path)) from error
    return model
