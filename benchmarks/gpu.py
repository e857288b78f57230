"""One GPU, in one call of under 8 minutes: peaks, the engine against a plain loop, idle time.

PYTHONPATH=src python benchmarks/gpu.py [FILE]     # a table; JSON into FILE
PYTHONPATH=src python benchmarks/gpu.py --dry-cpu  # tiny sizes on the CPU: does it run at all?

It needs PyTorch and what `pip install .` brings, not TensorFlow. Each section is a process
with a time limit of its own, so that one that hangs or runs out of memory costs no other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

try:
    import numpy as np
    import torch

    from aiperf_hpc.config import EngineConfig
    from aiperf_hpc.errors import OutOfMemoryError
    from aiperf_hpc.graph import Graph
    from aiperf_hpc.morphism.networks.resnet import resnet50
    from aiperf_hpc.morphism.operators.kernel_size import KernelSize
    from aiperf_hpc.morphism.operators.wider import Wider
    from aiperf_hpc.morphism.weights.checkpoint import initial_weights
    from aiperf_hpc.ops_counter.count import count
    from aiperf_hpc.replica.data.base import Batch, labelled_images
    from aiperf_hpc.replica.engines import load_engine
    from aiperf_hpc.replica.engines.torch.engine import TorchNetwork
    from aiperf_hpc.trial import Hyperparameters
except ModuleNotFoundError as error:
    sys.exit(
        f"gpu.py: the package '{error.name}' is missing; pip install it, and set PYTHONPATH=src"
    )

RATE = 0.01
SECONDS = {"peaks": 40, "engine": 150, "loop": 150, "kernels": 80, "idle": 50}
"""The limit of each section, in seconds: 470 in all."""


class Sizes(NamedTuple):
    """What is measured, on a GPU or in a trial run on the CPU."""

    device: str
    image: int
    classes: int
    width: int
    batches: tuple[int, ...]
    matrix: int
    steps: int


GPU = Sizes("cuda", 224, 1000, 64, (256, 512, 1024, 1536), 8192, 12)
DRY = Sizes("cpu", 32, 10, 8, (4, 8), 256, 2)


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
        "ResNet-50": initial,
        "half of its 3x3 kernels 5x5": sized(initial, 5, spatial[::2]),
        "half of its 3x3 kernels 7x7": sized(initial, 7, spatial[1::2]),
        "half of its 3x3 convolutions twice as wide": wider,
    }


def synchronise(sizes: Sizes) -> None:
    """Wait for all that is queued on the device."""
    if sizes.device == "cuda":
        torch.cuda.synchronize()


def seconds_of(step: Callable[[], object], sizes: Sizes) -> float:
    """Return the time of a step: the steps are queued, then waited for."""
    for _ in range(3):
        step()
    synchronise(sizes)
    start = time.perf_counter()
    for _ in range(sizes.steps):
        step()
    synchronise(sizes)
    return (time.perf_counter() - start) / sizes.steps


def peaks(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield the operations a second of a large matrix product and of convolutions, in bf16."""
    device, n = sizes.device, sizes.matrix
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in "ab")
    yield {"what": "matrix", "ops": 2 * n**3 / seconds_of(lambda: a @ b, sizes)}
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
    yield {"what": "convolution", "ops": best}


def used(batch: int) -> Hyperparameters:
    """Return a trial's hyperparameters."""
    return Hyperparameters(batch_size=batch, learning_rate=RATE, precision="bf16")


def batch_of(sizes: Sizes, batch: int) -> Batch:
    """Return samples that are already on the device, so that no copy is measured."""
    images = torch.randn(batch, sizes.image, sizes.image, 3, device=sizes.device)
    return labelled_images(images, torch.randint(0, sizes.classes, (batch,), device=sizes.device))


def built(sizes: Sizes, graph: Graph, batch: int, *, compiled: bool = True) -> TorchNetwork:
    """Build a network of the engine."""
    settings = EngineConfig(
        name="torch",
        device="cpu" if sizes.device == "cpu" else "cuda",
        compile="auto" if compiled else "never",
    )
    engine = load_engine("torch", 2, settings=settings)
    weights = initial_weights(graph, np.random.default_rng(0))
    network = engine.build(graph, weights, used(batch))
    assert isinstance(network, TorchNetwork)  # noqa: S101
    return network


def engine_speed(sizes: Sizes, graph: Graph, batch: int) -> float:
    """Return the engine's images a second."""
    network, data = built(sizes, graph, batch), batch_of(sizes, batch)
    seconds = seconds_of(lambda: network.train_step(data, RATE), sizes)
    network.drain_training()
    network.close()
    return batch / seconds


