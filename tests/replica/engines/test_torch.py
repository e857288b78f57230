"""What only the torch engine has to do."""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.engine_steps import (
    GRADIENTS_BETWEEN_PARTS,
    built,
    given,
    hyperparameters,
    labelled,
)
from tests.support.networks import residual, trained_weights, two_stems
from tests.support.torch_engine import PLAIN, RecordingBackend, compiled, torch_network

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.errors import EngineError
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.replica.data.base import Batch, Part, Pixels, PixelScaling, labelled_images
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState, RankEngine, empty_batch
from aiperf_hpc.replica.engines.torch import gradients
from aiperf_hpc.replica.engines.torch.device import (
    ALLOCATOR_SETTINGS,
    Feed,
    channels_first,
    choose_device,
    padded,
    scaled,
    use_expandable_segments,
)
from aiperf_hpc.replica.engines.torch.engine import TorchEngine
from aiperf_hpc.replica.engines.torch.network import Placement, TorchNetwork


@pytest.fixture(scope="module")
def engine() -> RankEngine:
    return load_engine("torch", 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="there is an NPU")
def test_a_device_that_is_not_there_is_refused_and_auto_takes_the_cpu() -> None:
    with pytest.raises(EngineError, match="engine.device=cuda: PyTorch .* sees no CUDA or ROCm"):
        load_engine("torch", 2, settings=EngineConfig(name="torch", device="cuda"))
    with pytest.raises(EngineError, match="engine.device=npu needs the package torch_npu"):
        load_engine("torch", 2, settings=EngineConfig(name="torch", device="npu"))
    chosen = load_engine("torch", 2)
    assert chosen.accelerators == ()
    assert chosen.memory_bytes is None


