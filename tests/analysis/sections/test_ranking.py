"""Rankings and their changes, against SciPy and plain counting."""

from __future__ import annotations

import random
from itertools import combinations

from scipy.stats import rankdata

from aiperf_hpc.analysis.sections.contest import changes, ranks


def test_ranks_are_scipys() -> None:
    rng = random.Random(3)  # noqa: S311 -- no secret
    for _ in range(100):
        values = {f"e{i}": float(rng.randint(0, 5)) for i in range(12)}
        found = ranks(values)
        expected = rankdata(list(values.values()), method="min")
        assert [found[name] for name in values] == expected.tolist()


def test_who_has_no_value_has_no_rank() -> None:
    assert ranks({"a": 2.0, "b": None, "c": 1.0}) == {"a": 2, "c": 1}


def test_changes_are_the_pairs_that_turned_round() -> None:
    rng = random.Random(4)  # noqa: S311 -- no secret
    for _ in range(200):
        names = [f"e{i}" for i in range(10)]
        before = ranks({name: float(rng.randint(0, 6)) for name in names[:8]})
        now = ranks({name: float(rng.randint(0, 6)) for name in names[2:]})
        both = [name for name in names if name in before and name in now]
        turned = {
            pair
            for a, b in combinations(both, 2)
            for pair in ((a, b), (b, a))
            if now[pair[0]] < now[pair[1]] and before[pair[0]] > before[pair[1]]
        }
        told, count = changes(before, now)
        assert count == len(turned)
        assert set(told) <= turned
        assert bool(told) == bool(turned)
