"""Training side by side: both engines and the fastest plain loop of each framework.

python benchmarks/training.py FILE            # measures; JSON into FILE, then a table
python benchmarks/training.py FILE --report   # the table of what was measured before
python benchmarks/training.py FILE --quick    # fewer and shorter runs
python benchmarks/training.py FILE --case 32 bf16    # one case, beside those in FILE already
python benchmarks/training.py FILE --engine torch    # that engine and its loop alone

Every subject trains the same network, ResNet-50, on the same images in memory, in a process of its
own. The processes of a run take turns, a step each, every other turn in the opposite order, so
that what else the machine does meets all of them; each run starts new ones. Freed memory is kept
in all of them: the loops have that by KEEP_MEMORY. The peak is
the best of a few large convolutions by oneDNN in the same precision, forward and backward.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from side_by_side import heading, in_turns, machine, row

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.trial import Hyperparameters

RATE, CLASSES = 0.01, 1000
WARM = 3


class Case(NamedTuple):
    """A network with its input and batch."""

    size: int
    batch: int
    precision: str
    turns: int


CASES = tuple(
    Case(size, batch, precision, turns)
    for size, batch, turns in ((224, 16, 4), (32, 128, 10))
    for precision in ("fp32", "bf16")
)
Engine = Literal["tensorflow", "torch"]
Step = Callable[[], object]
Images = NDArray[np.float32]
Labels = NDArray[np.int32]


def network(case: Case) -> Graph:
    """Return ResNet-50 for a case's images."""
    return resnet50((case.size, case.size, 3), CLASSES)


def samples(case: Case) -> tuple[Images, Labels]:
    """Return a synthetic batch, (samples, height, width, 3) and (samples,)."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((case.batch, case.size, case.size, 3), np.float32)
    return images, rng.integers(0, CLASSES, case.batch).astype(np.int32)


def _engine(name: Engine) -> Callable[[Case, int], Step]:
    def make(case: Case, cores: int) -> Step:
        from aiperf_hpc.replica.data.base import labelled_images
        from aiperf_hpc.replica.engines import load_engine

        used = Hyperparameters(
            batch_size=case.batch,
            learning_rate=RATE,
            precision=case.precision,
        )
        graph = network(case)
        weights = initial_weights(graph, np.random.default_rng(0))
        built = load_engine(name, cores).build(NetworkState(graph, weights, used))
        batch = labelled_images(*samples(case))

        def step() -> None:
            built.train_step(batch, RATE)
            built.drain_training()

        return step

    return make


def _keras_model(case: Case) -> Any:  # noqa: ANN401
    """Return the same network of Keras's own layers, as its applications are built."""
    import keras
    from workload_peers import resnet50_keras

    keras.mixed_precision.set_global_policy(
        {"fp32": "float32", "bf16": "mixed_bfloat16"}[case.precision]
    )
    model = resnet50_keras(case.size, strided_3x3=False)
    last = keras.layers.Activation("linear", dtype="float32")(model.output)
    return keras.Model(model.input, last)


