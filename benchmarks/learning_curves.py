"""Record learning curves of real trainings on CIFAR-10, to judge predicted accuracies by.

    python tests/fetch_cifar10.py CIFAR10
    python benchmarks/learning_curves.py record CIFAR10 curves.json --keep WEIGHTS
    python benchmarks/learning_curves.py judge curves.json

``record`` adds one training at a time and, started again, goes on after the last one; WEIGHTS
keeps what children inherit until then. Trainings are drawn by their number alone: small networks
of ResNet-50's kind, grown by up to four random morphisms; every third one from the trained weights
of an earlier one, as the search does, the others from the beginning. They run in the benchmark's
own trainer and engine, on a part of the data, with the learning rate falling to zero. Each is
trained twice, for all its epochs and, with all else equal, as a warm-up of ten alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from alone import trained, trainer_alone
from side_by_side import machine

from aiperf_hpc.config import DatasetConfig, RunConfig, validate
from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.networks.resnet import resnet50
from aiperf_hpc.morphism.operators.base import Morphism
from aiperf_hpc.morphism.operators.grow import grow_with_weights
from aiperf_hpc.morphism.operators.registry import MORPHISMS
from aiperf_hpc.morphism.weights.checkpoint import (
    Weights,
    initial_weights,
    load_checkpoint,
    save_checkpoint,
)
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.replica.data import cifar10
from aiperf_hpc.replica.data.arrays import ArrayDataset, Samples
from aiperf_hpc.replica.engines import load_engine
from aiperf_hpc.replica.engines.base import Engine
from aiperf_hpc.replica.training.trial import (
    Candidate,
    PlannedTrial,
    TrialProgress,
    TrialResult,
    configured_hyperparameters,
)
from aiperf_hpc.replica.trials.prediction import predicted_value
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import RoundPhase, TrialState

CURVES = 30
TRAINING, VALIDATION = 2000, 1200
"""The first so many images of CIFAR-10's training and test sets."""
WARMUP = 10
EPOCHS = (30, 36)
MOST_OPERATIONS = 12_000_000
"""Operations of one training sample, at most."""
WIDTHS, BATCH_SIZES = (4, 6, 8, 12, 16), (32, 48, 64, 96, 128)
LEARNING_RATES = (0.003, 0.3)
WEIGHT_DECAYS = (0.0, 5e-4, 5e-3)


@dataclass(frozen=True, slots=True)
class Training:
    """One training, drawn by its number."""

    number: int
    graph: Graph
    weights: Weights
    settings: dict[str, Any]
    """The settings as the file of curves has them."""


def draw(number: int, kept: Path, earlier: list[dict[str, Any]]) -> Training:
    """Draw training ``number``; a network that is too large is drawn again."""
    rng = np.random.default_rng(number)
    parents = [c["number"] for c in earlier]
    parent = int(rng.choice(parents)) if number % 3 == 2 and parents else None
    stem = str(rng.choice(("cifar", "imagenet")))
    while True:
        start, graph, weights = (
            _new_network(stem, rng) if parent is None else _trained(parent, kept, earlier)
        )
        graph, weights, morphisms = _grown(graph, weights, int(rng.integers(0, 5)), rng)
        if count(graph).training <= MOST_OPERATIONS:
            break
    low, high = map(math.log, LEARNING_RATES)
    settings = {
        "number": number,
        **start,
        "parent": parent,
        "morphisms": [m.to_data() for m in morphisms],
        "parameters": graph.parameter_count,
        "depth": graph.depth,
        "training_operations": count(graph).training,
        "batch_size": int(rng.choice(BATCH_SIZES)),
        "learning_rate": round(math.exp(rng.uniform(low, high)), 5),
        "weight_decay": float(rng.choice(WEIGHT_DECAYS)),
        "augment": bool(rng.integers(2)),
        "epochs": int(rng.choice(EPOCHS)),
    }
    return Training(number, graph, weights, settings)


def _new_network(stem: str, rng: np.random.Generator) -> tuple[dict[str, Any], Graph, Weights]:
    width = int(rng.choice(WIDTHS))
    first, second, third = (int(rng.integers(1, 3)) for _ in range(3))
    blocks = (first, second, third, 1)
    graph = resnet50(
        (32, 32, 3),
        10,
        stem="cifar" if stem == "cifar" else "imagenet",
        base_width=width,
        blocks=blocks,
    )
    start = {"stem": stem, "base_width": width, "blocks": blocks}
    return start, graph, initial_weights(graph, rng)


