from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.networks import random_chain, residual
from tests.support.run_writer import RunWriter, trial_started

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.lineage import Grown, Lineage
from aiperf_hpc.morphism.operators.morphisms import Deeper, KernelSize, Morphism, grow


class Run(RunWriter):
    """A run whose trials grow from each other."""

    def trial(self, name: str, graph: str, parent: str | None, *morphisms: Morphism) -> None:
        data = tuple(morphism.to_data() for morphism in morphisms)
        started = trial_started(name, graph, morphisms=data)
        self.replica(1, started.model_copy(update={"parent": parent}))

    def lineage(self) -> Lineage:
        return Lineage(self.history().descent, residual())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_every_generation_is_grown_again_from_the_one_before(run: Run) -> None:
    rng = np.random.default_rng(0)
    graph: Graph = residual()
    grown: dict[str, Graph] = {}
    parent: str | None = None
    for number in range(60):
        chain = random_chain(graph, 1 + number % 2, rng) if parent and number % 7 else []
        graph = grow(graph, chain)
        name = f"t{number}"
        run.trial(name, graph.hash, parent, *chain)
        grown[name], parent = graph, name
        if graph.parameter_count > 10**6:
            break
    lineage = run.lineage()
    for name in reversed(grown):
        assert lineage.graph(name) == grown[name]


def test_a_graph_that_is_not_what_its_trial_recorded_is_refused(run: Run) -> None:
    other = Deeper("one_relu", 3).child(residual())
    run.trial("t1", residual().hash, None)
    run.trial("t2", other.hash, "t1", Deeper("one_relu", 1))
    with pytest.raises(MorphismError, match=f"trial t2: .*its record has {other.hash}"):
        run.lineage().graph("t2")


def test_a_morphism_that_does_not_apply_is_refused(run: Run) -> None:
    run.trial("t1", residual().hash, None, KernelSize("absent", 3))
    with pytest.raises(MorphismError, match="no node 'absent'"):
        run.lineage().graph("t1")


def test_an_ancestor_without_a_record_is_refused(run: Run) -> None:
    run.trial("t2", residual().hash, "t1")
    with pytest.raises(MorphismError, match="trial t2 grew from t1, which is unknown"):
        run.lineage().graph("t2")
    with pytest.raises(MorphismError, match="t7.* unknown"):
        run.lineage().graph("t7")


def test_a_trial_that_grew_from_itself_is_refused(run: Run) -> None:
    run.trial("t1", residual().hash, "t2")
    run.trial("t2", residual().hash, "t1")
    with pytest.raises(MorphismError, match="trial t1 is its own ancestor"):
        run.lineage().graph("t1")


def test_a_graph_that_is_kept_is_not_grown_again(run: Run) -> None:
    """For the proposal that it was grown for, nor for the trials that train it."""
    child = Deeper("one_relu", 1).child(residual())
    for name, graph, parent in ("t1", residual(), None), ("p1", child, "t1"), ("t2", child, "t1"):
        run.trial(name, graph.hash, parent, *([Deeper("one_relu", 1)] if parent else []))
    descent = run.history().descent
    lineage, proposed = Lineage(descent, residual()), descent("p1")
    assert proposed is not None
    lineage.keep("p1", proposed, child)
    assert lineage.graph("p1") is child
    assert lineage.graph("t2") is child


def test_lineages_of_one_run_may_share_what_they_have_grown(run: Run) -> None:
    run.trial("t1", residual().hash, None)
    grown = Grown()
    first, second = (Lineage(run.history().descent, residual(), grown) for _ in range(2))
    assert first.graph("t1") is second.graph("t1")
    assert list(grown.known) == ["t1"]