def loop_speed(sizes: Sizes, graph: Graph, batch: int) -> float:
    """Return the images a second of a plain loop: nn modules, autocast, torch.compile."""
    from training import torch_model

    model = torch_model(graph).to(sizes.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    compiled = torch.compile(model) if sizes.device == "cuda" else model
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

    return batch / seconds_of(step, sizes)


def batches(sizes: Sizes, speed: Callable[[Sizes, Graph, int], float]) -> Iterator[dict[str, Any]]:
    """Yield the speed at each batch size, until the memory is full."""
    graph = candidates(sizes)["ResNet-50"]
    for batch in sizes.batches:
        try:
            images = speed(sizes, graph, batch)
        except (torch.OutOfMemoryError, OutOfMemoryError):
            return
        yield {"batch": batch, "images": images, "ops": images * count(graph).training}


def kernels(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield the engine's speed on what morphisms make of the network, and how long it prepares."""
    batch = sizes.batches[len(sizes.batches) // 2]
    data = batch_of(sizes, batch)
    for name, graph in candidates(sizes).items():
        start = time.perf_counter()
        network = built(sizes, graph, batch)
        network.warm(batch)
        prepared = time.perf_counter() - start
        images = batch / seconds_of(partial(network.train_step, data, RATE), sizes)
        network.close()
        operations = images * count(graph).training
        yield {"what": name, "batch": batch, "ops": operations, "prepared": prepared}


def idle(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield trials: how long each trained, and how long the device waited for the one after.

    A second thread builds and warms the next network meanwhile, not compiled: compiling takes
    longer than trials this short, and ``prepared`` above says how long trials must be to hide it.
    """
    batch = sizes.batches[0]
    data = batch_of(sizes, batch)

    def prepare(graph: Graph) -> TorchNetwork:
        network = built(sizes, graph, batch, compiled=False)
        network.warm(batch)
        return network

    graphs = list(candidates(sizes).values())
    with ThreadPoolExecutor(1) as thread:
        network = prepare(graphs[0])
        for graph in graphs[1:]:
            coming = thread.submit(prepare, graph)
            start = time.perf_counter()
            for _ in range(5 * sizes.steps):
                network.train_step(data, RATE)
            network.drain_training()
            ended = time.perf_counter()
            network.close()
            network = coming.result()
            yield {"training": ended - start, "gap": time.perf_counter() - ended}


SECTIONS: dict[str, Callable[[Sizes], Iterator[dict[str, Any]]]] = {
    "peaks": peaks,
    "engine": lambda sizes: batches(sizes, engine_speed),
    "loop": lambda sizes: batches(sizes, loop_speed),
    "kernels": kernels,
    "idle": idle,
}


def section(name: str, arguments: list[str]) -> list[dict[str, Any]]:
    """Run one section in a process of its own; return the lines that it gave in its time."""
    command = [sys.executable, __file__, "--section", name, *arguments]
    print(f"{name}: at most {SECONDS[name]} s", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=SECONDS[name], check=False)
        output = done.stdout
        if done.returncode:
            print(f"{name}: ended with status {done.returncode}, see above", file=sys.stderr)
    except subprocess.TimeoutExpired as error:
        print(f"{name}: cut at its limit", file=sys.stderr, flush=True)
        output = error.stdout or b""
    return [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]


def report(said: dict[str, list[dict[str, Any]]], device: str) -> None:
    """Print the table of what was measured; what was not is left out."""
    print(f"PyTorch {torch.__version__}, {device}\n")
    found = {row["what"]: row["ops"] for row in said["peaks"]}
    peak = found.get("matrix")

    def line(what: str, ops: float, note: str = "") -> None:
        share = f"{ops / peak:.1%}" if peak else "not measured"
        print(f"| {what} | {ops / 1e12:.4g} | {share} | {note} |")

    print("| | Tera-operations a second | of the matrix peak | |\n|---|---|---|---|")
    for what, ops in found.items():
        line(f"{what} peak, bf16", ops)
    best = {}
    for name in ("engine", "loop"):
        for row in said[name]:
            line(f"{name}, batch {row['batch']}", row["ops"], f"{row['images']:.1f} images/s")
        best[name] = max((row["ops"] for row in said[name]), default=None)
    for row in said["kernels"]:
        line(f"engine: {row['what']}", row["ops"], f"batch {row['batch']}")
    if said["kernels"]:
        line("all of them alike", statistics.harmonic_mean(r["ops"] for r in said["kernels"]))
    if best["engine"] and best["loop"]:
        print(f"\nengine over loop, at its best batch each: {best['engine'] / best['loop']:.2f}")
    if said["kernels"]:
        prepared = statistics.median(row["prepared"] for row in said["kernels"])
        print(f"\nbuilding, compiling and warming a network: {prepared:.1f} s (median)")
    if said["idle"]:
        gaps = sum(row["gap"] for row in said["idle"])
        whole = gaps + sum(row["training"] for row in said["idle"])
        print(f"\nidle between {len(said['idle']) + 1} trials of {whole:.1f} s: {gaps / whole:.1%}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", help="where the measurements are kept")
    parser.add_argument("--dry-cpu", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = DRY if options.dry_cpu else GPU
    if options.section:
        for row in SECTIONS[options.section](sizes):
            print(json.dumps(row), flush=True)
        return
    if not options.dry_cpu and not torch.cuda.is_available():
        sys.exit(f"gpu.py: PyTorch {torch.__version__} sees no GPU; --dry-cpu tries it without")
    arguments = ["--dry-cpu"] if options.dry_cpu else []
    said = {name: section(name, arguments) for name in SECTIONS}
    if options.file:
        options.file.write_text(json.dumps(said, indent=1), "utf-8")
    report(said, "CPU" if options.dry_cpu else torch.cuda.get_device_name())


if __name__ == "__main__":
    main()
