"""Proposals of a search worker, and its process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.clock import Clock
from tests.support.damage import flip
from tests.support.fakes import Script
from tests.support.networks import noted_children
from tests.support.run_manifest import run_manifest
from tests.support.trial_loop import LATER, Bench
from tests.support.waiting import PATIENCE_SECONDS, until

from aiperf_hpc.config import validate
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import Deeper, grow_with_weights
from aiperf_hpc.morphism.search import greedy
from aiperf_hpc.morphism.weights.weight_file import (
    Weights,
    load_checkpoint,
    save_checked,
    save_checkpoint,
)
from aiperf_hpc.replica.host import Host
from aiperf_hpc.replica.search.worker import LOST_SECONDS
from aiperf_hpc.run import records
from aiperf_hpc.run.graph_store import GraphStore
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.paths import Identity, Incarnation, RunPaths
from aiperf_hpc.run.records import SearchEnded
from aiperf_hpc.run.search_digest import DigestWriter


def test_a_search_worker_fills_the_candidate_queue_and_no_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.worker.step() > 0.0  # There is no parent yet.
    bench.run(1)
    bench.search(5)
    proposed = bench.events(records.Proposed)
    assert len(proposed) == bench.config.search.queue_depth
    assert len({p.graph for p in proposed}) == len(proposed)
    assert len({p.morphisms[0]["kind"] for p in proposed}) == len(proposed)
    for proposal in proposed:
        assert GraphStore(bench.paths).load(proposal.graph).hash == proposal.graph


@pytest.mark.parametrize(("method", "judged"), [("greedy", 1), ("guided", 8)])
def test_a_child_is_grown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, judged: int
) -> None:
    """Not again for its weights, its file, or the choice of other candidates."""
    bench = Bench(
        tmp_path, search={"method": method, "queue_depth": 4, "acquisition_evaluations": judged}
    )
    greedy._child.cache_clear()
    made = noted_children(monkeypatch)
    bench.run(1)
    bench.search(4)
    proposed = bench.events(records.Proposed)
    assert len(proposed) == 4
    assert len(made) == 4 * judged
    graphs = [load_checkpoint(bench.paths.candidate(p.proposal))[0] for p in proposed]
    assert all(graph in made for graph in graphs)


def test_configured_noise_is_added_to_grown_kernels(tmp_path: Path) -> None:
    """Two runs that differ only in the noise propose the same graphs."""

    def candidates(folder: Path, noise: float) -> list[tuple[Graph, Weights]]:
        bench = Bench(folder, search={"queue_depth": 4, "weight_noise": noise})
        bench.run(1)
        bench.search(4)
        made = (proposal.proposal for proposal in bench.events(records.Proposed))
        return [load_checkpoint(bench.paths.candidate(name)) for name in made]

    exact, noisy = candidates(tmp_path / "exact", 0.0), candidates(tmp_path / "noisy", 0.1)
    assert [graph for graph, _ in exact] == [graph for graph, _ in noisy]
    different = {
        name
        for (_, one), (_, other) in zip(exact, noisy, strict=True)
        for name in one
        if not np.array_equal(one[name], other[name])
    }
    assert different
    assert all(name.endswith("/kernel") for name in different)


def test_parents_are_chosen_from_all_replicas(tmp_path: Path) -> None:
    """A second replica has a much better trial, which a greedy search grows."""
    bench = Bench(
        tmp_path, search={"method": "greedy", "queue_depth": 2, "random_parent_probability": 0.0}
    )
    bench.run(1)
    graph, weights = load_checkpoint(bench.paths.trained("r0", "r0-t1"))
    with JournalWriter(bench.paths.replica_journal("r1")) as journal:
        for record in JournalReader(bench.paths.replica_journal("r0")).read():
            changed = record.event.model_dump_json().replace("r0", "r1")
            changed = changed.replace('"predicted_accuracy":0.5', '"predicted_accuracy":1.0')
            journal.append(type(record.event).model_validate_json(changed))
    save_checkpoint(bench.paths.trained("r1", "r1-t1"), graph, weights)
    bench.history.refresh()
    with JournalWriter(bench.paths.digest) as digest:
        DigestWriter(bench.history, digest).update()  # As the primary does.
    bench.worker.step()
    assert [p.parent for p in bench.events(records.Proposed)] == ["r1-t1"]


def test_a_searcher_learns_anew_from_a_digest_that_was_made_again(tmp_path: Path) -> None:
    """The number of lines that it records of the previous digest would name other trials."""
    bench = Bench(tmp_path, search={"method": "guided", "queue_depth": 8})
    bench.run(1)
    bench.search(1)
    bench.history.refresh()
    before = len(bench.events(records.Proposed))
    with JournalWriter(bench.paths.digest) as journal:
        primary = DigestWriter(bench.history, journal)
        primary.update()
        bench.search(1)
        primary.remake()
        bench.search(2)
    learned, anew, later = (each.learned for each in bench.events(records.Proposed)[before:])
    assert learned is not None
    assert learned.digest_lines == 0
    assert anew is None  # From what it chose from.
    assert later is not None
    assert later.digest_lines > 0


@pytest.mark.parametrize("damage", ["schema", "bytes", "other"])
def test_an_unusable_parent_is_named_and_others_are_grown(tmp_path: Path, damage: str) -> None:
    """Its graph has an unknown schema, its file is truncated, or has another graph."""
    bench = Bench(tmp_path, Script(accuracies=(0.9,)), Script(accuracies=(0.3,)))
    bench.run(2)
    bench.allow_candidates(8)
    before = len(bench.events(records.Proposed))
    path = bench.paths.trained("r0", "r0-t1")
    graph, weights = load_checkpoint(path)
    if damage == "schema":
        known, unknown = (f'"schema": {number}' for number in (1, 9))
        assert known in graph.to_json()
        save_checked(path, weights, {"graph": graph.to_json().replace(known, unknown)})
    elif damage == "bytes":
        path.write_bytes(path.read_bytes()[:99])
    else:
        child = Deeper("s1b1_relu", 1)
        save_checkpoint(path, *grow_with_weights(graph, weights, [child], np.random.default_rng(0)))
    bench.search(10)
    later = bench.events(records.Proposed)[before:]
    assert later
    assert {p.parent for p in later} == {"r0-t2"}
    (failed,) = bench.events(records.SearchFailed)  # Recorded once, and not tried again.
    assert f"{path} is damaged" in failed.reason
    assert damage != "schema" or "schema 9; this version reads schema 1" in failed.reason
    assert damage != "other" or "its graph is not that of trial r0-t1" in failed.reason


def test_the_initial_graph_is_trained_again_if_the_only_weights_are_lost(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(1)
    for proposal in bench.history.pending("r0"):
        bench.paths.candidate(proposal.id).write_bytes(b"torn")
    flip(bench.paths.trained("r0", "r0-t1"))
    later = Bench(tmp_path, attempt=LATER)
    later.run(2)
    second, _ = later.events(records.TrialStarted)[1:]
    assert second.graph == later.initial.hash
    (failed,) = later.events(records.SearchFailed)
    assert failed.lost_parent == "r0-t1"
    assert "its tensor" in failed.reason


def test_missing_weights_are_skipped_and_later_recorded_as_lost(tmp_path: Path) -> None:
    """After a while, because the record of their deletion may not have arrived yet."""
    bench = Bench(tmp_path, Script(accuracies=(0.9,)), Script(accuracies=(0.3,)))
    bench.run(2)
    bench.allow_candidates(8)
    before = len(bench.events(records.Proposed))
    clock = Clock()
    bench.worker.context = replace(bench.worker.context, clock=clock)
    bench.paths.trained("r0", "r0-t1").unlink()
    bench.search(3)
    assert {p.parent for p in bench.events(records.Proposed)[before:]} == {"r0-t2"}
    assert bench.events(records.SearchFailed) == []
    clock.advance(LOST_SECONDS)
    bench.search(3)
    (failed,) = bench.events(records.SearchFailed)
    assert failed.lost_parent == "r0-t1"
    assert failed.reason == "the weights of trial r0-t1 are missing"
    assert not bench.trial("r0-t1").has_checkpoint


def test_a_worker_whose_replica_exited_before_its_start_ends(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    run_manifest(validate({"dataset": {"name": "digits"}}, "test")).save(paths)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    command = [sys.executable, "-m", "aiperf_hpc.replica.search.worker", str(tmp_path)]
    command += ["--replica", "r0", "--incarnation", "0.0", "--worker", "0"]
    subprocess.run([*command, "--parent", str(gone.pid)], check=True, timeout=PATIENCE_SECONDS)
    *_, last = JournalReader(paths.search_journal("r0", 0)).read()
    assert last.event == SearchEnded(reason="the replica has exited")


COUNT_THREADS = """
import scipy.linalg, sys, threadpoolctl
from pathlib import Path
most = max(pool["num_threads"] for pool in threadpoolctl.threadpool_info())
Path(sys.argv[1]).write_text(f"{most}\\n")
"""


def test_the_linear_algebra_of_a_worker_has_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")  # As a site may set it.
    counted, program = tmp_path / "threads", tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{COUNT_THREADS}' '{counted}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    who = Identity("r0", Incarnation(0, 0))
    with Host(1).search(RunPaths(tmp_path), who, 1):
        until(lambda: counted.exists() and counted.read_text().endswith("\n"))
    assert counted.read_text() == "1\n"
