# SPDX-License-Identifier: Apache-2.0
"""Tensors that an engine computes from its weights: which steps can be run again, and what they leave."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sparsecast.engines.refresh.recompute import Recomputation, Step, loader_step, steps_that_make
from sparsecast.engines.trace import strided
from sparsecast.engines.trace.loader import TracedLoader, trace_loader
from sparsecast.errors import DirtyError, UnsupportedError, UsageError


class Attention(torch.nn.Module):
    """A module whose post-processing derives tensors from its weight, as `finish` says."""

    def __init__(self, finish: Callable[[Any], object]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 6, generator=torch.Generator().manual_seed(1)), False)
        self._finish = finish

    def finish(self) -> None:
        self._finish(self)


class Model(torch.nn.Module):
    """An attention, and a neighbour that has nothing to do with it."""

    def __init__(self, finish: Callable[[Any], object]) -> None:
        super().__init__()
        self.attention = Attention(finish)
        self.neighbour = torch.nn.Linear(6, 4, dtype=torch.bfloat16)
        self.attention.model = [self]  # In a list: no submodule.
        self.attention.finish()

    def recomputation(self, needed: Iterable[str] = ("attention.factor",)) -> Recomputation:
        """As a receiver makes it: the weights are patched, and all but the derived tensors are filled."""
        table = [(name, "F32" if p.dtype == torch.float32 else "BF16", tuple(p.shape)) for name, p in self.weights()]
        traced = trace_loader(self, table, self.load_weights, may_miss=["attention.factor"])
        step = Step("attention", self.attention, self.attention.finish)
        return Recomputation(self, steps_that_make(needed, [step]), traced, needed)

    def weights(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, p) for name, p in self.named_parameters() if p is not self.attention.factor and p.numel()]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            parameters[name].data.copy_(tensor)


def rebind(a: Any) -> None:
    a.factor = (a.weight.data.t() * 2).contiguous()


def copy_in_place(a: Any) -> None:
    made = (a.weight.data.t() * 2).contiguous()
    if hasattr(a, "factor"):
        a.factor.copy_(made)
    else:
        a.factor = made


def rebind_the_data(a: Any) -> None:
    made = a.weight.data.exp()
    if hasattr(a, "factor"):
        a.factor.data = made
    else:
        a.factor = torch.nn.Parameter(made, requires_grad=False)


def two_steps(a: Any) -> None:
    a.middle = a.weight.data * 3
    a.factor = a.middle.sum(0, keepdim=True)


@pytest.mark.parametrize("finish", [rebind, copy_in_place, rebind_the_data, two_steps])
def test_a_derived_tensor_follows_its_weights_and_keeps_its_address(finish: Callable[[Any], object]) -> None:
    model = Model(finish)
    live = model.attention.factor
    address, neighbour = live.data_ptr(), model.neighbour.weight.clone()
    recomputation = model.recomputation()
    recomputation.prove(as_loaded=True)
    assert "attention.factor" in recomputation.derived
    assert model.attention.factor is live and live.data_ptr() == address
    for update in range(20):
        model.attention.weight.data.view(-1)[update] += 1
        recomputation.run()
        fresh = Attention(finish)
        fresh.weight.data.copy_(model.attention.weight)
        fresh.finish()
        assert torch.equal(model.attention.factor, fresh.factor)
        assert model.attention.factor is live and live.data_ptr() == address
    recomputation.audit()
    assert torch.equal(model.neighbour.weight, neighbour)


def test_an_audit_names_the_derived_tensor_that_is_not_what_its_weights_make() -> None:
    model = Model(rebind)
    recomputation = model.recomputation()
    recomputation.prove(as_loaded=True)
    model.attention.factor[1, 1] += 1
    with pytest.raises(
        DirtyError, match=r"attention.factor is not what the engine's post-processing of attention makes"
    ):
        recomputation.audit()


def draw(a: Any) -> None:
    a.factor = a.weight.data + torch.randn(4, 6)


def draw_outside_of_torch(a: Any) -> None:
    a.factor = a.weight.data + random.random()


def free(a: Any) -> None:
    if a.weight.numel():
        a.factor = a.weight.data * 2
        a.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


def free_each_time(a: Any) -> None:
    if not hasattr(a, "factor"):
        a.factor = a.weight.data * 2
    else:
        a.weight.data = torch.empty(0)


def read_the_neighbour(a: Any) -> None:
    a.factor = a.weight.data @ a.model[0].neighbour.weight.data.float().t()


def write_the_neighbour(a: Any) -> None:
    a.factor = a.weight.data * 2
    a.model[0].neighbour.weight.data.copy_(a.factor)


def hide_the_input(a: Any) -> None:
    a.hidden = getattr(a, "hidden", None) or [a.weight.data.clone()]
    a.factor = a.hidden[0] * 2


def work_in_place(a: Any) -> None:
    a.weight.data.mul_(2)
    a.factor = a.weight.data.clone()


def clamp(a: Any) -> None:
    a.weight.data.clamp_(max=100)
    a.factor = a.weight.data.clone()


def move_the_weight(a: Any) -> None:
    a.weight.data = a.weight.data.clone()
    a.factor = a.weight.data.clone()


def grow(a: Any) -> None:
    rows = a.factor.shape[0] + 1 if hasattr(a, "factor") else 4
    a.factor = a.weight.data.sum() * torch.ones(rows, 6)


def fail(a: Any) -> None:
    if hasattr(a, "factor"):
        raise ValueError("already processed")
    a.factor = a.weight.data * 2


HOSTILE: dict[Callable[[Any], object], str] = {
    draw: r"it draws random numbers \(randn\)",
    draw_outside_of_torch: r"does not make attention.factor again: it differs from what the engine's load has left",
    free: r"no step of the engine makes: attention.factor",
    free_each_time: r"it frees attention.weight",
    read_the_neighbour: r"it reads neighbour.weight, which is not its own",
    write_the_neighbour: r"it writes neighbour.weight, which is not its own",
    hide_the_input: r"it reads a tensor that no module shows",
    work_in_place: r"it writes attention.weight, a weight that updates patch",
    clamp: r"it writes attention.weight, a weight that updates patch",
    move_the_weight: r"it writes attention.weight, a weight that updates patch",
    grow: r"it makes \(5, 6\) of torch.float32 where attention.factor was \(4, 6\) of torch.float32",
    fail: r"it fails when it is run again: ValueError: already processed",
}


@pytest.mark.parametrize("finish", HOSTILE, ids=lambda finish: finish.__name__)
def test_a_step_that_cannot_be_run_again_is_refused_with_the_reason_and_leaves_no_trace(
    finish: Callable[[Any], object],
) -> None:
    model = Model(finish)
    before = {name: (t.data_ptr(), t.clone()) for name, t in [*model.named_parameters(), ("f", model.attention.factor)]}
    with pytest.raises(UnsupportedError, match=HOSTILE[finish]):
        model.recomputation().prove(as_loaded=True)
    now = {name: (t.data_ptr(), t) for name, t in [*model.named_parameters(), ("f", model.attention.factor)]}
    assert before.keys() == now.keys()
    for name, (address, bits) in before.items():
        assert now[name][0] == address and torch.equal(now[name][1], bits)


def test_weights_that_are_still_to_come_are_made_twice_instead_of_compared() -> None:
    model = Model(rebind)
    model.attention.factor.zero_()
    with pytest.raises(UnsupportedError, match="differs from what the engine's load has left"):
        model.recomputation().prove(as_loaded=True)
    model.recomputation().prove(as_loaded=False)
    assert not model.attention.factor.any()
    model = Model(draw_outside_of_torch)
    with pytest.raises(UnsupportedError, match="differs from what it made a moment before"):
        model.recomputation().prove(as_loaded=False)


def test_a_tensor_that_no_step_makes_is_refused_by_name() -> None:
    model = Model(rebind)
    with pytest.raises(UnsupportedError, match="no step of the engine makes: attention.other"):
        model.recomputation(["attention.factor", "attention.other"]).prove(as_loaded=True)


def test_a_step_that_fails_in_an_update_says_so() -> None:
    model = Model(rebind)
    recomputation = model.recomputation()
    recomputation.prove(as_loaded=True)
    model.attention._finish = fail
    with pytest.raises(DirtyError, match=r"post-processing of attention failed: ValueError: already processed"):
        recomputation.run()


class Mixer(torch.nn.Module):
    """A module whose loader computes: A = -exp(A_log), a cast, and a plain copy beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.A = torch.nn.Parameter(torch.zeros(5), requires_grad=False)
        self.D = torch.nn.Parameter(torch.zeros(5), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16), requires_grad=False)
        self.how: Callable[[torch.nn.Parameter, torch.Tensor], object] = lambda p, t: p.data.copy_(
            -torch.exp(t.float())
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            if name == "A_log":
                self.how(self.A, tensor)
            else:
                getattr(self, name).data.copy_(tensor)


TABLE = [("A_log", "F32", (5,)), ("D", "F32", (5,)), ("norm", "F32", (5,))]


def values(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, _, shape in TABLE}


def traced_with_shadows(model: Mixer) -> TracedLoader:
    traced = trace_loader(model, TABLE, model.load_weights, modes={})
    for _ in traced.filling(values(1).items()):
        pass
    return traced


def loads_then_works_in_place(p: torch.nn.Parameter, t: torch.Tensor) -> None:
    p.data.copy_(t)
    p.data.copy_(-torch.exp(p.float()))


def reads_on_the_host(p: torch.nn.Parameter, t: torch.Tensor) -> None:
    p.data.fill_(t[0].item() * 2)


def hands_to_a_pool(p: torch.nn.Parameter, t: torch.Tensor) -> None:
    with ThreadPoolExecutor(2) as pool:
        pool.submit(lambda: p.data.copy_(t.exp())).result()


@pytest.mark.parametrize("how", [None, loads_then_works_in_place, reads_on_the_host, hands_to_a_pool])
def test_what_a_loader_computes_is_loaded_again_from_a_shadow_of_the_canonical_tensor(how: Any) -> None:
    model, fresh = Mixer(), Mixer()
    model.how = fresh.how = how or model.how
    model.load_weights(values(1).items())
    traced = traced_with_shadows(model)
    assert set(traced.shadowed) == {"A_log", "norm"}
    assert [tensor.name for tensor in traced.tensors] == ["D", "shadow of A_log", "shadow of norm"]
    assert traced.differences(values(1).items()) == {}
    recomputation = Recomputation(model, [loader_step(model, model.load_weights, traced.shadows())], traced)
    recomputation.prove(as_loaded=True)
    assert sorted(recomputation.derived) == ["A", "norm"] and recomputation.shadow_bytes == 40
    addresses = [p.data_ptr() for p in model.parameters()]
    for name, tensor in values(2).items():  # What an apply writes: plain parameters and shadows.
        traced.tensors[("D", "A_log", "norm").index(name)].memory.copy_(tensor)
    recomputation.run()
    fresh.load_weights(values(2).items())
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [p.data_ptr() for p in model.parameters()] == addresses


def adds(p: torch.nn.Parameter, t: torch.Tensor) -> None:
    p.data.add_(t)


def draws(p: torch.nn.Parameter, t: torch.Tensor) -> None:
    p.data.copy_(t * torch.rand(5))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (adds, "engine's loader cannot be run again after an update: it reads A"),
        (draws, r"draws random numbers \(rand\)"),
    ],
)
def test_a_loader_that_does_not_make_the_same_of_the_same_is_refused(how: Any, reason: str) -> None:
    model = Mixer()
    model.how = how
    model.load_weights(values(1).items())
    traced = traced_with_shadows(model)
    with pytest.raises(UnsupportedError, match=reason):
        Recomputation(model, [loader_step(model, model.load_weights, traced.shadows())], traced).prove(as_loaded=False)


