"""A replica's view of the run: its own journals, and the digest of all replicas."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.support.run_factory import DATASET
from tests.support.run_writer import (
    DigestingPrimary,
    RunWriter,
    evaluated,
    proposed,
    trial_ended,
    trial_started,
)

from aiperf_hpc.config import load_config
from aiperf_hpc.morphism.search.run_knowledge import Observations, RunKnowledge
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.search_digest import Digest
from aiperf_hpc.trial import TrialState


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    return RunWriter(tmp_path)


@pytest.fixture
def knowledge(run: RunWriter) -> RunKnowledge:
    return RunKnowledge("r0", RunHistory(run.paths, replica="r0"), Digest(run.paths))


def test_other_replicas_are_read_from_the_digest_only(
    run: RunWriter, knowledge: RunKnowledge
) -> None:
    primary = DigestingPrimary(run)
    run.replica(1, trial_started("r1-t1", "theirs"), name="r1")
    knowledge.refresh()
    assert knowledge.trial("r1-t1") is None
    primary.look()
    knowledge.refresh()
    found = knowledge.trial("r1-t1")
    assert found is not None
    assert (found.replica, found.graph) == ("r1", "theirs")
    assert knowledge.may_be_grown()


def test_own_records_are_known_before_the_digest_has_them(
    run: RunWriter, knowledge: RunKnowledge
) -> None:
    primary = DigestingPrimary(run)
    run.replica(1, trial_started("r0-t1"), evaluated("r0-t1", correct=50))
    primary.look()
    run.replica(2, trial_ended("r0-t1"))
    knowledge.refresh()
    (trial,) = knowledge.trials()
    assert (trial.ended, trial.checkpoint, trial.objective) == (True, True, 0.5)
    assert knowledge.may_be_grown()
    run.replica(3, records.CheckpointDeleted(trial="r0-t1"))
    knowledge.refresh_own()
    assert not knowledge.may_be_grown()


def test_proposals_count_once_whether_the_digest_has_them_or_not(
    run: RunWriter, knowledge: RunKnowledge
) -> None:
    primary = DigestingPrimary(run)
    run.search(1, proposed("r0-w0-1", "a"))
    run.search(1, proposed("r1-w0-1", "b"), name="r1")
    primary.look()
    run.search(2, proposed("r0-w0-2", "c"))
    knowledge.refresh()
    assert knowledge.kinds() == Counter(deeper=3)
    assert knowledge.graphs() == {"a", "b", "c"}
    assert [p.id for p in knowledge.pending] == ["r0-w0-1", "r0-w0-2"]


def test_each_trial_is_observed_once_by_the_latest_own_records(
    run: RunWriter, knowledge: RunKnowledge
) -> None:
    primary = DigestingPrimary(run)
    for name, replica in (("r0-t1", "r0"), ("r1-t1", "r1"), ("r1-t2", "r1")):
        run.replica(1, trial_started(name), evaluated(name, correct=50), name=replica)
        run.replica(2, trial_ended(name), name=replica)
    primary.look()
    run.replica(3, records.CheckpointDeleted(trial="r0-t1"))
    run.replica(3, trial_started("r0-t2"))
    knowledge.refresh()
    found = knowledge.observations({"r1-t2", "unknown"})
    assert {o.trial: o.can_grow for o in found} == {"r0-t1": False, "r1-t1": True, "r1-t2": False}
    assert {o.value for o in found} == {0.5}


def test_observations_of_one_digest_may_be_shared(run: RunWriter) -> None:
    primary, digest = DigestingPrimary(run), Digest(run.paths)
    shared = Observations(digest)
    ours, theirs = (
        RunKnowledge(name, RunHistory(run.paths, replica=name), digest, shared)
        for name in ("r0", "r1")
    )
    run.replica(1, trial_started("r0-t1"), evaluated("r0-t1", correct=50))
    run.replica(2, trial_ended("r0-t1"))
    primary.look()
    ours.refresh()
    assert [o.can_grow for o in ours.observations({"r0-t1"})] == [False]
    theirs.refresh()
    assert [o.can_grow for o in theirs.observations(set())] == [True]
    run.replica(3, trial_started("r0-t2"), evaluated("r0-t2", correct=60))
    run.replica(3, trial_ended("r0-t2"))
    primary.look()
    theirs.refresh()
    assert [o.trial for o in theirs.observations(set())] == ["r0-t1", "r0-t2"]


def test_graphs_without_an_ended_trial_are_pending(run: RunWriter, knowledge: RunKnowledge) -> None:
    primary = DigestingPrimary(run)
    for name, graph in (("r0-w0-1", "waits"), ("r0-w0-2", "trains"), ("r0-w0-3", "failed")):
        run.search(1, proposed(name, graph))
    run.search(1, proposed("r1-w0-1", "waits there"), name="r1")
    run.search(1, proposed("r1-w0-2", "trained"), name="r1")
    run.replica(2, trial_started("r0-t1", "trains", proposal="r0-w0-2"))
    run.replica(2, trial_started("r0-t2", "failed", proposal="r0-w0-3"))
    run.replica(3, trial_ended("r0-t2", state=TrialState.FAILED, checkpoint=False))
    run.replica(2, trial_started("r1-t1", "trained"), evaluated("r1-t1", correct=50), name="r1")
    run.replica(3, trial_ended("r1-t1"), name="r1")
    primary.look()
    knowledge.refresh()
    assert knowledge.unobserved() == {
        "waits": "r0-w0-1", "trains": "r0-t1", "waits there": "r1-w0-1",
    }  # fmt: skip
    # All known graphs are never proposed again.
    assert knowledge.graphs() >= {"failed", "trained", *knowledge.unobserved()}
    descent = knowledge.descent("r1-w0-1")
    assert descent is not None
    assert (descent.graph, descent.parent) == ("waits there", "t1")
    assert [m["kind"] for m in descent.morphisms] == ["deeper"]
    trials = [knowledge.descent(name) for name in ("r0-t1", "r1-t1", "unknown")]
    assert [d.graph if d is not None else None for d in trials] == ["trains", "trained", None]


def test_the_memory_limit_is_the_latest_recorded(run: RunWriter, knowledge: RunKnowledge) -> None:
    config = load_config("quickstart")
    assert knowledge.memory_limit(config) is None
    for limit, copies in ((100, False), (200, True)):
        loaded = records.DatasetLoaded(
            dataset=DATASET, memory_limit_bytes=limit, memory_holds_copies=copies
        )
        run.replica(1, loaded)
        knowledge.refresh()
        assert knowledge.memory_limit(config) == MemoryLimit(config, limit, copies)
