"""The measures of the field's benchmarks: ``aiperf analyze``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from aiperf_hpc.cli.output import say, say_document
from aiperf_hpc.cli.parameters import Json, SomeRuns, run_named
from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import few
from aiperf_hpc.streams import window_columns

if TYPE_CHECKING:
    from aiperf_hpc.analysis.analysis import Analysis
    from aiperf_hpc.analysis.card import Card
    from aiperf_hpc.analysis.options import Options


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if number < 1:
        raise BadParameter(f"{text} is not a whole number above 0, below a billion")
    return number


def _percent(text: str | float) -> float:
    if isinstance(text, float):
        return text  # The default, which Typer gives too.
    try:
        share = float(text.removesuffix("%")) / 100.0
    except ValueError:
        share = 0.0
    if not 0.0 < share < 1.0:
        raise BadParameter(f"{text} is no percentage between 0 and 100")
    return share


@dataclass(frozen=True)
class Accuracy:
    """The qualities at which times and costs are told, and what machines cost."""

    thresholds: Annotated[
        list[str] | None,
        Option(
            "--thresholds",
            metavar="[BENCHMARK=]Q,Q,...",
            help="Qualities at which time and cost are told and entries ranked; else a range "
            "around the target.",
        ),
    ] = None
    targets: Annotated[
        list[str] | None,
        Option(
            "--target",
            metavar="[BENCHMARK=]Q",
            help="The quality whose cost is told, in place of the benchmark's own.",
        ),
    ] = None
    prices: Annotated[
        Path | None,
        Option(
            "--prices",
            metavar="FILE",
            parser=Path,
            help="Prices of machines in YAML (docs/prices.md).",
        ),
    ] = None


@dataclass(frozen=True)
class Scale:
    """What is predicted, and what HPC AI500 asks for."""

    scales: Annotated[
        list[int] | None,
        Option(
            "--scale",
            metavar="N",
            parser=_positive,
            help="Predict time to solution on N accelerators; may be repeated. "
            "Default: 2 and 4 times the most.",
        ),
    ] = None
    vflops_exponent: Annotated[
        int | None,
        Option(
            "--vflops-exponent",
            metavar="N",
            parser=_positive,
            help="n of Valid FLOPS. Default: HPC AI500's, 5 or 10 by the benchmark.",
        ),
    ] = None
    declarations: Annotated[
        list[Path] | None,
        Option(
            "--declaration",
            metavar="FILE",
            parser=Path,
            help="What an entry changed of the benchmark, by HPC AI500's levels and layers "
            "(YAML); may be repeated.",
        ),
    ] = None


@dataclass(frozen=True)
class Machine:
    """What sources do not say of their machines, and how exact their figures are to be."""

    accelerators: Annotated[
        int | None,
        Option(
            "--accelerators",
            metavar="N",
            parser=_positive,
            help="Accelerators of each training, for sources that do not say how many.",
        ),
    ] = None
    peaks: Annotated[
        Path | None,
        Option(
            "--peaks",
            metavar="FILE",
            parser=Path,
            help="What the machine does at best, by `aiperf peaks`. "
            "Default: each run's peaks.json.",
        ),
    ] = None
    precision: Annotated[
        float,
        Option(
            "--precision",
            metavar="PERCENT",
            parser=_percent,
            show_default=False,
            help="To which repeated runs are to give their mean, and a run its score; 1.",
        ),
    ] = 0.01


Page = Annotated[
    Path | None, Option("--report", metavar="DIR", parser=Path, help="Write a page there.")
]


def analyze(
    sources: Annotated[
        list[Path],
        Argument(
            metavar="SOURCE",
            parser=run_named,
            help="A run directory, a folder of mllog results, a submission, DAWNBench entries.",
        ),
    ],
    accuracy: Accuracy,
    scale: Scale,
    machine: Machine,
    report: Page = None,
    mlperf: Annotated[
        Path | None,
        Option(
            "--mlperf",
            metavar="DIR",
            parser=Path,
            help="Write each training of a run as a log of MLPerf HPC into a new folder.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Measure runs and public logs as MLPerf HPC, HPC AI500, DAWNBench and MLBench do.

    Examples:
      $ aiperf analyze runs/mine --report pages/mine
      $ aiperf analyze runs/one runs/two --target 0.759 --prices prices.yaml
      $ aiperf analyze runs/cosmoflow --mlperf results/mine/cosmoflow
    """
    from aiperf_hpc.analysis import analysis
    from aiperf_hpc.analysis.overview import lines
    from aiperf_hpc.analysis.readers.sources import read_sources

    chosen = _options(accuracy, scale, machine)
    logs = [] if mlperf is None else _mlperf_logs(sources, mlperf)
    found = analysis.analyze(read_sources(sources, chosen), chosen)
    page = None if report is None else _write_page(found, report)
    if json:
        say_document(analysis.document(found))
    else:
        say("\n".join(lines(found, window_columns())))
        if page is not None:
            say(f"Page             {page}")
        if logs:
            say(f"MLPerf HPC logs  {few([str(log) for log in logs])}")
    return 0 if found.entries else 1


def _mlperf_logs(sources: list[Path], folder: Path) -> list[Path]:
    from aiperf_hpc.analysis.mlperf_log import write_logs

    if len(sources) != 1:
        raise UsageError(f"--mlperf writes the logs of one run, not of {len(sources)}")
    return write_logs(sources[0], folder)


def card(
    runs: SomeRuns,
    accuracy: Accuracy,
    scale: Scale,
    machine: Machine,
    report: Page = None,
    json: Json = False,
) -> int:
    """Summarize one machine's runs by the figures of five benchmarks.

    Examples:
      $ aiperf card runs/1 runs/2 runs/3 --report pages/machine
    """
    from aiperf_hpc.analysis.analysis import analyze
    from aiperf_hpc.analysis.card import lines, make_card
    from aiperf_hpc.analysis.document import as_json
    from aiperf_hpc.analysis.readers.sources import read_sources

    chosen = _options(accuracy, scale, machine)
    made = make_card(analyze(read_sources(runs, chosen), chosen))
    page = None if report is None else _write_card(made, report)
    if json:
        say_document(as_json(made.model_dump(mode="json")))
    else:
        say("\n".join(lines(made, window_columns())))
        if page is not None:
            say(f"Page             {page}")
    return 0


def _options(accuracy: Accuracy, scale: Scale, machine: Machine) -> Options:
    from aiperf_hpc.analysis.declaration import read_declaration
    from aiperf_hpc.analysis.options import Options, qualities, target
    from aiperf_hpc.analysis.prices import load_prices

    return Options(
        accelerators=machine.accelerators,
        thresholds=tuple(qualities("--thresholds", text) for text in accuracy.thresholds or ()),
        targets=tuple(map(target, accuracy.targets or ())),
        prices=load_prices(accuracy.prices) if accuracy.prices else None,
        scales=tuple(scale.scales or ()),
        vflops_exponent=scale.vflops_exponent,
        peaks=machine.peaks,
        precision=machine.precision,
        declarations=tuple(read_declaration(path) for path in scale.declarations or ()),
    )


# Matplotlib comes after what is analysed: a refusal does not wait for it.
def _write_page(analysis: Analysis, folder: Path) -> Path:
    from aiperf_hpc.analysis.page.render import write_page

    return write_page(analysis, folder)


def _write_card(card: Card, folder: Path) -> Path:
    from aiperf_hpc.analysis.page.render import write_card

    return write_card(card, folder)
