"""Re-execution of sampled trials of a run and comparison with the records."""

from __future__ import annotations

import hashlib
import math
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.config import RunConfig
from aiperf_hpc.config.sections import ReplicaConfig
from aiperf_hpc.errors import AIPerfError, UsageError, reason_of
from aiperf_hpc.host.processes import interruptible, run_in_session
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.consistency.files import files_of, not_kept, wrong_best_epoch
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import BestEpochSaved
from aiperf_hpc.run.replica_requests import (
    ExecutionRequest,
    ExecutionResult,
    RecordedEpoch,
    SavedCheckpoint,
)
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_inside
from aiperf_hpc.verification.execution.checks import Check, Verdict
from aiperf_hpc.verification.execution.comparison import ReexecutedTrial, compared, not_executed
from aiperf_hpc.workloads.registry import missing, workload_of

BEST = "the run's best"
OF_SIGNATURE = "of the run's signature"
"""Origin of a signed run's default seed: its submitter can sign until the sample is favorable."""
SIGNATURE_BYTES = 65_536
"""Maximum size of a signature in bytes; an Ed25519 signature has about 400."""


class Outcome(Value):
    """The result of re-executing trials of a run."""

    passed: bool
    """Whether the best and all sampled trials were re-executed and match the records."""
    seed: str
    seed_origin: str
    population: int
    """Number of trials with an evaluation: the population of the sample."""
    stored: int
    """Number of these trials whose best epoch is stored."""
    engine: str | None
    device: str | None
    trials: tuple[ReexecutedTrial, ...]

    @property
    def sampled(self) -> int:
        """Number of trials in the sample."""
        return sum(trial.selected_by != BEST for trial in self.trials)


def execute_again(
    run: Evidence,
    trials: int,
    seed: str | None = None,
    dataset: str | None = None,
    seconds: float | None = None,
) -> Outcome:
    """Sample trials, re-execute their best epochs and compare the results with the records.

    Args:
        run: evidence of the run.
        trials: number of sampled trials in addition to the best one.
        seed: seed of the sampling; by default, one from the run's signature, or a new one.
        dataset: path of the dataset on this host; by default, the path in the run.
        seconds: time limit in seconds.

    Raises:
        UsageError: re-execution is impossible for this run or on this host.
    """
    config = run.config
    possible(config)
    evaluated = {trial.id: trial for trial in run.trials if trial.evaluations}
    best = run.history.best
    if best is None:
        raise UsageError("--execute: nothing was evaluated, so nothing can be re-executed")
    chosen = seed_for(run.paths, seed)
    named = {best.trial: BEST}
    for place, name in enumerate(drawn(evaluated, trials, chosen.text), 1):
        named[name] = f"{named[name]}, and drawn {place}" if name in named else f"drawn {place}"
    reasons = {name: not_executable(run, evaluated[name]) for name in named}
    executable = [evaluated[name] for name in named if not reasons[name]]
    result = _result(run, executable, dataset, seconds)
    again = {epoch.trial: epoch for epoch in result.epochs} if result is not None else {}
    compared_trials = tuple(
        compared(run, evaluated[name], why, result, again[name])
        if result is not None and name in again
        else not_executed(evaluated[name], why, reasons[name] or "no result was recorded")
        for name, why in named.items()
    )
    return Outcome(
        passed=all(trial.verdict is Verdict.PASSED for trial in compared_trials),
        seed=chosen.text,
        seed_origin=chosen.origin,
        population=len(evaluated),
        stored=sum(trial.best_epoch is not None for trial in evaluated.values()),
        engine=None if result is None else result.engine,
        device=None if result is None else result.device,
        trials=compared_trials,
    )


def _result(
    run: Evidence, trials: list[Trial], dataset: str | None, seconds: float | None
) -> ExecutionResult | None:
    epochs = tuple(
        recorded_epoch(run, trial, trial.best_epoch) for trial in trials if trial.best_epoch
    )
    if not epochs:
        return None
    config = run.config
    if dataset is not None:
        there = config.dataset.model_copy(update={"path": dataset})
        config = config.model_copy(update={"dataset": there})
    return execute(ExecutionRequest(config=config, dataset=run.dataset, epochs=epochs), seconds)


def table(outcome: Outcome) -> Iterator[str]:
    """Yield the lines of an outcome: the sample, and each trial with its checks."""
    yield (
        f"Re-executed: the best and {outcome.sampled} of {outcome.population} trials, of which "
        f"{outcome.stored} are re-executable; sampled with seed {outcome.seed} "
        f"({outcome.seed_origin}), which can be repeated with --seed {outcome.seed}"
    )
    tenth = math.ceil(outcome.population / 10)
    found = chance(outcome.population, tenth, outcome.sampled)
    yield f"if {tenth} were fabricated, the sample would include one with probability {found:.0%}"
    if outcome.device is not None:
        yield f"by {outcome.engine} on {outcome.device}"
    for trial in outcome.trials:
        epoch = "" if trial.epoch is None else f", epoch {trial.epoch}"
        yield ""
        yield f"{trial.verdict}  {trial.trial}{epoch} ({trial.selected_by})"
        if trial.failure:
            yield f"  {trial.failure}"
        for check in trial.checks:
            yield _line(check)


