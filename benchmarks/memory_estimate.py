"""Compare the memory estimate of a training with what the process really takes.

python benchmarks/memory_estimate.py [ENGINE]   # one process a case, a table in Markdown
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys

CASES = (
    (32, "cifar", 16, 128, "fp32"),
    (32, "cifar", 16, 512, "fp32"),
    (32, "cifar", 64, 64, "fp32"),
    (32, "cifar", 16, 512, "bf16"),
    (224, "imagenet", 64, 16, "fp32"),
    (224, "imagenet", 64, 32, "bf16"),
)
STEPS = 2


def measure(
    name: str, size: int, stem: str, width: int, batch: int, precision: str
) -> tuple[int, int]:
    """Train two steps in this process; return estimated and measured peak MiB."""
    import numpy as np

    from aiperf_hpc.morphism.networks.resnet import resnet50
    from aiperf_hpc.morphism.weights.checkpoint import initial_weights
    from aiperf_hpc.ops_counter.memory import training_bytes
    from aiperf_hpc.replica.data.base import labelled_images
    from aiperf_hpc.replica.engines import load_engine
    from aiperf_hpc.trial import Hyperparameters

    engine = load_engine(name, len(os.sched_getaffinity(0)))
    rng = np.random.default_rng(0)
    graph = resnet50(
        (size, size, 3), 10, stem="cifar" if stem == "cifar" else "imagenet", base_width=width
    )
    used = Hyperparameters(batch_size=batch, learning_rate=0.01, precision=precision)
    network = engine.build(graph, initial_weights(graph, rng), used)
    images = rng.standard_normal((batch, size, size, 3), np.float32)
    labels = rng.integers(0, 10, batch).astype(np.int32)
    for _ in range(STEPS):
        network.train_step(labelled_images(images, labels), 0.01)
    network.drain_training()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return training_bytes(graph, batch, precision) // 2**20, peak


def main() -> None:
    """Measure one case, given on the command line, or all of them."""
    if len(sys.argv) > 2:
        name, size, stem, width, batch, precision = sys.argv[1:]
        estimate, peak = measure(name, int(size), stem, int(width), int(batch), precision)
        print(f"| {size}x{size}, {stem}, {width} | {batch} | {precision} | {estimate} | {peak} |")
        return
    print("| network | batch | precision | estimate, MiB | measured, MiB |")
    print("|---|---|---|---|---|", flush=True)
    name = sys.argv[1] if len(sys.argv) == 2 else "tensorflow"
    for case in CASES:
        subprocess.run([sys.executable, __file__, name, *map(str, case)], check=True)


if __name__ == "__main__":
    main()
