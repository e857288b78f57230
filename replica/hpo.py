"""Hyperparameter optimisation: Optuna's TPE over batch size and kernel size, accuracy maximised.

One study a life of a replica, kept in Optuna's own journal format in that life's folder, which
nobody else writes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import TrialState

from aiperf_hpc.config import HpoConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.morphs import inserted_spatial_convs
from aiperf_hpc.storage import GrowingFile, Persist, at_once
from aiperf_hpc.trial import Hyperparameters


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to try next. ``kernel_size`` is None where no kernel can be chosen."""

    number: int
    batch_size: int
    kernel_size: int | None


def journal_storage(path: Path, persist: Persist = at_once) -> BaseStorage:
    """Return a storage of studies in Optuna's journal format, with one writer.

    Raises:
        StorageError: ``persist`` cannot write it; so do all who use it.
    """
    return JournalStorage(_StudyLog(path, persist))


class Hpo:
    """A replica's study, shared by all its rounds."""

    def __init__(self, config: HpoConfig, storage: BaseStorage, name: str, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._config = config
        self._study = optuna.create_study(
            storage=storage,
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


class _StudyLog(BaseJournalBackend):
    """Optuna's journal file with one writer.

    Optuna's own backend locks it, which is of no use here, and is left with half a line by a
    disk that fills.
    """

    def __init__(self, path: Path, persist: Persist) -> None:
        self._persist, self._what = persist, f"the study {path}"
        self._logs: list[dict[str, Any]] = []
        self._file = persist(lambda: self._open(path), self._what)

    def _open(self, path: Path) -> GrowingFile:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._logs = [json.loads(line) for line in path.read_bytes().splitlines()]
        return GrowingFile(path)

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self._logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        self._persist(lambda: self._file.add(lines.encode()), self._what)
        self._logs += json.loads(f"[{','.join(lines.splitlines())}]")


def kernel_choices(graph: Graph, sizes: Sequence[int]) -> list[int]:
    """Return the sizes that all inserted spatial convolutions of ``graph`` can be given.

    A kernel cannot shrink and keep its function, so sizes start at the largest there is. With
    no such convolution there is nothing to choose.
    """
    inserted = inserted_spatial_convs(graph)
    if not inserted:
        return []
    return [size for size in sorted(sizes) if size >= max(inserted.values())]
