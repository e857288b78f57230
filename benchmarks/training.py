"""Training side by side: both engines and the loops that somebody would write by hand.

python benchmarks/training.py FILE            # measures; JSON into FILE, then a table
python benchmarks/training.py FILE --report   # the table of what was measured before
python benchmarks/training.py FILE --quick    # fewer and shorter runs
python benchmarks/training.py FILE --case 32 bf16    # one case, beside those in FILE already

Every subject trains the same network, ResNet-50, on the same images in memory. Each run is a
process of its own, so that no framework's threads or memory are there while another one is
measured; the subjects take turns, every other turn in the opposite order. The peak is the best of
a few large convolutions by oneDNN in the same precision, forward and backward.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from side_by_side import machine

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.trial import Hyperparameters

RATE, CLASSES = 0.01, 1000
WARM = 3


class Case(NamedTuple):
    """What is trained."""

    size: int
    batch: int
    precision: str
    steps: int


CASES = tuple(
    Case(size, batch, precision, steps)
    for size, batch, steps in ((224, 16, 6), (32, 128, 12))
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
    """Return a batch that is made up, (samples, height, width, 3) and (samples,)."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((case.batch, case.size, case.size, 3), np.float32)
    return images, rng.integers(0, CLASSES, case.batch).astype(np.int32)


def _engine(name: Engine, *, compiled: bool = False) -> Callable[[Case, int], Step]:
    def make(case: Case, cores: int) -> Step:
        from aiperf_hpc.config import EngineConfig
        from aiperf_hpc.replica.data.base import labelled_images
        from aiperf_hpc.replica.engines import load_engine

        used = Hyperparameters(
            batch_size=case.batch,
            learning_rate=RATE,
            precision=case.precision,
        )
        graph = network(case)
        weights = initial_weights(graph, np.random.default_rng(0))
        settings = EngineConfig(name=name, compile="always" if compiled else "auto")
        built = load_engine(name, cores, settings=settings).build(graph, weights, used)
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


def _tensorflow_threads(cores: int) -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(cores)


def _keras_fit(case: Case, cores: int) -> Step:
    _tensorflow_threads(cores)
    import keras
    import tensorflow as tf

    model = _keras_model(case)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(RATE, momentum=0.9), loss, jit_compile=False)
    data = tf.data.Dataset.from_tensors(tuple(map(tf.constant, samples(case))))
    return lambda: model.fit(data, shuffle=False, verbose=0)


def _tf_function(case: Case, cores: int) -> Step:
    _tensorflow_threads(cores)
    import keras
    import tensorflow as tf

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
    model = plain(CLASSES).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    inputs, labels = samples(case)
    images = torch.from_numpy(inputs).permute(0, 3, 1, 2)
    wanted = torch.from_numpy(labels).long()

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(model(images).float(), wanted)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return step


def _torch_loop_with_memory(case: Case, cores: int) -> Step:
    from aiperf_hpc.replica.engines.torch.device import keep_freed_memory

    keep_freed_memory()
    return _torch_loop(case, cores)


SUBJECTS: dict[str, Callable[[Case, int], Step]] = {
    "engine tensorflow": _engine("tensorflow"),
    "Keras fit": _keras_fit,
    "tf.function loop": _tf_function,
    "engine torch": _engine("torch"),
    "engine torch, compiled": _engine("torch", compiled=True),
    "PyTorch loop, channels-last": _torch_loop,
    "that loop, freed memory kept": _torch_loop_with_memory,
}
PEERS = {
    "engine tensorflow": ("Keras fit", "tf.function loop"),
    "engine torch": ("PyTorch loop, channels-last", "tf.function loop"),
    "engine torch, compiled": ("engine torch",),
    "that loop, freed memory kept": ("PyTorch loop, channels-last",),
}
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