@pytest.mark.parametrize("read", ["D", "norm"])
def test_a_loader_may_read_weights_that_are_patched_and_none_that_it_computes(read: str) -> None:
    def with_another(model: Mixer, tensors: dict[str, torch.Tensor]) -> None:
        model.how = lambda p, t: p.data.copy_(t * getattr(model, read).data.float())
        model.load_weights(reversed(tensors.items()))  # So that it is there when A is computed.

    model, fresh = Mixer(), Mixer()
    with_another(model, values(1))
    traced = traced_with_shadows(model)
    shadows = dict(sorted(traced.shadows().items()))
    recomputation = Recomputation(model, [loader_step(model, model.load_weights, shadows)], traced)
    if read == "norm":
        with pytest.raises(UnsupportedError, match="it reads norm, which is not its own"):
            recomputation.prove(as_loaded=True)
        return
    recomputation.prove(as_loaded=True)
    for name, tensor in values(2).items():
        traced.tensors[("D", "A_log", "norm").index(name)].memory.copy_(tensor)
    recomputation.run()
    with_another(fresh, values(2))
    assert torch.equal(model.A, fresh.A)


def test_a_loader_whose_work_nobody_sees_is_refused() -> None:
    def hides(p: torch.nn.Parameter, t: torch.Tensor) -> None:
        thread = threading.Thread(target=lambda: p.data.copy_(t.exp()))
        thread.start()
        thread.join()

    model = Mixer()
    model.load_weights(values(1).items())
    traced = traced_with_shadows(model)
    model.how = hides
    recomputation = Recomputation(model, [loader_step(model, model.load_weights, traced.shadows())], traced)
    with pytest.raises(UnsupportedError, match="no step of the engine makes: A"):
        recomputation.prove(as_loaded=True)


