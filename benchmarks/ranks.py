"""Two ranks, a core each, against one rank on a core; and the all-reduce against the raw back end.

``python benchmarks/ranks.py [RESULT.json]``: prints a Markdown table. Weak scaling: each rank has
the same batch, so two do twice the work in, at best, the same time. Ours and PyTorch's DDP over
gloo take turns; each run is a process tree of its own, and what is compared is the median time of
a step. Ten minutes or so on two free cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.primary.launchers.base import rank_starter
from aiperf_hpc.replica.data.base import WHOLE, Batch, Part, labelled_images
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.parallel.collectives import join
from aiperf_hpc.replica.parallel.collectives.base import ALONE, Collective
from aiperf_hpc.replica.parallel.cores import share_cores
from aiperf_hpc.replica.parallel.follower import follow
from aiperf_hpc.replica.parallel.handshake import Ranks, facts_of
from aiperf_hpc.replica.parallel.leader import LeadingDataset, LeadingEngine
from aiperf_hpc.replica.parallel.protocol import Announce, Command
from aiperf_hpc.trial import DatasetInfo, Hyperparameters

ELEMENTS = 25_557_032
"""Parameters of ResNet-50: 102 MB."""
ROUNDS = 3
REDUCTIONS = 30
MARK = "RESULT "


class Scene(NamedTuple):
    """ResNet-50, of 224x224 images and of small ones; times are of ``steps`` after ``warm_up``."""

    image: int
    batch: int
    """The samples of a rank in a step."""
    classes: int
    warm_up: int
    steps: int


SCENES = {
    "224": Scene(image=224, batch=16, classes=1000, warm_up=2, steps=5),
    "32": Scene(image=32, batch=64, classes=10, warm_up=3, steps=25),
}
TARGETS = {"224": 1.9, "32": 1.7}
SIDES = {"tensorflow over mpi": "mpi", "torch DDP over gloo": "torch"}


@dataclass
class Repeated:
    """One batch again and again."""

    scene: Scene
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


def samples(scene: Scene, seed: int) -> tuple[Any, Any]:
    """Return made-up images, NHWC, and labels."""
    rng = np.random.default_rng(seed)
    shape = (scene.batch, scene.image, scene.image, 3)
    inputs = rng.standard_normal(shape).astype(np.float32)
    return inputs, rng.integers(0, scene.classes, scene.batch).astype(np.int32)


def timed(scene: Scene, step: Callable[[], None]) -> list[float]:
    """Return the seconds of each step after the first ones."""
    seconds = []
    for _ in range(scene.warm_up + scene.steps):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return seconds[scene.warm_up :]


def ours(scene: Scene, collective: Collective) -> dict[str, Any] | None:
    """Train by this package; return what rank 0 found."""
    ranks = Ranks(collective)
    engine = load_engine("tensorflow", 1)
    dataset = Repeated(scene, collective.size)
    ranks.handshake(facts_of(engine.versions, dataset.info, 0), probe=engine.probe())
    if collective.rank:
        follow(engine, dataset, collective)
        return None
    leading = LeadingEngine(engine, collective) if ranks.several else engine
    graph = resnet50(dataset.info.input_shape("image"), scene.classes)
    used = Hyperparameters(batch_size=scene.batch * collective.size, learning_rate=0.01)
    network = leading.build(graph, initial_weights(graph, np.random.default_rng(0)), used)
    batches = (
        LeadingDataset(dataset, collective).train(1, used.batch_size, 0)
        if ranks.several
        else dataset.train(1, used.batch_size, 0)
    )
    found: dict[str, Any] = {
        "seconds": timed(scene, lambda: network.train_step(next(batches), 0.01))
    }
    network.drain_training()
    network.close()
    if isinstance(leading, LeadingEngine):
        if (times := leading.take_step_times("t")) is not None:
            found["parts"] = {part: each / times.steps for part, each in times.seconds.items()}
        Announce(collective)(Command.END)
    return found


def ddp(scene: Scene, collective: Collective) -> dict[str, Any] | None:
    """Train by PyTorch alone: channels-last, and DistributedDataParallel for several ranks."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch_resnet50(scene).to(memory_format=torch.channels_last)
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

    seconds = timed(scene, step)
    return None if collective.rank else {"seconds": seconds}


def torch_resnet50(scene: Scene) -> Any:  # noqa: ANN401 -- a torch module
    """Return ResNet-50 v1: the stride of a stage in its first 1x1 convolution."""
    from torch import nn

    class Bottleneck(nn.Module):
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            layers: list[nn.Module] = []
            for source, target, kernel, step in (
                (inputs, width, 1, stride),
                (width, width, 3, 1),
                (width, 4 * width, 1, 1),
            ):
                layers.append(nn.Conv2d(source, target, kernel, step, kernel // 2, bias=False))
                layers += [nn.BatchNorm2d(target), nn.ReLU(inplace=True)]
            self.body = nn.Sequential(*layers[:-1])
            self.short = (
                nn.Sequential(
                    nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
                )
                if stride > 1 or inputs != 4 * width
                else nn.Identity()
            )

        def forward(self, images: Any) -> Any:  # noqa: ANN401
            return nn.functional.relu(self.body(images) + self.short(images), inplace=True)

    stem: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for number in range(count):
            stride = 2 if stage and not number else 1
            blocks.append(Bottleneck(inputs, 64 * 2**stage, stride))
            inputs = 256 * 2**stage
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, scene.classes)]
    return nn.Sequential(*stem, *blocks, *head)


