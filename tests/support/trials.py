"""A planned trial and the context of its trainer, as tests of trainers and builders need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.support.networks import two_stems

from aiperf_hpc.config import RunConfig
from aiperf_hpc.morphism.weights.weight_file import initial_weights
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.training.trial import (
    Candidate,
    PlannedTrial,
    TrialProgress,
    configured_hyperparameters,
)
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import FIRST, Identity, RunPaths
from aiperf_hpc.trial import RoundPhase

GRAPH = two_stems()


def planned_trial(config: RunConfig, batch_size: int, name: str = "r0-t1") -> PlannedTrial:
    """Return a trial of the first round, of one epoch."""
    used = configured_hyperparameters(config.training)
    return PlannedTrial(
        name=name,
        round=1,
        phase=RoundPhase.WARMUP,
        candidate=Candidate(GRAPH, initial_weights(GRAPH, np.random.default_rng(0))),
        hyperparameters=used.model_copy(update={"batch_size": batch_size}),
        epoch_limit=1,
        seed=7,
        progress=TrialProgress(trial=name),
    )


def replica_context(folder: Path, config: RunConfig, **changed: Any) -> ReplicaContext:  # noqa: ANN401
    """Return the context of the first attempt of the replica r0."""
    context: dict[str, Any] = {
        "config": config,
        "paths": RunPaths(folder),
        "who": Identity("r0", FIRST),
        "journal": JournalWriter(folder / "journal.jsonl"),
        "stop": StopFlag(float("inf"), folder / "stop"),
    }
    return ReplicaContext(**context | changed)