def run(subject: str, case: Case, cores: int) -> None:
    """Measure one run in this process; print it as JSON."""
    if subject == PEAK:
        print(json.dumps(convolution_peak(case.precision, cores)))
        return
    step = SUBJECTS[subject](case, cores)
    for _ in range(WARM):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    seconds = []
    for _ in range(case.steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // case.steps
    print(f"{subject}: {faults} page faults a step", file=sys.stderr)
    print(json.dumps(seconds))


def measure(file: Path, repeats: int, cases: tuple[Case, ...], cores: int) -> None:
    """Run every subject in turn; keep what they say in a file, beside other cases."""
    results = json.loads(file.read_text("utf-8"))["results"] if file.exists() else []
    for case in cases:
        runs: dict[str, list[list[float]]] = {name: [] for name in (PEAK, *SUBJECTS)}
        for turn in range(repeats):
            names = list(runs)
            for name in reversed(names) if turn % 2 else names:
                command = [sys.executable, __file__, "--run", name, json.dumps(case)]
                done = subprocess.run(
                    [*command, "--cores", str(cores)], stdout=subprocess.PIPE, check=True
                )
                runs[name].append(json.loads(done.stdout.splitlines()[-1]))
                print(case, name, turn, file=sys.stderr, flush=True)
        results = [r for r in results if Case(**r["case"])[:3] != case[:3]]
        results.append({"case": case._asdict(), "runs": runs})
        said = {"machine": machine(), "cores": cores, "warm": WARM, "results": results}
        file.write_text(json.dumps(said, indent=1), "utf-8")


def report(file: Path) -> None:
    """Print a table: the median of all steps, the spread of the runs' medians, the best step.

    The best step says what a subject can do; on a machine that others use, the median also says
    who was beside it. Shares of the peak are by the best step, as the peak is.
    """
    said = json.loads(file.read_text("utf-8"))
    print(f"{said['machine']}, {said['cores']} cores\n")
    print("| network, batch | | subject | images/s | runs | best | GOPS | of peak | median, best |")
    print("|---|---|---|---|---|---|---|---|---|")
    for result in said["results"]:
        case, runs = Case(**result["case"]), result["runs"]
        peak = max(max(run) for run in runs[PEAK])
        operations = count(network(case)).training
        steps = {name: [s for run in runs[name] for s in run] for name in SUBJECTS}
        for name, seconds in steps.items():
            median, best = statistics.median(seconds), min(seconds)
            each = sorted(case.batch / statistics.median(run) for run in runs[name])
            ratios = "; ".join(
                f"{statistics.median(steps[peer]) / median:.2f}, {min(steps[peer]) / best:.2f} "
                f"× {peer}"
                for peer in PEERS.get(name, ())
            )
            done = case.batch * operations / best
            print(
                f"| {case.size}², {case.batch} | {case.precision} | {name} | "
                f"{case.batch / median:.1f} | {each[0]:.1f} to {each[-1]:.1f} | "
                f"{case.batch / best:.1f} | {done / 1e9:.0f} | {done / peak:.0%} | {ratios} |"
            )
        print(f"| | {case.precision} | convolution peak | | | | {peak / 1e9:.0f} | | |")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", help="where the measurements are kept")
    parser.add_argument("--report", action="store_true", help="only print the table")
    parser.add_argument("--quick", action="store_true", help="one short run of each, at 32²")
    parser.add_argument("--case", nargs=2, metavar=("SIZE", "PRECISION"), help="this one alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--run", nargs=2, metavar=("SUBJECT", "CASE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.run[0], Case(*json.loads(options.run[1])), options.cores)
        return
    if options.file is None:
        parser.error("name a file to keep the measurements in")
    if not options.report:
        repeats, cases = options.repeats, CASES
        if options.case:
            cases = tuple(c for c in CASES if [str(c.size), c.precision] == options.case)
        if options.quick:
            repeats, cases = 1, tuple(c._replace(steps=3) for c in cases if c.size == 32)
        measure(options.file, repeats, cases, options.cores)
    report(options.file)


if __name__ == "__main__":
    main()
