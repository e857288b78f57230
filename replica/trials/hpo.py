"""Hyperparameter optimization: Optuna's TPE over the configured space, accuracy maximized.

Each attempt of a replica has one study for all its rounds, in Optuna's journal format in the
attempt's own folder. The file is for users and never read back: a new attempt rebuilds its study
from the records of the trials. The study holds the hyperparameters and the accuracy of each trial.
TPE samples from a copy in memory, made for each suggestion, without the effects of the graph
(docs/decisions/search.md): the mean of each round, and values that the current graph cannot have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.storages import BaseStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from aiperf_hpc.config import HpoConfig, Integers, Reals, SpaceConfig
from aiperf_hpc.errors import StorageError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import grow, inserted_spatial_convs, resize_inserted
from aiperf_hpc.replica.training.trial import Suggestion
from aiperf_hpc.run.paths import seed_of, write_whole
from aiperf_hpc.run.storage import GrowingFile, Retry
from aiperf_hpc.trial import Hyperparameters

Warn = Callable[[str], None]
"""Called with a one-line warning."""
Fits = Callable[[Graph, int], bool]
"""Whether a graph can be trained with a batch size on this accelerator."""
Dimension = Integers | Reals
Space = Mapping[str, Dimension]
Values = Mapping[str, Any]

DRAWS = 8
"""Number of resamplings if the round has already tried a suggestion."""


@dataclass(eq=False)
class Hpo:
    """The Optuna study of a replica, shared by all its rounds."""

    config: HpoConfig
    """Hyperparameter space and number of random trials."""
    base: Hyperparameters
    """Hyperparameters that are not searched."""
    storage: BaseStorage
    """Storage of the study."""
    name: str
    """Name of the study."""
    seed: int
    """Random seed of the suggestions."""
    fits: Fits
    """Returns whether a graph can be trained with a batch size."""

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = _dimensions(self.config.space)
        self._study = optuna.create_study(
            storage=self.storage, study_name=self.name, direction="maximize"
        )

    def suggest(self, graph: Graph, round_: int, like: Hyperparameters | None = None) -> Suggestion:
        """Choose hyperparameters of a trial that trains ``graph``.

        Args:
            graph: graph to train; limits the kernel and batch sizes.
            round_: number of the round; all trials of a round train one graph.
            like: hyperparameters to start the round with, moved to the nearest point of the
                graph's space; None to let TPE choose.
        """
        space = self._space_of(graph)
        if like is not None:
            return self._begin(_nearest(space, like), round_, "parent")
        return self._begin(self._ask(space, round_), round_, "tpe")

    def completed(self, suggestion: Suggestion, accuracy: float, note: str = "") -> None:
        """Record a trial's best accuracy, whether or not it was stopped early."""
        self._note(suggestion, note)
        self._study.tell(suggestion.number, accuracy)

    def failed(self, suggestion: Suggestion, reason: str) -> None:
        """Record that a trial failed; TPE ranks it below all completed trials."""
        self._note(suggestion, reason)
        self._study.tell(suggestion.number, state=TrialState.FAIL)

    def cut(self, suggestion: Suggestion, reason: str) -> None:
        """Record that a trial was interrupted; TPE ignores it."""
        self._note(suggestion, reason)
        self._study.tell(suggestion.number, state=TrialState.PRUNED)

    def learn(self, used: Hyperparameters, round_: int, accuracy: float | None) -> None:
        """Add a trial that this study did not suggest; ``accuracy`` is None if it failed.

        Trials outside the space, for example with a batch size that was halved, are ignored.
        """
        found = {name: getattr(used, name) for name in self._space}
        params = {name: value for name, value in found.items() if value is not None}
        if all(_inside(self._space, name, value) for name, value in params.items()):
            state = TrialState.FAIL if accuracy is None else TrialState.COMPLETE
            self._add(params, round_, "earlier", state, accuracy)

    def _begin(self, params: Values, round_: int, by: str) -> Suggestion:
        """Add a running trial in one synchronous write; Optuna's ``ask`` needs several."""
        self._add(params, round_, by, TrialState.RUNNING)
        return Suggestion(self.base.model_copy(update=params), self._trials()[-1].number)

    def _add(
        self,
        params: Values,
        round_: int,
        by: str,
        state: TrialState,
        value: float | None = None,
    ) -> None:
        self._study.add_trial(
            create_trial(
                state=state,
                value=value,
                params=dict(params),
                distributions={name: _distribution(self._space[name]) for name in params},
                user_attrs={"round": round_, "chosen_by": by},
            )
        )

    def _note(self, suggestion: Suggestion, text: str) -> None:
        if text:
            study = self.storage.get_study_id_from_name(self._study.study_name)
            trial = self.storage.get_trial_id_from_study_id_trial_number(study, suggestion.number)
            self.storage.set_trial_user_attr(trial, "reason", text)

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _space_of(self, graph: Graph) -> Space:
        """Return the part of the space that ``graph`` can have."""
        configured = self.config.space
        kernels = kernel_choices(graph, configured.kernel_size.values)
        largest = grow(graph, resize_inserted(graph, kernels[-1])) if kernels else graph
        sizes = configured.batch_size.values
        # If none fits, the trainer halves the smallest or fails the trial.
        fitting = [size for size in sizes if self.fits(largest, size)] or sizes[:1]
        space = {**self._space, "batch_size": _part(configured.batch_size, fitting)}
        if kernels:
            space["kernel_size"] = _part(configured.kernel_size, kernels)
        else:
            del space["kernel_size"]
        return space

    def _ask(self, space: Space, round_: int) -> Values:
        """Sample from TPE in a copy of the study with round effects removed."""
        trials = self._trials()
        tried = [t.params for t in trials if _round(t) == round_]
        sampler = optuna.samplers.TPESampler(
            seed=seed_of(self.seed, len(trials)),
            n_startup_trials=self.config.startup_trials,
            constant_liar=False,
        )
        copy = optuna.create_study(sampler=sampler, direction="maximize")
        distributions = {name: _distribution(each) for name, each in space.items()}
        for params, merit in _merits(trials):
            there = {n: v for n, v in params.items() if _inside(space, n, v)}
            if there:
                of_them = {name: distributions[name] for name in there}
                copy.add_trial(create_trial(value=merit, params=there, distributions=of_them))
        draws = [copy.ask(distributions).params]
        while draws[-1] in tried and len(draws) < DRAWS:
            draws.append(copy.ask(distributions).params)
        return draws[-1]


