"""The digest tells searchers what the journals say, once, whoever writes it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.damage import cut, empty, gone
from tests.support.run_writer import (
    FIRST,
    SECOND,
    DigestingPrimary,
    RunWriter,
    evaluated,
    proposed,
    replica_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.errors import JournalError
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.records import TrialSummary
from aiperf_hpc.run.search_digest import Digest
from aiperf_hpc.trial import TrialState


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    return RunWriter(tmp_path)


def digest(run: RunWriter) -> Digest:
    found = Digest(run.paths)
    found.refresh()
    return found


def lines(run: RunWriter) -> int:
    return len(list(JournalReader(run.paths.digest).read()))


def test_a_trial_is_told_when_it_starts_when_it_ends_and_when_its_weights_go(
    run: RunWriter,
) -> None:
    primary, reader = DigestingPrimary(run), Digest(run.paths)
    run.replica(1, trial_started("t1", "g1"))
    primary.look()
    reader.refresh()
    summary = TrialSummary(
        trial="t1", replica="r0", graph="g1", parent=None, morphisms=(), ended=False,
        objective=None, checkpoint=False, hyperparameters=trial_started().hyperparameters,
    )  # fmt: skip
    assert reader.trials == {"t1": summary}
    run.replica(2, evaluated("t1", correct=40), evaluated("t1", correct=30, epoch=2))
    primary.look()
    run.replica(3, trial_ended("t1"))
    primary.look()
    reader.refresh()
    ended = summary.model_copy(update={"ended": True, "objective": 0.4, "checkpoint": True})
    assert reader.trials == {"t1": ended}
    run.replica(4, records.CheckpointDeleted(trial="t1"))
    primary.look()
    reader.refresh()
    assert reader.trials == {"t1": ended.model_copy(update={"checkpoint": False})}
    primary.look()
    assert lines(run) == 3


def test_proposals_are_told_once(run: RunWriter) -> None:
    primary = DigestingPrimary(run)
    for number in range(3):
        run.search(number, proposed(f"p{number}", f"g{number}"), name=f"r{number}")
        primary.look()
    found = digest(run)
    assert {p.proposal: (p.replica, p.graph) for p in found.proposals.values()} == {
        f"p{n}": (f"r{n}", f"g{n}") for n in range(3)
    }
    assert found.graphs == {"g0", "g1", "g2"}
    assert found.kinds == {"deeper": 3}
    assert lines(run) == 3


def test_another_primary_goes_on_without_repeating(run: RunWriter) -> None:
    run.replica(1, trial_started("t1"), trial_ended("t1"))
    run.search(1, proposed("p1"))
    DigestingPrimary(run).look()
    run.replica(2, records.CheckpointDeleted(trial="t1"), trial_started("t2"))
    DigestingPrimary(run).look()
    DigestingPrimary(run).look()
    assert lines(run) == 4
    assert not digest(run).trials["t1"].checkpoint
    assert not digest(run).trials["t2"].ended


def test_a_lost_replicas_trial_is_over_and_has_no_weights(run: RunWriter) -> None:
    primary = DigestingPrimary(run)
    run.life(FIRST, 1, replica_started(), trial_started("t1"))
    primary.look()
    run.life(SECOND, 9, replica_started())
    primary.look()
    assert (digest(run).trials["t1"].ended, digest(run).trials["t1"].checkpoint) == (True, False)


def test_a_life_that_becomes_visible_late_takes_back_what_was_told(run: RunWriter) -> None:
    """The first life's end was written after the second had started: it does not count."""
    primary = DigestingPrimary(run)
    run.life(FIRST, 1, replica_started(), trial_started("t1"), evaluated("t1", correct=40))
    run.life(FIRST, 10, trial_ended("t1"))
    primary.look()
    assert digest(run).trials["t1"].checkpoint
    run.life(SECOND, 9, replica_started(), trial_started("t2"))
    primary.look()
    assert primary.history.trials["t1"].state is TrialState.STOPPED
    assert not digest(run).trials["t1"].checkpoint
    assert not digest(run).trials["t2"].ended


def test_the_digest_is_no_evidence(run: RunWriter) -> None:
    run.replica(1, trial_started("t1"))
    DigestingPrimary(run).look()
    history = run.history()
    assert run.paths.digest not in history.bytes_read
    assert history.record_count == 1


def test_a_history_of_one_replica_reads_no_other(run: RunWriter) -> None:
    for name in ("r0", "r1"):
        run.replica(1, trial_started(f"{name}-t1"), name=name)
    history = RunHistory.read(run.paths, replica="r1")
    assert [*history.trials] == ["r1-t1"]


@pytest.mark.parametrize("damage", [gone, empty, cut])
def test_a_digest_that_was_lost_is_made_anew_and_read_anew(
    run: RunWriter, damage: Callable[[Path], None]
) -> None:
    primary, reader = DigestingPrimary(run), Digest(run.paths)
    run.replica(1, trial_started("t1", "g1"), trial_ended("t1"))
    run.search(2, proposed("p1", "g2"))
    primary.look()
    reader.refresh()
    kinds = reader.kinds
    damage(run.paths.digest)
    run.replica(3, trial_started("t2", "g3"))
    with pytest.raises(JournalError, match=r"digest\.jsonl"):
        primary.look()
    primary.writer.remake()
    run.replica(4, trial_started("t3", "g4"))
    primary.look()
    version = reader.version
    reader.refresh()
    for found in (reader, digest(run)):
        assert set(found.trials) == {"t1", "t2", "t3"}
        assert found.graphs == {"g1", "g2", "g3", "g4"}
        assert found.kinds == kinds
        assert found.problems == []
    assert reader.version > version


def test_a_damaged_line_is_named_and_the_others_count(run: RunWriter) -> None:
    run.replica(1, trial_started("t1"), trial_started("t2"))
    DigestingPrimary(run).look()
    path = run.paths.digest
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"damaged\n" + second)
    found = digest(run)
    assert [*found.trials] == ["t2"]
    (problem,) = found.problems
    assert f"{path}, line 1: not a record" in str(problem)