def _line(check: Check) -> str:
    values = f"{_number(check.recorded):>16} {_number(check.reexecuted):>16}"
    return f"  {check.name:<48}{values}  {check.verdict:<13} {check.tolerance}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def differing(outcome: Outcome) -> str:
    """Return the re-executed trials that differ from their records; empty if there are none."""
    of = {verdict: [t.trial for t in outcome.trials if t.verdict is verdict] for verdict in Verdict}
    return "; ".join(
        f"{verdict}: {', '.join(of[verdict])}"
        for verdict in (Verdict.FAILED, Verdict.NOT_EXECUTABLE)
        if of[verdict]
    )


class Seed(NamedTuple):
    """The seed of the sampling."""

    text: str
    origin: str
    """Description of the seed's origin."""


def seed_for(paths: RunPaths, given: str | None) -> Seed:
    """Return the given seed, or one from the run's signature, or else a new random one."""
    if given is not None:
        return Seed(given, "as given")
    try:
        signature = bytes_inside(paths.root, paths.signature, SIGNATURE_BYTES)
    except FileNotFoundError:
        return Seed(secrets.token_hex(8), "chosen now; the run is not signed")
    except OSError as error:
        return Seed(secrets.token_hex(8), f"chosen now; the run's signature: {reason_of(error)}")
    # Without white space, whose changes do not affect the signature.
    digest = hashlib.sha256(b"".join(signature.split())).hexdigest()
    return Seed(digest, OF_SIGNATURE)


def drawn(trials: Iterable[str], count: int, seed: str) -> list[str]:
    """Return a sample of at most ``count`` trials, in the order of sampling."""
    return sorted(trials, key=lambda trial: _place(seed, trial))[:count]


def chance(trials: int, wrong: int, drawn: int) -> float:
    """Return the probability that a sample includes at least one of the wrong trials.

    Hypergeometric: 1 - C(trials - wrong, drawn) / C(trials, drawn).
    """
    drawn = min(drawn, trials)
    return 1.0 - math.comb(trials - wrong, drawn) / math.comb(trials, drawn)


def _place(seed: str, trial: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{trial}".encode()).digest()


def possible(config: RunConfig) -> None:
    """Raise UsageError if no trial of the run can be re-executed, or not on this host."""
    if config.engine.name == "simulated":
        raise UsageError("--execute: engine 'simulated' computed nothing that could be re-executed")
    one_rank = config.model_copy(update={"replica": ReplicaConfig()})
    if lacking := missing(one_rank):
        raise UsageError(f"--execute: {lacking[0]}")


def not_executable(run: Evidence, trial: Trial) -> str:
    """Return the reason why a trial cannot be re-executed; empty if it can."""
    kept = trial.best_epoch
    if kept is None:
        return not_kept(run.config, trial)
    wrong = wrong_best_epoch(run.paths, trial, kept, whole=False)
    if first := next(wrong, ""):
        return first
    metric = workload_of(run.config).objective.metric
    if trial.best is None or trial.best.quality_metric.name != metric:
        return f"it was not evaluated by the metric of its workload, {metric}"
    try:
        run.graph(trial)
    except AIPerfError as error:
        return str(error)
    return ""


def recorded_epoch(run: Evidence, trial: Trial, kept: BestEpochSaved) -> RecordedEpoch:
    """Return the epoch to re-execute of a trial whose best epoch is stored."""
    began, evaluated = (
        SavedCheckpoint(path=str(path.absolute()), sha256=file.sha256)
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
        losses=tuple(
            each.validation_loss for each in run.evaluations(trial) if each.epoch < kept.epoch
        ),
        start_checkpoint=began,
        end_checkpoint=evaluated,
    )


def execute(request: ExecutionRequest, seconds: float | None) -> ExecutionResult:
    """Re-execute epochs in a process of the replica package.

    The process and its children have exited when this returns, raises or is interrupted.

    Raises:
        UsageError: the execution failed or exceeded ``seconds``.
    """
    with tempfile.TemporaryDirectory(prefix="aiperf-execution-") as folder:
        out = Path(folder) / "execution.json"
        command = [sys.executable, "-m", "aiperf_hpc.replica.reexecution", "--out", str(out)]
        late = (
            f"{len(request.epochs)} trials were not re-executed within {{:g}} s; sample fewer, or "
            "raise --time-limit"
        )
        with interruptible():
            run_in_session(
                command,
                seconds,
                request.model_dump_json(),
                late=late,
                what="the execution",
                failed="--execute: ",
            )
        return ExecutionResult.model_validate_json(out.read_text("utf-8"))
