"""Training of public benchmarks' networks: our engines compared with their reference loops.

    python benchmarks/workloads.py [FILE.json] [--only cosmoflow-64] [--engine torch]

Prints a table in Markdown. Both sides train in one process, a step each in turn, every other turn
in the opposite order, on the same samples in memory and on as many threads, so that what else the
machine does meets both. What is compared is the median step; the ratio is the median of those of
the turns, of the time that passed and of the processors' time, which says more where others want
them too (``taskset -c 0``: on one core no thread waits for another). The loops are plain and as
fast as such loops get: PyTorch's in channels-last memory, with freed memory kept by the C library
as the engine sets it, in bf16 once by autocast and once with parameters in bf16; TensorFlow's is a
Keras model, ``GradientTape`` in a ``tf.function``, and ``mixed_bfloat16``. Page faults are those
of a step, ours and the loop's.
The load is that of the machine when a case begins.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import heading, in_turns, machine, report, row, save, work
from workload_cases import CASES, MOMENTUM, RATE, WARM, Case

from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState

PRECISIONS = ("fp32", "bf16")
ENGINES = ("torch", "tensorflow")
Step = Callable[[], object]
Seconds = dict[str, list[tuple[float, float, int]]]
"""The time that passed in each side's steps, processors' time, and page faults."""


def ours(case: Case, engine: str, precision: str, cores: int) -> Step:
    """Return a step of our engine."""
    graph, batch = case.graph(), case.samples(0)
    weights = initial_weights(graph, np.random.default_rng(0))
    made = load_engine(engine, cores, objective=case.objective)
    network = made.build(NetworkState(graph, weights, case.used(precision)))

    def step() -> None:
        network.train_step(batch, RATE)
        network.drain_training()

    return step


def plain_torch(case: Case, cores: int, *, autocast: bool, dtype: str = "float32") -> Step:
    """Return a step of a training loop as in PyTorch's tutorials, in channels-last memory."""
    import torch

    model, batch = case.plain("torch"), case.samples(0)
    (array,) = batch.inputs.values()
    used = getattr(torch, dtype)
    inputs = torch.from_numpy(np.moveaxis(array, -1, 1).copy())
    targets = {name: torch.from_numpy(array) for name, array in batch.targets.items()}
    layout = torch.channels_last_3d if inputs.ndim == 5 else torch.channels_last
    network = model.network.train().to(used, memory_format=layout)
    inputs = inputs.to(used, memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=MOMENTUM)

    def step() -> None:
        torch.set_num_threads(cores)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = network(inputs)
        loss = model.loss(output.float(), targets)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def plain_tensorflow(case: Case, precision: str) -> Step:
    """Return a step of a custom training loop as in TensorFlow's guide."""
    import keras

    from aiperf_hpc.replica.tensorflow_import import tf

    keras.mixed_precision.set_global_policy(
        {"fp32": "float32", "bf16": "mixed_bfloat16"}[precision]
    )
    model, batch = case.plain("tensorflow"), case.samples(0)
    network = model.network
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    optimizer.build(network.trainable_variables)
    (inputs,) = map(tf.constant, batch.inputs.values())
    targets = {name: tf.constant(array) for name, array in batch.targets.items()}

    @tf.function  # type: ignore[untyped-decorator]
    def train(inputs: Any, targets: Any) -> Any:  # noqa: ANN401 -- of TensorFlow
        with tf.GradientTape() as tape:
            loss = model.loss(tf.cast(network(inputs, training=True), tf.float32), targets)
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))
        return loss

    return lambda: float(train(inputs, targets))


def sides(case: Case, engine: str, precision: str, cores: int) -> dict[str, Step]:
    """Return the sides of the comparison."""
    own = {"ours": ours(case, engine, precision, cores)}
    if engine == "tensorflow":
        return own | {"tf.function": plain_tensorflow(case, precision)}
    if precision == "fp32":
        return own | {"plain": plain_torch(case, cores, autocast=False)}
    return own | {
        "autocast": plain_torch(case, cores, autocast=True),
        "bfloat16": plain_torch(case, cores, autocast=False, dtype="bfloat16"),
    }


def steps_in_turns(steps: Mapping[str, Step], turns: int) -> Seconds:
    """Return the seconds of each side's steps after the first ones."""
    cases = {name: partial(_passed, step) for name, step in steps.items()}
    return {name: each[WARM:] for name, each in in_turns(cases, WARM + turns).items()}


def _passed(step: Step) -> tuple[float, float, int]:
    began = _counters()
    step()
    wall, processors, faults = _counters()
    return wall - began[0], processors - began[1], faults - began[2]


def _counters() -> tuple[float, float, int]:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return time.perf_counter(), time.process_time(), faults


def ratio(seconds: Seconds, other: str, clock: int) -> float:
    """Return the median, over the turns, of another side's seconds by ours."""
    pairs = zip(seconds[other], seconds["ours"], strict=True)
    return statistics.median(theirs[clock] / own[clock] for theirs, own in pairs)


def compare(chosen: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Print a row for each case, engine and precision, and side that it is compared with."""
    found: dict[str, Any] = {}
    heading("network", "engine", "precision", "ours, ms", "loop, ms", "ratio", "of processors",
            "page faults", "load")  # fmt: skip
    for name, engine, precision in chosen:
        load = os.getloadavg()[0]
        seconds = work(__file__, name, engine, precision)
        found[f"{name} {engine} {precision}"] = {"seconds": seconds, "load": load}
        for other in (side for side in seconds if side != "ours"):
            own, plain = (
                [statistics.median(column) for column in zip(*seconds[side], strict=True)]
                for side in ("ours", other)
            )
            row(
                f"{name}, batch {CASES[name].batch}", f"{engine}, {other}", precision,
                f"{1e3 * own[0]:,.0f}", f"{1e3 * plain[0]:,.0f}",
                *(f"{ratio(seconds, other, clock):.2f}" for clock in (0, 1)),
                f"{own[2]:,.0f}, {plain[2]:,.0f}", f"{load:.1f}",
            )  # fmt: skip
    return found


def main() -> None:
    """Run the requested measurements, print the table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--work", nargs=3, metavar=("CASE", "ENGINE", "PRECISION"))
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    parser.add_argument("--engine", choices=ENGINES, nargs="*", default=list(ENGINES))
    parser.add_argument("--precision", choices=PRECISIONS, nargs="*", default=list(PRECISIONS))
    options = parser.parse_args()
    if options.work:
        name, engine, precision = options.work
        cores, case = len(os.sched_getaffinity(0)), CASES[name]
        report(steps_in_turns(sides(case, engine, precision, cores), case.turns))
        return
    chosen = [
        (name, engine, precision)
        for name in options.only
        for engine in options.engine
        for precision in options.precision
        if engine in CASES[name].engines
    ]
    save(options.result, machine(), compare(chosen))


if __name__ == "__main__":
    main()
