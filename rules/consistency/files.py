"""Rules on the files of a run: its signed manifest, its checkpoints, predictions and weights."""

from __future__ import annotations

import hashlib
import math
import stat
from collections.abc import Iterator
from pathlib import Path

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError, CheckpointError, MorphismError, reason_of
from aiperf_hpc.formatting import few
from aiperf_hpc.integrity.signatures import BadSignatureError
from aiperf_hpc.morphism.weights.weight_file import expected_shapes, load_recorded, stored_shapes
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.rule import Caution, Checked, Each, Findings, Note
from aiperf_hpc.run.history import Trial
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import BestEpochSaved, PredictionsSaved, SavedFile

UNSIGNED = "unsigned"
NOT_STORED = "its best epoch is not stored"
"""Beginning of the reason that a replica records at the end of a trial."""
UNCHECKED = "key not checked; name trusted keys with --key"


def files(run: Evidence) -> Findings:
    """The files of the run are exactly those in its manifest, with the same content.

    A scheduler may start a replica after the end of the run, or append to its log. Such changes are
    outside the run, but a signature does not cover them.
    """
    yield Checked(run.report.named_files())
    if run.reported:
        for each in run.report.changes():
            yield Note(each.text) if each.late and not run.report.signed() else each.text


def signature(run: Evidence) -> Findings:
    """The manifest is signed, by a trusted key if any is given."""
    yield Checked(int(run.report.signed()))
    trusted = run.trusted.signers
    try:
        key = run.report.signer(trusted)
    except BadSignatureError as error:
        yield f"BAD signature: {error}"
        return
    wanted = f"it must be signed by {few([str(each) for each in trusted])}"
    if key is None:
        yield f"{UNSIGNED}; {wanted}" if trusted else Note(UNSIGNED)
        return
    if not run.report.complete():
        yield f"signed by {key}, but manifest.json does not name every file of a run that has ended"
    elif key in trusted:
        yield Note(f"signed by {key}")
    elif trusted:
        yield f"signed by {key}, another key; {wanted}"
    else:
        yield Caution("UNTRUSTED KEY")
        yield Note(f"signed by {key}, {UNCHECKED}")


def best_epochs(run: Evidence) -> Findings:
    """Checkpoints of best epochs belong to the best evaluations and exist in their recorded sizes.

    The files of the run's best trial, which determine the score's error, are also hashed. The files
    of other trials, terabytes in a large run, are hashed only when they are re-executed.
    """
    yield Checked(sum(trial.best_epoch is not None for trial in run.trials))
    best = run.history.best
    for trial in run.trials:
        if trial.best_epoch is None:
            continue
        whole = best is not None and best.trial == trial.id
        for wrong in wrong_best_epoch(run.paths, trial, trial.best_epoch, whole=whole):
            yield f"{trial.id}: {wrong}"
    if not run.manifest.earlier and run.config.keeps_best_epochs:
        yield from _unsaved(run)
    reached = None if best is None else run.history.trials.get(best.trial)
    if reached is not None and reached.best_epoch is None:
        yield Note(f"not re-executable: {reached.id}, the best: {not_kept(run.config, reached)}")


def _unsaved(run: Evidence) -> Iterator[str]:
    """The best trial that ended on each replica has a stored best epoch, or the reason is recorded.

    A replica records a best epoch before the end of its trial, and never deletes the best one.
    """
    for replica in run.history.replicas.values():
        own = [run.history.trials[name] for name in replica.trials]
        ended = [each for each in own if each.ended is not None and each.best is not None]
        saved = max((_value(each) for each in ended if each.best_epoch), default=-math.inf)
        due = [each for each in ended if NOT_STORED not in each.reason]
        best = max(due, key=_value, default=None)
        if best is not None and _value(best) > saved:
            yield f"{best.id}, the best trial of {replica.id}, ended without a stored best epoch"


def _value(trial: Trial) -> float:
    return -math.inf if trial.best is None else trial.best.objective_value


def not_kept(config: RunConfig, trial: Trial) -> str:
    """Return the known reason why no best epoch of a trial is stored."""
    if config.engine.name == "simulated":
        return "engine 'simulated' computed nothing that could be"
    if trial.ended is None:
        return "nothing was saved: its replica was lost, or interrupted, before it was over"
    if config.retention.trials != "all":
        return f"nothing was saved: retention.trials is {config.retention.trials}"
    return "nothing was saved, or it was deleted to free space"