def _tf_function(case: Case, cores: int) -> Step:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(cores)
    model = _keras_model(case)
    optimizer = keras.optimizers.SGD(RATE, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images, labels = map(tf.constant, samples(case))

    @tf.function  # type: ignore[untyped-decorator,unused-ignore]
    def train(images: Any, labels: Any) -> Any:  # noqa: ANN401
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return lambda: train(images, labels).numpy()


def _torch_loop(case: Case, cores: int) -> Step:
    import torch
    from torch_resnet50 import resnet50 as plain

    torch.set_num_threads(cores)
    low = case.precision == "bf16"
    # The faster way: conversions by autocast take a quarter of a step of small images.
    dtype = torch.bfloat16 if low and case.size == 32 else torch.float32
    model = plain(CLASSES).to(dtype, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    inputs, labels = samples(case)
    images = torch.from_numpy(inputs).permute(0, 3, 1, 2).to(dtype)
    wanted = torch.from_numpy(labels).long()

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=low and dtype is torch.float32):
            loss = torch.nn.functional.cross_entropy(model(images).float(), wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return step


SUBJECTS: dict[str, Callable[[Case, int], Step]] = {
    "engine tensorflow": _engine("tensorflow"),
    "tf.function loop": _tf_function,
    "engine torch": _engine("torch"),
    "PyTorch loop": _torch_loop,
}
SPAWN = multiprocessing.get_context("spawn")
PEERS = {"engine tensorflow": "tf.function loop", "engine torch": "PyTorch loop"}
KEEP_MEMORY = {f"MALLOC_{name}_THRESHOLD_": str(2**40) for name in ("TRIM", "MMAP")}
"""Variables by which glibc keeps freed memory."""
PEAK = "peak"
SHAPES = ((256, 14), (128, 28), (256, 28), (512, 28))
"""Channels and side of 3 x 3 convolutions, of 16 images."""


def convolution_peak(precision: str, cores: int) -> list[float]:
    """Return operations a second of each convolution, forward and backward."""
    import torch

    torch.set_num_threads(cores)
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    found = []
    for channels, side in SHAPES:
        x, kernel = (
            torch.randn(first, channels, size, size, dtype=kind)
            .to(memory_format=torch.channels_last)
            .requires_grad_()
            for first, size in ((16, side), (channels, 3))
        )
        slope = torch.randn(16, channels, side, side).to(kind)
        slope = slope.to(memory_format=torch.channels_last)
        seconds = []
        for _ in range(8):
            start = time.perf_counter()
            torch.conv2d(x, kernel, padding=1).backward(slope)  # type: ignore[no-untyped-call]
            seconds.append(time.perf_counter() - start)
            x.grad = kernel.grad = None
        found.append(3 * 2 * 16 * side**2 * channels**2 * 9 / min(seconds))
    return found


def serve(turns: Connection, subject: str, case: Case, cores: int) -> None:
    """Execute a step for each request; send its seconds and page faults."""
    step = SUBJECTS[subject](case, cores)
    for _ in range(WARM):
        step()
    turns.send("ready")
    while turns.recv():
        faults, start = _page_faults(), time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        turns.send((seconds, _page_faults() - faults))


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@contextmanager
def started(subject: str, case: Case, cores: int) -> Iterator[Callable[[], Any]]:
    """Start a process that waits for its turns; yield a function that executes one."""
    here, there = SPAWN.Pipe()
    os.environ.update(KEEP_MEMORY if subject in PEERS.values() else {})
    process = SPAWN.Process(target=serve, args=(there, subject, case, cores))
    process.start()
    for name in KEEP_MEMORY:
        os.environ.pop(name, None)
    here.recv()

    def take_turn() -> Any:  # noqa: ANN401 -- what a process sends
        here.send(True)
        return here.recv()

    yield take_turn
    here.send(False)
    process.join()


def measured(case: Case, subjects: Collection[str], cores: int) -> dict[str, list[Any]]:
    """Return the seconds and page faults of each subject's steps, and the peak's operations."""
    with SPAWN.Pool(1) as pool:
        peak = pool.apply(convolution_peak, (case.precision, cores))
    with ExitStack() as stack:
        steps = {name: stack.enter_context(started(name, case, cores)) for name in subjects}
        return {PEAK: peak} | in_turns(steps, case.turns)


def measure(file: Path, repeats: int, cases: tuple[Case, ...], cores: int, engine: str) -> None:
    """Measure some cases; keep the measurements in a file, beside other cases."""
    subjects = [name for pair in PEERS.items() if pair[0].endswith(engine) for name in pair]
    results = json.loads(file.read_text("utf-8"))["results"] if file.exists() else []
    for case in cases:
        runs = [measured(case, subjects, cores) for _ in range(repeats)]
        results = [r for r in results if Case(**r["case"])[:3] != case[:3]]
        results.append({"case": case._asdict(), "runs": runs})
        said = {"machine": machine(), "cores": cores, "warm": WARM, "results": results}
        file.write_text(json.dumps(said, indent=1), "utf-8")


def report(file: Path) -> None:
    """Print a table: medians of all turns; in brackets the medians of each run, least and most.

    Fractions of the peak are by the best step, as the peak is; ratios are those of the turns.
    """
    said = json.loads(file.read_text("utf-8"))
    print(f"{said['machine']}, {said['cores']} cores\n")
    heading("network, batch", "", "subject", "images/s", "of peak", "page faults a step",
            "times its loop")  # fmt: skip
    for result in said["results"]:
        case, runs = Case(**result["case"]), result["runs"]
        peak = max(max(run[PEAK]) for run in runs)
        operations = case.batch * count(network(case)).training
        for name in (subject for subject in SUBJECTS if subject in runs[0]):
            seconds = [[step[0] for step in run[name]] for run in runs]
            faults = statistics.median(step[1] for run in runs for step in run[name])
            best = operations / min(map(min, seconds)) / peak
            rate = _medians([[case.batch / s for s in run] for run in seconds], 1)
            row(f"{case.size}², {case.batch}", case.precision, name, rate, f"{best:.0%}",
                f"{faults:,.0f}", _ratios(name, runs))  # fmt: skip
        row("", case.precision, "convolution peak", "", f"{peak / 1e9:.0f} GOPS", "", "")


def _ratios(subject: str, runs: list[dict[str, list[Any]]]) -> str:
    """Return a subject's speed relative to its loop."""
    if subject not in PEERS:
        return ""
    pairs = [zip(run[PEERS[subject]], run[subject], strict=True) for run in runs]
    return _medians([[theirs[0] / own[0] for theirs, own in turns] for turns in pairs], 2)


def _medians(runs: list[list[float]], digits: int) -> str:
    each = [statistics.median(run) for run in runs]
    shown = (statistics.median(value for run in runs for value in run), min(each), max(each))
    middle, least, most = (f"{value:.{digits}f}" for value in shown)
    return f"{middle} ({least} to {most})"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", help="where the measurements are kept")
    parser.add_argument("--report", action="store_true", help="only print the table")
    parser.add_argument("--quick", action="store_true", help="one short run of each, at 32²")
    parser.add_argument("--case", nargs=2, metavar=("SIZE", "PRECISION"), help="this one alone")
    parser.add_argument("--engine", choices=("tensorflow", "torch"), default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if options.file is None:
        parser.error("name a file to keep the measurements in")
    if not options.report:
        repeats, cases = options.repeats, CASES
        if options.case:
            cases = tuple(c for c in CASES if [str(c.size), c.precision] == options.case)
        if options.quick:
            repeats, cases = 1, tuple(c._replace(turns=3) for c in cases if c.size == 32)
        measure(options.file, repeats, cases, options.cores, options.engine)
    report(options.file)


if __name__ == "__main__":
    main()
