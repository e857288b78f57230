"""What ``gpu.py`` measures of one GPU: a function a section, each in a process of its own.

A section yields rows as it finds them, so that one that is cut at its limit has said something.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from side_by_side import in_turns
from training import torch_model

from aiperf_hpc.config import EngineConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.morphism.operators.kernel_size import KernelSize
from aiperf_hpc.morphism.operators.wider import Wider
from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.memory import training_bytes
from aiperf_hpc.ops_counter.traffic import traffic
from aiperf_hpc.replica.data.base import Batch, Pixels, Scaling, labelled_images
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.torch.engine import TorchEngine, TorchNetwork
from aiperf_hpc.replica.runtime.background import lower_priority
from aiperf_hpc.run.step_profile import by_category
from aiperf_hpc.trial import Hyperparameters

RATE = 0.01
INITIAL = "ResNet-50"
SCALING = Scaling((1 / 64,) * 3, (-2.0,) * 3)
"""What the bytes of images stand for."""
Row = dict[str, Any]
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


class Sizes(NamedTuple):
    """What is measured, on a GPU or in a trial run on the CPU."""

    device: str
    image: int
    classes: int
    width: int
    batches: tuple[int, int]
    """The one of a replica of one GPU, and that of eight as each of them has it."""
    matrix: int
    array: int
    """Bytes of an array that is copied."""
    steps: int
    """Steps that are timed together."""
    rounds: int
    half: str
    """The precision beside bf16; on CPUs nothing trains in fp16."""
    run: tuple[str, ...]
    """Arguments of the whole run."""


GPU = Sizes(
    device="cuda", image=224, classes=1000, width=64, batches=(448, 56), matrix=8192,
    array=2**30, steps=12, rounds=5, half="fp16",
    # Wide layers and small batches: one thread makes the images, a thousand a second.
    run=(
        "--hours", "0.12", "--config", "imagenet_gpu", "--set", "dataset.train_samples=7680",
        "--set", "dataset.validation_samples=640", "--set", "dataset.classes=1000",
        "--set", "model.base_width=192", "--set", "training.batch_size=128",
        # Trials longer than it takes to compile the next network beside one, as those of hours are.
        "--set", "training.max_epochs=16", "--set", "rounds.warmup_epochs=[16,16,16]",
    ),
)  # fmt: skip
DRY = Sizes(
    device="cpu", image=32, classes=10, width=8, batches=(8, 4), matrix=256,
    array=2**20, steps=2, rounds=2, half="fp32",
    run=(
        "--hours", "0.01", "--set", "dataset.image_size=16", "--set", "dataset.train_samples=64",
        "--set", "dataset.validation_samples=32", "--set", "model.base_width=4",
        "--set", "model.blocks=[1,1,1,1]", "--set", "training.batch_size=16",
        "--set", "training.max_epochs=2", "--set", "rounds.warmup_epochs=[2,2,2]",
    ),
)  # fmt: skip


def candidates(sizes: Sizes) -> dict[str, Graph]:
    """Return ResNet-50 and what morphisms make of it: 5 x 5 and 7 x 7 kernels, wider layers."""
    shape = (sizes.image, sizes.image, 3)
    initial = resnet50(shape, sizes.classes, base_width=sizes.width)
    spatial = [
        node.name
        for node in initial.nodes
        if getattr(node.layer, "kernel", 0) == 3 and node.layer.kind == "conv2d"
    ]

    def sized(graph: Graph, kernel: int, names: list[str]) -> Graph:
        for name in names:
            graph = KernelSize(name, kernel).child(graph)
        return graph

    wider = initial
    for name in spatial[::2]:
        wider = Wider(name, 2 * wider.shapes[name][-1]).child(wider)
    return {
        INITIAL: initial,
        "half of its 3x3 kernels 5x5": sized(initial, 5, spatial[::2]),
        "half of its 3x3 kernels 7x7": sized(initial, 7, spatial[1::2]),
        "half of its 3x3 convolutions twice as wide": wider,
    }


def synchronise(sizes: Sizes) -> None:
    """Wait for all that is queued on the device."""
    if sizes.device == "cuda":
        torch.cuda.synchronize()


def seconds_of(step: Callable[[], object], sizes: Sizes, warm: int = 3) -> float:
    """Return the time of a step: the steps are queued, then waited for."""
    for _ in range(warm):
        step()
    synchronise(sizes)
    start = time.perf_counter()
    for _ in range(sizes.steps):
        step()
    synchronise(sizes)
    return (time.perf_counter() - start) / sizes.steps


def peaks(sizes: Sizes) -> Iterator[Row]:
    """Yield operations a second of a matrix product and of convolutions, and bytes of a copy."""
    device, n = sizes.device, sizes.matrix
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in "ab")
    yield {"what": "matrix", "rate": 2 * n**3 / seconds_of(lambda: a @ b, sizes)}
    source = torch.ones(sizes.array // 4, device=device)
    target = torch.empty_like(source)
    yield {
        "what": "memory",
        "rate": 2 * sizes.array / seconds_of(partial(target.copy_, source), sizes),
    }
    torch.backends.cudnn.benchmark = True
    best = 0.0
    for channels, side in ((256, 56), (512, 28), (1024, 14)):
        samples = sizes.batches[0]
        x, kernel = (
            torch.randn(first, channels, size, size, device=device, dtype=torch.bfloat16)
            .to(memory_format=torch.channels_last)
            .requires_grad_()
            for first, size in ((samples, side), (channels, 3))
        )
        slope = torch.ones_like(x)

        def convolve(x: Any = x, kernel: Any = kernel, slope: Any = slope) -> None:  # noqa: ANN401
            torch.autograd.grad(torch.conv2d(x, kernel, padding=1), (x, kernel), slope)

        operations = 3 * 2 * samples * side**2 * channels**2 * 9
        best = max(best, operations / seconds_of(convolve, sizes))
    yield {"what": "convolution", "rate": best}


def batch_of(sizes: Sizes, batch: int) -> Batch:
    """Return samples that are already on the device, so that no copy is measured."""
    images = torch.randn(batch, sizes.image, sizes.image, 3, device=sizes.device)
    return labelled_images(images, torch.randint(0, sizes.classes, (batch,), device=sizes.device))


def engine_of(sizes: Sizes, *, compiled: bool = True) -> TorchEngine:
    """Return the engine."""
    settings = EngineConfig(
        name="torch",
        device="cpu" if sizes.device == "cpu" else "cuda",
        compile="auto" if compiled else "never",
    )
    engine = load_engine("torch", 2, settings=settings)
    assert isinstance(engine, TorchEngine)  # noqa: S101
    return engine


def built(
    engine: TorchEngine, graph: Graph, batch: int, *, precision: str = "bf16"
) -> TorchNetwork:
    """Build a network of the engine."""
    weights = initial_weights(graph, np.random.default_rng(0))
    used = Hyperparameters.model_validate(
        {"batch_size": batch, "learning_rate": RATE, "precision": precision}
    )
    return engine.build(graph, weights, used)


def warmed(sizes: Sizes, graph: Graph, batch: int) -> TorchNetwork:
    """Build a network of the engine, and compile it."""
    network = built(engine_of(sizes), graph, batch)
    network.warm(batch)
    return network


def plain_loop(sizes: Sizes, graph: Graph, batch: int) -> Callable[[], None]:
    """Return the step of a plain loop: nn modules, channels-last, autocast, torch.compile."""
    model = torch_model(graph).to(sizes.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    compiled = torch.compile(model) if sizes.device == "cuda" else model
    torch.backends.cudnn.benchmark = True
    data = batch_of(sizes, batch)
    images = data.inputs["image"].permute(0, 3, 1, 2)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(sizes.device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(
                compiled(images).float(), data.targets["label"]
            )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def against(sizes: Sizes, batch: int) -> Iterator[Row]:
    """Yield images a second of the engine and of a plain loop, which take turns."""
    graph = candidates(sizes)[INITIAL]
    network, data = warmed(sizes, graph, batch), batch_of(sizes, batch)
    steps: dict[str, Callable[[], object]] = {
        "engine": partial(network.train_step, data, RATE),
        "plain loop": plain_loop(sizes, graph, batch),
    }
    found = in_turns(
        {name: partial(seconds_of, step, sizes) for name, step in steps.items()}, sizes.rounds
    )
    moved = {
        fused: traffic(graph, "bf16", fused=fused).training(batch, 1) for fused in (True, False)
    }
    for name, seconds in found.items():
        yield {
            "what": name,
            "batch": batch,
            "images": [batch / each for each in seconds],
            "operations": count(graph).training,
            "separate_bytes": moved[False] / batch,
            "fused_bytes": moved[True] / batch,
        }


def variants(sizes: Sizes) -> Iterator[Row]:
    """Yield images a second of the engine: eager, in fp16, and with a batch not compiled for."""
    graph = candidates(sizes)[INITIAL]
    for batch in sizes.batches:
        data, part = batch_of(sizes, batch), batch_of(sizes, batch * 3 // 4)
        for precision, compiled in (("bf16", True), ("bf16", False), (sizes.half, True)):
            network = built(engine_of(sizes, compiled=compiled), graph, batch, precision=precision)
            network.warm(batch)
            for given in (data, part) if (precision, compiled) == ("bf16", True) else (data,):
                seconds = seconds_of(partial(network.train_step, given, RATE), sizes)
                yield {
                    "precision": precision,
                    "compiled": compiled,
                    "batch": given.size,
                    "whole": batch,
                    "images": given.size / seconds,
                }
            network.close()


def memory(sizes: Sizes) -> Iterator[Row]:
    """Yield peaks of trainings beside a network that waits, and the estimates of them, in bytes."""
    graphs = candidates(sizes)
    wide = list(graphs)[-1]
    large, small = sizes.batches
    for name, batch, precision, compiled in (
        (INITIAL, large, "bf16", True),
        (INITIAL, large, "bf16", False),
        (INITIAL, small, "bf16", True),
        (INITIAL, small, "fp32", True),
        (wide, large, "bf16", True),
    ):
        forget_peak(sizes)
        graph = graphs[name]
        engine = engine_of(sizes, compiled=compiled)
        network = built(engine, graph, batch, precision=precision)
        network.warm(batch)
        following = built(engine, graph, batch, precision=precision)
        data = batch_of(sizes, batch)
        for _ in range(3):
            network.train_step(data, RATE)
        network.drain_training()
        yield {
            "what": name,
            "batch": batch,
            "precision": precision,
            "compiled": compiled,
            "measured": peak_bytes(sizes),
            "estimate": training_bytes(graph, batch, precision),
        }
        network.close()
        following.close()


def forget_peak(sizes: Sizes) -> None:
    """Begin to look for the most memory that is taken."""
    gc.collect()
    if sizes.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(sizes: Sizes) -> int:
    """Return the most memory that was taken, with what CUDA takes for itself; on CPUs so far."""
    if sizes.device != "cuda":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    free, total = torch.cuda.mem_get_info()
    own = total - free - torch.cuda.memory_reserved()
    return own + torch.cuda.max_memory_reserved()


def kernels(sizes: Sizes) -> Iterator[Row]:
    """Yield the engine's speed on what morphisms make of the network, and how long it prepares."""
    batch = sizes.batches[0] // 2
    data = batch_of(sizes, batch)
    for name, graph in candidates(sizes).items():
        start = time.perf_counter()
        network = warmed(sizes, graph, batch)
        prepared = time.perf_counter() - start
        images = batch / seconds_of(partial(network.train_step, data, RATE), sizes)
        network.close()
        operations = images * count(graph).training
        yield {"what": name, "batch": batch, "ops": operations, "prepared": prepared}


