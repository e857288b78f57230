"""Hyperparameter optimisation: Optuna's TPE over batch size and kernel size, accuracy maximised.

One study a replica, kept in Optuna's own journal file in the replica's folder, which only this
replica writes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from aiperf_hpc.config import HpoConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.morphs import inserted_spatial_convs
from aiperf_hpc.storage import Persist, at_once
from aiperf_hpc.trial import Hyperparameters


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to try next. ``kernel_size`` is None where no kernel can be chosen."""

    number: int
    batch_size: int
    kernel_size: int | None


class _StudyFile(JournalFileBackend):
    """Optuna's journal, on storage that may be full or away for a while."""

    def __init__(self, path: Path, persist: Persist) -> None:
        super().__init__(str(path))
        self._path, self._persist = path, persist

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._persist(lambda: self._append(logs), f"the study {self._path}")

    def _append(self, logs: list[dict[str, Any]]) -> None:
        whole = self._path.stat().st_size
        try:
            super().append_logs(logs)
        except OSError:
            os.truncate(self._path, whole)  # Optuna cannot read a torn line, nor one twice.
            raise


class Hpo:
    """A replica's study, shared by all its rounds."""

    def __init__(
        self, config: HpoConfig, storage: Path, name: str, seed: int, persist: Persist = at_once
    ) -> None:
        """Make the study, or go on with the one in ``storage``, which ``persist`` writes.

        Raises:
            StorageError: it cannot be written; so do the methods.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._config = config
        self._study = optuna.create_study(
            storage=JournalStorage(persist(lambda: _study(storage, persist), str(storage))),
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=config.startup_trials),
            study_name=name,
            direction="maximize",
            load_if_exists=True,
        )

    def suggest(self, graph: Graph) -> Suggestion:
        """Ask for hyperparameters of a trial that trains ``graph``."""
        trial = self._study.ask()
        batch = trial.suggest_categorical("batch_size", self._config.batch_sizes)
        sizes = kernel_choices(graph, self._config.kernel_sizes)
        kernel = trial.suggest_int("kernel_size", sizes[0], sizes[-1], step=2) if sizes else None
        return Suggestion(trial.number, int(batch), kernel)

    def report(self, suggestion: Suggestion, accuracy: float | None) -> None:
        """Tell what came of a suggestion: its accuracy, or None when it failed."""
        if accuracy is None:
            self._study.tell(suggestion.number, state=TrialState.FAIL)
        else:
            self._study.tell(suggestion.number, accuracy)

    def learn(self, used: Hyperparameters, accuracy: float) -> None:
        """Add a trial that an earlier life of this replica made."""
        sizes = self._config.batch_sizes
        if used.batch_size not in sizes:
            return  # It had been halved to fit: no point of this search space.
        parameters: dict[str, int] = {"batch_size": used.batch_size}
        distributions: dict[str, BaseDistribution] = {"batch_size": CategoricalDistribution(sizes)}
        if used.kernel_size is not None:
            low, high = min(self._config.kernel_sizes), max(self._config.kernel_sizes)
            parameters["kernel_size"] = used.kernel_size
            distributions["kernel_size"] = IntDistribution(low, high, step=2)
        self._study.add_trial(
            optuna.trial.create_trial(
                params=parameters, distributions=distributions, value=accuracy
            )
        )


def _study(path: Path, persist: Persist) -> _StudyFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    return _StudyFile(path, persist)


def kernel_choices(graph: Graph, sizes: Sequence[int]) -> list[int]:
    """Return the sizes that all inserted spatial convolutions of ``graph`` can be given.

    A kernel cannot shrink and keep its function, so sizes start at the largest there is. With
    no such convolution there is nothing to choose.
    """
    inserted = inserted_spatial_convs(graph)
    if not inserted:
        return []
    return [size for size in sorted(sizes) if size >= max(inserted.values())]
