"""Headline figures of a run: one table that all views of a run use.

A new figure needs only a row in ``QUANTITIES``: terminal, list, status, report, ``result.txt``,
live page, REST, metrics, comparison, ranking and card then show it with its title.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from aiperf_hpc.formatting import duration, exact, percent, si
from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.results.table import NONE
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.telemetry import EnergyStatus

Figures = dict[str, int | float | None]
"""Values by name of the quantity."""


class RunResult(Protocol):
    """Source of quantities: summary, status or report of a run."""

    @property
    def score(self) -> ScoreStatus: ...
    @property
    def resources(self) -> Resources: ...
    @property
    def best_quality(self) -> float | None: ...
    @property
    def energy(self) -> EnergyStatus | None: ...
    @property
    def violated_rules(self) -> tuple[str, ...]: ...


class View(StrEnum):
    """Views that show quantities."""

    STATUS = "status"
    """Progress line, and `aiperf status`."""
    END = "end"
    """Summary lines at the end of a run."""
    LIST = "list"
    REPORT = "report"
    RESULT_LINE = "result line"
    """Table in ``result.txt``."""
    LAST_LINE = "last line"
    """Line of ``result.txt`` for ``grep``, with names of quantities as headings."""
    LOG = "log"
    """Log in MLPerf's format, with names of metrics as headings."""
    PAGE = "page"
    """Live page."""
    METRICS = "metrics"
    COMPARISON = "comparison"
    RANKING = "ranking"
    CARD = "card"


class Format(StrEnum):
    """Formats of values."""

    SI = "si"
    """Three digits, and the unit with an SI prefix."""
    PERCENT = "percent"
    DURATION = "duration"
    COUNT = "count"
    NUMBER = "number"


