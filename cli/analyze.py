"""Metrics of five benchmarks for several runs: ``aiperf analyze``, ``card`` and ``rank``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter

from aiperf_hpc.cli.output import say_result, say_to_stderr
from aiperf_hpc.cli.parameters import (
    Json,
    SomeRuns,
    TrustOptions,
    path_option,
    run_named,
    value,
)
from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import few
from aiperf_hpc.streams import window_columns

if TYPE_CHECKING:
    from aiperf_hpc.analysis.options import Options


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if number < 1:
        raise BadParameter(f"{text} is not a whole number above 0, below a billion")
    return number


def _percent(text: str | float) -> float:
    if isinstance(text, float):
        return text  # The default, which Typer passes too.
    try:
        share = float(text.removesuffix("%")) / 100.0
    except ValueError:
        share = 0.0
    if not 0.0 < share < 1.0:
        raise BadParameter(f"{text} is not a percentage between 0 and 100")
    return share


@dataclass(frozen=True)
class AccuracyOptions:
    """Thresholds, targets and prices."""

    thresholds: Annotated[list[str] | None, value("[BENCHMARK=]Q,Q,...")] = None
    """Quality levels at which to print time, cost and rank. Default: a range around the target."""
    targets: Annotated[list[str] | None, value("[BENCHMARK=]Q", name="--target")] = None
    """Target quality, instead of the benchmark's own."""
    prices: Annotated[Path | None, value("FILE", Path)] = None
    """YAML file with machine prices (docs/prices.md)."""


@dataclass(frozen=True)
class ScaleOptions:
    """Scales to predict, and the settings of HPC AI500."""

    scales: Annotated[list[int] | None, value("N", _positive, name="--scale")] = None
    """Predict the time to solution on N accelerators; may be repeated. Default: 2 and 4 times
    the largest number of the sources."""
    vflops_exponent: Annotated[int | None, value("N", _positive)] = None
    """Exponent n of Valid FLOPS. Default: HPC AI500's, 5 or 10 depending on the benchmark."""
    declarations: Annotated[list[Path] | None, value("FILE", Path, name="--declaration")] = None
    """YAML file that declares an entry's changes to the benchmark by HPC AI500's levels and layers;
    may be repeated."""


@dataclass(frozen=True)
class MachineOptions:
    """Facts of the machine that sources lack, and the wanted precision."""

    accelerators: Annotated[int | None, value("N", _positive)] = None
    """Number of accelerators per training run, for sources that do not state it."""
    peaks: Annotated[Path | None, value("FILE", Path)] = None
    """Peaks file written by `aiperf peaks`. Default: each run's peaks.json."""
    precision: Annotated[float, value("PERCENT", _percent, show_default=False)] = 0.01
    """Target precision of a run's score and of the mean of repeated runs. Default: 1."""


Page = Annotated[Path | None, path_option("--report", "DIR", "Write an HTML page to this folder.")]


@dataclass(frozen=True)
class Sources:
    """Logs to analyze."""

    sources: Annotated[list[Path], Argument(metavar="SOURCE", parser=run_named)]
    """Run directory, folder of mllog results, submission or DAWNBench entries."""


@dataclass(frozen=True)
class OutputOptions:
    """Files to write, and the format of the output."""

    report: Page = None
    mlperf: Annotated[Path | None, value("DIR", Path)] = None
    """Write each training run as an MLPerf HPC log to a new folder."""
    json: Json = False


def analyze(
    given: Sources,
    accuracy: AccuracyOptions,
    scale: ScaleOptions,
    machine: MachineOptions,
    output: OutputOptions,
) -> int:
    """Evaluate runs and public logs with metrics of MLPerf HPC, HPC AI500, DAWNBench and MLBench.

    Examples:
      $ aiperf analyze runs/mine --report pages/mine
      $ aiperf analyze runs/one runs/two --target 0.759 --prices prices.yaml
      $ aiperf analyze runs/cosmoflow --mlperf results/mine/cosmoflow
    """
    from aiperf_hpc.analysis import analysis
    from aiperf_hpc.analysis.overview import lines
    from aiperf_hpc.analysis.readers.sources import read_sources

    chosen = _options(accuracy, scale, machine)
    logs = [] if output.mlperf is None else _mlperf_logs(given.sources, output.mlperf)
    found = analysis.analyze(read_sources(given.sources, chosen), chosen)
    written = []
    if output.report is not None:
        # Matplotlib is imported after the analysis, so that errors are reported quickly.
        from aiperf_hpc.analysis.page.render import write_page

        written.append(f"Page             {write_page(found, output.report)}")
    if logs:
        written.append(f"MLPerf HPC logs  {few([str(log) for log in logs])}")
    text = chain(lines(found, window_columns()), written)
    say_result(analysis.document(found) if output.json else "", text, as_json=output.json)
    return 0 if found.entries else 1


