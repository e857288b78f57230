"""This machine: ``aiperf doctor``, ``system``, ``peaks``, ``allreduce`` and ``profile``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from aiperf_hpc.cli.output import say, say_folded, say_json, say_result, say_text
from aiperf_hpc.cli.parameters import Json, Out, PerhapsRun, config_option, flag, path_option, value
from aiperf_hpc.errors import UsageError
from aiperf_hpc.host.machine import available_bytes
from aiperf_hpc.run.replica_requests import ProfileRequest
from aiperf_hpc.run.storage import require_writable
from aiperf_hpc.streams import warn


@dataclass(frozen=True)
class AllreduceOptions:
    """Options of the all-reduce: ranks, collectives and sizes."""

    ranks: Annotated[int, value("N")] = 2
    """Number of ranks."""
    backends: Annotated[str | None, value("A,B")] = None
    """Collectives to measure. Default: all that are installed."""
    repetitions: Annotated[int | None, value("N")] = None
    """Number of repetitions per size. Default: 100."""
    largest: Annotated[float | None, value("N")] = None
    """Number of elements of the largest tensor. Default: 1e8."""
    quick: bool = False
    """Use 10 repetitions of each size and at most 1e6 elements."""


@dataclass(frozen=True)
class PeakOptions:
    """Selection of the measured peaks."""

    engine: Annotated[str | None, value("NAME")] = None
    """Engine: torch or tensorflow. Default: both."""
    data: Annotated[Path | None, value("DIR", Path)] = None
    """Folder of the files to read, instead of --out."""
    ranks: Annotated[int | None, value("N")] = None
    """Number of ranks in the all-reduce."""
    quick: bool = False
    """Measure only one engine and one back end, in about 10 s."""


def allreduce(
    chosen: AllreduceOptions,
    out: Out = Path("allreduce"),
    json: Json = False,
) -> int:
    """Measure the all-reduce of every installed collective.

    Requires a collective: the extra `mpi` or `torch`, or Horovod.

    Examples:
      $ aiperf allreduce --quick
      $ aiperf allreduce --ranks 4 --backends mpi,torch --out runs/allreduce
    """
    from aiperf_hpc.primary import allreduce as measurement

    plan = measurement.plan(**vars(chosen), available=available_bytes())
    require_writable(out, "the folder", "--out")
    results = [measurement.measure(name, plan, out) for name in plan.names]
    remedies = measurement.remedies()
    data, plot = out / "allreduce.json", out / "allreduce.svg"
    measurement.write(results, remedies, data)
    # Matplotlib is imported after the measurement, so that errors are reported quickly.
    from aiperf_hpc.primary.allreduce_plot import write_allreduce_plot

    write_allreduce_plot(list(measurement.curves(results)), plot)
    lines = [*measurement.table(results, remedies), f"written to {data} and {plot}"]
    say_result(data.read_text("utf-8"), lines, as_json=json)
    return 0


def peaks(
    chosen: PeakOptions,
    out: Out = Path("peaks"),
    json: Json = False,
) -> int:
    """Measure peak compute, memory, all-reduce and storage performance.

    `aiperf analyze` uses the peaks in a run's folder to plot its roofline.

    Examples:
      $ aiperf peaks --quick
      $ aiperf peaks --engine torch --data /data/imagenet --out runs/mine
    """
    from aiperf_hpc.primary.peaks.measure import lines, measure, plan
    from aiperf_hpc.run.paths import PEAKS, write_whole

    planned = plan(chosen.engine, quick=chosen.quick, data=chosen.data, ranks=chosen.ranks)
    require_writable(out, "the folder", "--out")
    out.mkdir(parents=True, exist_ok=True)
    found, path = measure(planned, out), out / PEAKS
    write_whole(path, found.model_dump_json(indent=1))
    say_result(found, chain(lines(found), [f"written to {path}"]), as_json=json)
    return 0


def doctor(
    run_dir: Annotated[Path, path_option("--run-dir", "DIR", "Folder for runs.")] = Path("runs"),
    json: Json = False,
) -> int:
    """Check this machine's software and hardware.

    The last line states whether the machine is ready for local runs, schedulers and GPUs, and what
    to do next. The exit status is 1 if no run is possible here.

    Examples:
      $ aiperf doctor
      $ aiperf doctor --run-dir /shared/runs --json
    """
    from aiperf_hpc.primary.doctor import examine, readiness

    checks = examine(run_dir)
    missing = [check for check in checks if check.required and not check.found]
    if json:
        say_json([check._asdict() for check in checks])
        return 1 if missing else 0
    for check in checks:
        mark = "yes" if check.found else "NO " if check.required else "no "
        remedy = f"   -> {check.remedy}" if check.remedy else ""
        say_folded(f"{mark}  {check.area:<12} {check.name:<12} {check.detail}{remedy}", 8)
    say("")
    say_folded(readiness(checks), 0)
    return 1 if missing else 0


def system(
    run: PerhapsRun = None,
    site: Annotated[
        Path | None,
        path_option("--system", "FILE", "File with properties that the machine does not report."),
    ] = None,
    template: Annotated[bool, flag("--template", "Print a template of such a file.")] = False,
    mlperf: Annotated[
        Path | None, path_option("--mlperf", "FILE", "Write MLPerf's system description.")
    ] = None,
    json: Json = False,
) -> int:
    """Describe this machine, or the machine of a run.

    Lists the processors, memory, accelerators, network, file systems and software of the nodes;
    equal nodes are grouped. Unavailable values are listed with the reason.

    Examples:
      $ aiperf system
      $ aiperf system --template > system.yaml
      $ aiperf system last --system system.yaml --mlperf system.json
    """
    from aiperf_hpc.results.report import system as system_text
    from aiperf_hpc.system.description import site_template as empty

    if template:
        say_text(empty())
        return 0
    machine = system_text.machine_of(run, site)
    say_result(machine, system_text.lines(machine), as_json=json)
    if mlperf is not None:
        warn(system_text.write_mlperf(machine, mlperf))
    return 0


@dataclass(frozen=True)
class ProfiledNetwork:
    """Network to train, from a run or a configuration."""

    run: PerhapsRun = None
    config: Annotated[
        str | None,
        config_option(
            "Profile the initial network of a YAML file or preset instead of a run's network: {}."
        ),
    ] = None
    assignments: Annotated[list[str] | None, value("KEY=VALUE", name="--set")] = None
    """Override a setting of --config, e.g. model.base_width=8; may be repeated."""
    graph: Annotated[str | None, value("HASH|initial")] = None
    """Graph of the run. Default: the best one."""


@dataclass(frozen=True)
class ProfiledSteps:
    """Options of the training."""

    steps: Annotated[int, value("N")] = 10
    """Number of profiled steps."""
    batch_size: Annotated[int | None, value("B")] = None
    """Batch size per rank. Default: the batch size of the training."""
    engine: Literal["tensorflow", "torch"] | None = None
    """Engine. Default: that of the run or configuration."""
    data: Literal["synthetic", "real"] = "synthetic"
    """Content of the batches."""
    time_limit: Annotated[float, value("SECONDS", min=1.0)] = 3600.0
    """Time limit in seconds."""


def profile(
    network: ProfiledNetwork,
    steps: ProfiledSteps,
    out: Out = Path("profile"),
    json: Json = False,
) -> int:
    """Break down a network's training steps by kernel, with the framework's profiler.

    Examples:
      $ aiperf profile 20261121-101500-imagenet-3f2a
      $ aiperf profile --config cifar10 --set dataset.path=data/cifar10 --engine torch
    """
    from aiperf_hpc.primary import profile as profiling

    request = _request(network, steps)
    require_writable(out, "the folder", "--out")
    found = profiling.measure(request, out, steps.time_limit)
    # Matplotlib is imported after the measurement, so that errors are reported quickly.
    from aiperf_hpc.results.report.plots.bars import write_profile

    plot = out / "profile.svg"
    write_profile(found, plot)
    written = f"written to {out / 'profile.json'}, {plot} and {found.trace}"
    say_result(found, chain(profiling.table(found), [written]), as_json=json)
    return 0


def _request(network: ProfiledNetwork, steps: ProfiledSteps) -> ProfileRequest:
    from aiperf_hpc.primary import profile as profiling

    choice = profiling.Choice(steps.steps, steps.batch_size, steps.engine, steps.data)
    if network.run is not None and network.config is None:
        if network.assignments:
            raise UsageError("--set changes a configuration; name one with --config")
        return profiling.of_run(network.run, network.graph, choice)
    if network.run is None and network.config is not None:
        assignments = network.assignments or []
        return profiling.of_config(network.config, assignments, network.graph, choice)
    raise UsageError("name either a run directory or --config FILE|PRESET")
