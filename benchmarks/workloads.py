"""Public benchmarks' networks: training by our engines beside the loop that their reference has.

    python benchmarks/workloads.py [FILE.json] [--only cosmoflow-64] [--engine torch]

Prints a table in Markdown. Both sides train in one process, a step each in turn, every other turn
in the opposite order, on the same samples in memory and on as many threads, so that what else the
machine does meets both. What is compared is the median step; the ratio is the median of those of
the turns, of the time that passed and of the processors' time, which says more where others want
them too (``taskset -c 0``: on one core no thread waits for another). The loops are plain: PyTorch
with and without channels-last memory, with autocast in bf16; TensorFlow's is a Keras model,
``GradientTape`` in a ``tf.function``, and ``mixed_bfloat16``.
The load is that of the machine when a case begins.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import machine, save
from workload_cases import CASES, MOMENTUM, RATE, WARM, Case, tell, told

from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.replica.engines import load_engine

PRECISIONS = ("fp32", "bf16")
ENGINES = ("torch", "tensorflow")
Step = Callable[[], object]
Seconds = dict[str, list[tuple[float, float]]]
"""What passed in each side's steps, and what the processors spent on it."""


def ours(case: Case, engine: str, precision: str, cores: int) -> Step:
    """Return a step of our engine."""
    graph, batch = case.graph(), case.samples(0)
    weights = initial_weights(graph, np.random.default_rng(0))
    made = load_engine(engine, cores, objective=case.objective)
    network = made.build(graph, weights, case.used(precision))

    def step() -> None:
        network.train_step(batch, RATE)
        network.drain_training()

    return step


def plain_torch(case: Case, precision: str, cores: int, *, channels_last: bool) -> Step:
    """Return a step of a loop as PyTorch's tutorials have it."""
    import torch

    model, batch = case.plain("torch"), case.samples(0)
    (array,) = batch.inputs.values()
    inputs = torch.from_numpy(np.moveaxis(array, -1, 1).copy())
    targets = {name: torch.from_numpy(array) for name, array in batch.targets.items()}
    network = model.network.train()
    if channels_last:
        layout = torch.channels_last_3d if inputs.ndim == 5 else torch.channels_last
        network, inputs = network.to(memory_format=layout), inputs.to(memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=MOMENTUM)

    def step() -> None:
        torch.set_num_threads(cores)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            output = network(inputs)
        loss = model.loss(output.float(), targets)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def plain_tensorflow(case: Case, precision: str) -> Step:
    """Return a step of a custom training loop as TensorFlow's guide has it."""
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
    """Return what takes turns."""
    own = {"ours": ours(case, engine, precision, cores)}
    if engine == "tensorflow":
        return own | {"plain": plain_tensorflow(case, precision)}
    return own | {
        "plain": plain_torch(case, precision, cores, channels_last=False),
        "channels-last": plain_torch(case, precision, cores, channels_last=True),
    }


def steps_in_turns(steps: Mapping[str, Step], turns: int) -> Seconds:
    """Return the seconds of each side's steps after the first ones."""
    seconds: Seconds = {name: [] for name in steps}
    for turn in range(WARM + turns):
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            began = time.perf_counter(), time.process_time()
            steps[name]()
            passed = time.perf_counter() - began[0], time.process_time() - began[1]
            if turn >= WARM:
                seconds[name].append(passed)
    return seconds


def measured(*arguments: str) -> Seconds:
    """Return what a process of this program found that did one measurement."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    found: Seconds = told(done.stdout)
    return found


def ratio(seconds: Seconds, other: str, clock: int) -> float:
    """Return the median, over the turns, of another side's seconds by ours."""
    pairs = zip(seconds[other], seconds["ours"], strict=True)
    return statistics.median(theirs[clock] / own[clock] for theirs, own in pairs)


def compare(chosen: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Print a row for each case, engine and precision, and side that it is compared with."""
    found: dict[str, Any] = {}
    print("| network | engine | precision | ours, ms | plain, ms | ratio | of processors | load |")
    print("|---|---|---|---|---|---|---|---|")
    for name, engine, precision in chosen:
        load = os.getloadavg()[0]
        seconds = measured("--work", name, engine, precision)
        found[f"{name} {engine} {precision}"] = {"seconds": seconds, "load": load}
        for other in (side for side in seconds if side != "ours"):
            own, plain = (
                1e3 * statistics.median(passed for passed, _ in seconds[side])
                for side in ("ours", other)
            )
            ratios = " | ".join(f"{ratio(seconds, other, clock):.2f}" for clock in (0, 1))
            print(
                f"| {name}, batch {CASES[name].batch} | {engine}, {other} | {precision} "
                f"| {own:,.0f} | {plain:,.0f} | {ratios} | {load:.1f} |",
                flush=True,
            )
    return found


def main() -> None:
    """Measure what is asked for, print the table, and write JSON."""
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
        tell(steps_in_turns(sides(case, engine, precision, cores), case.turns))
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
