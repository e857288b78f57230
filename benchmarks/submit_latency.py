"""From ``sbatch`` to the first training step: what is SLURM's, the framework's, and ours.

    python benchmarks/submit_latency.py             # one node on a SLURM of its own, five times
    python benchmarks/submit_latency.py --here      # on the SLURM of this site

A batch script template notes when it starts, and a ``sitecustomize`` when Python does and how
long the engine's module takes to import, which is the framework. All else is from the records.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path

from aiperf_hpc.deploy import local_cluster
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import RunPaths

TARGET_SECONDS = 2.0
"""Seconds, at most, for all that is ours."""
HOOK = """\
import importlib.abc, os, sys, time
NOTES = os.environ["SUBMIT_LATENCY"]

def note(what):
    with open(NOTES, "a", encoding="utf-8") as file:
        file.write(f"{what} {time.time():.6f}\\n")

class Timed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "aiperf_hpc.replica.engines.tensorflow.engine":
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec
        spec = find_spec(name)
        run = spec.loader.exec_module
        def timed(module):
            note("framework_from")
            run(module)
            note("framework_to")
        spec.loader.exec_module = timed
        return spec

if "aiperf_hpc.replica" in sys.orig_argv and "--launch" in sys.orig_argv:
    note("python")
    sys.meta_path.insert(0, Timed())
"""
ROWS = (
    # what, whose, from, to
    ("batch script made and submitted", "ours", "run_started", "launched"),
    ("queued, until the batch script runs", "SLURM", "launched", "script"),
    ("srun, until Python runs", "SLURM", "script", "python"),
    ("our modules, run.yaml, journals, preflight", "ours", "python", "framework_from"),
    ("the framework imported", "framework", "framework_from", "framework_to"),
    ("engine set up, clock compared", "ours", "framework_to", "replica_started"),
    ("dataset loaded, search workers started", "ours", "replica_started", "dataset"),
    ("first trial planned: weights, count, files", "ours", "dataset", "trial"),
    ("its network built and traced", "framework", "trial", "training"),
)


def main() -> None:
    """Measure, print a table, and say whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--here", action="store_true", help="on the SLURM that is here")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aiperf-latency-") as name:
        folder = Path(name)
        if not options.here:
            local_cluster.start(folder / "slurm", 1)
            os.environ |= local_cluster.environment(folder / "slurm")
        try:
            runs = [measure(folder / f"run{n}", options.config) for n in range(options.runs)]
        finally:
            if not options.here:
                local_cluster.stop(folder / "slurm")
    medians = {row[0]: statistics.median(run[row[0]] for run in runs) for row in ROWS}
    sums = [sum(run[what] for what, whose, *_ in ROWS if whose == "ours") for run in runs]
    ours = statistics.median(sums)
    if options.json:
        print(json.dumps({"runs": runs, "median": medians, "ours": ours}, indent=1))
    else:
        print(table(medians, ours))
    sys.exit(ours > TARGET_SECONDS)


def table(medians: dict[str, float], ours: float) -> str:
    """Return the medians in Markdown."""
    lines = ["| | whose | seconds |", "|---|---|---|"]
    lines += [f"| {what} | {whose} | {medians[what]:.2f} |" for what, whose, *_ in ROWS]
    lines += [f"| **from submission to the first step** | | {sum(medians.values()):.2f} |"]
    verdict = "met" if ours <= TARGET_SECONDS else "missed"
    lines += [f"| **ours** (target {TARGET_SECONDS:.0f} s: {verdict}) | | {ours:.2f} |"]
    return "\n".join(lines)


def measure(folder: Path, config: str) -> dict[str, float]:
    """Start a run, wait for its first training step, stop it; return seconds by row."""
    folder.mkdir()
    notes = folder / "notes"
    (folder / "sitecustomize.py").write_text(HOOK, "utf-8")
    script = (resources.files("aiperf_hpc.deploy") / "slurm_array.sh").read_text("utf-8")
    noted = f'echo "script $$(date +%s.%N)" >> {notes}\nexport SUBMIT_LATENCY={notes}\n'
    noted += f'export PYTHONPATH={folder}:"$${{PYTHONPATH:-}}"\nset -euo pipefail\n'
    template = folder / "template.sh"
    template.write_text(script.replace("set -euo pipefail\n", noted), "utf-8")
    command = [sys.executable, "-m", "aiperf_hpc.cli", "start", "--nodes", "1", "--yes"]
    command += ["--hours", "0.1", "--config", config, "--launcher", "slurm"]
    command += ["--set", f"slurm.template={template}", "--run-dir", str(folder / "run")]
    primary = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    paths = RunPaths(folder / "run")
    try:
        times = _first_times(paths, primary) | _notes(notes)
    finally:
        primary.terminate()
        primary.wait()
    return {what: times[end] - times[begin] for what, _, begin, end in ROWS}


def _first_times(paths: RunPaths, primary: subprocess.Popen[bytes]) -> dict[str, float]:
    """Return when the first record of each kind was written, UTC seconds."""
    history = RunHistory(paths)
    while not any(trial.training_utc is not None for trial in history.trials.values()):
        if primary.poll() is not None:
            raise SystemExit(f"the run ended before its first step; see {paths.replica_log('r0')}")
        time.sleep(0.5)
        history.refresh()
    names = {
        "run_started": "run_started",
        "replica_launched": "launched",
        "replica_started": "replica_started",
        "dataset_loaded": "dataset",
        "trial_started": "trial",
        "training_started": "training",
    }
    times: dict[str, float] = {}
    for path in (paths.primary_journal, paths.replica_journal("r0")):
        for record in JournalReader(path).read():
            if record.event.type in names:
                times.setdefault(names[record.event.type], record.utc)
    return times


def _notes(path: Path) -> dict[str, float]:
    lines = (line.split() for line in path.read_text("utf-8").splitlines())
    return {what: float(at) for what, at in lines}


if __name__ == "__main__":
    main()