def idle(sizes: Sizes, interval: float) -> Iterator[Row]:
    """Yield trainings beside which the next network is made ready, as a replica does it.

    Another process compiles it, and a thread loads it. Each training lasts until then: its steps
    and seconds, the longest that the launching of one took, and a step's time while nothing was
    compiled; then the gap until the next network's first step was launched, in which it is warmed.

    Args:
        sizes: what is trained.
        interval: how long a thread may keep Python's lock while another one wants it, in seconds.
    """
    sys.setswitchinterval(interval)
    batch = sizes.batches[0] // 2  # Two networks are in memory.
    data = batch_of(sizes, batch)
    first, *others = candidates(sizes).items()
    engine = engine_of(sizes)

    def prepared(graph: Graph) -> TorchNetwork:
        engine.compile_ahead(graph, "bf16", batch)
        following = built(engine, graph, batch)
        if not engine.warms_alone:
            following.warm(batch)
        return following

    network = warmed(sizes, first[1], batch)
    with ThreadPoolExecutor(1, initializer=lower_priority) as thread:
        for name, graph in others:
            alone = seconds_of(partial(network.train_step, data, RATE), sizes)
            start = time.perf_counter()
            coming = thread.submit(prepared, graph)
            launched = [start]
            while not coming.done():
                network.train_step(data, RATE)
                launched.append(time.perf_counter())
            network.drain_training()
            ended = time.perf_counter()
            network.close()
            network = coming.result()
            if engine.warms_alone:
                network.warm(batch)
            network.train_step(data, RATE)
            yield {
                "what": name,
                "steps": len(launched) - 1,
                "seconds": ended - start,
                "longest": float(np.diff(launched).max()),
                "alone": alone,
                "gap": time.perf_counter() - ended,
            }