def test_the_building_thread_uses_the_device_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device is set for a thread: another one would make tensors on the first."""
    set_by: list[tuple[str, str]] = []

    def set_device(device: torch.device) -> None:
        set_by.append((threading.current_thread().name, str(device)))

    module = SimpleNamespace(set_device=set_device)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    monkeypatch.setattr("aiperf_hpc.replica.engines.torch.engine.TorchNetwork", lambda *_: None)
    third = Placement(torch.device("cuda", 3), cores=1, compiled=False)
    graph = two_stems()
    given = NetworkState(graph, initial_weights(graph, np.random.default_rng(0)), hyperparameters())
    with ThreadPoolExecutor(1, "builder") as background:
        background.submit(TorchEngine(third, CLASSIFICATION).build, given).result()
    assert set_by == [("builder_0", "cuda:3")]


def test_arrays_that_cannot_be_written_and_tensors_are_taken_alike(engine: RankEngine) -> None:
    graph = two_stems()
    batch = labelled(graph, 8)
    frozen = batch.inputs["image"].copy()
    frozen.setflags(write=False)
    losses = []
    for inputs, labels in (
        (batch.inputs["image"], batch.targets["label"]),
        (frozen, batch.targets["label"]),
        (torch.from_numpy(batch.inputs["image"]), torch.from_numpy(batch.targets["label"])),
    ):
        network = built(engine, graph, 4)
        network.train_step(labelled_images(inputs, labels), 0.05)
        losses.append(network.drain_training())
    assert losses[0] == losses[1] == losses[2]


def test_bytes_become_the_very_numbers_that_they_stand_for() -> None:
    """To the last bit, and the bytes stay as they are."""
    every = np.arange(2 * 8 * 8 * 4, dtype=np.int32).astype(np.uint8).reshape(2, 8, 8, 4)
    scaling = PixelScaling((1 / 58.395, 0.3, 3.0, 1.0), (-2.1, 0.7, -1e3, 0.0))
    pixels = Pixels(every.copy(), scaling)
    feed = Feed(torch.device("cpu"))
    for _ in range(2):
        (found,) = feed.inputs(Batch({"image": pixels}, {}), ["image"])
        assert found.dtype is torch.float32
        assert found.is_contiguous(memory_format=torch.channels_last)
        np.testing.assert_array_equal(found.movedim(1, -1).numpy(), np.asarray(pixels))
    on_a_device = scaled(torch.from_numpy(pixels.bytes), scaling)
    np.testing.assert_array_equal(on_a_device.numpy(), np.asarray(pixels))
    np.testing.assert_array_equal(pixels.bytes, every)


def test_buckets_are_ready_before_the_backward_pass_is_over(
    monkeypatch: pytest.MonkeyPatch, engine: RankEngine
) -> None:
    """The first of several comes before the first layer's gradient."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 500)
    graph = residual()
    network = built(engine, graph, 6)
    assert len(network.buckets) > 2
    first = network._leaves["stem_conv/kernel"]  # type: ignore[attr-defined]
    events: list[str] = []
    first.register_post_accumulate_grad_hook(lambda _: events.append("stem"))
    network.gradients(labelled(graph, 2), 1.0, lambda _: events.append("bucket"))
    assert events.index("stem") >= len(network.buckets) - 1
    assert events.count("bucket") == len(network.buckets)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_parameters_and_buckets_are_aligned(
    monkeypatch: pytest.MonkeyPatch, engine: RankEngine, precision: str
) -> None:
    """Whatever is before them: a bias of five classes, a kernel of five channels."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 500)
    graph = residual()
    network = built(engine, graph, 6, precision=precision)
    assert isinstance(network, TorchNetwork)
    found: list[torch.Tensor] = list(network._leaves.values())
    network.gradients(labelled(graph, 8), 1.0, found.append)
    assert len(found) > len(graph.parameters) + 2
    found += network._gradient_views
    assert [tensor.storage_offset() * tensor.element_size() % 256 for tensor in found] == [0] * len(
        found
    )


@pytest.mark.parametrize(("warmed_with", "compilations"), [(0, 2), (8, 2), (1, 0)])
def test_a_smaller_last_batch_is_not_compiled(warmed_with: int, compilations: int) -> None:
    """Compiled by a back end that notes the batches that its code is called with.

    Once for the training step and once for the evaluation's; not at all as long as there was
    memory for one sample only. In an evaluation 5 of 8 samples are filled up to 8.
    """
    backend, graph = RecordingBackend(), residual()
    fast, plain = (torch_network(graph, each, 7) for each in (compiled(backend), PLAIN))
    if warmed_with:
        fast.warm(warmed_with)
    for size in (8, 3, 8, 5):
        for network in (fast, plain):
            network.train_step(labelled(graph, size), 0.01)
    assert fast.drain_training() == pytest.approx(plain.drain_training(), rel=1e-4)
    backend.given.clear()
    for size in (8, 3, 8, 5):
        for network in (fast, plain):
            network.evaluate_step(labelled(graph, size))
    executed = [len(t) for given in backend.given for t in given if t.shape[1:] == (3, 9, 8)]
    assert executed == ([8, 8, 8] if compilations else [])
    assert len(backend.compiled) == compilations
    found, wanted = fast.drain_evaluation(), plain.drain_evaluation()
    assert found.samples == wanted.samples == 24
    assert found.loss == pytest.approx(wanted.loss, rel=1e-3)
    assert found.sums(ACCURACY) == wanted.sums(ACCURACY)


@pytest.mark.parametrize("shape", [(3, 5, 4, 2), (3, 2, 3, 4, 5), (3, 7), (3,)])
def test_a_batch_is_filled_up_with_zeros_that_lie_as_it_does(shape: tuple[int, ...]) -> None:
    """Compiled code is for one order of memory."""
    samples = channels_first(torch.arange(math.prod(shape)).view(shape))
    whole = channels_first(torch.zeros((5, *shape[1:]), dtype=torch.int64))
    found = padded(samples, 5)
    assert (found.shape, found.stride(), found.dtype) == (whole.shape, whole.stride(), whole.dtype)
    assert torch.equal(found[:3], samples)
    assert not found[3:].any()


@GRADIENTS_BETWEEN_PARTS
@pytest.mark.parametrize(("by_compiler", "parted"), [(False, False), (True, False), (True, True)])
def test_a_closed_network_is_freed(
    monkeypatch: pytest.MonkeyPatch, *, by_compiler: bool, parted: bool
) -> None:
    """Not when the garbage collector comes by: the next network wants the memory now."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 300)
    graph = two_stems()
    placement = compiled("eager", split=parted) if by_compiler else PLAIN
    network = torch_network(graph, placement, 4, precision="bf16")
    network.warm(8, halves=True)
    network.train_step(labelled(graph, 8), 0.05)
    network.drain_training()
    held: list[object] = [network._flat, network._low, network._gradients, network._statistics]
    held += [network._training, network._inference, *network._leaves.values()]
    dead = [weakref.ref(thing) for thing in held]
    gc.collect()
    gc.disable()
    try:
        del held
        network.close()
        assert [reference() for reference in dead] == [None] * len(dead)
    finally:
        gc.enable()


