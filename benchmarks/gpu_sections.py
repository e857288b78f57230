"""The sections of ``gpu.py``: one function each, which yields its measurements one by one.

Each is asked whether a figure is lacking before it measures it, so that an interrupted section can
be resumed. A figure is told from others of its section by ``what`` and, if there are several, a
``number``.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count as numbers
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_peers import PEERS, joules, peer, tensorflow_rate
from gpu_report import ENGINE, TENSORFLOW
from input_pipeline import lay_out
from side_by_side import signal_when_parent_ends

from aiperf_hpc.config import DatasetConfig, EngineConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import KernelSize, Wider
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.memory import traffic, training_bytes
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.replica.data.base import Batch, Pixels, PixelScaling, labelled_images
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.engines.peaks import Images, Work
from aiperf_hpc.replica.engines.torch.engine import TorchEngine
from aiperf_hpc.replica.engines.torch.gradients import BUCKET_BYTES
from aiperf_hpc.replica.engines.torch.network import TorchNetwork
from aiperf_hpc.replica.engines.torch.peak_kernels import TorchDevice
from aiperf_hpc.replica.parallel.collectives import join
from aiperf_hpc.replica.runtime.background import lower_priority
from aiperf_hpc.run.replica_requests import by_category
from aiperf_hpc.trial import Hyperparameters

RATE = 0.01
INITIAL = "ResNet-50"
SWITCH_SECONDS = 5e-5
"""How long a thread may hold Python's lock while another one waits for it, as in a replica."""
JPEG_SECONDS = 5.0
MOST_THREADS = 16
SCALING = PixelScaling((1 / 64,) * 3, (-2.0,) * 3)
"""What the bytes of images stand for."""
Row = dict[str, Any]
Lacks = Callable[..., bool]
"""Tells whether a figure, by ``what`` and ``number``, has not been measured yet."""


class Sizes(NamedTuple):
    """Sizes of the measurements, on a GPU or in a trial run on a CPU."""

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
    jpegs: int
    """Images that are read as JPEG files."""
    run: tuple[str, ...]
    """Arguments of the whole run."""


GPU = Sizes(
    device="cuda", image=224, classes=1000, width=64, batches=(448, 56), matrix=8192,
    array=2**30, steps=12, rounds=5, jpegs=4096,
    # The official network and batch, for epochs of 6 s. The first trial's are measured.
    run=(
        "--hours", "0.055", "--config", "imagenet_gpu", "--set", "dataset.train_samples=26880",
        "--set", "dataset.validation_samples=2688", "--set", "dataset.classes=1000",
        "--set", "dataset.decoded_cache_gib=5", "--set", "training.max_epochs=10",
        "--set", "rounds.warmup_epochs=[10,10,10]", "--set", "journal.progress_interval_seconds=1",
    ),
)  # fmt: skip
DRY = Sizes(
    device="cpu", image=32, classes=10, width=8, batches=(4, 2), matrix=256,
    array=2**20, steps=2, rounds=2, jpegs=32,
    run=(
        "--hours", "0.01", "--set", "dataset.image_size=16", "--set", "dataset.train_samples=256",
        "--set", "dataset.validation_samples=32", "--set", "dataset.decoded_cache_gib=0.1",
        "--set", "model.base_width=8", "--set", "model.blocks=[1,1,1,1]",
        "--set", "training.batch_size=16", "--set", "training.max_epochs=2",
        "--set", "rounds.warmup_epochs=[2,2,2]", "--set", "journal.progress_interval_seconds=0.1",
    ),
)  # fmt: skip


def candidates(sizes: Sizes) -> dict[str, Graph]:
    """Return ResNet-50 and networks derived by morphisms: larger kernels, wider layers."""
    shape = (sizes.image, sizes.image, 3)
    initial = resnet50(shape, sizes.classes, base_width=sizes.width)
    spatial = [
        node.name
        for node in initial.nodes
        if getattr(node.layer, "kernel", 0) == 3 and node.layer.kind == "conv2d"
    ]
    larger = wider = initial
    for name in spatial[::2]:
        larger = KernelSize(name, 5).child(larger)
        wider = Wider(name, 2 * wider.shapes[name][-1]).child(wider)
    return {
        INITIAL: initial,
        "half of its 3x3 kernels 5x5": larger,
        "half of its 3x3 convolutions twice as wide": wider,
    }


def synchronize(sizes: Sizes) -> None:
    """Wait for all queued work of the device."""
    if sizes.device == "cuda":
        torch.cuda.synchronize()


