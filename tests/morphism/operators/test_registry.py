from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.support.networks import SMALL, THIN, rng

from aiperf_hpc.errors import MorphismError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.morphisms import MORPHISMS, Deeper, from_data

KINDS = sorted(MORPHISMS)
MAKERS = [*SMALL, *THIN]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_morphism_comes_back_from_its_record(kind: str, make: Callable[[], Graph]) -> None:
    graph = make()
    for seed in range(5):
        morphism = MORPHISMS[kind].sample(graph, rng(seed))
        data = json.loads(json.dumps(morphism.to_data()))
        assert data["kind"] == kind
        again = from_data(data)
        assert again == morphism
        assert again.child(graph) == morphism.child(graph)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "shrink"},
        {"kind": None},
        {"kind": ["wider"]},
        {"kind": "wider"},
        {"kind": "wider", "producer": "conv", "channels": "8"},
        {"kind": "wider", "producer": "conv", "channels": 8.0},
        {"kind": "wider", "producer": "conv", "channels": True},
        {"kind": "wider", "producer": 3, "channels": 8},
        {"kind": "wider", "producer": "conv", "channels": 8, "noise": 0.1},
        {"kind": "kernel", "conv": "conv", "kernel": None},
        {"kind": "skip", "source": ["relu"], "target": "relu"},
    ],
)
def test_data_that_is_no_morphism_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(MorphismError, match="morphism"):
        from_data(data)


def test_reading_a_record_leaves_it_as_it_was() -> None:
    data = Deeper("relu", 3).to_data()
    from_data(data)
    assert data == {"kind": "deeper", "after": "relu", "kernel": 3}
