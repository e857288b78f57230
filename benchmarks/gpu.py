"""One GPU: the engine against a plain loop, its memory, its idle time, and where a step's goes.

    PYTHONPATH=src python benchmarks/gpu.py FILE               # all sections, then the tables
    PYTHONPATH=src python benchmarks/gpu.py FILE --within 590  # what fits into so many seconds
    PYTHONPATH=src python benchmarks/gpu.py FILE --report      # the tables alone
    PYTHONPATH=src python benchmarks/gpu.py FILE --dry-cpu     # tiny, on the CPU: does it run?

Each section is a process of less than nine minutes, so that one that hangs or is out of memory
costs no other. What one gave is kept in FILE (JSON) as soon as it is over and is not measured
again: the same command goes on where it was cut. ``--again NAME`` measures a section anew.

It needs PyTorch and no TensorFlow. A machine that has PyTorch and NumPy may lack wheels of pydantic
(with pydantic-core, annotated-types and typing-inspection), PyYAML, safetensors and google-crc32c;
the section ``run``, which starts ``aiperf``, needs all that `pip install .` brings. It needs a C
compiler and Python's headers, too, for ``torch.compile``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import torch
    from gpu_report import report
    from gpu_sections import DRY, GPU, SECTIONS, Row, signal_when_parent_ends

    from aiperf_hpc.replica.engines.torch.device import let_segments_grow
    from aiperf_hpc.replica.runtime.kernel_caches import own_kernel_caches
except ModuleNotFoundError as error:
    sys.exit(
        f"gpu.py: the package '{error.name}' is missing; pip install it, and set PYTHONPATH=src"
    )

Kept = dict[str, Any]
DRY_CPU = "--dry-cpu"
DRY_LIMITS = 4
"""How much longer a section may take on a CPU, which others may use."""


def loaded(file: Path) -> Kept:
    """Return what a file has kept so far. Exits where it cannot be read."""
    try:
        kept = json.loads(file.read_text("utf-8"))
        return {"where": kept["where"], "sections": dict(kept["sections"])}
    except OSError as error:
        sys.exit(f"gpu.py: {file}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        sys.exit(f"gpu.py: {file} is not a file of this benchmark; name another one")


def kept_here(file: Path, where: str) -> Kept:
    """Return what a file has kept of this machine so far. Exits where that is of another one."""
    if not file.exists():
        return {"where": where, "sections": {}}
    kept = loaded(file)
    if kept["where"] != where:
        sys.exit(f"gpu.py: {file} is of {kept['where']}, and this is {where}; name another file")
    return kept


def measured(name: str, arguments: Sequence[str]) -> Kept:
    """Run one section in a process of its own; return the rows that it gave in its time."""
    limit, begun = SECTIONS[name].limit, time.monotonic()
    if DRY_CPU in arguments:
        limit *= DRY_LIMITS
    command = [sys.executable, __file__, "--section", name, "--parent", str(os.getpid())]
    command += arguments
    print(f"{name}: at most {limit} s", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=limit, check=False)
        output = done.stdout
        ended = f"ended with status {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        output, ended = error.stdout or b"", f"cut at {limit} s"
    if ended:
        print(f"{name}: {ended}", file=sys.stderr, flush=True)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
    return {"rows": rows, "seconds": time.monotonic() - begun, "ended": ended}


def end_with(parent: int) -> None:
    """Have this process end if its parent is killed: nothing is measured beside what it left."""
    signal_when_parent_ends(signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("gpu.py: whoever began this section is gone")


def measure(file: Path, kept: Kept, options: argparse.Namespace) -> None:
    """Measure the sections that a file does not have, and keep each in it."""
    until = time.monotonic() + (options.within or float("inf"))
    arguments = [DRY_CPU] if options.dry_cpu else []
    for name in options.only or SECTIONS:
        if name in kept["sections"] and name not in options.again:
            continue
        if time.monotonic() + SECTIONS[name].limit > until:
            print(f"{name}: not in what is left of {options.within} s", file=sys.stderr)
            continue
        kept["sections"][name] = measured(name, arguments)
        partial = file.with_name(f"{file.name}.partial")
        partial.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
        partial.replace(file)


def show(kept: Kept) -> None:
    """Print the tables, and what is missing from them."""
    print(kept["where"])
    rows: dict[str, list[Row]] = {name: one["rows"] for name, one in kept["sections"].items()}
    for line in report(rows):
        print(line)
    for name in SECTIONS:
        ended = kept["sections"].get(name, {"ended": "not measured"})["ended"]
        if ended:
            print(f"\n{name}: {ended}")


def main() -> int:
    """Run the command line; return 1 if a section did not end well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", help="where the measurements are kept")
    parser.add_argument(DRY_CPU, action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--report", action="store_true", help="only print the tables")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section alone")
    parser.add_argument("--again", choices=SECTIONS, action="append", default=[])
    parser.add_argument(
        "--within", type=int, metavar="SECONDS", help="begin none that may last longer"
    )
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        end_with(options.parent)
        let_segments_grow(os.environ)  # Before anything takes memory, as the engine does.
        with own_kernel_caches(os.environ):  # None of another section is used.
            for row in SECTIONS[options.section].measure(DRY if options.dry_cpu else GPU):
                print(json.dumps(row), flush=True)
        return 0
    if options.file is None:
        parser.error("name a file to keep the measurements in")
    if options.report:
        show(loaded(options.file))
        return 0
    if not options.dry_cpu and not torch.cuda.is_available():
        sys.exit(f"gpu.py: PyTorch {torch.__version__} sees no GPU; --dry-cpu tries it without")
    device = "a dry run on the CPU" if options.dry_cpu else torch.cuda.get_device_name()
    kept = kept_here(options.file, f"PyTorch {torch.__version__}, {device}")
    measure(options.file, kept, options)
    show(kept)
    return int(any(one["ended"] for one in kept["sections"].values()))


if __name__ == "__main__":
    sys.exit(main())