def seconds_of(step: Callable[[], object], sizes: Sizes, warm: int = 3) -> float:
    """Return the time of a step: the steps are queued, then waited for."""
    for _ in range(warm):
        step()
    synchronize(sizes)
    start = time.perf_counter()
    for _ in range(sizes.steps):
        step()
    synchronize(sizes)
    return (time.perf_counter() - start) / sizes.steps


def peaks(sizes: Sizes, lacks: Lacks) -> Iterator[Row]:
    """Yield peak operations and bytes per second by the kernels of `aiperf peaks`, and NCCL's."""
    device, batch = TorchDevice(sizes.device, 0, threads()), sizes.batches[0]
    torch.backends.cudnn.benchmark = True
    makes: dict[str, Callable[[], Work]] = {
        "matrix": partial(device.product, sizes.matrix, "bf16"),
        "memory": partial(device.movement, "copy", sizes.array),
        "convolution": partial(device.convolution, Images(batch, 512, 28), "bf16"),
        "all-reduce": partial(one_rank_reduction, sizes),
    }
    for name, make in makes.items():
        if lacks(name):
            work = make()
            yield {"what": name, "rate": work.amount / seconds_of(work.run, sizes)}


def one_rank_reduction(sizes: Sizes) -> Work:
    """Return the reduction of a bucket of gradients within a single rank, by NCCL on GPUs."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    collective, bucket = join("torch"), torch.ones(BUCKET_BYTES // 4, device=sizes.device)
    return Work("", BUCKET_BYTES, lambda: collective.start_allreduce_sum(bucket)())


def batch_of(sizes: Sizes, batch: int) -> Batch:
    """Return samples that are already on the device, so that no copy is measured."""
    images = torch.randn(batch, sizes.image, sizes.image, 3, device=sizes.device)
    return labelled_images(images, torch.randint(0, sizes.classes, (batch,), device=sizes.device))


def engine_of(sizes: Sizes) -> TorchEngine:
    """Return the engine."""
    settings = EngineConfig(name="torch", device="cpu" if sizes.device == "cpu" else "cuda")
    engine = load_engine("torch", 2, settings=settings)
    assert isinstance(engine, TorchEngine)  # noqa: S101
    return engine


def untrained(graph: Graph, batch: int) -> NetworkState:
    """Return a network to build, with its first weights."""
    weights = initial_weights(graph, np.random.default_rng(0))
    used = Hyperparameters(batch_size=batch, learning_rate=RATE, precision="bf16")
    return NetworkState(graph, weights, used)


def warmed(sizes: Sizes, graph: Graph, batch: int) -> TorchNetwork:
    """Build a network of the engine, and compile it."""
    network = engine_of(sizes).build(untrained(graph, batch))
    network.warm(batch)
    return network


def against(sizes: Sizes, batch: int, lacks: Lacks) -> Iterator[Row]:
    """Yield images a second and joules an image of the engine and its peers, which take turns.

    The engine's first figure also has its peak of memory, which no peer shares yet.
    """
    graph, data = candidates(sizes)[INITIAL], batch_of(sizes, batch)
    sizes = sizes._replace(steps=sizes.steps * sizes.batches[0] // batch)  # Seconds, for NVML.
    made: dict[str, Callable[[], object]] = {}
    # Autotuning takes minutes, so that it is measured with the large batch only.
    names = [ENGINE, *list(PEERS)[: None if batch == sizes.batches[0] else 2]]
    for number in range(sizes.rounds):
        for name in names[:: -1 if number % 2 else 1]:
            if not lacks(name, number):
                continue
            if name not in made:
                made[name] = training_step(sizes, name, data)
            row = {"what": name, "number": number, "batch": batch}
            row |= steady(made[name], sizes, batch)
            if list(made) == [ENGINE]:
                row |= peak_memory(sizes, graph, batch) | bounds(graph, batch)
            yield row
    if batch == sizes.batches[0] and lacks(TENSORFLOW):
        made.clear()
        forget_peak(sizes)  # Its process needs the memory.
        rate = tensorflow_rate((sizes.image, batch, "bf16", sizes.steps), threads())
        yield {"what": TENSORFLOW, "images": rate}


def training_step(sizes: Sizes, name: str, data: Batch) -> Callable[[], object]:
    """Return the step of the engine or of a peer."""
    if name == ENGINE:
        forget_peak(sizes)
        network = warmed(sizes, candidates(sizes)[INITIAL], data.size)
        return partial(network.train_step, data, RATE)
    return peer(name, data.inputs["image"], data.targets["label"], sizes.classes)


def steady(step: Callable[[], object], sizes: Sizes, batch: int) -> Row:
    """Return the images a second of a step, and its joules an image."""
    seconds_of(step, sizes, warm=0)
    before = joules(sizes.device)
    seconds = seconds_of(step, sizes, warm=0)
    after = joules(sizes.device)
    energy = None if before is None or after is None else (after - before) / sizes.steps / batch
    return {"images": batch / seconds, "joules": energy}


def bounds(graph: Graph, batch: int) -> Row:
    """Return the operations and bytes of training one image, for separate and for fused layers."""
    moved = [traffic(graph, "bf16", fused=fused).training(batch, 1) / batch for fused in (0, 1)]
    operations = count(graph).training
    return {"operations": operations, "separate_bytes": moved[0], "fused_bytes": moved[1]}


def threads() -> int:
    """Return the threads that read and compute on the host."""
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))


def forget_peak(sizes: Sizes) -> None:
    """Reset the peak memory counter."""
    gc.collect()
    if sizes.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(sizes: Sizes, graph: Graph, batch: int) -> Row:
    """Return the peak memory of a network's training and its estimate, in bytes.

    The former has what CUDA takes for itself; on CPUs it is the process's.
    """
    if sizes.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        own = total - free - torch.cuda.memory_reserved()
        measured = own + torch.cuda.max_memory_reserved()
    else:
        measured = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"measured": measured, "estimate": training_bytes(graph, batch, "bf16")}


def kernels(sizes: Sizes, lacks: Lacks) -> Iterator[Row]:
    """Yield the engine's speed on derived networks, and its preparation time."""
    batch = sizes.batches[0]
    data = batch_of(sizes, batch)
    for name, graph in list(candidates(sizes).items())[1:]:
        if not lacks(name):
            continue
        forget_peak(sizes)
        start = time.perf_counter()
        network = warmed(sizes, graph, batch)
        prepared = time.perf_counter() - start
        images = batch / seconds_of(partial(network.train_step, data, RATE), sizes)
        peak = peak_memory(sizes, graph, batch)
        network.close()
        yield {
            "what": name,
            "images": images,
            "ops": images * count(graph).training,
            "prepared": prepared,
            **peak,
        }