def reductions(collective: Collective) -> dict[str, list[float]] | None:
    """Reduce 102 MB by this package and by the raw back end, in turns."""
    give, raw = (_mpi_sides if collective.name == "mpi" else _gloo_sides)()
    times: dict[str, list[float]] = {"ours": [], "raw": []}
    for number in range(REDUCTIONS + 3):
        for name in ("ours", "raw") if number % 2 else ("raw", "ours"):
            collective.barrier()
            begun = time.perf_counter()
            if name == "ours":
                collective.start_allreduce_sum(give()).wait()
            else:
                raw()
            took = np.array([time.perf_counter() - begun])
            collective.allreduce_sum(took)
            if number >= 3:
                times[name].append(float(took[0]) / collective.size)
    return None if collective.rank else times


def _mpi_sides() -> tuple[Callable[[], Any], Callable[[], None]]:
    """Return what makes our tensor, of TensorFlow as in training, and mpi4py's Allreduce."""
    import tensorflow as tf
    from mpi4py import MPI

    tensor = tf.ones(ELEMENTS)
    given, total = np.ones(ELEMENTS, np.float32), np.zeros(ELEMENTS, np.float32)
    return lambda: tensor, lambda: MPI.COMM_WORLD.Allreduce(given, total)


def _gloo_sides() -> tuple[Callable[[], Any], Callable[[], None]]:
    """Return our tensor, of PyTorch, and torch.distributed's all_reduce."""
    import torch
    import torch.distributed as dist

    tensor, other = torch.ones(ELEMENTS), torch.ones(ELEMENTS)
    return lambda: tensor, lambda: dist.all_reduce(other)


def work(what: str, name: str, ranks: int) -> None:
    """Do one rank's part of one measurement; rank 0 prints it."""
    collective = ALONE if ranks == 1 else join(name)
    if ranks == 1:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    share_cores(collective)
    found: dict[str, Any] | None
    if what == "reductions":
        found = reductions(collective)
    else:
        found = (ours if name == "mpi" else ddp)(SCENES[what], collective)
    if found is not None:
        sys.stdout.write(f"\n{MARK}{json.dumps(found)}\n")
        sys.stdout.flush()
    collective.close()


def run(what: str, name: str, ranks: int) -> dict[str, Any]:
    """Start the ranks of one measurement; return what rank 0 found."""
    command = [*rank_starter(ranks, name), sys.executable, __file__, "--work", what, name]
    threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [*command, str(ranks)],
        env=os.environ | threads,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(MARK))
    found: dict[str, Any] = json.loads(line.removeprefix(MARK))
    return found


def main() -> None:
    """Measure everything that is asked for, print the table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--work", nargs=3, metavar=("WHAT", "COLLECTIVE", "RANKS"))
    parser.add_argument("--only", choices=[*SCENES, "reductions"], nargs="*")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    if options.work:
        work(options.work[0], options.work[1], int(options.work[2]))
        return
    chosen = options.only or [*SCENES, "reductions"]
    found: dict[str, Any] = {}
    print("| | one rank | two ranks | ratio | of the fastest steps | target |")
    print("|---|---|---|---|---|---|")
    for scene in (name for name in SCENES if name in chosen):
        found[scene] = compare(scene, options.rounds)
    if "reductions" in chosen:
        found["reductions"] = {name: run("reductions", name, 2) for name in ("mpi", "torch")}
        print("\n| all-reduce of 102 MB | ours | raw | ratio |\n|---|---|---|---|")
        for name, times in found["reductions"].items():
            own, raw = (statistics.median(times[side]) for side in ("ours", "raw"))
            print(f"| {name} | {1e3 * own:.1f} ms | {1e3 * raw:.1f} ms | {own / raw:.2f} |")
    if options.result:
        options.result.write_text(json.dumps(found, indent=1), "utf-8")


def compare(scene: str, rounds: int) -> dict[str, Any]:
    """Let ours and the peer take turns, on one rank and on two; print a row of each."""
    image, batch = SCENES[scene].image, SCENES[scene].batch
    runs: dict[str, dict[int, list[dict[str, Any]]]] = {side: {1: [], 2: []} for side in SIDES}
    for number in range(rounds):
        sides = list(SIDES.items())
        for side, collective in sides if number % 2 else sides[::-1]:
            for ranks in (1, 2) if number % 2 else (2, 1):
                runs[side][ranks].append(run(scene, collective, ranks))
    for side, both in runs.items():
        seconds = {ranks: [s for each in both[ranks] for s in each["seconds"]] for ranks in (1, 2)}
        one, two = (statistics.median(seconds[ranks]) for ranks in (1, 2))
        fastest = 2 * min(seconds[1]) / min(seconds[2])
        print(
            f"| {side}, {image}x{image}, batch {batch} a rank | {batch / one:.2f} images/s "
            f"| {2 * batch / two:.2f} images/s | {2 * one / two:.2f} | {fastest:.2f} "
            f"| {TARGETS[scene]} |",
            flush=True,
        )
        for each in both[2]:
            if "parts" in each:
                parts = {name: f"{1e3 * value:.1f}" for name, value in each["parts"].items()}
                print(f"  ms a step: {parts}", file=sys.stderr)
    return runs


if __name__ == "__main__":
    main()