def host(sizes: Sizes) -> Iterator[Row]:
    """Yield images a second from the host's memory, as float32 and as bytes."""
    graph, rng = candidates(sizes)[INITIAL], np.random.default_rng(0)
    batch = sizes.batches[0]
    shape = (batch, sizes.image, sizes.image, 3)
    labels = rng.integers(0, sizes.classes, batch).astype(np.int32)
    network = warmed(sizes, graph, batch)
    pixels = Pixels(rng.integers(0, 256, shape, np.uint8), SCALING)
    images = {"float32": np.asarray(pixels), "uint8": pixels}
    on_device = batch / seconds_of(partial(network.train_step, batch_of(sizes, batch), RATE), sizes)
    yield {"what": "on the device", "batch": batch, "images": on_device}
    for name, array in images.items():
        given = labelled_images(array, labels)
        rate = batch / seconds_of(partial(network.train_step, given, RATE), sizes)
        yield {"what": name, "batch": batch, "images": rate}
    network.close()


def profile(sizes: Sizes) -> Iterator[Row]:
    """Yield where the time of steps goes, by category of kernel, and what nothing was done in."""
    from aiperf_hpc.replica.engines.torch.profiler import record

    graph = candidates(sizes)[INITIAL]
    for batch in sizes.batches:
        network, data = warmed(sizes, graph, batch), batch_of(sizes, batch)
        took: list[float] = []
        step = partial(network.train_step, data, RATE)
        plain = sizes.steps * seconds_of(step, sizes)

        def work(step: Callable[[], object] = step, took: list[float] = took) -> None:
            took.append(sizes.steps * seconds_of(step, sizes, warm=0))

        with tempfile.TemporaryDirectory() as folder:
            recording = record(work, Path(folder))
        network.close()
        shares = {
            each.category.value: each.share
            for each in by_category(recording.kernels, recording.total_seconds)
        }
        yield {
            "batch": batch,
            "timed": recording.timed,
            "seconds": took[0],
            "plain": plain,
            "device": recording.total_seconds,
            "categories": shares,
        }


