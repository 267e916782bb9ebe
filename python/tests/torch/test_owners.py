# SPDX-License-Identifier: Apache-2.0
"""Everything that holds memory by its address notices when the owner has got other memory."""

from __future__ import annotations

import dataclasses
import gc
import pathlib
import threading
from collections.abc import Callable

import pytest
import torch
from sparsecast_ports import free_port
from torch import nn

import sparsecast.torch as st
from sparsecast.errors import PeerFailedError, UnsupportedError, UsageError
from sparsecast.torch import LoaderSource, shards_of
from sparsecast.torch.owners import LiveTensors, MemoryWatch, ModuleWatch, alias_of, guard_of, tensors_of


class Model(nn.Module):
    """Parameters of modules at several depths and of its own, and buffers, of which one is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4, bias=False), nn.LayerNorm(4))
        self.head = nn.Linear(4, 6, bias=False)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("bias", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def fill(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))


Act = Callable[[nn.Module], None]


def assign(model: nn.Module) -> None:
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)


def offload_and_back(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def cast_and_back(model: nn.Module) -> None:
    model.double()
    model.float()


def share(model: nn.Module) -> None:
    model.share_memory()


def free(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)


def replace_module(model: nn.Module) -> None:
    model.head = nn.Linear(4, 6, bias=False)


def replace_deep_module(model: nn.Module) -> None:
    model.inner[0] = nn.Linear(4, 4, bias=False)  # type: ignore[index]


def replace_parameter(model: nn.Module) -> None:
    model.scale = nn.Parameter(torch.ones(()))


def swap(model: nn.Module) -> None:
    torch.utils.swap_tensors(model.head.weight, nn.Parameter(model.head.weight.clone()))  # type: ignore[arg-type,union-attr]


def delete_module(model: nn.Module) -> None:
    del model.head


ACTS: list[Act] = [
    assign,
    offload_and_back,
    cast_and_back,
    share,
    free,
    replace_module,
    replace_deep_module,
    replace_parameter,
    swap,
    delete_module,
]


def reassign_buffer(model: nn.Module) -> None:
    model.bias = model.bias + 1  # type: ignore[operator]


SOURCES: dict[str, Callable[[nn.Module], st.Source]] = {
    "module": lambda model: model,
    "named_parameters": lambda model: model.named_parameters(),
    "state_dict": lambda model: model.state_dict().items(),
    "detached": lambda model: [(name, tensor.detach()) for name, tensor in model.named_parameters()],
}


def log_of(directory: pathlib.Path) -> st.Log:
    directory.mkdir(exist_ok=True)
    return st.Log(directory / "log", mirror=directory / "mirror.safetensors", state=directory / "state")


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("source", SOURCES)
def test_a_trainer_whose_memory_moves_does_not_publish(tmp_path: pathlib.Path, source: str, act: Act) -> None:
    model = Model()
    publisher = st.Publisher(SOURCES[source](model), transport=log_of(tmp_path))
    fill(model, 1)
    assert publisher.publish().version == 2
    act(model)
    gc.collect()
    for _ in range(2):
        with pytest.raises(UsageError, match="tensor '.*make a new publisher"):
            publisher.publish()
    assert publisher.version == 2


def test_a_buffer_that_is_assigned_anew_is_refused_with_the_way_on_or_followed(tmp_path: pathlib.Path) -> None:
    model, engine = Model(), Model()
    publisher = st.Publisher(model, transport=log_of(tmp_path / "a"))
    reassign_buffer(model)
    with pytest.raises(UsageError, match=r"tensor 'bias': this buffer was assigned anew: .*`reassigned`"):
        publisher.publish()

    log = log_of(tmp_path / "b")
    publisher = st.Publisher(model, transport=log, reassigned=["bias"])
    subscriber = st.Subscriber(engine, transport=log)
    for step in range(3):
        fill(model, step)
        reassign_buffer(model)
        publisher.publish()
        subscriber.update()
        for name, tensor in model.state_dict().items():
            assert torch.equal(engine.state_dict()[name], tensor), name
    model.bias = torch.zeros(4)
    with pytest.raises(UsageError, match="tensor 'bias': it has another shape or dtype now"):
        publisher.publish()


def test_reassigned_needs_a_module_and_names_of_it(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="'bais' of `reassigned`"):
        st.Publisher(Model(), transport=log_of(tmp_path), reassigned=["bais"])
    with pytest.raises(UsageError, match="names of a module"):
        st.Publisher(Model().named_parameters(), transport=log_of(tmp_path), reassigned=["bias"])


@pytest.mark.parametrize("act", [*ACTS, reassign_buffer])
def test_a_follower_whose_model_moves_writes_nothing(tmp_path: pathlib.Path, act: Act) -> None:
    model, engine = Model(), Model()
    log = log_of(tmp_path)
    publisher = st.Publisher(model, transport=log)
    subscriber = st.Subscriber(engine, transport=log)
    assert subscriber.update().version == 1
    fill(model, 1)
    publisher.publish()
    act(engine)
    with pytest.raises(UsageError, match=r"tensor '"):
        subscriber.update()
    assert subscriber.version == 1


@pytest.mark.parametrize("act", [*ACTS, reassign_buffer])
@pytest.mark.parametrize("staged", [False, True])
def test_an_engine_of_a_world_whose_model_moves_fails_with_its_trainer(staged: bool, act: Act) -> None:
    model, engine = Model(), Model()
    world = st.World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2, timeout=20)
    publisher = st.Publisher(model, transport=world)
    subscriber = st.Subscriber(engine, transport=dataclasses.replace(world, rank_offset=1), needs_anchor=True)
    failures: list[Exception] = []

    def follow() -> None:
        try:
            subscriber.update()
            if staged:
                subscriber.receive()
            act(engine)
            if staged:
                subscriber.apply()
            else:
                subscriber.update()
        except UsageError as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    publisher.publish()
    fill(model, 1)
    with pytest.raises(PeerFailedError, match="tensor '"):
        publisher.publish()
    thread.join()
    assert len(failures) == 1
    with pytest.raises(UsageError, match="tensor '"):
        subscriber.audit()


def test_a_trainer_of_a_world_whose_memory_moves_tells_its_engines_at_once() -> None:
    model, engine = Model(), Model()
    world = st.World("127.0.0.1", free_port(), "a secret of sixteen or more", size=2, timeout=60)
    publisher = st.Publisher(model, transport=world)
    subscriber = st.Subscriber(engine, transport=dataclasses.replace(world, rank_offset=1), needs_anchor=True)
    heard: list[Exception] = []

    def follow() -> None:
        subscriber.update()
        try:
            subscriber.update()
        except PeerFailedError as error:
            heard.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    publisher.publish()
    replace_module(model)
    with pytest.raises(UsageError, match=r"tensor 'head.weight'"):
        publisher.publish()
    thread.join(30)
    assert "head.weight" in str(heard[0])


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.zeros(6, 4))
        self.out = nn.Linear(4, 4, bias=False)

    def load_weights(self, weights: object) -> None:
        for name, tensor in weights:  # type: ignore[attr-defined]
            if name == "out.weight":
                self.out.weight.data.copy_(tensor)
            else:
                self.qkv.data["qkv".index(name) * 2 :][:2].copy_(tensor)


@pytest.mark.parametrize("act", [assign, offload_and_back, share, lambda m: setattr(m, "out", nn.Linear(4, 4))])
def test_a_loader_source_whose_model_moves_is_not_written(tmp_path: pathlib.Path, act: Act) -> None:
    trainer = {name: torch.randn(2, 4) for name in "qkv"} | {"out.weight": torch.randn(4, 4)}
    log = log_of(tmp_path)
    publisher = st.Publisher(trainer.items(), transport=log)
    model = Fused()
    table = [(name, "F32", tuple(tensor.shape)) for name, tensor in trainer.items()]
    subscriber = st.Subscriber(LoaderSource(model, model.load_weights, table), transport=log)
    subscriber.update()
    assert torch.equal(model.qkv.data, torch.cat([trainer[name] for name in "qkv"]))
    trainer["q"].add_(1)
    publisher.publish()
    act(model)
    with pytest.raises(UsageError, match="tensor '.*make a new"):
        subscriber.update()


# Changes that move no memory.


def test_wrapped_modules_with_the_same_memory_go_on(tmp_path: pathlib.Path) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Model()
    publisher = st.Publisher(model, transport=log_of(tmp_path))
    model.inner = checkpoint_wrapper(model.inner)
    fill(model, 1)
    assert publisher.publish().changed > 0
    assert {name for name, _, _ in publisher.layout.table} == set(model.state_dict())


def test_what_is_left_out_may_move(tmp_path: pathlib.Path) -> None:
    model = Model()
    publisher = st.Publisher(model, transport=log_of(tmp_path), rename={"bias": None})
    reassign_buffer(model)
    model.scratch = torch.ones(2)
    assert publisher.publish().version == 2


def test_memory_of_numpy_has_owners_that_torch_does_not_count(tmp_path: pathlib.Path) -> None:
    import numpy as np

    memory = np.zeros(8, dtype=np.float32)
    publisher = st.Publisher([("w", torch.from_numpy(memory))], transport=log_of(tmp_path))
    memory[3] = 1
    assert publisher.publish().changed == 1


def test_a_parameter_may_be_swapped_while_it_is_watched() -> None:
    model = Model()
    watch = ModuleWatch(model, "do it again")
    swap(model)
    with pytest.raises(UsageError, match=r"tensor 'head.weight': .*: do it again"):
        watch.check()


def test_a_guard_watches_the_weights_of_several_models_that_lie_in_some_memory() -> None:
    target, draft = Model(), Model()
    check = guard_of([target, draft], [target.head.weight, draft.scale], "join again")
    target.scale = nn.Parameter(torch.zeros(()))
    draft.head.weight.data = torch.zeros(6, 4)
    check()
    draft.scale.data = torch.zeros(())
    with pytest.raises(UsageError, match=r"tensor 'scale': .*: join again"):
        check()


def test_a_watch_keeps_no_parameter_alive() -> None:
    model = Model()
    memory = alias_of(model.head.weight, (24,), (1,))
    watch = MemoryWatch([("head.weight", memory)], "do it again")
    watch.check()
    with watch.counted():
        views = [memory.view(4, 6), memory[3:]]
    watch.check()
    model.head = nn.Linear(1, 1)
    with pytest.raises(UsageError, match=r"tensor 'head.weight': nobody else holds its memory"):
        watch.check()
    del views


def test_live_tensors_are_looked_up_at_each_access() -> None:
    model = Model()
    live = LiveTensors(lambda: tensors_of(model))
    before = live["head.weight"]
    assert list(live) == [name for name, _ in live.items()] and len(live) == len(model.state_dict())
    assign(model)
    assert live["head.weight"] is not before and live["head.weight"] is model.head.weight
    shards = shards_of(live.items())
    shards.check()
    offload_and_back(model)
    with pytest.raises(UsageError, match="the model has another tensor by this name"):
        shards.check()


# Names and forms.


def test_names_are_those_that_hooks_of_the_state_dict_make() -> None:
    model = Model()

    def hook(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, meta: object) -> None:
        for name in list(state):
            state["model." + name] = state.pop(name)
        del state["model.bias"]

    model._register_state_dict_hook(hook)
    assert {name for name, _, _ in shards_of(model).layout.table} == set(model.state_dict())


def test_what_of_the_state_dict_is_not_sent_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Scaled(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"scale": 1}

        def set_extra_state(self, state: object) -> None: ...

    shards_of(nn.Sequential(Scaled(2, 2)))
    assert "1 entries of the state dict" in caplog.text and "'0._extra_state'" in caplog.text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: nn.Parameter(torch.ones(4, dtype=torch.complex128)), "complex128 are not carried"),
        (lambda: torch.ones(4, dtype=torch.complex128), "complex128 are not carried"),
        (lambda: torch.eye(3).to_sparse(), "sparse_coo has no plain memory"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested has no plain memory"),
        (lambda: torch._neg_view(torch.ones(3)), "resolve_neg"),
        (lambda: nn.UninitializedParameter(), "run a forward"),
        (lambda: torch.ones(3, device="meta"), "meta device"),
    ],
)
def test_what_has_no_plain_memory_is_refused_by_name(make: Callable[[], torch.Tensor], words: str) -> None:
    with pytest.raises((UnsupportedError, UsageError), match=f"tensor 'w': .*{words}"):
        shards_of([("w", make())])


def test_freed_memory_is_refused_by_name() -> None:
    parameter = nn.Parameter(torch.ones(4))
    parameter.untyped_storage().resize_(0)
    with pytest.raises(UsageError, match="tensor 'w': its memory has been freed"):
        shards_of([("w", parameter)])