def _trained(
    number: int, kept: Path, earlier: list[dict[str, Any]]
) -> tuple[dict[str, Any], Graph, Weights]:
    settings = next(c for c in earlier if c["number"] == number)
    start = {key: settings[key] for key in ("stem", "base_width", "blocks")}
    return start, *load_checkpoint(_weights_file(kept, number))


def _grown(
    graph: Graph, weights: Weights, steps: int, rng: np.random.Generator
) -> tuple[Graph, Weights, list[Morphism]]:
    morphisms: list[Morphism] = []
    while len(morphisms) < steps:
        try:
            morphism = MORPHISMS[str(rng.choice(sorted(MORPHISMS)))].sample(graph, rng)
        except MorphismError:
            continue  # There is no place for this kind; another one is drawn.
        graph, weights = grow_with_weights(graph, weights, (morphism,), rng)
        morphisms.append(morphism)
    return graph, weights, morphisms


def _weights_file(kept: Path, number: int) -> Path:
    return kept / f"{number}.safetensors"


def _configuration(settings: dict[str, Any]) -> RunConfig:
    return validate(
        {
            "dataset": {"name": "cifar10", "path": "cifar10", "augment": settings["augment"]},
            "training": {
                "precision": "fp32",
                "batch_size": settings["batch_size"],
                "learning_rate": settings["learning_rate"],
                "weight_decay": settings["weight_decay"],
                "patience": 100_000,  # Whole curves.
                "checkpoint_seconds": 86_400.0,
            },
        },
        f"training {settings['number']}",
    )


def part_of(dataset: ArrayDataset) -> ArrayDataset:
    """Return the first TRAINING and VALIDATION samples."""

    def first(samples: Samples, number: int) -> Samples:
        return Samples(samples.images[:number], samples.labels[:number])

    sizes = {"train_samples": TRAINING, "validation_samples": VALIDATION}
    return replace(
        dataset,
        info=dataset.info.model_copy(update=sizes),
        training=first(dataset.training, TRAINING),
        held_out=first(dataset.held_out, VALIDATION),
    )


def train(training: Training, epochs: int, engine: Engine, dataset: ArrayDataset) -> TrialResult:
    """Train it for ``epochs``, by the benchmark's own trainer."""
    settings = training.settings
    config = _configuration(settings)
    augmentation = cifar10.AUGMENTATION if settings["augment"] else None
    name = f"t{training.number}"
    augmented = replace(dataset, augmentation=augmentation)
    with trainer_alone(engine, augmented, config) as trainer:
        return trained(
            trainer,
            PlannedTrial(
                name=name,
                round=1,
                phase=RoundPhase.WARMUP,
                candidate=Candidate(training.graph, training.weights),
                hyperparameters=configured_hyperparameters(config.training),
                epoch_limit=epochs,
                seed=training.number,
                course=TrialProgress(trial=name),
            ),
        )


def record(data: Path, file: Path, kept: Path) -> None:
    """Add trainings to ``file`` until it has CURVES of them."""
    kept.mkdir(parents=True, exist_ok=True)
    dataset = part_of(cifar10.load(DatasetConfig(name="cifar10", path=data), 1))
    engine = load_engine("tensorflow", 1)
    content = json.loads(file.read_text("utf-8")) if file.exists() else _new(engine)
    curves, failed = content["curves"], content["failed"]
    while len(curves) < CURVES:
        number = 1 + max((c["number"] for c in (*curves, *failed)), default=-1)
        training = draw(number, kept, curves)
        began = time.perf_counter()
        whole = train(training, training.settings["epochs"], engine, dataset)
        warmup = train(training, WARMUP, engine, dataset)
        settings = {**training.settings, "seconds": round(time.perf_counter() - began, 1)}
        refused = [r.reason for r in (whole, warmup) if r.state is not TrialState.COMPLETED]
        if refused or whole.weights is None:
            failed.append({**settings, "reason": refused[0]})
        else:
            save_checkpoint(_weights_file(kept, number), training.graph, whole.weights)
            curves.append({**settings, "correct": _hits(whole), "warmup_correct": _hits(warmup)})
        write_whole(file, _text(content).encode())
        last = refused[0] if refused else f"{whole.values[-1]:.3f}"
        print(f"{number}: {settings['seconds']} s, {last}", flush=True)