def _mlperf_logs(sources: list[Path], folder: Path) -> list[Path]:
    from aiperf_hpc.analysis.mlperf_log import write_logs

    if len(sources) != 1:
        raise UsageError(f"--mlperf writes the logs of one run, not of {len(sources)}")
    return write_logs(sources[0], folder)


def card(
    runs: SomeRuns,
    accuracy: AccuracyOptions,
    scale: ScaleOptions,
    machine: MachineOptions,
    report: Page = None,
    json: Json = False,
) -> int:
    """Summarize one machine's runs with the metrics of five benchmarks.

    Examples:
      $ aiperf card runs/1 runs/2 runs/3 --report pages/machine
    """
    from aiperf_hpc.analysis.analysis import analyze
    from aiperf_hpc.analysis.card import lines, make_card
    from aiperf_hpc.analysis.document import as_json
    from aiperf_hpc.analysis.readers.sources import read_sources

    chosen = _options(accuracy, scale, machine)
    summary = make_card(analyze(read_sources(runs, chosen), chosen))
    written = []
    if report is not None:
        from aiperf_hpc.analysis.page.render import write_card

        written.append(f"Page             {write_card(summary, report)}")
    text = chain(lines(summary, window_columns()), written)
    say_result(as_json(summary.model_dump(mode="json")), text, as_json=json)
    return 0


def _options(accuracy: AccuracyOptions, scale: ScaleOptions, machine: MachineOptions) -> Options:
    from aiperf_hpc.analysis.declaration import read_declaration
    from aiperf_hpc.analysis.options import Options, qualities, target
    from aiperf_hpc.analysis.prices import load_prices

    return Options(
        **vars(machine),
        thresholds=tuple(qualities("--thresholds", text) for text in accuracy.thresholds or ()),
        targets=tuple(map(target, accuracy.targets or ())),
        prices=load_prices(accuracy.prices) if accuracy.prices else None,
        scales=tuple(scale.scales or ()),
        vflops_exponent=scale.vflops_exponent,
        declarations=tuple(read_declaration(path) for path in scale.declarations or ()),
    )


def rank(
    folder: Annotated[Path, Argument(metavar="DIR", parser=Path, help="A folder of runs.")],
    output: Annotated[
        Path | None, path_option("--output", "PAGE.html", "Also write an HTML page.")
    ] = None,
    *,
    trusted: TrustOptions,
    json: Json = False,
) -> int:
    """Rank verified runs by their score.

    Every run in the folder is verified first. Only runs that pass and satisfy the benchmark's
    rules are ranked; others are listed separately, with the reason. With --key, one of these
    keys must have signed each run, and with --witness or --tsa, one of these must have covered it.
    The closed division requires both.

    Examples:
      $ aiperf rank runs
      $ aiperf rank /shared/results --key submitters/ --witness witness.pub
      $ aiperf rank /shared/results --output ranking.html
    """
    from aiperf_hpc.analysis.layout import tables_as_lines
    from aiperf_hpc.analysis.ranking import rank_runs, tables_of, write_page
    from aiperf_hpc.run.storage import require_writable

    keys = trusted.read()
    if output is not None:
        require_writable(output.parent, "the page", "--output")
    announce = _announce if sys.stderr.isatty() else lambda name: None
    ranking = rank_runs(folder, announce, keys)
    if output is not None:
        write_page(ranking, output)
    written = [] if output is None else [str(output)]
    text = chain(tables_as_lines(tables_of(ranking), window_columns()), written)
    say_result(ranking, text, as_json=json)
    return 0


def _announce(name: str) -> None:
    say_to_stderr(f"verifying {name}")