def idle(sizes: Sizes, lacks: Lacks) -> Iterator[Row]:
    """Yield trainings during which the next network is prepared, as in a replica.

    Another process compiles it, and a thread loads it. Each training lasts until then: its steps
    and seconds, the longest that the launching of one took, and a step's time while nothing was
    compiled; then the gap until the next network's first step was launched, in which it is warmed.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    batch = sizes.batches[0]
    data, engine = batch_of(sizes, batch), engine_of(sizes)
    (_, first), *others = candidates(sizes).items()

    def prepared(graph: Graph) -> TorchNetwork:
        state = untrained(graph, batch)
        engine.compile_ahead(state)
        following = engine.build(state)
        if not engine.warms_alone:
            following.warm(batch)
        return following

    network = warmed(sizes, first, batch)
    with ThreadPoolExecutor(1, initializer=lower_priority) as thread:
        for name, graph in (each for each in others if lacks(each[0])):
            alone = seconds_of(partial(network.train_step, data, RATE), sizes)
            start = time.perf_counter()
            coming = thread.submit(prepared, graph)
            launched = [start]
            while len(launched) == 1 or not coming.done():
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


def host(sizes: Sizes, lacks: Lacks) -> Iterator[Row]:
    """Yield images a second of training from the host's memory, and of reading JPEG files."""
    rng, batch = np.random.default_rng(0), sizes.batches[0]
    shape = (batch, sizes.image, sizes.image, 3)
    labels = rng.integers(0, sizes.classes, batch).astype(np.int32)
    pixels = Pixels(rng.integers(0, 256, shape, np.uint8), SCALING)
    batches = {
        "uint8": lambda: labelled_images(pixels, labels),
        "float32": lambda: labelled_images(np.asarray(pixels), labels),
    }
    if any(map(lacks, batches)):
        network = warmed(sizes, candidates(sizes)[INITIAL], batch)
        for name, make in batches.items():
            if lacks(name):
                step = partial(network.train_step, make(), RATE)
                yield {"what": name, "batch": batch, "images": batch / seconds_of(step, sizes)}
        network.close()
    if lacks("JPEG"):
        yield {"what": "JPEG", "batch": batch, "threads": threads(), **jpeg_rate(sizes)}


