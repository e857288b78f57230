"""Learning curves and effects of hyperparameters: what is drawn, and what is said of the rest."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

import pytest
from tests.results.report.test_plots import require_numbers, score, ticks
from tests.support.reports import trial_report

from aiperf_hpc.objective import ACCURACY, QUALITY_METRICS, QualityMetric
from aiperf_hpc.results.report.parts import TrialReport
from aiperf_hpc.results.report.plots.over_time import interval_ops, score_plots
from aiperf_hpc.results.report.plots.search import MOST_CURVES, hyperparameters_plot, learning_plot
from aiperf_hpc.trial import Hyperparameters, RoundPhase

LOSSES = QUALITY_METRICS["mean_absolute_error"]


def trial(
    name: str, qualities: Sequence[float], *, batch_size: int = 32, kernel: int | None = 3,
    rate: float = 0.1, first_epoch: int = 1, predicted: float | None = None,
) -> TrialReport:  # fmt: skip
    used = Hyperparameters(batch_size=batch_size, kernel_size=kernel, learning_rate=rate)
    best = max(qualities, default=None)
    return trial_report(
        name, phase=str(RoundPhase.HPO), batch_size=batch_size, kernel_size=kernel,
        learning_rate=rate, epochs=len(qualities), best_accuracy=best, best_quality=best,
        predicted_accuracy=predicted, hyperparameters=used, first_epoch=first_epoch,
        qualities=tuple(qualities),
    )  # fmt: skip


def lines(svg: str) -> list[int]:
    """Return how many points each line of a drawing has, but for the grid's and the ticks'."""
    figure = re.sub(r'<g id="[^"]*-matplotlib\.axis_\d+">.*?(?=<g id="[^"]*-(line2d|patch))', "",
                    svg, flags=re.DOTALL)  # fmt: skip
    paths = re.findall(r'<g id="[^"]*-line2d_\d+">\s*<path d="([^"]*)"[^>]*clip-path', figure)
    return [path.count("L") + 1 for path in paths if path.count("L")]


def test_every_trial_that_was_evaluated_has_a_line_by_its_own_epochs() -> None:
    plot = learning_plot(
        [trial("a", [0.1, 0.4, 0.5]), trial("b", [0.6, 0.7], first_epoch=4), trial("c", [])],
        "b",
        ACCURACY,
    )
    assert plot is not None
    assert sorted(count for count in lines(plot.svg) if count in (2, 3))[-1] == 3
    (epochs,) = ticks(plot.svg, "x")
    assert [tick.value for tick in epochs] == [1, 2, 3, 4, 5]
    assert ">b<" in plot.svg
    assert list(csv.reader(io.StringIO(plot.csv))) == [
        ["series", "epoch of the trial", "accuracy, %"],
        ["a", "1", "10"], ["a", "2", "40"], ["a", "3", "50"], ["b", "4", "60"], ["b", "5", "70"],
    ]  # fmt: skip
    assert "The thick line is the best trial, b." in plot.caption
    assert plot.description.endswith("trials reached from 50.00% to 70.00%.")


def test_nothing_predicted_is_drawn_and_without_an_evaluation_there_is_no_drawing() -> None:
    with_, without = (learning_plot([trial("a", [0.1, 0.4], predicted=value)], None, ACCURACY)
                      for value in (0.99, None))  # fmt: skip
    assert with_ == without
    assert learning_plot([trial("a", [], predicted=0.9)], None, ACCURACY) is None


def test_of_many_trials_some_are_drawn_and_the_caption_says_so() -> None:
    trials = [trial(f"t{n}", [0.1, n / 1000]) for n in range(500)]
    plot = learning_plot(trials, "t7", ACCURACY)
    assert plot is not None
    assert f"{MOST_CURVES + 1} of 500 trials, evenly sampled; report.json has all." in plot.caption
    assert len(plot.svg) < 200_000


@pytest.mark.parametrize(
    ("qualities", "metric"),
    [([0.0], ACCURACY), ([0.5, 0.5 + 1e-6], LOSSES), ([0.0, 1.0], ACCURACY)],
)
def test_all_axes_have_numbers(qualities: list[float], metric: QualityMetric) -> None:
    trials = [trial("a", qualities), trial("b", qualities, batch_size=64)]
    for plot in (learning_plot(trials, "a", metric), hyperparameters_plot(trials, metric)):
        assert plot is not None
        require_numbers(plot.svg)


def test_each_hyperparameter_that_varies_has_a_panel() -> None:
    trials = [trial(f"t{n}", [n / 9], batch_size=32 * (n % 3 + 1), kernel=(3, 5)[n % 2])
              for n in range(6)]  # fmt: skip
    plot = hyperparameters_plot(trials, ACCURACY)
    assert plot is not None
    assert plot.description == "A scatter plot by batch size, kernel size."
    assert [tick.text for tick in ticks(plot.svg, "x")[0]] == ["32", "64", "96"]
    assert [tick.text for tick in ticks(plot.svg, "x")[1]] == ["3", "5"]
    assert plot.csv.startswith('series,batch size,"best accuracy, %",kernel size\n')
    assert hyperparameters_plot(trials[:1], ACCURACY) is None


def test_a_kernel_size_that_was_not_chosen_is_the_network_as_it_was_grown() -> None:
    trials = [trial("a", [0.5], kernel=None), trial("b", [0.6], kernel=3)]
    plot = hyperparameters_plot(trials, ACCURACY)
    assert plot is not None
    assert [tick.text for tick in ticks(plot.svg, "x")[0]] == ["3", "as grown"]
    assert plot.csv.startswith('series,kernel size,"best accuracy, %"\n')
    assert "trials,as grown,50\n" in plot.csv


def test_many_values_are_a_scale() -> None:
    trials = [trial(f"t{n}", [n / 99], rate=0.001 * (n + 1)) for n in range(40)]
    plot = hyperparameters_plot(trials, ACCURACY)
    assert plot is not None
    require_numbers(plot.svg)
    assert len(ticks(plot.svg, "x")[0]) < 8


def test_the_operations_of_an_interval_are_those_between_its_points() -> None:
    points = [score(100.0, 5.0), score(200.0, 4.0), score(250.0, 6.0)]
    assert interval_ops(points) == [5.0, 3.0, 14.0]
    plot = score_plots(points, points)[0]
    assert "Thin steps: operations per second of each interval." in plot.caption
    assert 'id="ops-intervals"' in plot.svg
    assert max(tick.value for tick in ticks(plot.svg, "y")[0]) > 10
