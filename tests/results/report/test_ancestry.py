"""The layout of the architectures, on trees written by hand."""

from __future__ import annotations

import math
import random

from tests.support.reports import trial_report

from aiperf_hpc.results.report.ancestry import Line, Row, lineage, rows
from aiperf_hpc.results.report.parts import TrialReport


def _names(found: list[Row]) -> list[str]:
    return [row.architecture.trials[0].id for row in found]


def tree(**parents: str | None) -> list[TrialReport]:
    """Return trials by their names, each grown from a parent."""
    return [trial_report(name, parent) for name, parent in parents.items()]


def test_nothing_has_no_rows() -> None:
    assert rows([], None) == []


def test_the_largest_subtree_comes_last_in_its_parents_lane() -> None:
    #   a ─ b ─ d
    #   └── c
    found = rows(tree(a=None, b="a", c="a", d="b"), None)
    assert _names(found) == ["a", "c", "b", "d"]
    assert [row.lane for row in found] == [0, 1, 0, 0]
    assert [row.root for row in found] == [True, False, False, False]
    assert [row.branches for row in found] == [False, True, False, False]
    assert [row.continues for row in found] == [True, False, True, False]
    assert found[1].through == (Line(0, upper=False, lower=False),)


def test_the_line_of_descent_of_the_best_is_emphasised_and_no_other() -> None:
    # a has the children c, e (the best) and b with its child d, in this order of rows.
    found = rows(tree(a=None, c="a", e="a", b="a", d="b"), "graph-e")
    assert _names(found) == ["a", "c", "e", "b", "d"]
    assert [row.emphasised for row in found] == [True, False, True, False, False]
    assert [row.continues_emphasised for row in found] == [True, False, False, False, False]
    assert found[1].through == (Line(0, upper=True, lower=True),)  # passes c on its way to e
    assert found[2].through == (Line(0, upper=True, lower=False),)  # turns off to e


def test_the_emphasis_ends_where_the_line_of_descent_turns_off() -> None:
    # a has the children e (the best, with its child f) and b with two more.
    found = rows(tree(a=None, e="a", f="e", b="a", d="b", g="d"), "graph-e")
    assert _names(found) == ["a", "e", "f", "b", "d", "g"]
    assert found[1].through == (Line(0, upper=True, lower=False),)
    assert found[2].through == (Line(0, upper=False, lower=False),)


def test_trials_of_one_graph_are_one_architecture() -> None:
    repeated = [trial_report(name, "a", graph="g") for name in ("b", "c")]
    known = lineage([*tree(a=None), *repeated])
    assert [t.id for t in known["g"].trials] == ["b", "c"]
    assert known["g"].parent == "graph-a"
    assert known["graph-a"].children == ["g"]


def test_an_unknown_parent_makes_a_root() -> None:
    (row,) = rows([trial_report("b", "lost")], None)
    assert row.root
    assert row.architecture.grown_from is None


def test_damaged_records_that_close_a_circle_still_show_everything() -> None:
    found = rows(tree(a="c", b="a", c="b", d="d"), None)
    assert sorted(_names(found)) == ["a", "b", "c", "d"]


def test_few_lanes_and_every_row_once_for_any_tree() -> None:
    for seed in range(20):
        draw = random.Random(seed)  # noqa: S311 -- any tree will do
        count = draw.randint(1, 300)
        parents = [None, *(f"t{draw.randint(0, i)}" for i in range(count - 1))]
        found = rows([trial_report(f"t{i}", parent) for i, parent in enumerate(parents)], None)
        assert len(set(_names(found))) == count
        assert max(row.lane for row in found) <= math.log2(count)
        above: dict[int, str] = {}
        for row in found:
            trial = row.architecture.trials[0]
            if trial.parent is not None:
                # What the drawn line hangs on is the parent.
                assert above[row.lane - row.branches] == trial.parent
            above[row.lane] = trial.id


def test_a_chain_of_a_thousand_is_one_lane() -> None:
    chain = {f"t{i}": f"t{i - 1}" for i in range(1, 1000)}
    found = rows(tree(t0=None, **chain), "graph-t999")
    assert {row.lane for row in found} == {0}
    assert all(row.emphasised for row in found)
