"""How much of the trainer's time is training: a whole run on CIFAR-10, and where its seconds went.

python benchmarks/idle.py CIFAR10 [--minutes 10] [--set KEY=VALUE ...] [--json FILE]

CIFAR10 is a folder that ``aiperf data prepare cifar10`` or tests/fetch_cifar10.py made. The run is
an ordinary one of ``aiperf start``, with trials of one epoch of a small network, so that
there are many; what it recorded is verified.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import TimePhase, TrialState

SMALL = ("model.base_width=4", "model.blocks=[1,1,1,1]", "training.max_epochs=1")
TARGET = 0.97
LEAST_TRIALS = 20


def main() -> int:
    """Run, verify, and print the table; 1 if there were too few trials or too little training."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cifar10", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--set", dest="assignments", action="append", default=[])
    parser.add_argument("--json", type=Path, help="where to keep the numbers")
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        run = Path(name) / "run"
        _aiperf(
            "start", "--nodes", "1", "--hours", str(options.minutes / 60), "--config", "cifar10",
            "--launcher", "local", "--yes", "--run-dir", str(run),
            *_settings(f"dataset.path={options.cifar10}", *SMALL, *options.assignments),
        )  # fmt: skip
        _aiperf("verify", str(run))
        history = RunHistory(RunPaths(run))
        history.refresh()
    (replica,) = history.replicas.values()
    completed = sum(t.state is TrialState.COMPLETED for t in history.trials.values())
    seconds = {phase: replica.seconds.get(phase, 0.0) for phase in TimePhase}
    whole = sum(seconds.values())
    busy = (seconds[TimePhase.TRAIN] + seconds[TimePhase.EVALUATE]) / whole
    print(f"{completed} trials completed in {whole:.0f} s of the trainer's wall time\n")
    print("| phase | seconds | share |\n|---|---|---|")
    for phase, value in seconds.items():
        print(f"| {phase} | {value:.1f} | {value / whole:.2%} |")
    print(f"| train and evaluate | | {busy:.2%} (target {TARGET:.0%}) |")
    if options.json is not None:
        numbers = {"trials": completed, "seconds": seconds, "train_evaluate_share": busy}
        options.json.write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")
    return 0 if completed >= LEAST_TRIALS and busy >= TARGET else 1


def _settings(*assignments: str) -> list[str]:
    return [word for assignment in assignments for word in ("--set", assignment)]


def _aiperf(*arguments: str) -> None:
    command = [sys.executable, "-m", "aiperf_hpc.cli", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
