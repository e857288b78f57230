"""The search as a tuner for NNI 3.0, for people who run their experiments with it: docs/nni.md.

Nothing else imports NNI. What NNI exports is no record: with several trials at once it names the
parameters of other trials than those that ran. The journal of the search is one.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from nni import NoMoreTrialError
from nni.tuner import Tuner

from aiperf_hpc.config import SearchConfig, validate
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.morphism.search.ask_tell import AskTellSearch
from aiperf_hpc.morphism.search.base import SearchSpaceExhaustedError

Parameters = dict[str, Any]
"""The parameters of one trial: ``trial``, its name in the journal; ``graph``, the JSON of
``Graph.to_json``; ``hash``, of that graph; ``parent``, the name of the trial that it grows from, or
None; and ``morphisms``, the plain values of the steps from there."""

_OF_RUNS = {"workers", "stock", "keep_checkpoints", "noise", "trainings"}
SETTINGS = frozenset(SearchConfig.model_fields) - _OF_RUNS
"""What can be set of the search. The others are about processes, weights and the number of trials,
which are NNI's and the trials'."""

_log = logging.getLogger("nni.aiperf_hpc")
"""A logger below NNI's, which goes to ``dispatcher.log``."""


class AIPerfTuner(Tuner):  # type: ignore[misc]
    """Gives trials graphs to train, and learns from the objective values that they report.

    NNI calls it from two threads, and in no fixed order: a trial's end may come before its result.
    """

    def __init__(
        self,
        journal: str,
        input_shape: list[int],
        classes: int,
        model: dict[str, Any] | None = None,
        search: dict[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        """Open the journal.

        Args:
            journal: absolute path of the search's journal; an existing one is gone on with.
            input_shape: (height, width, channels) of a sample.
            classes: how many there are.
            model: settings of the section ``model``.
            search: settings of the section ``search``, those in ``SETTINGS``.
            seed: of all random choices.

        Raises:
            ConfigError: a setting is unknown or out of its range, or the path is not absolute.
            GraphError: there is no such network.
            UsageError: the journal is of a search from another initial graph.
            JournalError: the journal cannot be read or written.
        """
        super().__init__()
        self._given = dict(search or {})
        self._space: dict[str, Any] = {}
        config = validate(_sections(self._given, model), "the tuner's arguments")
        if not Path(journal).is_absolute():
            # NNI starts tuners in a folder of its own.
            raise ConfigError(f"the tuner's arguments: journal: '{journal}' is no absolute path")
        network = config.model
        initial = resnet50(
            tuple(input_shape),
            classes,
            stem=network.stem,
            base_width=network.base_width,
            blocks=network.blocks,
        )
        self._lock = Lock()
        self._search = AskTellSearch(Path(journal), initial, config.search, seed, front_end="nni")
        self._resumed = False

    def update_search_space(self, search_space: object) -> None:
        """Take settings of the search; those that are not given are as the arguments say.

        NNI calls this at the start, and when the space is edited.

        Raises:
            ConfigError: a setting is unknown or out of its range.
        """
        if not isinstance(search_space, Mapping | None):
            raise ConfigError(f"the search space must hold settings of the search: {search_space}")
        space = dict(search_space or {})
        config = validate(_sections({**self._given, **space}), "the search space")
        with self._lock:
            self._forget_others()
            if space != self._space:
                self._space = space
                self._search.configure(config.search)

    def generate_parameters(self, parameter_id: int, **_: object) -> Parameters:
        """Return what a trial should train.

        Raises:
            NoMoreTrialError: nothing new is within the bounds, for now.
            SurrogateError: the searcher's process could not be computed.
            JournalError: it cannot be recorded.
        """
        with self._lock:
            try:
                candidate = self._search.ask(self._search.name(parameter_id))
            except SearchSpaceExhaustedError as error:
                raise NoMoreTrialError(str(error)) from None
        return {
            "trial": candidate.trial,
            "graph": candidate.graph.to_json(),
            "hash": candidate.graph.hash,
            "parent": candidate.parent,
            "morphisms": list(candidate.morphisms),
        }

    def receive_trial_result(
        self, parameter_id: int, parameters: Parameters, value: object, **_: object
    ) -> None:
        """Learn what a trial reports: a number, or a dict whose ``default`` is one."""
        del parameter_id  # The parameters have the name; NNI counts from 0 in each experiment.
        self._tell(parameters, value)

    def trial_end(self, parameter_id: int, success: bool, **_: object) -> None:
        """Record the failure of a trial that has ended and reported nothing.

        The id is the one that NNI meant for this process; the process may have taken another
        trial's parameters. So a result that comes later counts all the same.
        """
        trial = self._search.name(parameter_id)
        with self._lock:
            if trial in self._search.pending:
                how = "ended" if success else "failed or was stopped"
                self._search.tell_failed(trial, f"it {how} and has reported no result")

    def import_data(self, data: list[dict[str, Any]]) -> None:
        """Take results of trials that an earlier life of this experiment began.

        What NNI itself has recorded, which has a ``trialJobId``, is left: the journal knows it,
        and better. So are results of trials that are not in the journal.
        """
        for entry in data:
            parameters = entry["parameter"]
            known = isinstance(parameters, dict) and parameters.get("trial", "") in self._search
            if "trialJobId" not in entry and known:
                self._tell(parameters, entry["value"])
            else:
                _log.info("not imported, since the journal is the record: %s", entry)

    def load_checkpoint(self) -> None:
        """Note that this is an experiment that is resumed, which says so by calling this."""
        self._resumed = True

    def _on_exit(self) -> None:
        self._search.close("the experiment was stopped")

    def _on_error(self) -> None:
        self._search.close("failed: see NNI's dispatcher.log")

    def _tell(self, parameters: Parameters, value: object) -> None:
        reported = value.get("default") if isinstance(value, dict) else value
        with self._lock:
            if isinstance(reported, int | float) and math.isfinite(reported):
                self._search.tell(parameters["trial"], float(reported))
            else:
                reason = f"it reported {value!r}, which is no finite number"
                self._search.tell_failed(parameters["trial"], reason)

    def _forget_others(self) -> None:
        """Give up trials of an earlier experiment, unless this is that one and runs them again."""
        if self._resumed:
            return
        for trial in self._search.pending:
            if not trial.startswith(f"{self._search.life}-"):
                self._search.tell_failed(trial, "its experiment ended before it did")


def _sections(search: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> Parameters:
    """Return a configuration to be checked. Raises ConfigError for what NNI decides itself."""
    for key in sorted(_OF_RUNS & search.keys()):
        raise ConfigError(f"search.{key} means nothing under NNI; known: {sorted(SETTINGS)}")
    # A dataset that needs no path: which one is trained on is the trials' to know.
    return {"dataset": {"name": "synthetic"}, "search": dict(search), "model": dict(model or {})}
