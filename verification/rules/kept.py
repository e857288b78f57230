"""What is kept to execute trials again: checkpoints of their best epochs."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import reason_of
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import BestEpochKept, KeptFile
from aiperf_hpc.verification.evidence import Evidence, Failures, Note


def best_epochs(run: Evidence) -> Failures:
    """Each is of its trial's best evaluation, and its files are there in their recorded sizes.

    Those of the run's best trial are read whole: the score's error rests on them. Those of others
    are when they are executed again; of a large run they are terabytes.
    """
    best = run.history.best
    for trial in run.trials:
        if trial.best_epoch is None:
            continue
        whole = best is not None and best.trial == trial.id
        for wrong in wrong_best_epoch(run.view.paths, trial, trial.best_epoch, whole=whole):
            yield f"{trial.id}: {wrong}"
    reached = None if best is None else run.history.trials.get(best.trial)
    if reached is not None and reached.best_epoch is None:
        yield Note(f"not re-executable: {reached.id}, the best: {not_kept(run.config, reached)}")


def not_kept(config: RunConfig, trial: Trial) -> str:
    """Return why nothing is kept of a trial, as far as that is known."""
    if config.engine.name == "simulated":
        return "engine 'simulated' computed nothing that could be"
    if trial.ended is None:
        return "nothing was kept: its replica was lost, or interrupted, before it was over"
    if config.keep.trials != "all":
        return f"nothing was kept: keep.trials is {config.keep.trials}"
    return "nothing was kept, or it was dropped for room"


def wrong_best_epoch(
    paths: RunPaths, trial: Trial, kept: BestEpochKept, *, whole: bool
) -> Iterator[str]:
    """Yield what is wrong with a trial's best epoch; its files are read only as a ``whole``."""
    epoch = None if trial.best is None else trial.best.epoch
    if epoch != kept.epoch:
        yield f"the best epoch that was kept is {kept.epoch}, that of its evaluations is {epoch}"
    for path, file in files_of(paths, trial, kept):
        yield from _wrong_file(paths, path, file, whole=whole)


def files_of(paths: RunPaths, trial: Trial, kept: BestEpochKept) -> list[tuple[Path, KeptFile]]:
    """Return the two files of a best epoch, each with what was recorded of it."""
    return [
        (paths.epoch_began(trial.replica, trial.id), kept.began),
        (paths.epoch_evaluated(trial.replica, trial.id), kept.evaluated),
    ]


def _wrong_file(paths: RunPaths, path: Path, file: KeptFile, *, whole: bool) -> Iterator[str]:
    name = path.relative_to(paths.root)
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            yield f"{name} is no file"
        elif found.st_size != file.bytes:
            yield f"{name} has {found.st_size} bytes, {file.bytes} were recorded"
        elif whole and _sha256(path) != file.sha256:
            yield f"{name} is not the file that was recorded: its SHA-256 is another"
    except OSError as error:
        yield f"{name} cannot be read: {reason_of(error)}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
