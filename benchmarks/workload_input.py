"""Samples per second of public benchmarks' input pipelines, compared with plain ones on the same
files.

    python benchmarks/workload_input.py [FILE.json] [--only deepcam] [--size 768] [--rounds 3]

Prints tables in Markdown. Files are written as the benchmarks have them: CosmoFlow's TFRecord files
of a volume each, plain and compressed; DeepCAM's HDF5 files of a map each. Ours reads what ``aiperf
data prepare`` makes of them, tf.data and DataLoader the files. All are read in training, in
batches, from the page cache; nothing is done with the batches. Each measurement is a process of its
own, cases take turns. On a shared machine samples a second depend on what else is there; processor
time does so less.

ResNet-50's pipeline is that of every run on ImageNet: ``benchmarks/input_pipeline.py``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from input_cases import CASES
from side_by_side import (
    heading,
    in_turns,
    machine,
    rate,
    report,
    row,
    save,
    spread,
    work,
)

FILLING = 3
"""Batches before the clock is started."""


def compare(name: str, size: int, rounds: int) -> dict[str, Any]:
    """Measure all readers of one kind of files in turns; print a table."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        case.lay_out(Path(folder), size)
        load = os.getloadavg()[0]
        turns = {reader: partial(work, __file__, name, reader, folder) for reader in case.readers}
        runs = in_turns(turns, rounds)
    print()
    title = f"{name}, {size}, batch {case.batch}, load {load:.1f}"
    heading(title, "samples/s", "processor ms per sample")
    for reader, each in runs.items():
        row(reader, *(spread(values) for values in zip(*each, strict=True)))
    return {**runs, "load": load, "size": size}


def main() -> None:
    """Measure, print tables, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--work", nargs=3, metavar=("CASE", "READER", "FOLDER"))
    parser.add_argument("--only", choices=CASES, nargs="*", default=list(CASES))
    parser.add_argument("--size", type=int, help="a volume's side, a map's rows")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.work:
        name, reader, folder = options.work
        report(rate(CASES[name].readers[reader](Path(folder)), FILLING))
        return
    found = {
        name: compare(name, options.size or CASES[name].size, options.rounds)
        for name in options.only
    }
    save(options.result, machine(), found)


if __name__ == "__main__":
    main()
