"""Images a second of ``aiperf data prepare imagenet``, by layout, and beside an earlier version.

    python tests/fetch_photographs.py PHOTOGRAPHS
    python benchmarks/prepare.py PHOTOGRAPHS [FILE.json] [--former CHECKOUT]  # tables in Markdown

PHOTOGRAPHS is a folder of JPEG files, at any depth. They are repeated until there are as many as
``--images`` says, in ten classes. Each measurement is a process of its own with all cores, which
prepares the whole of it; cases take turns. Files were written just before, so that they are read
from memory. On a shared machine images a second depend on what else is there; processor time, that
of the process's start included, does so less. CHECKOUT is another version of this project:
its preparation of the same folders is a case too.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from side_by_side import in_turns, machine, save, spread

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import imagenet_layouts  # noqa: E402 -- found by the line above

CLASSES, SHARDS = 10, 16
LAYOUTS: dict[str, Callable[[Path], None]] = {
    "folders": imagenet_layouts.LAYOUTS["folders"],
    "Kaggle": imagenet_layouts.kaggle,
    "parquet": partial(imagenet_layouts.parquet, files=8),
}
SCRIPT = """
import os, sys
from pathlib import Path
from aiperf_hpc.replica.data import imagenet
from aiperf_hpc.replica.data.staging import Options
options = Options(shards=int(sys.argv[3]), cores=len(os.sched_getaffinity(0)))
print(imagenet.prepare(Path(sys.argv[1]), Path(sys.argv[2]), options).sha256)
"""


def lay_out(photographs: Path, folder: Path, images: int) -> None:
    """Make a source in each layout out of photographs."""
    found = sorted(p for p in photographs.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    wnids = [f"n{1_440_764 + number:08d}" for number in range(CLASSES)]
    for layout, make in LAYOUTS.items():
        source = folder / layout
        for part, number in (("train", images), ("val", CLASSES)):
            for place in range(number):
                wnid = wnids[place % CLASSES]
                name = f"{wnid}_{place}" if part == "train" else f"ILSVRC2012_val_{place + 1:08d}"
                path = source / part / wnid / f"{name}.JPEG"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(found[place % len(found)].read_bytes())
        make(source)


def seconds(source: Path, package: Path, digests: set[str]) -> tuple[float, float]:
    """Prepare a source by the package in a folder; return the seconds and processor seconds."""
    target = source.with_name("target")
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-c", SCRIPT, str(source), str(target), str(SHARDS)]
    began, busy = time.perf_counter(), processor_seconds()
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, encoding="utf-8", env=environment
    )
    took = time.perf_counter() - began, processor_seconds() - busy
    digests.add(done.stdout.splitlines()[-1])
    shutil.rmtree(target)
    return took


def processor_seconds() -> float:
    """Return the processor time of the processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure all cases and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("photographs", type=Path)
    parser.add_argument("file", type=Path, nargs="?", help="where to write all figures as JSON")
    parser.add_argument("--former", type=Path, help="a checkout of another version")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    digests: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(options.photographs, folder, options.images)
        cases = {
            layout: partial(seconds, folder / layout, ROOT / "src", digests) for layout in LAYOUTS
        }
        if options.former:
            former = options.former.resolve() / "src"
            cases["folders, former"] = partial(seconds, folder / "folders", former, digests)
        found = in_turns(cases, options.rounds)
    if len(digests) != 1:
        raise SystemExit(f"the datasets are not the same: {digests}")
    images = options.images + CLASSES
    print(f"{machine()}, {os.cpu_count()} cores; {images} images, {options.rounds} rounds\n")
    print("| case | images a second | ratio to folders | processor ms an image | ratio |")
    print("|---|---|---|---|---|")
    for name, took in found.items():
        speeds, works = ([each[place] for each in took] for place in (0, 1))
        base_speeds, base_works = ([each[place] for each in found["folders"]] for place in (0, 1))
        row = [
            spread([images / each for each in speeds]),
            spread([base / own for own, base in zip(speeds, base_speeds, strict=True)]),
            spread([1e3 * each / images for each in works]),
            spread([own / base for own, base in zip(works, base_works, strict=True)]),
        ]
        print(f"| {name} | {' | '.join(row)} |")
    save(options.file, machine(), found)


if __name__ == "__main__":
    main()
