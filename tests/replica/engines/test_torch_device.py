"""What the torch engine asks of an accelerator, told by one that computes nothing.

PyTorch's meta device has shapes and no values: a step that wants a value of it raises, as
``item()`` does, where on an accelerator the host would wait.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.engine_steps import hyperparameters, labelled
from tests.support.networks import residual, trained_weights
from tests.support.torch_engine import PLAIN, torch_network
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import CLASSIFICATION
from aiperf_hpc.replica.data.base import Batch, Pixels, PixelScaling, labelled_images
from aiperf_hpc.replica.engines.base import NetworkState, RankNetwork, step_in_halves
from aiperf_hpc.replica.engines.torch import optimizers
from aiperf_hpc.replica.engines.torch.device import Feed
from aiperf_hpc.replica.engines.torch.engine import TUNING_BYTES, TorchEngine
from aiperf_hpc.replica.engines.torch.network import TorchNetwork
from aiperf_hpc.replica.engines.torch.objectives import LOSSES, QUALITIES

META = torch.device("meta")
GRAPH = residual()
VIEWS = {
    "detach", "view", "permute", "t", "slice", "expand", "unsqueeze", "split_with_sizes", "empty",
    "_record_function_enter_new", "_record_function_exit",
}  # fmt: skip
"""What launches nothing."""
DONE_IN_PLACE = ("_fused_", "_amp_")
"""The beginnings of kernels that have no form for meta tensors; all that they do is in place."""


class SideStream:
    """A stream beside the current one."""

    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class Accelerator:
    """A module of PyTorch's like ``torch.cuda``, whose current stream and events are itself."""

    def __init__(self) -> None:
        self.waits = self.waits_of_current = self.resets = 0
        self.streams: list[SideStream] = []
        self.active: SideStream | None = None

    def Stream(self, device: torch.device) -> SideStream:  # noqa: N802 -- its name in PyTorch
        self.streams.append(SideStream())
        return self.streams[-1]

    def Event(self, *, blocking: bool) -> Accelerator:  # noqa: N802
        """Refuse an event that a thread would wait for by spinning on a core."""
        assert blocking
        return self

    @contextmanager
    def stream(self, stream: SideStream) -> Iterator[None]:
        self.active = stream
        yield
        self.active = None

    def current_stream(self, device: torch.device) -> Accelerator:
        return self

    def wait_stream(self, stream: SideStream) -> None:
        self.waits_of_current += 1

    def record(self, stream: Accelerator) -> None:
        pass

    def synchronize(self) -> None:
        self.waits += 1

    def empty_cache(self) -> None:
        pass

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.resets += 1


