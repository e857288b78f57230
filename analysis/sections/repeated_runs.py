"""Detection of training runs that repeat each other."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.statistics import jaccard
from aiperf_hpc.analysis.training_log import Entry, TrainingLog
from aiperf_hpc.formatting import duration, few
from aiperf_hpc.trial import Value

WHOLE = 0.95
"""Minimum fraction of its configured length that a run must last to be compared with others."""
DIFFERS = "differing settings: "


class Repeated(NamedTuple):
    """Training runs of one configuration."""

    entries: tuple[Entry, ...]
    logs: tuple[TrainingLog, ...]
    """Logs of the scored training runs."""
    searches: bool
    """Whether each training run is a complete AIPerf search run."""
    excluded: dict[str, str]
    """Reason why each of the other training runs is not scored, by source."""

    @property
    def name(self) -> str:
        """Names of the entries."""
        return few([entry.name for entry in self.entries])


def repetitions(entries: Sequence[Entry]) -> Iterator[Repeated]:
    """Yield the training runs of each configuration.

    Training runs of a public entry form a group, as do AIPerf runs with equal nodes, length and
    configuration except for the seed.
    """
    alike: dict[str, list[Entry]] = {}
    for entry in entries:
        alike.setdefault(_condition(entry), []).append(entry)
    for found in alike.values():
        logs = [log for entry in found for log in entry.logs]
        searches = any(log.timeline is not None for log in logs)
        excluded = {log.source: why for log in logs if searches and (why := _unfinished(log))}
        counting = tuple(log for log in logs if log.source not in excluded)
        yield Repeated(tuple(found), counting, searches, excluded)


def _condition(entry: Entry) -> str:
    """Return a text that is equal for all repetitions of an entry."""
    settings = entry.logs[0].settings if entry.logs else {}
    if entry.format != "aiperf" or "config" not in settings:
        return f"{entry.path} {entry.name}"
    config = {key: value for key, value in settings["config"].items() if key != "seed"}
    return json.dumps([settings["nodes"], settings["hours"], config], sort_keys=True)


def _unfinished(log: TrainingLog) -> str:
    """Return the reason why a run is shorter than configured, or an empty text if it is not."""
    seconds = None if log.run is None else log.run.seconds
    if seconds is None:
        return "it has no end"
    wanted = float(log.settings["hours"]) * 3600.0
    if seconds >= WHOLE * wanted:
        return ""
    return f"it ended after {duration(seconds)} of {duration(wanted)}"


def differences(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the unexpected differences between the runs."""
    systems = {(entry.system.name, entry.system.accelerator) for entry in entries}
    if len(systems) > 1:
        yield DIFFERS + "the machine"
    settings = [entry.logs[0].settings for entry in entries if entry.logs]
    for name in sorted({name for each in settings for name in _versions(each)}):
        if len({_versions(each).get(name) for each in settings}) > 1:
            yield DIFFERS + name


def _versions(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**settings.get("versions", {}), "the commit": settings.get("commit")}


MOST_RUNS = 64
"""Maximum number of runs compared pairwise, to limit the number of pairs."""


class Similarity(Value):
    """The Jaccard similarity of predictions, over all pairs of runs."""

    runs: tuple[str, ...]
    """Trials with stored predictions, by run."""
    pairs: int
    mean: float
    min: float
    max: float


def similarity_of(logs: Sequence[TrainingLog]) -> Similarity | None:
    """Compare the predictions of all runs that stored them; None if fewer than two did.

    Raises:
        NotMeasuredError: the runs predict different numbers of samples.
    """
    predicting = [(log, log.predictions) for log in logs if log.predictions is not None][:MOST_RUNS]
    if len(predicting) < 2:
        return None
    if len({predicted.samples for _, predicted in predicting}) > 1:
        raise NotMeasuredError("the stored predictions are of different numbers of samples")
    classes = [np.frombuffer(predicted.classes, "<u4") for _, predicted in predicting]
    found = [jaccard(one, other) for one, other in itertools.combinations(classes, 2)]
    return Similarity(
        runs=tuple(f"{log.source}: {predicted.trial}" for log, predicted in predicting),
        pairs=len(found),
        mean=statistics.fmean(found),
        min=min(found),
        max=max(found),
    )