def _hits(result: TrialResult) -> list[int]:
    return [round(accuracy * VALIDATION) for accuracy in result.values]


def _new(engine: Engine) -> dict[str, Any]:
    return {
        "what": "Learning curves of small networks on CIFAR-10: samples classified correctly "
        "after each epoch, of the first so many of the test set; see benchmarks/learning_curves.py",
        "made_by": "python benchmarks/learning_curves.py record CIFAR10 curves.json --keep WEIGHTS",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"1 core of {machine()}",
        "versions": {**engine.versions, "python": platform.python_version()},
        "training_samples": TRAINING,
        "validation_samples": VALIDATION,
        "momentum": 0.9,
        "precision": "fp32",
        "warmup_epochs": WARMUP,
        "curves": [],
        "failed": [],
    }


def _text(content: dict[str, Any]) -> str:
    """Return JSON with a line for each curve."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list):
            inner = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in value)
            lines.append(f'"{key}": [\n{inner}\n]' if value else f'"{key}": []')
        else:
            lines.append(f'"{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


Predict = Callable[[Sequence[float], int], float]


def _unbounded(accuracies: Sequence[float], epoch: int) -> float:
    """Return a log2(x + b) + c at ``epoch``, by least squares, b up to 100: the form alone."""
    observed = np.asarray(accuracies)
    epochs, fits = np.arange(1, len(observed) + 1), []
    for shift in (0.0, *np.geomspace(0.1, 100.0, 63)):
        line, residual, *_ = np.polyfit(np.log2(epochs + shift), observed, 1, full=True)
        fits.append((float(residual[0]), float(np.polyval(line, np.log2(epoch + shift)))))
    return min(1.0, max(float(observed.max()), min(fits)[1]))


PREDICTIONS: dict[str, Predict] = {
    "last observed": lambda accuracies, epoch: accuracies[-1],
    "best observed": lambda accuracies, epoch: max(accuracies),
    "the logarithm, not bounded": _unbounded,
    "predicted accuracy": predicted_value,
}


def judge(file: Path) -> None:
    """Print the errors at the last epoch, as a table in Markdown, and what a prediction costs."""
    content = json.loads(file.read_text("utf-8"))
    curves, samples = content["curves"], content["validation_samples"]
    half = len(curves) // 2
    print(f"Mean absolute error (bias; largest), accuracy of the last epoch, {len(curves)} curves.")
    print("\n| from | " + " | ".join(PREDICTIONS) + " |\n|---|" + "---|" * len(PREDICTIONS))
    for name, part in (("", curves), (f", from number {half} on", curves[half:])):
        print(f"| the first {WARMUP} epochs{name} | {_row(part, 'correct', samples)} |")
        print(f"| a warm-up of {WARMUP}{name} | {_row(part, 'warmup_correct', samples)} |")
    seen = [hits / samples for hits in curves[0]["correct"][:WARMUP]]
    seconds = min(timeit.repeat(lambda: predicted_value(seen, 90), number=100)) / 100
    print(f"\nOne prediction takes {seconds * 1e6:.0f} microseconds.")


def _row(curves: list[dict[str, Any]], seen: str, samples: int) -> str:
    cells = []
    for predict in PREDICTIONS.values():
        errors = np.asarray(
            [
                predict([hits / samples for hits in c[seen][:WARMUP]], len(c["correct"]))
                - c["correct"][-1] / samples
                for c in curves
            ]
        )
        sizes = np.abs(errors)
        cells.append(f"{sizes.mean():.4f} ({errors.mean():+.4f}; {sizes.max():.3f})")
    return " | ".join(cells)


def main(arguments: list[str]) -> None:
    """Run the command line."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("data", type=Path, help="a prepared CIFAR-10")
    recording.add_argument("file", type=Path, help="where the curves are kept")
    recording.add_argument("--keep", type=Path, required=True, help="a folder for trained weights")
    judging = commands.add_parser("judge")
    judging.add_argument("file", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.command == "judge":
        judge(chosen.file)
    else:
        record(chosen.data, chosen.file, chosen.keep)


if __name__ == "__main__":
    main(sys.argv[1:])
