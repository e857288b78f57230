"""What a machine has and how fast it is: ``aiperf doctor``, ``allreduce`` and ``peaks``."""

from __future__ import annotations

import argparse
from pathlib import Path

from aiperf_hpc.machine import available_bytes
from aiperf_hpc.primary.cli.output import say, say_document, say_json
from aiperf_hpc.primary.cli.parser import Commands
from aiperf_hpc.primary.file_system import require_writable


def add_allreduce(commands: Commands) -> None:
    """Add ``allreduce``."""
    help_text = "measure the all-reduce of every installed collective on this machine"
    allreduce = commands.add_parser("allreduce", help=help_text, description=help_text)
    allreduce.add_argument("--ranks", type=int, default=2, metavar="N")
    allreduce.add_argument("--backends", metavar="A,B", help="default: all that are installed")
    allreduce.add_argument("--repetitions", type=int, metavar="N", help="of each size; 100")
    allreduce.add_argument("--largest", type=float, metavar="N", help="elements; 1e8")
    allreduce.add_argument("--quick", action="store_true", help="10 of each, up to 1e6 elements")
    allreduce.add_argument("--out", type=Path, default=Path("allreduce"), metavar="DIR")
    allreduce.add_argument("--json", action="store_true", help="print JSON")
    allreduce.set_defaults(command=_allreduce)


def add_peaks(commands: Commands) -> None:
    """Add ``peaks``."""
    help_text = "measure this machine's peaks: products, memory, all-reduce and storage"
    peaks = commands.add_parser("peaks", help=help_text, description=help_text)
    peaks.add_argument("--engine", metavar="NAME", help="torch or tensorflow; all")
    peaks.add_argument("--data", type=Path, metavar="DIR", help="read files there; else in --out")
    peaks.add_argument("--ranks", type=int, metavar="N", help="of the all-reduce")
    peaks.add_argument("--quick", action="store_true", help="one engine and back end, 10 s")
    peaks.add_argument("--out", type=Path, default=Path("peaks"), metavar="DIR")
    peaks.add_argument("--json", action="store_true", help="print JSON")
    peaks.set_defaults(command=_peaks)


def add_doctor(commands: Commands) -> None:
    """Add ``doctor``."""
    doctor = commands.add_parser("doctor", help="say what this machine has and what is missing")
    doctor.add_argument("--run-dir", type=Path, default=Path("runs"), metavar="DIR")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(command=_doctor)


def _allreduce(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary import allreduce

    plan = allreduce.plan(
        options.backends,
        ranks=options.ranks,
        repetitions=options.repetitions,
        largest=options.largest,
        quick=options.quick,
        available=available_bytes(),
    )
    require_writable(options.out, "the folder", "--out")
    results = [allreduce.measure(name, plan, options.out) for name in plan.names]
    remedies = allreduce.installed()[1]
    data, plot = options.out / "allreduce.json", options.out / "allreduce.svg"
    allreduce.write(results, remedies, data)
    # Matplotlib comes after what was measured: a refusal does not wait for it.
    from aiperf_hpc.primary.report.plots.allreduce import write_allreduce_plot

    write_allreduce_plot(list(allreduce.curves(results)), plot)
    if options.json:
        say_document(data.read_text("utf-8"))
    else:
        say(allreduce.table(results, remedies))
        say(f"written to {data} and {plot}")
    return 0


def _peaks(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.peaks.measure import measure, plan
    from aiperf_hpc.primary.peaks.text import lines
    from aiperf_hpc.run.paths import PEAKS, write_whole

    asked = plan(options.engine, quick=options.quick, data=options.data, ranks=options.ranks)
    require_writable(options.out, "the folder", "--out")
    options.out.mkdir(parents=True, exist_ok=True)
    found, path = measure(asked, options.out), options.out / PEAKS
    write_whole(path, found.model_dump_json(indent=1))
    if options.json:
        say_document(found.model_dump_json(indent=1))
    else:
        say("\n".join(lines(found)))
        say(f"written to {path}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.doctor import examine

    checks = examine(options.run_dir)
    missing = [check for check in checks if check.required and not check.found]
    if options.json:
        say_json([check.model_dump() for check in checks])
        return 1 if missing else 0
    for check in checks:
        mark = "yes" if check.found else "NO " if check.required else "no "
        remedy = f"   -> {check.remedy}" if check.remedy else ""
        say(f"{mark}  {check.area:<12} {check.name:<12} {check.detail}{remedy}")
    if missing:
        say(f"missing for any run: {', '.join(check.name for check in missing)}")
    return 1 if missing else 0