def jpeg_rate(sizes: Sizes) -> Row:
    """Return the images a second that are read and decoded, and the mean size of their files."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photographs").mkdir()
        for number in range(32):
            bands = (Image.effect_noise((500, 375), 32.0) for _ in "RGB")
            Image.merge("RGB", list(bands)).save(folder / "photographs" / f"{number}.jpg")
        files = list((folder / "photographs").iterdir())
        lay_out(folder / "photographs", folder, sizes.jpegs)
        config = DatasetConfig(name="imagenet", path=folder / "jpeg", image_size=sizes.image)
        dataset = load_dataset(config, threads(), "torch")
        read, epochs = 0, numbers()
        for _ in dataset.train(next(epochs), sizes.batches[0], 0):
            pass  # The files are in memory, and the threads are there.
        begun = time.perf_counter()
        while (passed := time.perf_counter() - begun) < JPEG_SECONDS:
            for batch in dataset.train(next(epochs), sizes.batches[0], 0):
                read += batch.size
        mean = sum(file.stat().st_size for file in files) / len(files)
    return {"images": read / passed, "bytes": mean}


def profile(sizes: Sizes, lacks: Lacks) -> Iterator[Row]:
    """Yield the time of steps by category of kernel, and the idle time."""
    from aiperf_hpc.replica.engines.torch.profiler import record

    graph = candidates(sizes)[INITIAL]
    for batch in filter(partial(lacks, "profile"), sizes.batches):
        network, data = warmed(sizes, graph, batch), batch_of(sizes, batch)
        step = partial(network.train_step, data, RATE)
        plain = sizes.steps * seconds_of(step, sizes)
        with tempfile.TemporaryDirectory() as folder:
            recording = record(partial(seconds_of, step, sizes, warm=0), Path(folder))
        network.close()
        shares = {
            each.category.value: each.fraction
            for each in by_category(recording.kernels, recording.total_seconds)
        }
        yield {
            "what": "profile",
            "number": batch,
            "timed": recording.timed,
            "plain": plain,
            "device": recording.total_seconds,
            "categories": shares,
        }


def run(sizes: Sizes, lacks: Lacks) -> Iterator[Row]:
    """Yield the time breakdown of a run's trainer, and its rate on the first network."""
    from aiperf_hpc.run.history import RunHistory
    from aiperf_hpc.run.paths import RunPaths

    if not lacks("run"):
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = RunPaths(Path(folder) / "run")
        command = [
            sys.executable, "-m", "aiperf_hpc.cli", "start", "--nodes", "1", "--yes",
            "--launcher", "local", "--run-dir", str(paths.root), *sizes.run, "--set",
            "engine.name=torch", "--set", "dataset.name=synthetic",
        ]  # fmt: skip
        # A section that is cut at its limit is killed; its run then stops in order.
        tell = partial(signal_when_parent_ends, signal.SIGTERM)
        subprocess.run(command, check=True, stdout=sys.stderr, preexec_fn=tell)
        history = RunHistory.read(paths)
        lines = [line for path in paths.journals() for line in path.open(encoding="utf-8")]
    (replica,) = history.replicas.values()
    initial = {name for name, trial in history.trials.items() if trial.started.parent is None}
    yield {
        "what": "run",
        "trials": len(history.trials),
        "steady": steady_rate(map(json.loads, lines), initial),
        "phases": {str(phase): seconds for phase, seconds in replica.seconds.items()},
    }


def steady_rate(records: Iterable[Row], trials: set[str]) -> float | None:
    """Return the images a second between two records of progress in one epoch of some trials.

    So neither evaluating and storing nor the start of an epoch's input counts. None if no epoch has
    two such records.
    """
    progress = [
        (record["mono"], event["trial"], event["epoch"], event["train_samples"])
        for record in records
        if (event := record["event"])["type"] == "progress" and event["train_samples"]
    ]
    samples = seconds = 0.0
    for (before, *one, _), (after, *other, trained) in pairwise(progress):
        if one == other and one[0] in trials:
            samples, seconds = samples + trained, seconds + after - before
    return samples / seconds if seconds else None


MEASUREMENTS: dict[str, Callable[[Sizes, Lacks], Iterator[Row]]] = {
    "peaks": peaks,
    "448": lambda sizes, lacks: against(sizes, sizes.batches[0], lacks),
    "host": host,
    "profile": profile,
    "56": lambda sizes, lacks: against(sizes, sizes.batches[1], lacks),
    "kernels": kernels,
    "idle": idle,
    "run": run,
}
"""What measures each section of ``gpu.py``."""
