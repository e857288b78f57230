"""Scaling studies of made-up entries, whose figures can be worked out by hand."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from tests.support.present import present
from tests.support.training_logs import entry as make_entry

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.page.plots import scaling as draw_scaling
from aiperf_hpc.analysis.sections.scaling_study import ScalingStudy, scaling_studies, tables
from aiperf_hpc.analysis.training_log import (
    Entry,
    Epoch,
    Evaluation,
    Interval,
    Quality,
    System,
    TrainingLog,
)
from aiperf_hpc.results.views.resources import Resources

IOU = Quality(name="eval_accuracy", higher_is_better=True, target=0.82)
SAMPLES = 1_000


def training(epochs: int, rate: float, batch: int | None, reached: bool = True) -> TrainingLog:
    """Epochs of 1,000 samples at ``rate`` samples/s, each followed by an evaluation of 1 s."""
    length = SAMPLES / rate + 1.0
    ends = [length * number for number in range(1, epochs + 1)]
    qualities = [0.5] * (epochs - 1) + [0.83 if reached else 0.5]
    numbered = list(enumerate(zip(ends, qualities, strict=True), 1))
    return TrainingLog(
        source=f"{epochs} epochs",
        run=Interval(started=0.0, ended=ends[-1]),
        succeeded=reached,
        epochs=tuple(Epoch(end - length, end, number) for number, (end, _) in numbered),
        evaluations=tuple(Evaluation(n, end - 1.0, end, quality) for n, (end, quality) in numbered),
        quality=IOU,
        global_batch_size=batch,
        train_samples=SAMPLES,
        eval_samples=100,
    )


def entry(accelerators: int | None, *logs: TrainingLog, **others: object) -> Entry:
    name = str(others.pop("name", f"n{accelerators}"))
    accelerator = others.pop("accelerator", "V100")
    system = System(name=name, accelerators=accelerators, accelerator=str(accelerator))
    sized = [log.model_copy(update={"accelerators": accelerators}) for log in logs]
    common = {"benchmark": "deepcam", "division": "open", "round": "hpc-1.0", "system": system}
    return make_entry(name, *sized, **(common | others))


def simple(accelerators: int, epochs: int, rate: float, local: int = 2, **others: object) -> Entry:
    return entry(accelerators, training(epochs, rate, local * accelerators), **others)


NEVER = entry(8, training(5, 190.0, 16, reached=False))
"""An entry that never reached its target."""


def study(*entries: Entry, scales: tuple[int, ...] = ()) -> ScalingStudy:
    return scaling_studies(entries, Options(scales=scales)).studies[0]


def text(*entries: Entry) -> str:
    """Return titles, cells and remarks of all tables."""
    return " ".join(
        part
        for table in tables(scaling_studies(entries, Options()))
        for part in (table.title, *(cell for row in table.rows for cell in row), *table.remarks)
    )


def test_speed_up_and_efficiency_are_relative_to_the_smallest() -> None:
    """8 times the accelerators, 6 times the rate; 400 s and 75 s of 20 and 15 epochs."""
    small, large = study(simple(32, 15, 600.0 / 19 * 10), simple(4, 20, 1_000.0 / 19)).points
    assert (small.accelerators, large.accelerators) == (4, 32)
    assert small.speedup == small.efficiency == small.time_speedup == 1.0
    assert large.ideal_speedup == 8.0
    assert large.speedup == pytest.approx(6.0)
    assert large.efficiency == pytest.approx(0.75)
    assert large.throughput_each == pytest.approx(6_000.0 / 19 / 32)
    assert large.local_batch_size == 2.0
    minutes = [20 * 20.0 / 60, 15 * (19 / 6 + 1) / 60]
    assert [p.minutes.mean for p in (small, large) if p.minutes] == pytest.approx(minutes)
    assert large.time_speedup == pytest.approx(minutes[0] / minutes[1])
    assert large.time_efficiency == pytest.approx(minutes[0] / minutes[1] / 8)


def test_of_several_smallest_the_fastest_is_the_base() -> None:
    slow, fast = simple(4, 10, 80.0, name="slow"), simple(4, 10, 100.0, name="fast")
    points = study(slow, fast, simple(8, 10, 150.0)).points
    assert [point.entry for point in points] == ["fast", "slow", "n8"]
    assert [point.efficiency for point in points] == pytest.approx([1.0, 0.8, 0.75])


def test_laws_along_equal_work_predict_other_scales() -> None:
    """Throughput ~ N, epochs ~ N^0.5: training ~ N^-0.5, without noise."""
    entries = simple(4, 10, 100.0), simple(16, 20, 400.0), simple(64, 40, 1_600.0)
    made = study(*entries, scales=(256,))
    (work,) = made.equal_work
    assert work.local_batch_size == 2.0
    assert work.throughput.exponent == pytest.approx(1.0)
    assert work.epochs.exponent == pytest.approx(0.5)
    assert work.compute_minutes.exponent == pytest.approx(-0.5)
    (predicted,) = work.predictions
    assert predicted.global_batch_size == 512.0
    assert predicted.epochs.value == pytest.approx(80.0)
    assert predicted.throughput.value == pytest.approx(6_400.0)
    assert predicted.compute_minutes.value == pytest.approx(80 * SAMPLES / 6_400 / 60)
    assert predicted.minutes.high is not None
    assert predicted.minutes.value > predicted.compute_minutes.value
    assert present(made.epochs_by_batch).exponent == pytest.approx(0.5)
    (work,) = study(simple(4, 10, 100.0), simple(16, 20, 400.0)).equal_work
    assert [one.accelerators for one in work.predictions] == [32, 64]  # Twice, four times 16.


@pytest.mark.parametrize(
    ("entries", "stated", "absent"),
    [
        ([simple(4, 10, 100.0), simple(16, 20, 300.0)],
         "two points determine these laws: their uncertainty is not known", "("),
        ([simple(4, 10, 100.0), simple(16, 20, 300.0), simple(64, 30, 1_000.0)],
         "95 % prediction interval", "not known"),
        ([simple(4, 10, 100.0), simple(8, 10, 300.0)], "do not rely on", "inf"),
        ([simple(4, 10, 100.0), simple(8, 10, 190.0)], "predicted at", "do not rely on"),
        ([simple(4, 10, 100.0), NEVER], "–", "inf"),
        ([simple(4, 9, 9.0), simple(8, 9, 9.0), simple(2, 9, 9.0, benchmark="cosmoflow")],
         "in no study: n2: no other scale of cosmoflow, hpc-1.0, open than 2", "inf"),
    ],
    ids=["two points", "three points", "superlinear", "linear", "not converged", "in no study"],
)  # fmt: skip
def test_the_text_states_limits_of_the_laws(entries: list[Entry], stated: str, absent: str) -> None:
    found = text(*entries)
    assert stated in found
    assert absent not in found


def test_different_work_per_accelerator_is_not_extrapolated() -> None:
    made = study(simple(4, 10, 100.0, local=2), simple(8, 12, 190.0, local=4))
    assert made.equal_work == ()
    assert "the same batch size per accelerator (2, 4)" in made.missing["equal_work"]


def test_the_component_is_over_trainings() -> None:
    made = study(entry(4, training(10, 100.0, 8), training(12, 100.0, 8)), simple(16, 20, 400.0))
    component = present(made.component)
    exponent = math.log(20 / math.sqrt(120)) / math.log(4)
    assert component.trainings == 3
    assert component.exponent == pytest.approx(exponent, rel=0.02)


def test_an_entry_that_never_converged_has_throughput_alone() -> None:
    made = study(simple(4, 10, 100.0), NEVER)
    assert made.points[1].efficiency == pytest.approx(0.95)
    assert (made.points[1].epochs, made.points[1].minutes) == (None, None)
    assert "equal_work" in made.missing


def test_of_mlperfs_trainings_the_fastest_and_the_slowest_do_not_count() -> None:
    many = entry(4, *(training(epochs, 100.0, 8) for epochs in (30, 11, 12, 13, 2)))
    point = study(many, simple(8, 10, 190.0)).points[0]
    assert sorted(present(point.epochs).values) == [11.0, 12.0, 13.0]
    ours = many.model_copy(update={"format": "aiperf"})
    own = study(ours, simple(8, 10, 190.0)).points[0].epochs
    assert len(present(own).values) == 5


def test_an_entry_with_two_failed_trainings_is_not_valid_and_named() -> None:
    failed = [training(9, 100.0, 8, reached=False)] * 2
    made = study(entry(4, *[training(9, 100.0, 8)] * 3, *failed), simple(8, 10, 190.0))
    assert made.points[0].epochs is not None
    assert any("n4: 2 of 5 runs failed" in note for note in made.notes)


def test_an_entry_without_samples_or_time_does_not_spoil_the_others() -> None:
    nothing = training(3, 10.0, 8).model_copy(update={"train_samples": 0})
    at_once = training(3, 10.0, 8).model_copy(update={"run": Interval(started=0.0, ended=0.0)})
    odd = [entry(2, nothing, name="empty"), entry(2, at_once, name="still")]
    made = scaling_studies([*odd, simple(4, 9, 100.0), simple(8, 9, 190.0)], Options())
    assert [point.entry for point in made.studies[0].points] == ["n4", "n8"]
    assert "gives 0; a positive number is required" in made.excluded["empty"]
    assert "no time passed" in made.excluded["still"]


def test_models_of_accelerators_are_compared_together_and_apart() -> None:
    other = simple(8, 9, 400.0, name="a", accelerator="A100")
    made = scaling_studies([simple(4, 9, 100.0), simple(8, 9, 190.0), other], Options())
    together, apart = made.studies
    assert (together.subject, "A100, V100" in together.notes[0]) == ("deepcam, hpc-1.0, open", True)
    assert (apart.subject, apart.notes) == ("deepcam, hpc-1.0, open, V100", ())


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ([], "with different numbers of accelerators"),
        ([simple(4, 9, 9.0)], "n4: no other scale"),
        ([simple(4, 9, 9.0, round="hpc-0.7"), simple(8, 9, 9.0)],
         "no other scale of deepcam, hpc-0.7, open than 4"),
        ([simple(4, 9, 9.0, division="closed"), simple(8, 9, 9.0)], "no other scale"),
        ([simple(4, 9, 9.0), simple(4, 9, 9.0, name="twin")], "twin: no other scale"),
        ([simple(4, 9, 9.0, scenario="weak")], "n4: several concurrent models"),
        ([entry(None, training(9, 9.0, 8), name="x")], "x: the number of accelerators of"),
        ([entry(4, name="empty")], "empty: the entry has no training runs"),
    ],
)  # fmt: skip
def test_without_two_scales_there_is_a_reason(others: list[Entry], reason: str) -> None:
    with pytest.raises(NotMeasuredError, match=reason):
        scaling_studies(others, Options())


def test_a_machine_without_accelerators_is_counted_by_ranks() -> None:
    """As ours are: the processor is what their replicas computed on."""

    def ours(ranks: int) -> Entry:
        found = simple(ranks, 9, 9.0 * ranks)
        without = {"accelerators": 0, "resources": Resources(replicas=ranks, hosts=1)}
        return found.model_copy(update={"system": found.system.model_copy(update=without)})

    alone = scaling_studies([ours(4), ours(8)], Options())
    (plot,) = draw_scaling(alone)
    drawn = "".join(ET.fromstring(str(plot.svg)).itertext())  # noqa: S314 -- drawn here
    assert "ranks (log scale)" in drawn
    assert "accelerator" not in drawn
    assert all(table.columns[1] == "ranks" for table in tables(alone) if len(table.columns) > 6)
    mixed = scaling_studies([ours(4), simple(8, 9, 100.0)], Options()).studies[0]
    assert mixed.device == "accelerator or rank"
    with pytest.raises(NotMeasuredError, match="than 4 ranks$"):
        scaling_studies([ours(4)], Options())


def test_the_figure_has_four_panels_with_their_ideal_lines() -> None:
    made = scaling_studies([simple(4, 10, 100.0), simple(16, 20, 300.0)], Options())
    (plot,) = draw_scaling(made)
    drawn = "".join(ET.fromstring(str(plot.svg)).itertext())  # noqa: S314 -- drawn here
    for words in ("time to solution, min", "epochs to converge", "training samples/s"):
        assert words in drawn
    assert "efficiency, %" in drawn
    assert str(plot.svg).count("stroke-dasharray:5,3") == 4
    assert "from 4 to 16" in plot.description
    assert "75.0%" in plot.description


def test_the_figure_states_that_no_training_converged() -> None:
    slow = entry(4, training(5, 100.0, 8, reached=False))
    (plot,) = draw_scaling(scaling_studies([slow, NEVER], Options()))
    assert "no training run converged" in str(plot.svg)
    assert "an unknown number" in plot.description
