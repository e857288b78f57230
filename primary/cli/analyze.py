"""The measures of the field's benchmarks: ``aiperf analyze``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from aiperf_hpc.primary.cli.output import say, say_document
from aiperf_hpc.primary.cli.parser import Commands

if TYPE_CHECKING:
    from aiperf_hpc.primary.analyze.analysis import Analysis
    from aiperf_hpc.primary.analyze.options import Options


def add_analyze(commands: Commands) -> None:
    """Add ``analyze``."""
    help_text = "measure runs and public logs as MLPerf HPC, HPC AI500, DAWNBench and MLBench do"
    analyze = commands.add_parser("analyze", help=help_text, description=help_text)
    analyze.add_argument(
        "sources", nargs="+", type=Path, metavar="SOURCE",
        help="a run directory, a folder of mllog results, a submission, DAWNBench entries",
    )  # fmt: skip
    analyze.add_argument("--report", type=Path, metavar="DIR", help="write a page there")
    analyze.add_argument("--json", action="store_true", help="print JSON")
    _add_choices(analyze)
    analyze.set_defaults(command=_analyze)


def add_card(commands: Commands) -> None:
    """Add ``card``."""
    help_text = "one machine's runs on one sheet, by the figures of five benchmarks"
    card = commands.add_parser("card", help=help_text, description=help_text)
    card.add_argument("sources", nargs="+", type=Path, metavar="RUN", help="a run directory")
    card.add_argument("--report", type=Path, metavar="DIR", help="write a page there")
    card.add_argument("--json", action="store_true", help="print JSON")
    _add_choices(card)
    card.set_defaults(command=_card)


def _add_choices(analyze: argparse.ArgumentParser) -> None:
    _add_accuracy(analyze)
    _add_scale(analyze)
    _add_machine(analyze)


def _add_accuracy(analyze: argparse.ArgumentParser) -> None:
    analyze.add_argument(
        "--thresholds", action="append", default=[], metavar="[BENCHMARK=]Q,Q,...",
        help="qualities at which time and cost are told and entries ranked; else a range around "
        "the target",
    )  # fmt: skip
    analyze.add_argument(
        "--target", action="append", default=[], metavar="[BENCHMARK=]Q",
        help="the quality whose cost is told, in place of the benchmark's own",
    )  # fmt: skip
    analyze.add_argument(
        "--prices", type=Path, metavar="FILE", help="prices of machines in YAML (docs/prices.md)"
    )


def _add_scale(analyze: argparse.ArgumentParser) -> None:
    analyze.add_argument(
        "--scale", dest="scales", type=_positive, action="append", default=[], metavar="N",
        help="predict time to solution on N accelerators; may be repeated "
        "(default: 2 and 4 times the most)",
    )  # fmt: skip
    analyze.add_argument(
        "--vflops-exponent", type=_positive, metavar="N",
        help="n of Valid FLOPS (default: HPC AI500's, 5 or 10 by the benchmark)",
    )  # fmt: skip
    analyze.add_argument(
        "--declaration", dest="declarations", type=Path, action="append", default=[],
        metavar="FILE",
        help="what an entry changed of the benchmark, by HPC AI500's levels and layers (YAML); "
        "may be repeated",
    )  # fmt: skip


def _add_machine(analyze: argparse.ArgumentParser) -> None:
    analyze.add_argument(
        "--accelerators", type=_positive, metavar="N",
        help="accelerators of each training, for sources that do not say how many",
    )  # fmt: skip
    analyze.add_argument(
        "--peaks", type=Path, metavar="FILE",
        help="what the machine does at best, by `aiperf peaks`; default: each run's peaks.json",
    )  # fmt: skip
    analyze.add_argument(
        "--precision", type=_percent, default=0.01, metavar="PERCENT",
        help="to which repeated runs are to give their mean, and a run its score; 1",
    )  # fmt: skip


def _positive(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0, below a billion")
    return number


def _percent(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100.0
    except ValueError:
        share = 0.0
    if not 0.0 < share < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no percentage between 0 and 100")
    return share


def _options(options: argparse.Namespace) -> Options:
    from aiperf_hpc.primary.analyze.declaration import read_declaration
    from aiperf_hpc.primary.analyze.options import Options, qualities, target
    from aiperf_hpc.primary.analyze.prices import load_prices

    return Options(
        accelerators=options.accelerators,
        thresholds=tuple(qualities("--thresholds", text) for text in options.thresholds),
        targets=tuple(map(target, options.target)),
        prices=load_prices(options.prices) if options.prices else None,
        scales=tuple(options.scales),
        vflops_exponent=options.vflops_exponent,
        peaks=options.peaks,
        precision=options.precision,
        declarations=tuple(read_declaration(path) for path in options.declarations),
    )


def _analyze(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.analyze.analysis import analyze, document
    from aiperf_hpc.primary.analyze.readers.sources import read_sources
    from aiperf_hpc.primary.analyze.text import lines

    chosen = _options(options)
    analysis = analyze(read_sources(options.sources, chosen), chosen)
    page = None if options.report is None else _write_page(analysis, options.report)
    if options.json:
        say_document(document(analysis))
    else:
        say("\n".join(lines(analysis)))
        if page is not None:
            say(f"Page             {page}")
    return 0 if analysis.entries else 1


def _card(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.analyze.analysis import analyze
    from aiperf_hpc.primary.analyze.card import lines, make_card
    from aiperf_hpc.primary.analyze.document import as_json
    from aiperf_hpc.primary.analyze.readers.sources import read_sources

    chosen = _options(options)
    card = make_card(analyze(read_sources(options.sources, chosen), chosen))
    page = None
    if options.report is not None:
        from aiperf_hpc.primary.analyze.page.render import write_card

        page = write_card(card, options.report)
    if options.json:
        say_document(as_json(card.model_dump(mode="json")))
    else:
        say("\n".join(lines(card)))
        if page is not None:
            say(f"Page             {page}")
    return 0


def _write_page(analysis: Analysis, folder: Path) -> Path:
    # Matplotlib comes after what is analysed: a refusal does not wait for it.
    from aiperf_hpc.primary.analyze.page.render import write_page

    return write_page(analysis, folder)
