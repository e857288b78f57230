"""The score: operations of all executed samples over elapsed time, and its regulated form.

OPS(t) = operations credited until t / (t - start), over all replicas (Ren et al. 2021).
Regulated(t) = -ln(error(t)) * OPS(t), the error that of the best complete
evaluation until t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aiperf_hpc.graph_store import GraphStore
from aiperf_hpc.history import Evaluation, Execution, RunHistory
from aiperf_hpc.ops_counter.count import GraphCount, count


@dataclass(frozen=True, slots=True)
class ScorePoint:
    """The score at one time."""

    elapsed: float
    """Seconds since the run's start."""
    operations: int
    """Credited so far, over all replicas."""
    error: float | None
    """1 - best validation accuracy so far; None before the first complete evaluation."""
    regulated_error: float | None
    """``error``, but never less than one sample of the validation set: see docs/decisions."""

    @property
    def ops(self) -> float:
        """Operations a second since the run's start."""
        return self.operations / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def regulated(self) -> float | None:
        """-ln(error) * OPS."""
        if self.regulated_error is None:
            return None
        return (0.0 - math.log(self.regulated_error)) * self.ops  # 0.0, not -0.0, at error 1


class Counts:
    """The operation counts of a run's graphs, counted from the stored graphs once each."""

    def __init__(self, graphs: GraphStore) -> None:
        self._graphs = graphs
        self._known: dict[str, GraphCount] = {}

    def __getitem__(self, graph_hash: str) -> GraphCount:
        """Return the count of a graph. Raises GraphError or CountError."""
        if graph_hash not in self._known:
            self._known[graph_hash] = count(self._graphs.load(graph_hash))
        return self._known[graph_hash]


def credited(execution: Execution, graph: GraphCount) -> int:
    """Return the operations of the samples that one progress record says were executed."""
    return execution.train_samples * graph.training + execution.validation_samples * graph.forward


def end_of(history: RunHistory) -> float:
    """Return until when the run is scored, UTC seconds: its end, or its last record so far."""
    return history.last_utc if history.end_utc is None else history.end_utc


def score_at(history: RunHistory, counts: Counts, utc: float) -> ScorePoint:
    """Return the score at ``utc``; (0, 0) when the run has not started."""
    return score_series(history, counts, [utc])[0]


def score_series(history: RunHistory, counts: Counts, times: list[float]) -> list[ScorePoint]:
    """Return the score at each of ``times``, UTC seconds in ascending order.

    Raises:
        GraphError: a graph that was trained is missing or is not what its name says.
    """
    start = history.start_utc or 0.0
    executions = sorted(history.executions, key=lambda e: e.utc)
    evaluations = history.evaluations
    operations, done, evaluated = 0, 0, 0
    best: Evaluation | None = None
    points: list[ScorePoint] = []
    for utc in times:
        while done < len(executions) and executions[done].utc <= utc:
            execution = executions[done]
            trained = counts[history.trials[execution.trial].started.graph]
            operations += credited(execution, trained)
            done += 1
        while evaluated < len(evaluations) and evaluations[evaluated].utc <= utc:
            candidate = evaluations[evaluated]
            if best is None or candidate.accuracy > best.accuracy:
                best = candidate
            evaluated += 1
        elapsed = max(0.0, utc - start) if history.start_utc is not None else 0.0
        points.append(
            ScorePoint(
                elapsed,
                operations,
                None if best is None else best.error,
                None if best is None else max(best.error, 1.0 / best.result.samples),
            )
        )
    return points


def score_times(history: RunHistory, interval_hours: float) -> list[float]:
    """Return every multiple of the interval since the start, and the end, UTC seconds."""
    if history.start_utc is None:
        return []
    start, end, step = history.start_utc, end_of(history), interval_hours * 3600.0
    whole = int((end - start) / step)
    times = [start + step * (i + 1) for i in range(whole)]
    if times and end - times[-1] < 1e-3:
        times.pop()  # The end itself, but for rounding.
    return [*times, end]
