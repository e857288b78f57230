"""Communication and speed-up, worked out by hand."""

from __future__ import annotations

import pytest

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.sections.communication import (
    PARTS,
    CommunicationPart,
    communication_parts,
    communication_seconds,
    communication_share,
    compute_communication_ratio,
)
from aiperf_hpc.trial import StepPart

STEP = {
    StepPart.COMPUTE: 6.0,
    StepPart.WAIT: 1.0,
    StepPart.QUEUE: 0.25,
    StepPart.COPY_IN: 0.125,
    StepPart.COPY_OUT: 0.0625,
    StepPart.REDUCE: 0.5625,
}


def test_all_parts_of_a_step_but_computation_are_communication() -> None:
    """1 + 0.25 + 0.125 + 0.0625 + 0.5625 = 2 of 8 seconds."""
    assert communication_seconds(STEP) == 2.0
    assert compute_communication_ratio(6.0, 2.0) == 3.0
    assert communication_share(6.0, 2.0) == 0.25


def test_parts_have_the_names_of_the_table_and_what_is_absent_is_none() -> None:
    assert communication_parts(STEP) == {
        CommunicationPart.NEGOTIATE: 1.0,
        CommunicationPart.WAIT_FOR_DATA: None,
        CommunicationPart.QUEUE: 0.25,
        CommunicationPart.REDUCE: 0.5625,
        CommunicationPart.COPY: 0.1875,
    }


def test_every_recorded_part_is_computation_or_in_one_place_of_the_table() -> None:
    placed = [StepPart.COMPUTE, *(part for parts in PARTS.values() for part in parts)]
    assert sorted(placed) == sorted(StepPart)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: compute_communication_ratio(1.0, 0.0), "no time was spent on communication"),
        (lambda: communication_share(0.0, 0.0), "took no time"),
    ],
)
def test_what_cannot_be_measured_says_why(made: object, words: str) -> None:
    assert callable(made)
    with pytest.raises(NotMeasuredError, match=words):
        made()
