"""Checks of re-executed values, and their tolerances.

Training again on other hardware diverges by rounding, so that its weights are far from the recorded
ones at the end. But the losses of the first steps are equal but for rounding, and the distance that
the weights moved is similar: it is a sum over many weights.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from aiperf_hpc.graph import Graph, Shape
from aiperf_hpc.run.replica_requests import (
    CheckpointValues,
    EpochAgain,
    EvaluationAgain,
    Movement,
    TrainingAgain,
)
from aiperf_hpc.trial import Value

FEWER_STEPS: Final = 0.1
"""Maximum fraction of the repeated steps that a record may lack, if any may differ."""
LEAST_LOSS: Final = 0.1
"""Minimum loss to which relative tolerances refer: near zero, a fraction of the loss itself would
allow no difference."""
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
LEAST_MEDIAN: Final = 0.01
"""Minimum tolerance of that median."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed differences between recorded and re-executed values."""

    flips: float
    """Fraction of samples whose predicted class may change because two classes are close."""
    loss: float
    """Relative tolerance of the validation loss of the same weights."""
    batch_loss: float
    """Relative tolerance of that of some batches."""
    trained_loss: float
    """Relative tolerance of the mean loss of a training epoch."""
    trained_deviations: float
    """Tolerance of the quality after a training epoch, in standard deviations of the sample."""
    train_losses: tuple[float, ...]
    """Relative tolerances of the first intervals' training losses; others are not compared."""
    movement: float
    """Relative tolerance of the distance that the weights move in a training epoch."""
    kernels: float | None = None
    """Tolerance of the kernels' median distance, as a fraction of the distance between recorded and
    repeated kernels: rounding parts them in random directions, which hardly changes the lengths."""
    apart: float | None = None
    """Maximum distance between recorded and repeated weights, as a fraction of their movement."""
    steps: int = 0
    """Number of steps that an optimizer may leave out because gradients are not finite.

    Unmeasured. A repeated epoch begins with the initial loss scale, 2^16, which each of these steps
    halves, while the recorded one has usually reached its own. So the record may have this many
    steps more, but only ``FEWER_STEPS`` fewer.
    """

    @property
    def first(self) -> Tolerance:
        """The tolerance for the first epoch of a trial, in which rounding errors grow fastest."""
        one, two, four = self.train_losses
        kernels = None if self.kernels is None else FIRST_KERNELS
        losses = (one, two, 10.0 * four)
        return replace(self, movement=FIRST_MOVEMENT, kernels=kernels, train_losses=losses)

    @property
    def dropping(self) -> Tolerance:
        """The tolerance for a network with dropout, whose random choices differ."""
        parted = {**_PARTED, "movement": DROPOUT_MOVEMENT}
        return replace(self, train_losses=(), apart=None, **parted)

    def samples(self, samples: int) -> int:
        """Return the number of samples whose predicted class may change."""
        return math.ceil(self.flips * samples)


INTERVALS: Final = 64
"""Number of intervals, more than any epoch has."""
EXACT: Final = Tolerance(
    flips=0.0,
    loss=1e-6,
    batch_loss=1e-5,
    trained_loss=0.02,
    trained_deviations=2.0,
    train_losses=(1e-3,) * INTERVALS,
    movement=0.01,
    kernels=0.15,
    apart=0.01,
)
"""Tolerance on the CPU with the same framework, processor and number of threads: the same code adds
up in the same order, so that all values are equal to the recorded digits. Earlier versions weighted
a smaller last batch in the mean training loss by its samples or as a step."""
_PARTED: Final[dict[str, Any]] = {
    "trained_loss": 0.10,
    "trained_deviations": 5.0,
    "movement": 0.08,
    "kernels": 0.15,
}
"""Tolerance of an epoch trained twice from the same state: both diverge from the first step on by
rounding or dropout, most of all in the first epoch of a trial."""
FIRST_MOVEMENT: Final = 0.3
FIRST_KERNELS: Final = 0.3
DROPOUT_MOVEMENT: Final = 0.2
_HALF: Final = Tolerance(
    flips=0.002, loss=1e-2, batch_loss=1e-2, train_losses=(1e-2, 1.5e-2, 1.5e-2), **_PARTED
)
ROUNDED: Final = {
    "fp32": Tolerance(
        flips=0.0002,
        loss=1e-4,
        batch_loss=3e-4,
        train_losses=(1e-4, 1e-3, 3e-3),
        **_PARTED,
    ),
    "bf16": _HALF,
    "fp16": replace(_HALF, steps=16, kernels=None),
}
"""Tolerance in all other cases, by precision: additions in another order. This applies also to the
same accelerator, where libraries choose the currently fastest kernels."""


class Verdict(StrEnum):
    """Result of a check, or of all checks of a trial."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    NOT_COMPARED = "not compared"
    NOT_EXECUTABLE = "not re-executable"


class Check(Value):
    """A recorded value compared with its re-execution."""

    name: str
    recorded: float | int | None
    reexecuted: float | int | None
    tolerance: str
    """Description of the tolerance, or the reason why nothing was compared."""
    verdict: Verdict


def relative(what: str, recorded: float, again: float, share: float) -> Check:
    """Return the check of a loss or quality with a relative tolerance."""
    most = share * max(abs(recorded), LEAST_LOSS)
    return compare(what, recorded, again, most, f"{100.0 * share:g}%")


def compare(what: str, recorded: float, again: float, most: float, tolerance: str) -> Check:
    """Return the check of two values that may differ by ``most``."""
    right = math.isfinite(again - recorded) and abs(again - recorded) <= most
    return judged(what, recorded, again, tolerance, right)


def judged(
    what: str, recorded: float | None, again: float | None, tolerance: str, right: bool | None
) -> Check:
    """Return a check; ``right`` is None if the values were not compared."""
    verdict = Verdict.NOT_COMPARED
    if right is not None:
        verdict = Verdict.PASSED if right else Verdict.FAILED
    return Check(
        name=what, recorded=recorded, reexecuted=again, tolerance=tolerance, verdict=verdict
    )


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
    yield from _median(what, of, [n for n in trained if len(graph.parameters[n]) > 1], tolerance)
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


def _median(
    what: str, of: Mapping[str, Movement], kernels: Sequence[str], tolerance: Tolerance
) -> Iterator[Check]:
    """Yield the check of the median distance of kernels, relative to the repeated one."""
    if tolerance.kernels is None or len(kernels) < FEWEST_KERNELS:
        return
    whole = _total(of, kernels)
    most = max(LEAST_MEDIAN, tolerance.kernels * whole.between / whole.again)
    median = statistics.median(of[name].recorded / of[name].again for name in kernels)
    name = f"{what}: median distance of kernels, relative"
    yield compare(name, median, 1.0, most, f"{100 * most:.2g}%")


def _total(movements: Mapping[str, Movement], names: Iterable[str]) -> Movement:
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