def signal_when_parent_ends(number: signal.Signals) -> None:
    """Have this process get a signal as soon as its parent has ended, however that did."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def run(sizes: Sizes) -> Iterator[Row]:
    """Yield what a whole run's trainer did with its time: by a run of ``aiperf start``.

    Its steady rate is that of each trial's fastest epoch, so that what slows training beside
    other work counts as lost, as what stops it does.
    """
    from aiperf_hpc.run.history import RunHistory
    from aiperf_hpc.run.paths import RunPaths

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = [
            sys.executable, "-m", "aiperf_hpc.cli", "start", "--nodes", "1", "--yes",
            "--launcher", "local", "--run-dir", str(path), *sizes.run, "--set",
            "engine.name=torch", "--set", "dataset.name=synthetic",
        ]  # fmt: skip
        # A section that is cut at its limit is killed; its run then stops in order.
        tell = partial(signal_when_parent_ends, signal.SIGTERM)
        subprocess.run(command, check=True, stdout=sys.stderr, preexec_fn=tell)
        history = RunHistory(RunPaths(path))
        history.refresh()
    (replica,) = history.replicas.values()
    trials = [trial for trial in history.trials.values() if trial.evaluations]
    steady = 0.0
    for trial in trials:
        began = trial.training_utc or trial.started_utc
        ends = [began, *(each.utc for each in trial.evaluations)]
        fastest = min(float(seconds) for seconds in np.diff(ends))
        # What an epoch that was cut had done counts by its samples.
        steady += fastest * trial.train_samples / replica_samples(replica)
    seconds = {str(phase): value for phase, value in replica.seconds.items()}
    yield {"trials": len(trials), "steady": steady, "phases": seconds}


def replica_samples(replica: Any) -> int:  # noqa: ANN401 -- a history's
    """Return the training samples of an epoch."""
    samples = replica.dataset.train_samples
    assert isinstance(samples, int)  # noqa: S101
    return samples


class Section(NamedTuple):
    """One part of what is measured."""

    measure: Callable[[Sizes], Iterator[Row]]
    limit: int
    """Seconds that it may take."""


SECTIONS: dict[str, Section] = {
    "peaks": Section(peaks, 60),
    "448": Section(lambda sizes: against(sizes, sizes.batches[0]), 530),
    "56": Section(lambda sizes: against(sizes, sizes.batches[1]), 400),
    "variants": Section(variants, 530),
    "memory": Section(memory, 530),
    "kernels": Section(kernels, 530),
    "idle 5 ms": Section(lambda sizes: idle(sizes, 5e-3), 530),
    "idle 50 us": Section(lambda sizes: idle(sizes, 5e-5), 530),
    "host": Section(host, 200),
    "profile": Section(profile, 300),
    "run": Section(run, 535),
}
"""The sections by their names, the most telling first; each in less than nine minutes."""