class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the kernels that are launched, the devices of their results, and copies.

    A copy from the host to the device is recorded by its elements, whether it is from pinned
    memory, and whether it is by a stream beside the current one.
    """

    def __init__(
        self, accelerator: Accelerator | None = None, pinned: Sequence[Tensor] = ()
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._accelerator = accelerator
        self._pinned = pinned
        self.kernels: list[str] = []
        self.copied: list[set[torch.dtype]] = []
        """The types from which tensors are copied together."""
        self.places: Counter[str] = Counter()
        self.brought: list[tuple[int, bool, bool]] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 -- PyTorch's
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        name = func.__name__
        self.kernels.append(name)
        given = _tensors((args, kwargs or {}))
        if name.startswith("_foreach_copy_"):
            self.copied.append({tensor.dtype for tensor in args[1]})
        if name.startswith(DONE_IN_PLACE):
            self.places.update(t.device.type for t in given)
            return args[0] if isinstance(args[0], Tensor) else None
        made = func(*args, **(kwargs or {}))
        places = [t.device.type for t in _tensors(made)]
        self.places.update(places)
        for tensor in given:
            if "meta" in places and tensor.device.type == "cpu" and tensor.ndim:
                pinned = any(tensor is each for each in self._pinned)
                beside = self._accelerator is not None and self._accelerator.active is not None
                self.brought.append((tensor.numel(), pinned, beside))
        return made


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    module = Accelerator()
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(optimizers, "FUSED", ("meta",))
    monkeypatch.setattr(torch, "tensor", copied_from_the_host)
    return module


def copied_from_the_host(*_: object, **__: object) -> Tensor:
    raise AssertionError("a number is copied from the host, which waits for it")


def network(graph: Graph = GRAPH, **used: object) -> TorchNetwork:
    return torch_network(graph, PLAIN._replace(device=META), 0, **used)


def there(batch: Batch) -> Batch:
    """Return a batch that is on the device already."""
    return labelled_images(
        torch.from_numpy(batch.inputs["image"]).to(META),
        torch.from_numpy(batch.targets["label"]).to(META),
    )


def dispatched(trained: TorchNetwork, batch: Batch, *, halves: bool) -> Dispatched:
    """Return what a step has done, which is not the first: some buffers are made then."""
    step = partial(step_in_halves, trained) if halves else trained.train_step
    with Dispatched():
        step(batch, 0.1)
    said = Dispatched()
    with said:
        step(batch, 0.1)
    return said


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        *((name, "bf16") for name in optimizers.OPTIMIZERS),
        ("sgd", "fp32"),
        *((name, "fp16") for name in ("sgd", "adam", "adamw")),  # PyTorch waits in fp16's others.
    ],
)
def test_a_step_stays_on_the_device(
    accelerator: Accelerator, optimizer: str, precision: str, *, halves: bool
) -> None:
    trained = network(
        optimizer=optimizer, precision=precision, weight_decay=0.01, max_gradient_norm=1.0
    )
    batch = there(labelled(GRAPH, 8))
    said = dispatched(trained, batch, halves=halves)
    assert set(said.places) == {"meta"}


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_few_kernels_per_step(accelerator: Accelerator, precision: str, *, halves: bool) -> None:
    """Two a layer and some for the update, whose number does not grow with the parameters.

    On CUDA tensors of several types are not copied by one kernel, but each by its own.
    """
    trained = network(precision=precision)
    said = dispatched(trained, there(labelled(GRAPH, 4)), halves=halves)
    launched = [name for name in said.kernels if name.partition(".")[0] not in VIEWS]
    assert len(launched) <= 2 * len(GRAPH.nodes) + 30 + (precision == "fp16"), Counter(launched)
    assert bool(said.copied) is (halves or precision != "fp32")
    assert all(len(types) == 1 for types in said.copied)


def test_an_evaluation_stays_on_the_device(accelerator: Accelerator) -> None:
    trained, batch = network(precision="bf16"), there(labelled(GRAPH, 4))
    with Dispatched() as said:
        trained.evaluate_step(batch)
    assert set(said.places) == {"meta"}


@pytest.mark.parametrize("name", [*LOSSES, *QUALITIES])
def test_losses_and_metrics_stay_on_the_device(accelerator: Accelerator, name: str) -> None:
    pixels = (3, 2) if name in ("pixel_cross_entropy", "intersection_over_union") else ()
    output = torch.zeros(4, 5, *pixels, device=META)
    targets = {
        "mask": torch.zeros(4, *pixels, dtype=torch.int64, device=META),
        "label": torch.zeros(4, dtype=torch.int64, device=META),
        "values": torch.zeros(4, 5, device=META),
    }
    with Dispatched() as said:
        if name in LOSSES:
            LOSSES[name](output, targets, 0.1)
        else:
            QUALITIES[name](output, targets)
    assert set(said.places) == {"meta"}


def test_a_rank_waits_for_its_device_only_in_await_room(accelerator: Accelerator) -> None:
    """The steps in its queue may wait for a rank that is gone."""
    trained, batch = network(), there(labelled(GRAPH, 4))
    found = []
    for step in (step_in_halves, step_in_halves, evaluate, step_in_halves, evaluate):
        trained.await_room()
        found.append(accelerator.waits)
        with Dispatched():
            step(trained, batch, 0.1)
        assert accelerator.waits == found[-1]
    assert found == [0, 0, 1, 2, 3]


def evaluate(trained: RankNetwork, batch: Batch, learning_rate: float) -> None:
    trained.evaluate_step(batch)


def test_closing_frees_memory(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = network(precision="bf16")
    with Dispatched():
        step_in_halves(trained, there(labelled(GRAPH, 4)), 0.1)
    flat, low = weakref.ref(trained._flat), weakref.ref(trained._low)
    freed: list[bool] = []
    monkeypatch.setattr(accelerator, "empty_cache", lambda: freed.append(flat() is low() is None))
    trained.close()
    assert freed == [True]


def test_asynchronous_checksum(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    brought: list[tuple[Tensor, bool]] = []
    copy = Tensor.copy_

    def copied(to: Tensor, values: Tensor, non_blocking: bool = False) -> Tensor:
        if (to.device, values.device) != (torch.device("cpu"), META):
            return copy(to, values, non_blocking)
        brought.append((values, non_blocking))
        return to.fill_(-7)

    trained = network()
    monkeypatch.setattr(Tensor, "copy_", copied)
    with Dispatched() as said:
        pending = trained.checksum()
    assert accelerator.waits == 0
    ((total, beside),) = brought
    assert beside
    assert (total.dtype, total.shape) == (torch.int64, ())
    assert said.kernels.count("sum.dim_IntList") == 2  # By lines and by columns: memory twice.
    assert len(said.kernels) < 40
    assert (pending(), accelerator.waits) == (-7, 1)


def pinning(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return the list of tensors that will have been pinned."""
    pinned: list[Tensor] = []

    def pin(tensor: Tensor) -> Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    return pinned