def test_a_mode_can_be_forced_by_a_pattern_of_names() -> None:
    model = Mixer()
    model.load_weights(values(1).items())
    traced = trace_loader(model, TABLE, model.load_weights, modes={"[AD]*": "shadow"})
    assert traced.shadowed["D"] == "so it was asked for"
    assert [tensor.name for tensor in traced.tensors] == ["shadow of A_log", "shadow of D", "shadow of norm"]
    assert traced.in_place == 0
    for _ in traced.filling(values(2).items()):
        pass
    loader_step(model, model.load_weights, traced.shadows()).run()
    assert torch.equal(model.D, values(2)["D"])
    with pytest.raises(UnsupportedError, match=r"'norm': norm is no copy of it: copy_\(\) casts"):
        trace_loader(model, TABLE, model.load_weights, modes={"norm": "in_place", "*": "shadow"})
    with pytest.raises(UsageError, match="modes: 'nan' of 'norm' is none of in_place, shadow"):
        trace_loader(model, TABLE, model.load_weights, modes={"norm": "nan"})


class Interleaved(torch.nn.Module):
    """A loader that only copies, and takes rows from two halves in turns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(8, 3), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for _, tensor in weights:
            self.weight.data.copy_(tensor.view(2, 4, 3).transpose(0, 1).reshape(8, 3))


def test_a_copy_that_is_too_scattered_for_a_map_is_loaded_from_a_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    model, fresh = Interleaved(), Interleaved()
    old, new = (torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    table = [("w", "F32", (8, 3))]
    model.load_weights([("w", old)])
    assert trace_loader(model, table, model.load_weights).in_place == 1
    monkeypatch.setattr(strided, "MAX_BOXES_PER_COPY", 1)
    with pytest.raises(UnsupportedError, match="'w': .*needs more than 1 boxes"):
        trace_loader(model, table, model.load_weights)
    traced = trace_loader(model, table, model.load_weights, modes={})
    assert traced.differences(traced.filling([("w", old)])) == {}
    recomputation = Recomputation(model, [loader_step(model, model.load_weights, traced.shadows())], traced)
    recomputation.prove(as_loaded=True)
    traced.tensors[0].memory.copy_(new.view(-1))
    recomputation.run()
    fresh.load_weights([("w", new)])
    assert torch.equal(model.weight, fresh.weight)


def test_a_checkpoint_of_another_dtype_than_the_trainers_fills_no_shadow() -> None:
    model = Mixer()
    traced = trace_loader(model, TABLE, model.load_weights, modes={})
    with pytest.raises(UnsupportedError, match=r"'A_log' is \(5,\) of torch.bfloat16 in the engine's checkpoint"):
        list(traced.filling([("A_log", torch.zeros(5, dtype=torch.bfloat16))]))


def test_shadows_that_nothing_has_filled_are_refused_by_name() -> None:
    model = Mixer()
    traced = trace_loader(model, TABLE, model.load_weights, modes={})
    with pytest.raises(UnsupportedError, match=r"'A_log' is not patched in place .*needs_anchor"):
        traced.fill_shadows({})
