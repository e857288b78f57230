"""What a machine has and how fast it is: ``aiperf doctor``, ``allreduce`` and ``peaks``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from aiperf_hpc.cli.output import say, say_document, say_folded, say_json
from aiperf_hpc.cli.parameters import Json, Out
from aiperf_hpc.host.machine import available_bytes
from aiperf_hpc.run.storage import require_writable


@dataclass(frozen=True)
class Measured:
    """What of the all-reduce is measured."""

    ranks: Annotated[int, Option("--ranks", metavar="N", help="How many there are.")] = 2
    backends: Annotated[
        str | None, Option("--backends", metavar="A,B", help="Default: all that are installed.")
    ] = None
    repetitions: Annotated[
        int | None, Option("--repetitions", metavar="N", help="Of each size; 100.")
    ] = None
    largest: Annotated[float | None, Option("--largest", metavar="N", help="Elements; 1e8.")] = None
    quick: Annotated[bool, Option("--quick", help="10 of each size, up to 1e6 elements.")] = False


@dataclass(frozen=True)
class Peaks:
    """Which of this machine's peaks are measured."""

    engine: Annotated[
        str | None, Option("--engine", metavar="NAME", help="torch or tensorflow; all.")
    ] = None
    data: Annotated[
        Path | None,
        Option("--data", metavar="DIR", parser=Path, help="Read files there; else in --out."),
    ] = None
    ranks: Annotated[int | None, Option("--ranks", metavar="N", help="Of the all-reduce.")] = None
    quick: Annotated[bool, Option("--quick", help="One engine and back end, 10 s.")] = False


def allreduce(
    measured: Measured,
    out: Out = Path("allreduce"),
    json: Json = False,
) -> int:
    """Measure the all-reduce of every installed collective.

    One at least is needed: the extra `mpi` or `torch`, or Horovod.

    Examples:
      $ aiperf allreduce --quick
      $ aiperf allreduce --ranks 4 --backends mpi,torch --out runs/allreduce
    """
    from aiperf_hpc.primary import allreduce as measurement

    plan = measurement.plan(
        measured.backends,
        ranks=measured.ranks,
        repetitions=measured.repetitions,
        largest=measured.largest,
        quick=measured.quick,
        available=available_bytes(),
    )
    require_writable(out, "the folder", "--out")
    results = [measurement.measure(name, plan, out) for name in plan.names]
    remedies = measurement.installed()[1]
    data, plot = out / "allreduce.json", out / "allreduce.svg"
    measurement.write(results, remedies, data)
    # Matplotlib comes after what was measured: a refusal does not wait for it.
    from aiperf_hpc.results.report.plots.allreduce import write_allreduce_plot

    write_allreduce_plot(list(measurement.curves(results)), plot)
    if json:
        say_document(data.read_text("utf-8"))
    else:
        say(measurement.table(results, remedies))
        say(f"written to {data} and {plot}")
    return 0


def peaks(
    asked: Peaks,
    out: Out = Path("peaks"),
    json: Json = False,
) -> int:
    """Measure peak compute, memory, all-reduce and storage performance.

    In a run's folder, `aiperf analyze` finds them and draws the run's roofline.

    Examples:
      $ aiperf peaks --quick
      $ aiperf peaks --engine torch --data /data/imagenet --out runs/mine
    """
    from aiperf_hpc.primary.peaks.measure import lines, measure, plan
    from aiperf_hpc.run.paths import PEAKS, write_whole

    planned = plan(asked.engine, quick=asked.quick, data=asked.data, ranks=asked.ranks)
    require_writable(out, "the folder", "--out")
    out.mkdir(parents=True, exist_ok=True)
    found, path = measure(planned, out), out / PEAKS
    write_whole(path, found.model_dump_json(indent=1))
    if json:
        say_document(found.model_dump_json(indent=1))
    else:
        say("\n".join(lines(found)))
        say(f"written to {path}")
    return 0


def doctor(
    run_dir: Annotated[
        Path, Option("--run-dir", metavar="DIR", parser=Path, help="A place for runs.")
    ] = Path("runs"),
    json: Json = False,
) -> int:
    """Check this machine's software and hardware.

    The last sentence states whether it is ready for local runs, schedulers and GPUs, and what to do
    first. The exit status is 1 if no run is possible here.

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
