"""Where the time of training steps goes, kernel by kernel: ``aiperf profile``."""

from __future__ import annotations

import argparse
from pathlib import Path

from aiperf_hpc.config import preset_names
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.cli.output import say, say_document
from aiperf_hpc.primary.cli.parser import Commands
from aiperf_hpc.primary.file_system import require_writable


def add(commands: Commands) -> None:
    """Add ``profile``."""
    help_text = "break training steps of a network down by kernels, with the framework's profiler"
    profile = commands.add_parser("profile", help=help_text, description=help_text)
    profile.add_argument("run", nargs="?", type=Path, metavar="RUN", help="a run directory")
    profile.add_argument(
        "--config",
        metavar="FILE|PRESET",
        help="instead of a run: the initial network of a YAML file or of a preset: "
        + ", ".join(preset_names()),
    )
    profile.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE",
        help="over --config, e.g. model.base_width=8; may be repeated",
    )  # fmt: skip
    profile.add_argument("--steps", type=int, default=10, metavar="N", help="default: 10")
    profile.add_argument("--graph", metavar="HASH|initial", help="of the run; default: its best")
    profile.add_argument("--batch-size", type=int, metavar="B", help="default: a rank's own")
    profile.add_argument("--engine", choices=("tensorflow", "torch"), help="default: its own")
    profile.add_argument("--data", choices=("synthetic", "real"), default="synthetic")
    profile.add_argument("--out", type=Path, default=Path("profile"), metavar="DIR")
    profile.add_argument("--json", action="store_true", help="print JSON")
    profile.set_defaults(command=_profile)


def _profile(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary import profile

    choice = profile.Choice(options.steps, options.batch_size, options.engine, options.data)
    if (options.run is None) == (options.config is None):
        raise UsageError("name a run directory, or --config FILE|PRESET, and not both")
    if options.run is not None:
        if options.assignments:
            raise UsageError("--set changes a configuration; name one with --config")
        request = profile.of_run(options.run, options.graph, choice)
    else:
        request = profile.of_config(options.config, options.assignments, options.graph, choice)
    require_writable(options.out, "the folder", "--out")
    found = profile.measure(request, options.out)
    # Matplotlib comes after what was measured: a refusal does not wait for it.
    from aiperf_hpc.primary.report.plots.communication import profile_bar, write_bars

    plot = options.out / "profile.svg"
    write_bars([profile_bar(found)], plot)
    if options.json:
        say_document(found.model_dump_json(indent=1))
    else:
        say("\n".join(profile.table(found)))
        say(f"written to {options.out / 'profile.json'}, {plot} and {found.trace}")
    return 0