def wrong_best_epoch(
    paths: RunPaths, trial: Trial, kept: BestEpochSaved, *, whole: bool
) -> Iterator[str]:
    """Yield the errors of a trial's best epoch; its files are hashed only if ``whole``."""
    epoch = None if trial.best is None else trial.best.epoch
    if epoch != kept.epoch:
        yield f"the best epoch that was kept is {kept.epoch}, that of its evaluations is {epoch}"
    for path, file in files_of(paths, trial, kept):
        yield from _wrong_file(paths, path, file, whole=whole)


def files_of(paths: RunPaths, trial: Trial, kept: BestEpochSaved) -> list[tuple[Path, SavedFile]]:
    """Return the two files of a best epoch with their recorded sizes and hashes."""
    return [
        (paths.epoch_began(trial.replica, trial.id), kept.start_checkpoint),
        (paths.epoch_evaluated(trial.replica, trial.id), kept.end_checkpoint),
    ]


def _wrong_file(paths: RunPaths, path: Path, file: SavedFile, *, whole: bool) -> Iterator[str]:
    name = path.relative_to(paths.root)
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            yield f"{name} is not a file"
        elif found.st_size != file.bytes:
            yield f"{name} has {found.st_size} bytes, {file.bytes} were recorded"
        elif whole and _sha256(path) != file.sha256:
            yield f"{name} is not the file that was recorded: its SHA-256 differs"
    except OSError as error:
        yield f"{name} cannot be read: {reason_of(error)}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def predictions(run: Evidence) -> Findings:
    """Stored predictions belong to the trial's last evaluation and are in the recorded file."""
    yield Checked(sum(trial.predictions is not None for trial in run.trials))
    for trial in run.trials:
        if trial.predictions is not None:
            for wrong in _wrong_predictions(run, trial, trial.predictions):
                yield f"{trial.id}: {wrong}"


def _wrong_predictions(run: Evidence, trial: Trial, kept: PredictionsSaved) -> Iterator[str]:
    path = run.paths.predictions(trial.replica, trial.id)
    last = trial.evaluations[-1] if trial.evaluations else None
    if last is None or (last.epoch, last.samples) != (kept.epoch, kept.samples):
        yield f"predictions of {kept.samples} samples after epoch {kept.epoch}: no such evaluation"
    try:
        found = load_recorded(path, kept.sha256)
    except (OSError, AIPerfError) as error:
        yield f"its predictions cannot be read: {reason_of(error)}"
        return
    stated = (found.trial, found.epoch, len(found.classes))
    if stated != (trial.id, kept.epoch, kept.samples):
        yield f"{path} holds predictions of {stated[0]}, epoch {stated[1]}, {stated[2]} samples"
    classes = run.dataset.classes or 0
    if found.classes.max(initial=0) >= classes:
        yield f"{path} predicts class {found.classes.max()} of {classes}"


def shapes(run: Evidence) -> Findings:
    """Stored weights have the shapes in the graphs that the records state of them.

    Weights that are missing or damaged contradict nothing.
    """
    checked = 0
    for path, name, whole in _stored_weights(run):
        try:
            expected = expected_shapes(run.lineage.graph(name))
            stored = stored_shapes(path)
        except MorphismError:
            continue  # Reported by the rule ``graphs``.
        except (OSError, CheckpointError) as error:
            yield Note(reason_of(error))
            continue
        checked += 1
        others = expected.items() ^ stored.items() if whole else expected.items() - stored.items()
        if others:
            array = min(others)[0]
            there, wanted = stored.get(array, "missing"), expected.get(array, "none")
            where = path.relative_to(run.paths.root)
            yield Each(f"{where}: the shape of {array} is {there}, in the graph of {name} {wanted}")
    yield Checked(checked)


def _stored_weights(run: Evidence) -> Iterator[tuple[Path, str, bool]]:
    """Yield the files of weights, the trial or proposal of each, and whether it has only weights.

    Checkpoints of epochs also have the optimizer's state.
    """
    trials, proposals = run.history.trials, run.history.proposals
    for path in run.paths.candidates.glob("*.safetensors"):
        if path.stem in proposals:
            yield path, path.stem, True
    for replica in run.history.replicas:
        for path in run.paths.trained(replica, "").parent.glob("*.safetensors"):
            if path.stem in trials:
                yield path, path.stem, True
        for path in run.paths.epoch_began(replica, "").parent.glob("*.safetensors"):
            if (name := path.stem.rpartition("-")[0]) in trials:
                yield path, name, False
