"""What is asked of the replica's side: the epochs to execute again, and why others cannot be."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from aiperf_hpc.config import RunConfig
from aiperf_hpc.config.replica import ReplicaConfig
from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.host.processes import failure_reason, run_in_session
from aiperf_hpc.host.signals import interruptible
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.consistency.files import files_of, not_kept, wrong_best_epoch
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.records import BestEpochKept
from aiperf_hpc.run.replica_requests import (
    ExecutionRequest,
    ExecutionResult,
    KeptCheckpoint,
    RecordedEpoch,
)
from aiperf_hpc.workloads.registry import missing, workload_of


def possible(config: RunConfig) -> None:
    """Raise UsageError where nothing of a run could ever be executed again, or not here."""
    if config.engine.name == "simulated":
        raise UsageError(
            "--execute: engine 'simulated' computed nothing that could be executed again"
        )
    one_rank = config.model_copy(update={"replica": ReplicaConfig()})
    if lacking := missing(one_rank):
        raise UsageError(f"--execute: {lacking[0]}")


def not_executable(run: Evidence, trial: Trial) -> str:
    """Return why a trial cannot be executed again; empty where it can."""
    kept = trial.best_epoch
    if kept is None:
        return not_kept(run.config, trial)
    wrong = wrong_best_epoch(run.paths, trial, kept, whole=False)
    if first := next(wrong, ""):
        return first
    measure = workload_of(run.config).objective.measure
    if trial.best is None or trial.best.measure.name != measure:
        return f"it was not evaluated by the measure of its workload, {measure}"
    try:
        run.graph(trial)
    except AIPerfError as error:
        return str(error)
    return ""


def recorded_epoch(run: Evidence, trial: Trial, kept: BestEpochKept) -> RecordedEpoch:
    """Return what is to be executed of a trial whose best epoch is kept."""
    began, evaluated = (
        KeptCheckpoint(path=str(path.absolute()), sha256=file.sha256)
        for path, file in files_of(run.paths, trial, kept)
    )
    started = trial.started
    return RecordedEpoch(
        trial=trial.id,
        graph=run.graph(trial).to_json(),
        hyperparameters=started.hyperparameters,
        seed=started.seed,
        ranks=run.config.replica.ranks,
        epoch=kept.epoch,
        epoch_limit=started.epoch_limit,
        losses=tuple(losses_before(run, trial, kept.epoch)),
        began=began,
        evaluated=evaluated,
    )


def losses_before(run: Evidence, trial: Trial, epoch: int) -> list[float]:
    """Return the recorded validation losses of a trial before an epoch, in what it resumes too."""
    found: list[float] = []
    resumed = run.history.trials.get(trial.started.resumes or "")
    if resumed is not None and resumed.started_utc < trial.started_utc:
        found = losses_before(run, resumed, min(epoch, trial.started.first_epoch))
    return found + [e.validation_loss for e in trial.evaluations if e.epoch < epoch]


def execute(request: ExecutionRequest, seconds: float | None) -> ExecutionResult:
    """Execute in a process of the replica's side.

    The process has ended, with all that it started, when this returns, raises or is interrupted.

    Raises:
        UsageError: nothing can be executed here, or not in so many seconds.
    """
    with tempfile.TemporaryDirectory(prefix="aiperf-execution-") as folder:
        out = Path(folder) / "execution.json"
        command = [sys.executable, "-m", "aiperf_hpc.replica.execution", "--out", str(out)]
        try:
            with interruptible():
                done = run_in_session(command, seconds, request.model_dump_json())
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{len(request.epochs)} trials were not executed again within {seconds:g} s; "
                "draw fewer, or give a longer --time-limit"
            ) from None
        if done.returncode:
            raise UsageError(f"--execute: {failure_reason(done, 'the execution')}")
        return ExecutionResult.model_validate_json(out.read_text("utf-8"))
