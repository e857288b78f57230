"""What operations a run's score is made of: by pass, by kind of layer, and of the best graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.trial import Value


class KindOperations(Value):
    """Operations of one kind of layer; the backward pass includes the update of the weights."""

    forward: int
    backward: int


class OperationSplit(Value):
    """The operations credited in the score, split; ``total`` is forward and backward."""

    total: int
    forward: int
    backward: int
    training_forward: int
    validation_forward: int
    train_samples: int
    validation_samples: int
    by_kind: dict[str, KindOperations]


class GraphReport(Value):
    """The best graph and its operations for one sample."""

    trial: str
    graph: str
    accuracy: float | None
    """The best accuracy; None where the run has another measure."""
    quality: float | None = None
    """The best quality by the run's measure."""
    epoch: int
    parameters: int
    depth: int
    forward: int
    backward: int
    by_kind: dict[str, KindOperations]


def split_operations(view: RunView, end: float) -> OperationSplit:
    """Return the split of the score's operations: the same records, the same counts."""
    history = view.history
    train: Counter[str] = Counter()
    validation: Counter[str] = Counter()
    late = history.executions.after(end)
    for name in history.executions.trials:
        trial, after = history.trials[name], late.get(name, (0, 0))
        own = trial.train_samples - after[0], trial.validation_samples - after[1]
        if any(own):  # Of no other one need the graph be there.
            train[trial.started.graph] += own[0]
            validation[trial.started.graph] += own[1]
    training_forward = sum(n * view.counts[graph].forward for graph, n in train.items())
    validation_forward = sum(n * view.counts[graph].forward for graph, n in validation.items())
    backward = sum(n * view.counts[graph].backward for graph, n in train.items())
    return OperationSplit(
        total=training_forward + validation_forward + backward,
        forward=training_forward + validation_forward,
        backward=backward,
        training_forward=training_forward,
        validation_forward=validation_forward,
        train_samples=train.total(),
        validation_samples=validation.total(),
        by_kind=_by_kind(view, train, validation),
    )


def _by_kind(
    view: RunView, train: Mapping[str, int], validation: Mapping[str, int]
) -> dict[str, KindOperations]:
    forward: defaultdict[str, int] = defaultdict(int)
    backward: defaultdict[str, int] = defaultdict(int)
    for graph in sorted(train):
        for kind, operations in view.counts[graph].by_kind.items():
            forward[kind] += (train[graph] + validation[graph]) * operations.forward
            backward[kind] += train[graph] * operations.backward
    return {
        kind: KindOperations(forward=forward[kind], backward=backward[kind]) for kind in forward
    }


def best_graph(view: RunView, end: float) -> GraphReport | None:
    """Return the graph of the best evaluation up to ``end``, UTC seconds; None before any."""
    best = view.best(end)
    if best is None:
        return None
    started = view.history.trials[best.trial].started
    counted = view.counts[started.graph]
    return GraphReport(
        trial=best.trial,
        graph=started.graph,
        accuracy=best.quality if best.measure is ACCURACY else None,
        quality=best.quality,
        epoch=best.epoch,
        parameters=started.parameters,
        depth=started.depth,
        forward=counted.forward,
        backward=counted.backward,
        by_kind={
            kind: KindOperations(forward=o.forward, backward=o.backward)
            for kind, o in counted.by_kind.items()
        },
    )
