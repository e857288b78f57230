"""Hyperparameter importance: the influence of each hyperparameter on the quality of trials.

PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023) as implemented by Optuna, whose default
evaluator it is. It is deterministic and needs no random forest.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from aiperf_hpc.grouping import grouped
from aiperf_hpc.objective import QualityMetric
from aiperf_hpc.results.report.parts import TrialReport
from aiperf_hpc.trial import Hyperparameters, RoundPhase, Value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

EVALUATOR: Final = "PED-ANOVA (Watanabe et al. 2023, optuna.importance)"
MIN_TRIALS: Final = 50
"""Minimum number of trials: Optuna recommends 5 among the best tenth."""
MAX_CATEGORIES: Final = 10
"""Maximum number of distinct values that are treated as categories."""
AS_GROWN: Final = "as grown"
"""Kernel size of a trial that trained its network unchanged."""

Setting = float | str


class HyperparameterImportance(Value):
    """Importance of hyperparameters for being among the best tenth of the HPO trials.

    The quality of a trial is relative to the mean of its round, which trains one candidate, because
    differences between candidates would otherwise be attributed to hyperparameters. For the same
    reason, only hyperparameters that vary within a round are assessed.
    """

    evaluator: str = EVALUATOR
    """Method, with its source."""
    trials: int
    """Number of HPO trials in rounds of at least two trials."""
    importances: dict[str, float] = {}
    """Importance by hyperparameter, in descending order; normalized to 1, four decimals."""
    unavailable_reason: str = ""
    """Reason why there is none; empty if there is one."""


def importance_of(
    trials: Sequence[TrialReport], metric: QualityMetric
) -> HyperparameterImportance | None:
    """Return the importance of the hyperparameters that vary, or None without HPO trials."""
    if all(trial.phase != RoundPhase.HPO for trial in trials):
        return None
    rounds = _rounds(trials)
    count = sum(map(len, rounds))
    names = {name for each in rounds for name in varying(each)}
    values = [value for each in rounds for value in _relative_qualities(each, metric)]
    if len(names) < 2:
        which = ", ".join(names) or "no hyperparameter"
        reason = f"{which} varies within a round; at least two hyperparameters must vary"
    elif count < MIN_TRIALS:
        reason = (
            f"{count} HPO trials in rounds of at least two trials; at least {MIN_TRIALS} are needed"
        )
    elif len(set(values)) == 1:
        reason = "all HPO trials of a round have the same quality"
    else:
        compared = [trial for each in rounds for trial in each]
        settings = {name: [setting_of(t, name) for t in compared] for name in sorted(names)}
        return HyperparameterImportance(trials=count, importances=_importances(settings, values))
    return HyperparameterImportance(trials=count, unavailable_reason=reason)


def varying(trials: Sequence[TrialReport]) -> list[str]:
    """Return the names of the hyperparameters that vary."""
    names = Hyperparameters.model_fields
    return [name for name in names if len({setting_of(trial, name) for trial in trials}) > 1]


def setting_of(trial: TrialReport, name: str) -> Setting:
    """Return the value of a hyperparameter in a trial."""
    value = getattr(trial.hyperparameters, name)
    return value if isinstance(value, int | float) else AS_GROWN if value is None else str(value)


def _rounds(trials: Sequence[TrialReport]) -> list[list[TrialReport]]:
    """Return the evaluated HPO trials of each round with several."""
    tuned = (t for t in trials if t.phase == RoundPhase.HPO and t.best_quality is not None)
    rounds = grouped(((trial.replica, trial.round), trial) for trial in tuned)
    return [own for own in rounds.values() if len(own) > 1]


def _relative_qualities(trials: Sequence[TrialReport], metric: QualityMetric) -> list[float]:
    """Return the objectives of a round's trials minus their mean."""
    qualities = (trial.best_quality for trial in trials)
    objectives = [metric.objective_value(q) for q in qualities if q is not None]
    mean = statistics.fmean(objectives)
    return [round(objective - mean, 12) for objective in objectives]  # Equal ones are equal.


def _importances(
    settings: Mapping[str, Sequence[Setting]], values: Sequence[float]
) -> dict[str, float]:
    import optuna  # Its import takes half a second.
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: _distribution(own) for name, own in settings.items()}
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        optuna.trial.create_trial(
            params={name: own[place] for name, own in settings.items()},
            distributions=distributions,
            value=value,
        )
        for place, value in enumerate(values)
    )
    found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    ordered = sorted(found.items(), key=lambda each: (-round(each[1], 4), each[0]))
    return {name: round(share, 4) for name, share in ordered}


def _distribution(values: Sequence[Setting]) -> BaseDistribution:
    """Return the range of many numbers, or the categories of a few values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    known = sorted(set(values), key=lambda value: (isinstance(value, str), value))
    numbers = [float(value) for value in known if not isinstance(value, str)]
    if len(known) <= MAX_CATEGORIES or len(numbers) < len(known):
        return CategoricalDistribution(known)
    return FloatDistribution(numbers[0], numbers[-1], log=numbers[0] > 0.0)
