"""Where the time of training steps goes, kernel by kernel: ``aiperf profile``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from aiperf_hpc.cli.output import say, say_document
from aiperf_hpc.cli.parameters import Json, Out, PerhapsRun
from aiperf_hpc.config import preset_names
from aiperf_hpc.errors import UsageError
from aiperf_hpc.run.step_profile import ProfileRequest
from aiperf_hpc.run.storage import require_writable


@dataclass(frozen=True)
class Trained:
    """Which network is trained, and by what."""

    run: PerhapsRun = None
    config: Annotated[
        str | None,
        Option(
            "--config",
            metavar="FILE|PRESET",
            help="Instead of a run: the initial network of a YAML file or of a preset: "
            f"{', '.join(preset_names())}.",
            autocompletion=preset_names,
        ),
    ] = None
    assignments: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Over --config, e.g. model.base_width=8; may be repeated.",
        ),
    ] = None
    graph: Annotated[
        str | None,
        Option("--graph", metavar="HASH|initial", help="Of the run. Default: its best."),
    ] = None


@dataclass(frozen=True)
class Steps:
    """How it is trained."""

    steps: Annotated[int, Option("--steps", metavar="N", help="How many are profiled.")] = 10
    batch_size: Annotated[
        int | None, Option("--batch-size", metavar="B", help="Default: a rank's own.")
    ] = None
    engine: Annotated[
        Literal["tensorflow", "torch"] | None, Option("--engine", help="Default: its own.")
    ] = None
    data: Annotated[
        Literal["synthetic", "real"], Option("--data", help="What the batches hold.")
    ] = "synthetic"
    time_limit: Annotated[
        float,
        Option("--time-limit", metavar="SECONDS", min=1.0, help="The most that it may take."),
    ] = 3600.0


def profile(
    trained: Trained,
    steps: Steps,
    out: Out = Path("profile"),
    json: Json = False,
) -> int:
    """Break training steps of a network down by kernels, with the framework's profiler.

    Examples:
      $ aiperf profile 20261121-101500-imagenet-3f2a
      $ aiperf profile --config cifar10 --set dataset.path=data/cifar10 --engine torch
    """
    from aiperf_hpc.primary import profile as profiling

    request = _request(trained, steps)
    require_writable(out, "the folder", "--out")
    found = profiling.measure(request, out, steps.time_limit)
    # Matplotlib comes after what was measured: a refusal does not wait for it.
    from aiperf_hpc.results.report.plots.communication import profile_bar, write_bars

    plot = out / "profile.svg"
    write_bars([profile_bar(found)], plot)
    if json:
        say_document(found.model_dump_json(indent=1))
    else:
        say("\n".join(profiling.table(found)))
        say(f"written to {out / 'profile.json'}, {plot} and {found.trace}")
    return 0


def _request(trained: Trained, steps: Steps) -> ProfileRequest:
    from aiperf_hpc.primary import profile as profiling

    choice = profiling.Choice(steps.steps, steps.batch_size, steps.engine, steps.data)
    if trained.run is not None and trained.config is None:
        if trained.assignments:
            raise UsageError("--set changes a configuration; name one with --config")
        return profiling.of_run(trained.run, trained.graph, choice)
    if trained.run is None and trained.config is not None:
        assignments = trained.assignments or []
        return profiling.of_config(trained.config, assignments, trained.graph, choice)
    raise UsageError("name a run directory, or --config FILE|PRESET, and not both")
