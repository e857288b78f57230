"""Two ranks with a core each compared with one rank: this package and PyTorch's DDP over gloo.

``python benchmarks/ranks.py [RESULT.json]``: prints a Markdown table. Weak scaling: each rank has
the same batch, so two do twice the work in, at best, the same time. Ours and DDP take turns; each
run is a process tree of its own, and the median times of a step are compared. Ten minutes or so on
two free cores. ``aiperf allreduce`` measures the all-reduce alone.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from side_by_side import heading, in_turns, machine, report, row, save, work

from aiperf_hpc.morphism.resnet import resnet50 as resnet50_graph
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.primary.launchers.base import rank_starter
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part, labelled_images
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import NetworkState
from aiperf_hpc.replica.parallel.binding import share_cores
from aiperf_hpc.replica.parallel.collectives import ALONE, Collective, join
from aiperf_hpc.replica.parallel.follower import follow
from aiperf_hpc.replica.parallel.handshake import Ranks, facts_of
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine
from aiperf_hpc.replica.parallel.protocol import Command, announce
from aiperf_hpc.trial import DatasetInfo, Hyperparameters


class Scenario(NamedTuple):
    """ResNet-50, of 224x224 images and of small ones; times are of ``steps`` after ``warm_up``."""

    image: int
    batch: int
    """The samples of a rank in a step."""
    classes: int
    warm_up: int
    steps: int


SCENES = {
    "224": Scenario(image=224, batch=16, classes=1000, warm_up=2, steps=5),
    "32": Scenario(image=32, batch=64, classes=10, warm_up=3, steps=25),
}
SIDES = {"tensorflow over mpi": "mpi", "torch DDP over gloo": "torch"}


@dataclass
class RepeatedBatch:
    """One batch again and again."""

    scene: Scenario
    ranks: int

    @property
    def info(self) -> DatasetInfo:
        scene = self.scene
        steps = scene.warm_up + scene.steps
        return DatasetInfo.of_labelled_images(
            name="repeated",
            sha256="0" * 64,
            classes=scene.classes,
            shape=(scene.image, scene.image, 3),
            train_samples=steps * scene.batch * self.ranks,
            validation_samples=1,
        )

    def train(self, epoch: int, batch_size: int, seed: int, part: Part = WHOLE) -> Iterator[Batch]:
        del epoch, batch_size
        inputs, labels = samples(self.scene, seed + part.rank)
        for _ in range(self.scene.warm_up + self.scene.steps):
            yield labelled_images(inputs, labels, self.scene.batch * self.ranks)

    def validation(self, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        raise NotImplementedError


def samples(scene: Scenario, seed: int) -> tuple[Any, Any]:
    """Return synthetic images, NHWC, and labels."""
    rng = np.random.default_rng(seed)
    shape = (scene.batch, scene.image, scene.image, 3)
    inputs = rng.standard_normal(shape).astype(np.float32)
    return inputs, rng.integers(0, scene.classes, scene.batch).astype(np.int32)


def timed(scene: Scenario, step: Callable[[], None]) -> list[float]:
    """Return the seconds of each step after the first ones."""
    seconds = []
    for _ in range(scene.warm_up + scene.steps):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return seconds[scene.warm_up :]


def ours(scene: Scenario, collective: Collective) -> list[float]:
    """Train by this package; return the seconds of rank 0's steps."""
    ranks = Ranks(collective)
    engine = load_engine("tensorflow", 1)
    dataset = RepeatedBatch(scene, collective.size)
    ranks.handshake(facts_of(engine.versions, dataset.info, 0), probe=engine.probe())
    if collective.rank:
        follow(engine, dataset, collective)
        return []
    leading = LeadingEngine(engine, collective) if ranks.several else engine
    graph = resnet50_graph(dataset.info.input_shape("image"), scene.classes)
    used = Hyperparameters(batch_size=scene.batch * collective.size, learning_rate=0.01)
    network = leading.build(
        NetworkState(graph, initial_weights(graph, np.random.default_rng(0)), used)
    )
    batches = (
        LeadingDataset(dataset, collective).train(1, used.batch_size, 0)
        if ranks.several
        else dataset.train(1, used.batch_size, 0)
    )
    seconds = timed(scene, lambda: network.train_step(next(batches), 0.01))
    network.drain_training()
    network.close()
    if isinstance(leading, LeadingEngine):
        announce(collective, Command.END)
    return seconds


def ddp(scene: Scenario, collective: Collective) -> list[float]:
    """Train by PyTorch alone: channels-last, and DistributedDataParallel for several ranks."""
    import torch
    from torch_resnet50 import resnet50

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = resnet50(scene.classes).to(memory_format=torch.channels_last)
    model.train()
    several = collective.size > 1
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if several else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)
    inputs, labels = samples(scene, collective.rank)
    images = torch.from_numpy(inputs).permute(0, 3, 1, 2)  # Channels-last in memory already.
    targets = torch.from_numpy(labels).long()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(wrapped(images), targets).backward()
        optimizer.step()

    return timed(scene, step)


def run_rank(scene: Scenario, name: str, ranks: int) -> None:
    """Train as one rank; rank 0 reports it."""
    collective = ALONE if ranks == 1 else join(name)
    if ranks == 1:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    share_cores(collective)
    found = (ours if name == "mpi" else ddp)(scene, collective)
    if collective.rank == 0:
        report(found)
    collective.close()


def compare(name: str, rounds: int) -> dict[str, list[list[float]]]:
    """Measure this package and the peer in turns, on one rank and on two; print a row for each."""
    image, batch = SCENES[name].image, SCENES[name].batch
    turns = {
        f"{side}, {n}": partial(
            work, __file__, name, back_end, n, starter=rank_starter(n, back_end)
        )
        for side, back_end in SIDES.items()
        for n in (1, 2)
    }
    runs: dict[str, list[list[float]]] = in_turns(turns, rounds)
    for side in SIDES:
        one, two = ([s for run in runs[f"{side}, {n}"] for s in run] for n in (1, 2))
        row(
            f"{side}, {image}x{image}, batch {batch} a rank",
            f"{batch / median(one):.2f} images/s",
            f"{2 * batch / median(two):.2f} images/s",
            f"{2 * median(one) / median(two):.2f}",
            f"{2 * min(one) / min(two):.2f}",
        )
    return runs


def main() -> None:
    """Run the requested measurements, print the table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--work", nargs=3, metavar=("SCENE", "COLLECTIVE", "RANKS"))
    parser.add_argument("--only", choices=SCENES, nargs="*", default=list(SCENES))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.work:
        scene, name, ranks = options.work
        run_rank(SCENES[scene], name, int(ranks))
        return
    os.environ |= {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}  # Of the workers.
    heading("", "one rank", "two ranks", "ratio", "of the fastest steps")
    found = {scene: compare(scene, options.rounds) for scene in options.only}
    save(options.result, machine(), found)


if __name__ == "__main__":
    main()
