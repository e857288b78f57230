"""The search as a custom tuner for NNI 3.0 (docs/nni.md).

No other module imports NNI. NNI's export is not a reliable record: with concurrent trials it
attributes parameters to the wrong trials. The journal of the search is reliable.
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
"""Parameters of one trial: ``trial``, its name in the journal; ``graph``, the JSON of
``Graph.to_json``; ``hash``, its hash; ``parent``, the trial of its parent, or None; and
``morphisms``, the plain data of the morphisms from the parent."""

_OF_RUNS = {"workers", "queue_depth", "keep_checkpoints", "weight_noise", "max_trainings"}
SETTINGS = frozenset(SearchConfig.model_fields) - _OF_RUNS
"""Settings of the search that apply. The others concern processes, weights and the number of
trials, which NNI and the trials control."""

_log = logging.getLogger("nni.aiperf_hpc")
"""Child of NNI's logger, which writes to ``dispatcher.log``."""


class AIPerfTuner(Tuner):  # type: ignore[misc]
    """Tuner that proposes graphs and learns from the reported objective values.

    NNI calls it from two threads in no fixed order: a trial's end may come before its result.
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
            journal: absolute path of the search's journal; an existing one is resumed.
            input_shape: (height, width, channels) of a sample.
            classes: number of classes.
            model: settings of the section ``model``.
            search: settings of the section ``search``, of those in ``SETTINGS``.
            seed: random seed.

        Raises:
            ConfigError: a setting is unknown or out of range, or the path is not absolute.
            GraphError: the network is invalid.
            UsageError: the journal belongs to a search from another initial graph.
            JournalError: the journal cannot be read or written.
        """
        super().__init__()
        self._given = dict(search or {})
        self._space: dict[str, Any] = {}
        config = validate(_sections(self._given, model), "the tuner's arguments")
        if not Path(journal).is_absolute():
            # NNI starts tuners in another working directory.
            raise ConfigError(
                f"the tuner's arguments: journal: '{journal}' is not an absolute path"
            )
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
        """Update the settings of the search; defaults are the constructor's arguments.

        NNI calls this at the start and when the search space is edited.

        Raises:
            ConfigError: a setting is unknown or out of range.
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
        """Return the parameters of a trial.

        Raises:
            NoMoreTrialError: there is currently no new graph within the limits.
            SurrogateError: the surrogate could not be computed.
            JournalError: the journal cannot be written.
        """
        with self._lock:
            try:
                candidate = self._search.ask(self._search.name(parameter_id))
            except SearchSpaceExhaustedError as error:
                raise NoMoreTrialError(str(error)) from None
            graph = self._search.graph(candidate.trial)
        return {
            "trial": candidate.trial,
            "graph": graph.to_json(),
            "hash": candidate.graph,
            "parent": candidate.parent,
            "morphisms": list(candidate.morphisms),
        }

    def receive_trial_result(
        self, parameter_id: int, parameters: Parameters, value: object, **_: object
    ) -> None:
        """Record a trial's result: a number, or a dict with the key ``default``."""
        del (
            parameter_id
        )  # The name is in the parameters; NNI's numbers start from 0 in each experiment.
        self._tell(parameters, value)

    def trial_end(self, parameter_id: int, success: bool, **_: object) -> None:
        """Record the failure of a trial that ended without a result.

        NNI's identifier may be wrong, because the process may have taken another trial's
        parameters. A later result therefore still counts.
        """
        trial = self._search.name(parameter_id)
        with self._lock:
            if trial in self._search.pending:
                how = "ended" if success else "failed or was stopped"
                self._search.tell_failed(trial, f"it {how} and has reported no result")

    def import_data(self, data: list[dict[str, Any]]) -> None:
        """Import results of trials from an earlier session of this experiment.

        NNI's own records, which have a ``trialJobId``, are ignored because the journal is more
        reliable. So are results of trials that are not in the journal.
        """
        for entry in data:
            parameters = entry["parameter"]
            known = isinstance(parameters, dict) and parameters.get("trial", "") in self._search
            if "trialJobId" not in entry and known:
                self._tell(parameters, entry["value"])
            else:
                _log.info("not imported, since the journal is the record: %s", entry)

    def load_checkpoint(self) -> None:
        """Mark this as a resumed experiment; NNI calls it only for these."""
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
                reason = f"it reported {value!r}, which is not a finite number"
                self._search.tell_failed(parameters["trial"], reason)

    def _forget_others(self) -> None:
        """Fail pending trials of an earlier experiment unless it is resumed."""
        if self._resumed:
            return
        for trial in self._search.pending:
            if not trial.startswith(f"{self._search.session}-"):
                self._search.tell_failed(trial, "its experiment ended before it did")


def _sections(search: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> Parameters:
    """Return the configuration to check. Raises ConfigError for settings that NNI controls."""
    for key in sorted(_OF_RUNS & search.keys()):
        raise ConfigError(f"search.{key} has no effect under NNI; known: {sorted(SETTINGS)}")
    # A dataset without a path; the trials choose their own.
    return {"dataset": {"name": "synthetic"}, "search": dict(search), "model": dict(model or {})}
