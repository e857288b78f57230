"""Check that `aiperf verify` detects a change of any byte of a finished, signed run.

python benchmarks/byte_changes.py RUN --changes 2000 --seed 1     # RUN is copied, and stays
python benchmarks/byte_changes.py                                 # a synthetic run, signed here

Half of the bytes are drawn from all bytes of the run, half from a file that is drawn first, so that
small files have their share. Each gets another value; then the run is verified as by the command,
without a key, and the byte is put back. What exits with 0 was not found.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aiperf_hpc.cli import main as aiperf
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.integrity.signatures import load_private_key, make_key
from aiperf_hpc.results.report.provenance import differences, sign_run, signed_by
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one byte."""

    path: str
    """The file's path below the run directory."""
    place: int
    difference: int
    """What its value is combined with by exclusive or: 1 to 255."""


def changed_bytes(root: Path, rng: np.random.Generator, count: int) -> list[Change]:
    """Return ``count`` random changes in a run's files, including its manifest and signature."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    sizes = [path.stat().st_size for path in files]
    ends = np.cumsum(sizes)
    changes = []
    for number in range(count):
        by_bytes = int(np.searchsorted(ends, rng.integers(ends[-1]), side="right"))
        which = by_bytes if number % 2 else int(rng.integers(len(files)))
        name = str(files[which].relative_to(root))
        changes.append(Change(name, int(rng.integers(sizes[which])), int(rng.integers(1, 256))))
    return changes


@contextlib.contextmanager
def made(root: Path, change: Change) -> Iterator[None]:
    """Change a byte while the block runs."""
    file = os.open(root / change.path, os.O_RDWR)
    try:
        was = os.pread(file, 1, change.place)
        os.pwrite(file, bytes([was[0] ^ change.difference]), change.place)
        yield
        os.pwrite(file, was, change.place)
    finally:
        os.close(file)


def not_found(run: RunPaths, changes: Sequence[Change]) -> list[Change]:
    """Return the changes that neither the manifest nor its signature detects."""
    return _missed(run, changes, _by_the_manifest)


def _missed(
    run: RunPaths, changes: Sequence[Change], found: Callable[[RunPaths], bool]
) -> list[Change]:
    missed = []
    for change in changes:
        with made(run.root, change):
            if not found(run):
                missed.append(change)
    return missed


def _by_the_manifest(run: RunPaths) -> bool:
    try:
        view = RunView.read(run)
        return signed_by(run) is None or bool(differences(view))
    except AIPerfError:
        return True


def _by_the_command(run: RunPaths) -> bool:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return aiperf(["verify", str(run.root)]) != 0


def signed_run(folder: Path) -> RunPaths:
    """Write a synthetic run of two replicas, and sign it."""
    from synthetic_run import write_run  # type: ignore[import-not-found,unused-ignore]

    paths = RunPaths(folder / "run")
    write_run(paths.root, 2, distinct=2)
    for name in ("primary/output.log", "replicas/r0/output.log", "replicas/r0/0.0/study.log"):
        (paths.root / name).write_text("what was printed\n" * 20, "utf-8")
    weights = paths.trained("r0", "r0-0")
    weights.parent.mkdir(parents=True)
    weights.write_bytes(np.random.default_rng(1).bytes(2**20))
    write_report(RunView(paths))
    make_key(folder / "key", "benchmark")
    sign_run(RunView(paths), load_private_key(folder / "key"))
    return paths


def main() -> None:
    """Change bytes, and print how many changes were found."""
    parser = argparse.ArgumentParser(description="Change bytes of a signed run one by one.")
    parser.add_argument("run", type=Path, nargs="?", help="a finished, signed run")
    parser.add_argument("--changes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.run is None:
            run = signed_run(Path(folder))
        else:
            run = RunPaths(Path(shutil.copytree(options.run, Path(folder) / "run")))
        if _by_the_command(run):
            raise SystemExit("the run as it is does not pass `aiperf verify`")
        changes = changed_bytes(run.root, np.random.default_rng(options.seed), options.changes)
        began = time.perf_counter()
        missed = _missed(run, changes, _by_the_command)
        seconds = time.perf_counter() - began
    kinds = Counter(Path(change.path).suffix or change.path for change in changes)
    print(f"{len(changes)} changes in {len({c.path for c in changes})} files: "
          f"{len(changes) - len(missed)} found, {seconds:.0f} s")  # fmt: skip
    print(", ".join(f"{kind} {number}" for kind, number in kinds.most_common()))
    for change in missed:
        print(f"not found: {change}")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