def test_an_accelerators_segments_grow_unless_its_allocator_is_set() -> None:
    environment: dict[str, str] = {}
    use_expandable_segments(environment)
    assert environment == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    for name in ALLOCATOR_SETTINGS:
        given = {name: "max_split_size_mb:128"}
        use_expandable_segments(given)
        assert given == {name: "max_split_size_mb:128"}


def test_expandable_segments_are_enabled_before_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch reads the variable at the first allocation; on CUDA and ROCm."""
    for name in ALLOCATOR_SETTINGS:
        monkeypatch.setenv(name, "")  # For it to be as it was afterwards.
        monkeypatch.delenv(name)
    there: list[tuple[str, str | None]] = []

    def set_device(device: torch.device) -> None:
        there.append((str(device), os.environ.get(ALLOCATOR_SETTINGS[0])))

    module = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 8, set_device=set_device
    )
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    assert choose_device("cuda", 11) == torch.device("cuda", 3)
    assert there == [("cuda:3", "expandable_segments:True")]


@GRADIENTS_BETWEEN_PARTS
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("parts", [1, 3])
def test_warming_compiles_all_parts(monkeypatch: pytest.MonkeyPatch, rank: int, parts: int) -> None:
    """Of 7 samples over 3 ranks one has 3; of an epoch's last batch any number up to that."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 300)
    backend, graph = RecordingBackend(), two_stems()
    network = torch_network(graph, compiled(backend, split=parts > 1), 4, batch_size=7)
    first, last = Part(rank, 3).bounds(7)
    network.warm(1, halves=True)
    assert not backend.compiled
    network.warm(last - first, halves=True)
    assert len(backend.compiled) == parts + 1
    for size in (last - first, *range(last - first + 1)):
        part = labelled(graph, size) if size else empty_batch(graph, network._objective, 0)
        network.apply(given(network, part, 1 / 3), 0.01)
        if size:
            network.train_step(part, 0.01)
            network.evaluate_step(part)
    assert len(backend.compiled) == parts + 1


def test_kernels_are_timed_for_the_batch_size_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an epoch leaves over would be timed in the midst of it, in training and evaluation."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    graph = two_stems()
    engine = TorchEngine(PLAIN._replace(tuned=True), CLASSIFICATION)
    assert engine.warms_alone
    network = built(engine, graph, 4)
    network.warm(8)
    timed = []
    for size in (8, 3, 8, 5):
        for step in (lambda batch: network.train_step(batch, 0.01), network.evaluate_step):
            step(labelled(graph, size))
            timed.append(torch.backends.cudnn.benchmark)
    assert timed == [True, True, False, False] * 2


@GRADIENTS_BETWEEN_PARTS
@pytest.mark.parametrize("parts", [1, 3])
def test_building_compiles_without_executing(monkeypatch: pytest.MonkeyPatch, parts: int) -> None:
    """Beside a training nothing may be executed; what is compiled then is not compiled again."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 300)
    backend, graph = RecordingBackend(), two_stems()
    events, weights = backend.events, trained_weights(graph, np.random.default_rng(4))
    tuned = compiled(backend, tuned=True, split=parts > 1)
    timed, plain = (
        TorchEngine(placement, CLASSIFICATION).build(
            NetworkState(graph, weights, hyperparameters(batch_size=8))
        )
        for placement in (tuned, PLAIN)
    )
    assert events == ["compiled"] * (parts + 1)
    timed.warm(8)
    assert events[parts + 1 :] == ["executed"] * (parts + 1)
    for network in (timed, plain):
        network.train_step(labelled(graph, 8), 0.05)
    assert timed.drain_training() == pytest.approx(plain.drain_training(), rel=1e-4)
