"""The headline figures of a run: one table, which every view of a run shows.

A new figure is a row of ``QUANTITIES``. Terminal, list, status, report, ``result.txt``, live page,
REST, metrics, comparison, ranking and card then show it below its title.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from aiperf_hpc.formatting import duration, exact, percent, si
from aiperf_hpc.results.views.energy import EnergyStatus
from aiperf_hpc.results.views.resources import Resources
from aiperf_hpc.results.views.score import ScoreStatus

Figures = dict[str, int | float | None]
"""Values by the names of quantities."""
NONE = "–"
"""The text of a value that a run does not have."""


class RunResult(Protocol):
    """What quantities are read from: a run's summary, its status or its report."""

    @property
    def score(self) -> ScoreStatus: ...
    @property
    def resources(self) -> Resources: ...
    @property
    def best_quality(self) -> float | None: ...
    @property
    def energy(self) -> EnergyStatus | None: ...
    @property
    def broken(self) -> tuple[str, ...]: ...


class View(StrEnum):
    """Where quantities are shown."""

    STATUS = "status"
    """The line of progress, and of `aiperf status`."""
    END = "end"
    """The lines at the end of a run."""
    LIST = "list"
    REPORT = "report"
    RESULT_LINE = "result line"
    """The table of ``result.txt``."""
    LAST_LINE = "last line"
    """The line of ``result.txt`` for ``grep``, by the quantities' names."""
    LOG = "log"
    """The log in MLPerf's format, by the metrics' names."""
    PAGE = "page"
    """The live page."""
    METRICS = "metrics"
    COMPARISON = "comparison"
    RANKING = "ranking"
    CARD = "card"


class Format(StrEnum):
    """How values are written."""

    SI = "si"
    """Three digits, and the unit with a prefix."""
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
    """Its key in JSON."""
    title: str
    unit: str
    read: Callable[[RunResult], float | None]
    """How it is read from a run; None where the run does not have it."""
    format: Format
    help: str
    """A sentence for metrics and the REST interface."""
    better: Literal["higher", "lower"] | None = None
    headings: Mapping[View, str] | None = None
    """Its headings in the views that show it; None: its title in every view."""
    metric: str = ""
    """The Prometheus name behind ``aiperf_run_``; its name if empty."""
    counter: bool = False
    """Whether the metric only grows."""
    exact_unit: str = ""
    """The unit of the value in full, where that is not in the heading."""
    needs_error: bool = False
    """Whether only runs with an error have it; ``without_error`` then states the reason."""

    @property
    def metric_name(self) -> str:
        return self.metric or self.name

    def heading(self, view: View) -> str | None:
        """Return its heading in a view; None if that does not show it."""
        return self.title if self.headings is None else self.headings.get(view)

    def text(self, value: float | None) -> str:
        """Return a value for people; a dash for None."""
        return NONE if value is None else _TEXT[self.format](value, self.unit)

    def text_of(self, run: RunResult) -> str:
        """Return the value of a run for people; a dash if it has none."""
        return self.text(self.read(run))

    def exact(self, value: float) -> str:
        """Return a value with all its digits, where ``text`` rounds it to three; else nothing."""
        return f"{exact(value)} {self.exact_unit}".rstrip() if self.format is Format.SI else ""


QUANTITIES: tuple[Quantity, ...] = (
    Quantity(
        "ops", "Score", "OPS", lambda run: run.score.ops, Format.SI,
        "The score: operations a second.", "higher",
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
        "Analytical operations that are credited.", "higher",
        {View.LAST_LINE: "operations", View.LOG: "operations", View.METRICS: "operations"},
        counter=True,
    ),
    Quantity(
        "seconds", "Time", "s", lambda run: run.score.elapsed_seconds, Format.DURATION,
        "Seconds since the run's start.", None,
        {View.LIST: "hours", View.RESULT_LINE: "Time", View.LAST_LINE: "seconds",
         View.METRICS: "seconds", View.COMPARISON: "time", View.RANKING: "hours"},
        metric="elapsed_seconds",
    ),
    Quantity(
        "replicas", "Replicas", "", lambda run: run.resources.replicas, Format.COUNT,
        "Replicas that were launched.", None,
        {View.LIST: "replicas", View.RESULT_LINE: "Replicas", View.LAST_LINE: "replicas",
         View.RANKING: "replicas"},
    ),
    Quantity(
        "hosts", "Hosts", "", lambda run: run.resources.hosts, Format.COUNT,
        "Hosts that ran its replicas.", None,
        {View.LIST: "hosts", View.RESULT_LINE: "Hosts", View.LAST_LINE: "hosts",
         View.METRICS: "hosts", View.RANKING: "hosts"},
    ),
    Quantity(
        "accelerators", "Accelerators", "", lambda run: run.resources.accelerator_count,
        Format.COUNT, "Accelerators of its hosts.", None,
        {View.LAST_LINE: "accelerators", View.METRICS: "accelerators",
         View.RANKING: "accelerators"},
    ),
    Quantity(
        "cores", "Cores", "", lambda run: run.resources.cores, Format.COUNT,
        "Physical cores of its hosts.", None, {View.RANKING: "cores"},
    ),
    Quantity(
        "joules", "Energy", "J", lambda run: run.energy.joules if run.energy else None, Format.SI,
        "Energy of what is metered.", "lower", {View.COMPARISON: "energy"},
    ),
    Quantity(
        "watts", "Power", "W", lambda run: run.energy.watts if run.energy else None, Format.SI,
        "Mean power of what is metered.", "lower", {View.RANKING: "power"},
    ),
    Quantity(
        "ops_per_watt", "OPS per watt", "OPS",
        lambda run: run.energy.ops_per_watt if run.energy else None, Format.SI,
        "Operations a second for each watt of the mean power.", "higher",
        {View.RANKING: "OPS per watt"},
    ),
    Quantity(
        "best_quality", "Best quality", "", lambda run: run.best_quality, Format.NUMBER,
        "The best quality by the run's measure.", None, {View.METRICS: "best_quality"},
    ),
    Quantity(
        "broken_rules", "Violated rules", "", lambda run: len(run.broken), Format.COUNT,
        "Rules it does not keep.", "lower", {View.METRICS: "broken_rules"},
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
"""The first columns of views that do not have the order of the table."""


def quantities_in(view: View) -> dict[str, Quantity]:
    """Return the quantities that a view shows by their headings, in its order."""
    first = {name: place for place, name in enumerate(ORDER.get(view, ()))}
    rows = sorted(QUANTITIES, key=lambda row: first.get(row.name, len(first)))
    headings = ((row.heading(view), row) for row in rows)
    return {heading: row for heading, row in headings if heading is not None}


def figures_of(run: RunResult) -> Figures:
    """Return the value of every quantity by its name; None where the run does not have it."""
    return {row.name: row.read(run) for row in QUANTITIES}
