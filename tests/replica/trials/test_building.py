"""What of the next trial is made ready beside the one under way, and what waits for its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.support.fakes import FakeDataset, FakeEngine, Script
from tests.support.networks import two_stems

from aiperf_hpc.config import validate
from aiperf_hpc.morphism.weights.checkpoint import initial_weights
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.runtime.background import Immediate
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import (
    BuiltTrial,
    Candidate,
    PlannedTrial,
    TrialProgress,
    configured_hyperparameters,
)
from aiperf_hpc.replica.trials.building import OneRankBuilder
from aiperf_hpc.run.identity import Identity
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import FIRST, RunPaths
from aiperf_hpc.trial import RoundPhase

GRAPH = two_stems()
RUNNING, NEXT = 8_000, 4_000
CONFIG = validate({"dataset": {"name": "synthetic"}, "training": {"precision": "fp32"}}, "test")


def planned(name: str, batch_size: int) -> PlannedTrial:
    used = configured_hyperparameters(CONFIG.training)
    return PlannedTrial(
        name=name,
        round=1,
        phase=RoundPhase.WARMUP,
        candidate=Candidate(GRAPH, initial_weights(GRAPH, np.random.default_rng(0))),
        hyperparameters=used.model_copy(update={"batch_size": batch_size}),
        epoch_limit=1,
        seed=7,
        course=TrialProgress(trial=name),
    )


@pytest.mark.parametrize("both_fit", [True, False])
def test_the_next_network_is_warmed_with_what_fits_beside_the_one_that_trains(
    tmp_path: Path, *, both_fit: bool
) -> None:
    """The larger one trains: twice the next one would fit, both together may not."""
    unlimited = MemoryLimit(CONFIG, 2**40)
    together = sum(unlimited.needed(GRAPH, batch) for batch in (RUNNING, NEXT))
    assert together > 2 * unlimited.needed(GRAPH, NEXT)
    context = ReplicaContext(
        config=CONFIG,
        paths=RunPaths(tmp_path),
        who=Identity("r0", FIRST),
        journal=JournalWriter(tmp_path / "journal.jsonl"),
        stop=StopFlag(float("inf"), tmp_path / "stop"),
    )
    engine = FakeEngine(Script())
    limit = MemoryLimit(CONFIG, together if both_fit else together - 1)
    trainer = Trainer(context, engine, FakeDataset(), limit)
    builder = OneRankBuilder(trainer, Immediate())
    taken: list[Callable[[], BuiltTrial]] = []

    def meanwhile() -> None:
        if not taken:
            taken.append(builder.begin(planned("r0-t2", NEXT)))

    first = builder.begin(planned("r0-t1", RUNNING))()
    trainer.run(first, meanwhile)
    running, following = engine.networks
    assert running.warmed == [RUNNING]
    assert following.warmed == ([NEXT] if both_fit else [1])
    assert bool(following.calibrated) is both_fit  # That takes a batch's memory, too.
    builder.close(first)
    assert running.closed
    taken[0]()
    assert following.warmed == ([NEXT] if both_fit else [1, NEXT])
    assert following.calibrated