def test_images_are_copied_as_bytes(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = pinning(monkeypatch)
    images = np.zeros((2, 4, 4, 3), np.uint8)
    batch = Batch({"image": Pixels(images, PixelScaling((0.5,) * 3, (1.0,) * 3))}, {})
    (found,) = Feed(META).inputs(batch, ["image"])
    assert [tensor.dtype for tensor in pinned] == [torch.uint8]
    assert (found.device, found.dtype, found.shape) == (META, torch.float32, (2, 3, 4, 4))
    assert accelerator.waits == 0


@pytest.mark.parametrize("optimizer", optimizers.OPTIMIZERS)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_network_is_copied_asynchronously(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, optimizer: str, *, resumed: bool
) -> None:
    """By the current stream, each copy would wait for the steps of the training under way."""
    pinned = pinning(monkeypatch)
    weights = trained_weights(GRAPH, np.random.default_rng(0))
    used = hyperparameters(optimizer=optimizer)
    state = torch_network(GRAPH, optimizer=optimizer).optimizer_state()
    slots = {name.split(":")[0] for name in state if ":" in name}
    there = PLAIN._replace(device=META)
    given = NetworkState(GRAPH, weights, used, state if resumed else None)
    with Dispatched(accelerator, pinned) as copies:
        made = TorchNetwork(given, CLASSIFICATION, there)
    (stream,) = accelerator.streams
    parameters, statistics = made._layout.size, made._statistics_layout.size
    buffers = [parameters, statistics, *([parameters] * len(slots) if resumed else [])]
    assert sorted(copies.brought) == sorted((size, True, True) for size in buffers)
    assert stream.waits >= 1
    assert accelerator.waits == accelerator.waits_of_current == 0


def test_peak_excludes_tuning(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = network()
    monkeypatch.setattr(TorchNetwork, "train_step", lambda *_: None)
    monkeypatch.setattr(TorchNetwork, "evaluate_step", lambda *_: None)
    monkeypatch.setattr(Tensor, "item", lambda _: 0.0)
    trained.warm(4)
    assert accelerator.resets == 1


@pytest.mark.parametrize("tuned", [False, True])
def test_tuning_memory(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, *, tuned: bool
) -> None:
    monkeypatch.setattr(accelerator, "mem_get_info", lambda _: (2**35, 2**36), raising=False)
    engine = TorchEngine(PLAIN._replace(device=META, tuned=tuned), CLASSIFICATION)
    assert engine.memory_bytes == 2**35 - (TUNING_BYTES if tuned else 0)
    assert TUNING_BYTES == 2 * 2**30