_TEXT: Mapping[Format, Callable[[float, str], str]] = {
    Format.SI: si,
    Format.PERCENT: lambda value, unit: percent(value),
    Format.DURATION: lambda value, unit: duration(value),
    Format.COUNT: lambda value, unit: f"{value:,}",
    Format.NUMBER: lambda value, unit: f"{value:.4g} {unit}".rstrip(),
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A headline figure of a run: a row of the table."""

    name: str
    """Key of the quantity in JSON."""
    title: str
    unit: str
    read: Callable[[RunResult], float | None]
    """Function that reads the value from a run, and returns None if the run does not have it."""
    format: Format
    help: str
    """Description for metrics and the REST interface."""
    better: Literal["higher", "lower"] | None = None
    headings: Mapping[View, str] | None = None
    """Headings in the views that show it; None for its title in every view."""
    metric: str = ""
    """Name of the Prometheus metric after ``aiperf_run_``; the quantity's name if empty."""
    counter: bool = False
    """Whether the metric is a counter."""
    exact_unit: str = ""
    """Full name of the unit, if the heading does not contain it."""
    needs_error: bool = False
    """Whether only runs with an error have the value; ``error_unavailable_reason`` then states the
    reason."""

    @property
    def metric_name(self) -> str:
        return self.metric or self.name

    def heading(self, view: View) -> str | None:
        """Return the heading in a view, or None if the view does not show the quantity."""
        return self.title if self.headings is None else self.headings.get(view)

    def text(self, value: float | None) -> str:
        """Return a formatted value, or a dash for None."""
        return NONE if value is None else _TEXT[self.format](value, self.unit)

    def text_of(self, run: RunResult) -> str:
        """Return the formatted value of a run, or a dash if it has none."""
        return self.text(self.read(run))

    def exact(self, value: float) -> str:
        """Return a value with all its digits if ``text`` rounds it; otherwise an empty text."""
        return f"{exact(value)} {self.exact_unit}".rstrip() if self.format is Format.SI else ""


QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "ops", "Score", "OPS", lambda run: run.score.ops, Format.SI,
        "The score: operations per second.", "higher",
        {View.STATUS: "", View.END: "Score", View.LIST: "score", View.REPORT: "Score",
         View.RESULT_LINE: "OPS", View.LAST_LINE: "ops", View.LOG: "ops", View.PAGE: "Score",
         View.METRICS: "ops", View.COMPARISON: "OPS", View.RANKING: "score",
         View.CARD: "operations per second"},
        exact_unit="operations/s",
    ),
    Quantity(
        "regulated", "Regulated score", "OPS", lambda run: run.score.regulated, Format.SI,
        "The regulated score: minus the logarithm of the error, times the score.", "higher",
        {View.STATUS: "regulated", View.END: "Regulated score", View.REPORT: "Regulated score",
         View.RESULT_LINE: "Regulated", View.LAST_LINE: "regulated", View.LOG: "regulated",
         View.PAGE: "Regulated score", View.METRICS: "regulated",
         View.COMPARISON: "regulated score", View.RANKING: "regulated",
         View.CARD: "regulated score"},
        metric="regulated_ops", needs_error=True,
    ),
    Quantity(
        "error", "Error", "", lambda run: run.score.error, Format.PERCENT,
        "The best error.", "lower",
        {View.END: "Error", View.LIST: "error", View.REPORT: "Error", View.RESULT_LINE: "Error",
         View.LAST_LINE: "error", View.PAGE: "Error", View.METRICS: "error",
         View.COMPARISON: "error", View.RANKING: "error", View.CARD: "error"},
        metric="error_ratio", needs_error=True,
    ),
    Quantity(
        "operations", "Operations", "", lambda run: run.score.operations, Format.COUNT,
        "Credited analytical operations.", "higher",
        {View.LAST_LINE: "operations", View.LOG: "operations", View.METRICS: "operations"},
        counter=True,
    ),
    Quantity(
        "seconds", "Time", "s", lambda run: run.score.elapsed_seconds, Format.DURATION,
        "Seconds since the run's start.", None,
        {View.LIST: "hours", View.RESULT_LINE: "Seconds", View.LAST_LINE: "seconds",
         View.METRICS: "seconds", View.COMPARISON: "time", View.RANKING: "time"},
        metric="elapsed_seconds",
    ),
    Quantity(
        "replicas", "Replicas", "", lambda run: run.resources.replicas, Format.COUNT,
        "Number of launched replicas.", None,
        {View.LIST: "replicas", View.RESULT_LINE: "Replicas", View.LAST_LINE: "replicas",
         View.RANKING: "replicas"},
    ),
    Quantity(
        "hosts", "Hosts", "", lambda run: run.resources.hosts, Format.COUNT,
        "Number of hosts of the replicas.", None,
        {View.LIST: "hosts", View.RESULT_LINE: "Hosts", View.LAST_LINE: "hosts",
         View.METRICS: "hosts", View.RANKING: "hosts"},
    ),
    Quantity(
        "accelerators", "Accelerators", "", lambda run: run.resources.accelerator_count,
        Format.COUNT, "Number of accelerators of the hosts.", None,
        {View.LAST_LINE: "accelerators", View.METRICS: "accelerators",
         View.RANKING: "accelerators"},
    ),
    Quantity(
        "cores", "Cores", "", lambda run: run.resources.cores, Format.COUNT,
        "Number of physical cores of the hosts.", None, {View.RANKING: "cores"},
    ),
    Quantity(
        "joules", "Energy", "J", lambda run: run.energy.joules if run.energy else None, Format.SI,
        "Energy of all metered components.", "lower", {View.COMPARISON: "energy"},
    ),
    Quantity(
        "watts", "Power", "W", lambda run: run.energy.watts if run.energy else None, Format.SI,
        "Mean power of all metered components.", "lower", {View.RANKING: "power"},
    ),
    Quantity(
        "ops_per_watt", "OPS per watt", "OPS",
        lambda run: run.energy.ops_per_watt if run.energy else None, Format.SI,
        "Operations per second per watt of the mean power.", "higher",
        {View.RANKING: "OPS per watt"},
    ),
    Quantity(
        "best_quality", "Best quality", "", lambda run: run.best_quality, Format.NUMBER,
        "The best quality by the run's metric.", None, {View.METRICS: "best_quality"},
    ),
    Quantity(
        "violated_rules", "Violated rules", "", lambda run: len(run.violated_rules),
        Format.COUNT, "Number of violated rules.", "lower", {View.METRICS: "violated_rules"},
    ),
)  # fmt: skip

ORDER: Mapping[View, tuple[str, ...]] = {
    View.LIST: ("seconds", "replicas", "hosts", "ops", "error"),
    View.RESULT_LINE: ("hosts", "replicas", "seconds", "ops", "error", "regulated"),
    View.RANKING: (
        "ops", "regulated", "error", "replicas", "hosts", "accelerators", "cores", "watts",
        "ops_per_watt", "seconds",
    ),
}  # fmt: skip
"""First columns of views whose order differs from the table's."""


def quantities_in(view: View) -> dict[str, Quantity]:
    """Return the quantities of a view by their headings, in the view's order."""
    first = {name: place for place, name in enumerate(ORDER.get(view, ()))}
    rows = sorted(QUANTITIES, key=lambda row: first.get(row.name, len(first)))
    headings = ((row.heading(view), row) for row in rows)
    return {heading: row for heading, row in headings if heading is not None}


def figures_of(run: RunResult) -> Figures:
    """Return the value of every quantity by its name, or None if the run does not have it."""
    return {row.name: row.read(run) for row in QUANTITIES}