def _merits(trials: Sequence[FrozenTrial]) -> list[tuple[Values, float]]:
    """Return the accuracy of each ended trial without the effect of its round.

    The effect of a round is its mean accuracy, shrunk towards the mean of all rounds (an empirical
    Bayes estimate of a random effect). Failed trials rank below all others.
    """
    done = [t for t in trials if t.state is TrialState.COMPLETE]
    if not done:
        return []
    values: dict[int, list[float]] = {}
    for trial in done:
        values.setdefault(_round(trial), []).append(float(trial.values[0]))
    common = _common(values)
    merits = [(t.params, float(t.values[0]) - common[_round(t)]) for t in done]
    worst = min(merit for _, merit in merits) - 1.0
    return merits + [(t.params, worst) for t in trials if t.state is TrialState.FAIL]


def _common(values: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """Return the effect of each round; 0 for rounds of one trial."""
    several = [v for v in values.values() if len(v) > 1]
    means = {round_: float(np.mean(v)) for round_, v in values.items()}
    centre = float(np.mean(list(means.values())))
    if not several or len(means) == 1:
        return dict.fromkeys(values, centre)
    within = float(np.mean([np.var(v, ddof=1) for v in several]))
    by_chance = within * float(np.mean([1 / len(v) for v in values.values()]))
    between = max(0.0, float(np.var(list(means.values()), ddof=1)) - by_chance)
    if between == 0.0:
        return dict.fromkeys(values, centre)
    return {
        r: centre + (means[r] - centre) * between / (between + within / len(v))
        for r, v in values.items()
    }


def _round(trial: FrozenTrial) -> int:
    return int(trial.user_attrs["round"])


def _dimensions(space: SpaceConfig) -> Space:
    """Return the dimensions that are searched."""
    found = {name: getattr(space, name) for name in SpaceConfig.model_fields}
    return {name: dimension for name, dimension in found.items() if dimension is not None}


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Reals):
        return FloatDistribution(dimension.low, dimension.high, log=dimension.log)
    if dimension.choices is not None:
        return CategoricalDistribution(dimension.choices)
    return IntDistribution(dimension.values[0], dimension.values[-1], step=dimension.step)


