"""Communication and speed-up, worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiperf_hpc.primary.analyze.measured import NotMeasuredError
from aiperf_hpc.primary.analyze.measures.communication import (
    PARTS,
    CommunicationPart,
    communication_parts,
    communication_seconds,
    communication_share,
    compute_communication_ratio,
    epoch_rate,
    mean_rate,
)
from aiperf_hpc.primary.analyze.training_log import Epoch, Evaluation, TrainingLog
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
        (lambda: mean_rate([]), "no training has a throughput"),
        (lambda: epoch_rate(log(())), "no complete epoch"),
        (lambda: epoch_rate(log((Epoch(started=1.0, ended=None, number=1),))), "no complete epoch"),
        (lambda: epoch_rate(log((Epoch(started=1.0, ended=0.5, number=1),))), "took any time"),
        (
            lambda: epoch_rate(
                log(tuple(Epoch(started=n, ended=n + 1.0, number=9 * n) for n in (0, 1)))
            ),
            "not numbered one by one",
        ),
    ],
)
def test_what_cannot_be_measured_says_why(made: object, words: str) -> None:
    assert callable(made)
    with pytest.raises(NotMeasuredError, match=words):
        made()


def log(epochs: tuple[Epoch, ...], evaluations: tuple[Evaluation, ...] = ()) -> TrainingLog:
    return TrainingLog(
        source="a.txt", run=None, succeeded=None, epochs=epochs, evaluations=evaluations
    )


def test_epochs_a_second_leave_out_the_evaluations_within_them() -> None:
    """Two epochs of 10 s with evaluations of 2 s in each: 2 / 16 s. The third has not ended."""
    epochs = (
        Epoch(started=0.0, ended=10.0, number=1),
        Epoch(started=10.0, ended=20.0, number=2),
        Epoch(started=20.0, ended=None, number=3),
    )
    evaluations = tuple(
        Evaluation(epoch=None, started=end - 2.0, ended=end, quality=0.5) for end in (10.0, 20.0)
    )
    assert epoch_rate(log(epochs, evaluations)) == 2 / 16
    outside = (Evaluation(epoch=None, started=20.5, ended=21.0, quality=0.5),)
    assert epoch_rate(log(epochs, outside)) == 2 / 20


class Watched(tuple[Evaluation, ...]):
    """Evaluations, and how often somebody has gone through them."""

    looks = 0

    def __iter__(self) -> Iterator[Evaluation]:
        self.looks += 1
        return super().__iter__()


def test_evaluations_are_not_gone_through_for_each_epoch() -> None:
    epochs = tuple(Epoch(started=10.0 * n, ended=10.0 * n + 10.0, number=n) for n in range(100))
    watched = Watched(
        Evaluation(epoch=n, started=10.0 * n + 8.0, ended=10.0 * n + 10.0, quality=0.5)
        for n in range(100)
    )
    assert epoch_rate(log(epochs).model_copy(update={"evaluations": watched})) == 100 / 800
    assert watched.looks <= 2


def test_equal_work_at_two_rates_takes_the_sum_of_the_times() -> None:
    """One epoch at 1/2 a second and one at 1/6: 2 epochs in 8 seconds."""
    assert mean_rate([1 / 2, 1 / 6]) == pytest.approx(2 / 8)
