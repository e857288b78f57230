"""Comparison of a repeated epoch with the recorded losses of its intervals, its steps and weights.

Training again on other hardware diverges by rounding, so that its weights are far from the recorded
ones at the end. But the losses of the first steps are equal but for rounding, and the distance that
the weights moved is similar: it is a sum over many weights.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from aiperf_hpc.graph import Graph, Shape
from aiperf_hpc.run.replica_requests import (
    CheckpointValues,
    EpochAgain,
    EvaluationAgain,
    Movement,
    TrainingAgain,
)
from aiperf_hpc.verification.execution.checks import (
    FEWER_STEPS,
    LEAST_LOSS,
    Check,
    Tolerance,
    compare,
    judged,
)

EARLIER: Final = "not recorded by earlier versions"
MISSING: Final = "missing in the checkpoint"
STILL: Final = 0.1
"""Movement of an array, as a fraction of its repeated movement, below which it was not trained."""
SMALLEST_ARRAY: Final = 8
"""Minimum elements of an array whose own movement is compared; that of fewer is not typical."""
SLIGHT: Final = 0.03
"""Root mean square of an array's movement, as a fraction of that of all, below which it is not
compared: a bias before a normalization moves by rounding only."""
FEWEST_KERNELS: Final = 5
"""Minimum number of trained kernels of which the median is compared."""


def training_checks(
    what: str, graph: Graph, again: EpochAgain, tolerance: Tolerance, *, earlier: bool
) -> Iterator[Check]:
    """Yield the checks of the repeated training of an epoch of a graph.

    Args:
        what: name of the epoch.
        graph: graph of the trial.
        again: result of the repeated epoch.
        tolerance: tolerance of each check.
        earlier: whether the run is of an earlier version, whose checkpoints lack values.
    """
    training, recorded = again.training, again.recorded
    steps = f"{what}: steps of the optimizer"
    if training is None or recorded is None:
        yield _missing(steps, None, earlier=earlier)
        return
    if recorded.steps is None:
        yield _missing(steps, training.steps, earlier=earlier)
    else:
        yield _steps(steps, recorded.steps, training.steps, tolerance)
    losses = recorded.train_losses, training.losses
    yield interval_losses(f"{what}: loss", *losses, tolerance.train_losses, earlier=earlier)
    yield from _movements(what, graph, training, tolerance)


def evaluation_losses(
    what: str,
    recorded: CheckpointValues,
    again: EvaluationAgain,
    tolerance: Tolerance,
    *,
    earlier: bool,
) -> Check:
    """Compare the losses of an evaluation's intervals, which all have the same tolerance."""
    bounds = (tolerance.batch_loss,) * len(again.losses)
    name = f"{what}: validation loss"
    return interval_losses(name, recorded.validation_losses, again.losses, bounds, earlier=earlier)


def _steps(what: str, recorded: int, again: int, tolerance: Tolerance) -> Check:
    more = tolerance.steps
    fewer = min(more, math.ceil(FEWER_STEPS * again))
    text = f"{more} more, {fewer} fewer" if more else "none"
    return judged(what, recorded, again, text, -fewer <= recorded - again <= more)


def interval_losses(
    what: str,
    recorded: Sequence[float],
    again: Sequence[float],
    tolerances: Sequence[float],
    *,
    earlier: bool,
) -> Check:
    """Compare the losses of the first intervals; the check states the most different ones."""
    name = f"{what} by interval"
    if not recorded:
        return _missing(name, None, earlier=earlier)
    if len(recorded) != len(again):
        return compare(f"{what}: intervals", len(recorded), len(again), 0, "none")
    if not tolerances:
        return judged(name, None, None, "dropout is random from the first step on", None)
    allowed = [t * max(abs(a), LEAST_LOSS) for a, t in zip(again, tolerances, strict=False)]
    excess = [_excess(*values) for values in zip(recorded, again, allowed, strict=False)]
    worst = excess.index(max(excess))
    first, last = 2**worst // 2 + 1, 2**worst
    name = f"{what} of batch {first}" if first == last else f"{what} of batches {first} to {last}"
    text = f"{100 * tolerances[worst]:g}%"
    return compare(name, recorded[worst], again[worst], allowed[worst], text)


def _missing(what: str, again: float | None, *, earlier: bool) -> Check:
    """Return the check of a value that is not in the checkpoint: only earlier versions omit it."""
    return judged(what, None, again, *((EARLIER, None) if earlier else (MISSING, False)))


def _excess(recorded: float, again: float, allowed: float) -> float:
    difference = abs(again - recorded) / allowed
    return difference if math.isfinite(difference) else math.inf


def _movements(
    what: str, graph: Graph, again: TrainingAgain, tolerance: Tolerance
) -> Iterator[Check]:
    """Yield the checks of how far weights moved, and to where."""
    of = again.movements
    total = _total(of, graph.parameters)
    share = tolerance.movement
    yield compare(
        f"{what}: distance that weights moved",
        total.recorded,
        total.again,
        share * total.again,
        f"{100 * share:g}%",
    )
    trained = list(_trained(of, graph.parameters, total))
    kernels = [name for name in trained if len(graph.parameters[name]) > 1]
    if len(kernels) >= FEWEST_KERNELS:
        median = statistics.median(of[name].recorded / of[name].again for name in kernels)
        text = f"{100 * tolerance.kernels:g}%"
        name = f"{what}: median distance of kernels, relative"
        yield compare(name, median, 1.0, tolerance.kernels, text)
    still = [name for name in trained if of[name].recorded < STILL * of[name].again]
    text = f"did not move: {', '.join(still[:3])}" if still else "none"
    moved = len(trained) - len(still)
    yield compare(f"{what}: arrays that moved", moved, len(trained), 0, text)
    if tolerance.apart is not None:
        for kind, names in (("weights", graph.parameters), ("statistics", graph.statistics)):
            whole = _total(of, names)
            apart = whole.between / whole.again if whole.again else 0.0
            text = f"{100 * tolerance.apart:g}% of the distance"
            yield compare(f"{what}: difference of {kind}", 0.0, apart, tolerance.apart, text)


def _total(movements: Mapping[str, Movement], names: Mapping[str, Shape]) -> Movement:
    """Return the movement of all named arrays together."""
    of = [movements[name] for name in names]
    return Movement(
        recorded=math.hypot(*(each.recorded for each in of)),
        again=math.hypot(*(each.again for each in of)),
        between=math.hypot(*(each.between for each in of)),
    )


def _trained(
    movements: Mapping[str, Movement], shapes: Mapping[str, Shape], total: Movement
) -> Iterator[str]:
    """Yield the arrays that the repeated training moved by more than rounding."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    typical = total.again / math.sqrt(sum(sizes.values()))
    for name, size in sizes.items():
        if size >= SMALLEST_ARRAY and movements[name].again > SLIGHT * typical * math.sqrt(size):
            yield name