def _part(dimension: Integers, values: Sequence[int]) -> Integers:
    """Return the part of a dimension with ``values``, which must be adjacent in it."""
    if dimension.choices is not None:
        return Integers(choices=tuple(values))
    return Integers(low=values[0], high=values[-1], step=dimension.step)


def _inside(space: Space, name: str, value: float) -> bool:
    dimension = space.get(name)
    if isinstance(dimension, Reals):
        return dimension.low <= value <= dimension.high
    return dimension is not None and value in dimension.values


def _nearest(space: Space, like: Hyperparameters) -> Values:
    """Return the point of the space nearest to ``like`` in each dimension.

    If ``like`` has no kernel size, the smallest is used, which the graph already has.
    """
    point: dict[str, Any] = {}
    for name, dimension in space.items():
        value = getattr(like, name)
        if isinstance(dimension, Reals):
            point[name] = min(max(value, dimension.low), dimension.high)
        else:
            ratio = partial(_ratio, 1 if value is None else value)
            point[name] = min(dimension.values, key=ratio)
    return point


def _ratio(one: int, other: int) -> float:
    """Return the ratio of the larger to the smaller."""
    return max(one, other) / min(one, other)


class StudyLog(BaseJournalBackend):
    """Backend of Optuna's journal storage with one writer.

    Optuna's own backend takes a lock, which one writer does not need, and leaves half a line if
    the disk fills. This one also keeps the log in memory, from which a lost file is rewritten.
    """

    def __init__(self, path: Path, retry: Retry, warn: Warn) -> None:
        """Replace the file, if it exists.

        Args:
            path: file of the storage.
            retry: retries a failed write.
            warn: called if the file was lost or changed, and was written anew.

        Raises:
            StorageError: the file cannot be written, now or on any later use.
        """
        self._path = path
        self._retry = retry
        self._warn = warn
        self._what = f"the study {path}"
        self._logs: list[dict[str, Any]] = []
        self._file = self._made("")

    def _made(self, lines: str) -> GrowingFile:
        """Replace the file by one with these lines."""

        def make() -> GrowingFile:
            write_whole(self._path, lines)
            return GrowingFile(self._path)

        return self._retry(make, self._what)

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = _lines(logs)
        try:
            self._retry(lambda: self._file.add(lines.encode()), self._what)
        except StorageError as error:
            self._file.close()
            self._file = self._made(_lines(self._logs) + lines)
            self._warn(str(error))
        self._logs += json.loads(f"[{','.join(lines.splitlines())}]")


def _lines(logs: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)


def kernel_choices(graph: Graph, sizes: Sequence[int]) -> list[int]:
    """Return the kernel sizes that all inserted spatial convolutions of ``graph`` can have.

    A kernel cannot shrink without changing the function, so sizes start at the current largest.
    The result is empty if the graph has no such convolution.
    """
    inserted = inserted_spatial_convs(graph)
    if not inserted:
        return []
    return [size for size in sorted(sizes) if size >= max(inserted.values())]
