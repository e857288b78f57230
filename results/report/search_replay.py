"""Predictions of the search: each candidate, the reason for its choice, and its outcome.

Only the records are used: a searcher records its prediction with every proposal. It predicts, and
receives, an objective value: the accuracy predicted for a warm-up trial after longer
training, or the accuracy that any other trial reached. So its predictions are compared with
objective values; only what an evaluation observed is called reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from aiperf_hpc.formatting import duration, in_words, percent
from aiperf_hpc.grouping import grouped
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import Proposal, Trial
from aiperf_hpc.trial import TrialState, Value

LEAST_PAIRS = 3
"""Minimum number of candidates for a meaningful rank correlation."""

OBJECTIVE = "the predicted accuracy if there is one, else the accuracy reached"


class CandidateOutcome(Value):
    """A candidate as proposed, with its outcome."""

    elapsed_seconds: float
    """Seconds from the run's start until the candidate was ready."""
    replica: str
    proposal: str
    parent: str
    """Trial of the parent network."""
    morphisms_text: str
    """Descriptions of the morphisms."""
    mean: float | None
    """Predicted objective value; None if the searcher makes no prediction."""
    deviation: float | None
    acquisition: float | None
    """Acquisition value for which it was chosen: the maximum of all evaluated graphs."""
    parent_accuracy: float | None
    """Objective value of the parent when the candidate was chosen."""
    graphs: int | None
    """Number of distinct graphs from which the searcher had learned."""
    pending: int | None
    """Number of graphs in training that the searcher considered."""
    repeated: bool
    """Whether the graph was already known, because no new one was found."""
    seconds: float
    """Seconds spent on choosing the candidate and writing its weights."""
    trials: int
    """Number of trials that trained the candidate."""
    reached: float | None
    """Highest objective value that an evaluation of it observed."""
    predicted: float | None
    """Highest accuracy predicted for its trials after longer training."""
    objective: float | None
    """Highest value of it that the search received: for each ended trial the predicted accuracy, or
    the reached one if none was predicted."""
    state: str
    """State of the candidate: waiting, rejected, training, trained, cut by the run's end or a stop
    before it was evaluated, or failed."""


class SearchReplay(Value):
    """All candidates of a run, in chronological order."""

    searchers: tuple[str, ...]
    candidates: tuple[CandidateOutcome, ...]
    compared: int
    """Number of candidates with a prediction and a recorded objective value."""
    rank_correlation: float | None
    """Spearman's rank correlation between predicted and recorded objective values."""
    mean_absolute_error: float | None
    """Mean absolute error of the predicted objective values."""
    within_two_deviations: float | None
    """Fraction of objective values within two standard deviations of the predictions."""


def replay_search(view: RunView) -> SearchReplay:
    """Return the predictions of a run's searchers, from the records until its end."""
    history, start = view.history, view.history.origin_utc or 0.0
    trials = grouped((trial.started.proposal, trial) for trial in history.trials.values())
    ordered = sorted(history.proposals.values(), key=lambda p: (p.utc, p.id))
    candidates = tuple(
        _candidate(p, trials[p.id], start, view.until, rejected=p.id in history.rejected)
        for p in ordered
    )
    pairs = [(c.mean, c.deviation or 0.0, c.objective) for c in candidates]
    compared = [(m, d, o) for m, d, o in pairs if m is not None and o is not None]
    return SearchReplay(
        searchers=tuple(sorted(history.searchers)),
        candidates=candidates,
        compared=len(compared),
        rank_correlation=_rank_correlation(
            [m for m, _, _ in compared], [o for _, _, o in compared]
        ),
        mean_absolute_error=_mean(abs(m - o) for m, _, o in compared),
        within_two_deviations=_mean(float(abs(m - o) <= 2.0 * d) for m, d, o in compared),
    )


def _candidate(
    proposal: Proposal, trials: Sequence[Trial], start: float, end: float, *, rejected: bool
) -> CandidateOutcome:
    proposed, prediction = proposal.proposed, proposal.proposed.prediction
    reached = [evaluation for trial in trials for evaluation in trial.evaluations]
    values = (t.objective_value for t in trials if t.state.ended)
    told = [value for value in values if value is not None]
    predicted = [t.ended.predicted_accuracy for t in trials if t.ended is not None]
    return CandidateOutcome(
        elapsed_seconds=proposal.utc - start,
        replica=proposal.replica,
        proposal=proposal.id,
        parent=proposed.parent,
        morphisms_text=in_words(proposed.morphisms),
        mean=prediction.get("mean"),
        deviation=prediction.get("deviation"),
        acquisition=prediction.get("acquisition"),
        parent_accuracy=prediction.get("parent_accuracy"),
        graphs=_whole(prediction.get("graphs")),
        pending=_whole(prediction.get("pending")),
        repeated="repeated" in prediction,
        seconds=proposed.seconds,
        trials=len(trials),
        reached=max((e.objective_value for e in reached if e.utc <= end), default=None),
        predicted=max((p for p in predicted if p is not None), default=None),
        objective=max(told, default=None),
        state=_state(trials, told=bool(told), rejected=rejected),
    )


def _state(trials: Sequence[Trial], *, told: bool, rejected: bool) -> str:
    if told:
        return "trained"
    if not trials:
        return "rejected" if rejected else "waiting"
    if not all(trial.state.ended for trial in trials):
        return "training"
    return "cut" if any(trial.state is TrialState.STOPPED for trial in trials) else "failed"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return math.fsum(known) / len(known) if known else None


def _rank_correlation(expected: list[float], told: list[float]) -> float | None:
    """Return Spearman's rank correlation, or None for too few pairs or equal values."""
    if len(expected) < LEAST_PAIRS or len(set(expected)) == 1 or len(set(told)) == 1:
        return None
    from scipy.stats import spearmanr  # slow to import, and every command imports this module

    return float(spearmanr(expected, told).statistic)


def table(replay: SearchReplay) -> list[str]:
    """Return the candidates as lines of text, with statistics of the search."""
    if not replay.candidates:
        return ["no candidate was proposed"]
    head = ("AFTER", "CANDIDATE", "PARENT", "PARENT'S OBJECTIVE", "EXPECTED", "ACQUISITION",
            "REACHED", "PREDICTED", "STATE", "GROWN BY")  # fmt: skip
    rows = [head, *(_row(candidate) for candidate in replay.candidates)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    return [*lines, "", *_summary(replay)]


def _row(candidate: CandidateOutcome) -> tuple[str, ...]:
    expected = percent(candidate.mean)
    if candidate.deviation is not None:
        expected += f" ± {percent(candidate.deviation)}"
    return (
        duration(candidate.elapsed_seconds),
        candidate.proposal,
        candidate.parent,
        percent(candidate.parent_accuracy),
        expected,
        "–" if candidate.acquisition is None else f"{candidate.acquisition:.4f}",
        percent(candidate.reached),
        percent(candidate.predicted),
        candidate.state,
        candidate.morphisms_text + (" (already known)" if candidate.repeated else ""),
    )


def _summary(replay: SearchReplay) -> list[str]:
    lines = [
        f"{len(replay.candidates)} candidates by {', '.join(replay.searchers) or 'no searcher'}, "
        f"{replay.compared} of them with both an expected and a final objective",
        f"objective: {OBJECTIVE}",
    ]
    if replay.rank_correlation is not None:
        lines.append(f"rank correlation of expected and objective: {replay.rank_correlation:.2f}")
    if replay.compared:
        lines.append(
            f"mean absolute error of expected: {percent(replay.mean_absolute_error)}; "
            f"{percent(replay.within_two_deviations, 0)} within two deviations"
        )
    return lines
