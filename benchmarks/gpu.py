"""One GPU: the engine and its peers, its input, its memory, its idle time, and a whole run.

    PYTHONPATH=src python benchmarks/gpu.py FOLDER                # all sections, then the tables
    PYTHONPATH=src python benchmarks/gpu.py FOLDER --within 580   # what fits into 580 seconds
    PYTHONPATH=src python benchmarks/gpu.py FOLDER --report       # the tables alone
    PYTHONPATH=src python benchmarks/gpu.py FOLDER --dry-cpu      # tiny sizes, on the CPU

Each section is a process with a time limit. A figure is appended to FOLDER/figures.jsonl as soon as
it is measured, and the next call measures only what is missing. Compiled kernels are in
FOLDER/kernels, for all sections but those that measure compilation.

It needs PyTorch, the dependencies of this package (`make offline` fetches them for a machine
without internet, deploy/README.md), and for ``torch.compile`` a C compiler and Python's headers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from gpu_report import report
from side_by_side import signal_when_parent_ends

STARTED = time.monotonic()
"""PyTorch is imported by the sections only: their limits and ``--within`` include that."""
ROOT = Path(__file__).resolve().parents[1]
DRY_CPU = "--dry-cpu"
DRY_LIMITS = 4
"""How many times longer a section may run on a shared CPU."""
REFUSED = 3
"""The exit status of a section that cannot run on this machine or in this folder."""
Row = dict[str, Any]


class Section(NamedTuple):
    """A part of the measurements, which runs in its own process."""

    predicted: int
    """Seconds that it is expected to take on an NVIDIA H200, 16 cores and no cache."""
    limit: int
    """Seconds after its start at which it is killed."""
    compiles: bool = False
    """Whether it measures compilation, so that its compiled kernels are not kept."""


SECTIONS = {
    "peaks": Section(25, 60),
    "448": Section(300, 420),
    "host": Section(60, 120),
    "profile": Section(100, 150),
    "56": Section(110, 180),
    "kernels": Section(180, 210, compiles=True),
    "idle": Section(190, 210, compiles=True),
    "run": Section(240, 270),
}
"""In order of importance; 20 minutes are predicted, and all limits together are 27."""


class Figures:
    """The measurements in a folder, one JSON object a line."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "figures.jsonl"
        self.rows: list[Row] = []
        self.read()

    def read(self) -> None:
        """Read what is there. Exits if that is no file of this benchmark."""
        there = self.file.read_bytes() if self.file.exists() else b""
        whole = there[: there.rfind(b"\n") + 1]
        try:
            self.rows = [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            sys.exit(f"gpu.py: {self.file} is not a file of this benchmark; name another folder")
        if whole != there:  # The process was killed while it wrote the last line.
            self.file.write_bytes(whole)

    def add(self, row: Row) -> None:
        """Append a measurement."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.rows.append(row)

    def of(self, section: str) -> list[Row]:
        """Return a section's measurements."""
        return [row for row in self.rows if row.get("section") == section and "what" in row]

    def lacks(self, section: str, what: str, number: int = 0) -> bool:
        """Return whether a section has no measurement of this name and number."""
        return not any((r["what"], r.get("number", 0)) == (what, number) for r in self.of(section))

    def ended(self, section: str) -> str:
        """Return how a section last ended: nothing if it is complete."""
        ends = [r["ended"] for r in self.rows if r.get("section") == section and "ended" in r]
        return ends[-1] if ends else "not measured"

    def seconds(self, section: str) -> float:
        """Return the seconds that a section took in all its processes."""
        return sum(r.get("seconds", 0.0) for r in self.rows if r.get("section") == section)

    def where(self, here: str) -> None:
        """Record the machine. Exits if the measurements are of another one."""
        there = next((row["where"] for row in self.rows if "where" in row), None)
        if there is None:
            self.add({"where": here})
        elif there != here:
            refuse(f"{self.file} is of {there}, and this is {here}; name another folder")


def refuse(problem: str) -> None:
    """End a section, and with it all others."""
    print(f"gpu.py: {problem}", file=sys.stderr)
    sys.exit(REFUSED)


def missing_packages() -> list[str]:
    """Return the distributions that are not installed, of PyTorch and all that this package needs.

    Requirements that depend on the platform or on an extra are not followed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted, seen, missing = ["torch", *project["dependencies"]], set(), []
    while wanted:
        name = re.split(r"[^\w.-]", wanted.pop(), maxsplit=1)[0]
        if name in seen:
            continue
        seen.add(name)
        try:
            wanted += [each for each in metadata.requires(name) or () if ";" not in each]
        except metadata.PackageNotFoundError:
            missing.append(name)
    return sorted(missing)


def measure(figures: Figures, options: argparse.Namespace) -> None:
    """Run the sections that are not complete, while there is time."""
    until = STARTED + (options.within or float("inf"))
    for name in options.only or SECTIONS:
        if not figures.ended(name):
            continue
        predicted, limit, _ = SECTIONS[name]
        seconds = min(limit * (DRY_LIMITS if options.dry_cpu else 1), until - time.monotonic())
        if seconds < predicted:
            print(f"{name}: needs more than is left of {options.within} s", file=sys.stderr)
            continue
        print(f"{name}: {predicted} s predicted, at most {seconds:.0f}", file=sys.stderr)
        begun = time.monotonic()
        ended = run_section(name, options, seconds)
        figures.read()  # What the section has written.
        figures.add({"section": name, "ended": ended, "seconds": time.monotonic() - begun})
        if ended:
            print(f"{name}: {ended}", file=sys.stderr)


def run_section(name: str, options: argparse.Namespace, seconds: float) -> str:
    """Run a section in a process of its own; return why it is not complete."""
    command = [sys.executable, __file__, str(options.folder), "--section", name]
    command += ["--parent", str(os.getpid()), *([DRY_CPU] if options.dry_cpu else [])]
    try:
        done = subprocess.run(command, stdout=sys.stderr, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"cut at {seconds:.0f} s"
    if done.returncode == REFUSED:
        sys.exit(2)
    return f"ended with status {done.returncode}" if done.returncode else ""


@contextmanager
def kernel_caches(folder: Path, section: Section) -> Iterator[None]:
    """Use a folder as the kernel cache, or a copy of it for a section that measures compilation."""
    from aiperf_hpc.replica.runtime.kernel_caches import own_kernel_caches
    from aiperf_hpc.system.software import KERNEL_CACHES

    shared = folder / "kernels"
    shared.mkdir(exist_ok=True)
    with own_kernel_caches(os.environ) as own:
        if section.compiles:
            shutil.copytree(shared, own, dirs_exist_ok=True)
        else:
            os.environ |= {name: str(shared / inside) for name, inside in KERNEL_CACHES.items()}
        yield


def run_here(name: str, figures: Figures, options: argparse.Namespace) -> None:
    """Measure the missing figures of a section in this process, which ends with its parent."""
    signal_when_parent_ends(signal.SIGKILL)
    if os.getppid() != options.parent:
        sys.exit("gpu.py: the process that started this section has ended")
    with kernel_caches(options.folder, SECTIONS[name]):
        import torch
        from gpu_sections import DRY, GPU, MEASUREMENTS

        from aiperf_hpc.replica.engines.torch.device import use_expandable_segments

        use_expandable_segments(os.environ)  # Before anything takes memory, as the engine does.
        if not options.dry_cpu and not torch.cuda.is_available():
            refuse(f"PyTorch {torch.__version__} sees no GPU; {DRY_CPU} tries it without")
        device = "a dry run on the CPU" if options.dry_cpu else torch.cuda.get_device_name()
        figures.where(f"PyTorch {torch.__version__}, {device}")

        def lacks(what: str, number: int = 0) -> bool:
            return figures.lacks(name, what, number)

        for row in MEASUREMENTS[name](DRY if options.dry_cpu else GPU, lacks):
            figures.add({"section": name, **row})


def show(figures: Figures) -> None:
    """Print the tables, and what is missing from them."""
    print(*(row["where"] for row in figures.rows if "where" in row))
    for line in report({name: figures.of(name) for name in SECTIONS}):
        print(line)
    print("\n| section | seconds | predicted for an H200 | |\n|---|---|---|---|")
    for name, section in SECTIONS.items():
        ended = figures.ended(name) or "complete"
        print(f"| {name} | {figures.seconds(name):.0f} | {section.predicted} | {ended} |")


def main() -> int:
    """Run the command line; return 1 if a section is not complete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the measurements are kept")
    parser.add_argument(DRY_CPU, action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--report", action="store_true", help="only print the tables")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section alone")
    parser.add_argument(
        "--within", type=int, metavar="SECONDS", help="end so many seconds after the start"
    )
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.report and (missing := missing_packages()):
        sys.exit(f"gpu.py: not installed: {', '.join(missing)}; see `make offline` in the Makefile")
    if not options.report and find_spec("aiperf_hpc") is None:
        sys.exit("gpu.py: aiperf_hpc cannot be imported; in a checkout set PYTHONPATH=src")
    options.folder.mkdir(parents=True, exist_ok=True)
    figures = Figures(options.folder)
    if options.section:
        run_here(options.section, figures, options)
        return 0
    if not options.report:
        measure(figures, options)
    show(figures)
    return int(any(figures.ended(name) for name in SECTIONS))


if __name__ == "__main__":
    sys.exit(main())
