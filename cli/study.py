"""``aiperf study``: the runs of a study, executed sequentially in separate processes."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

from typer import Argument

from aiperf_hpc.analysis.document import as_json
from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.study import (
    Study,
    StudyResult,
    Variation,
    configuration,
    lines,
    make_result,
    measured,
    read_study,
    schedule,
    variations,
)
from aiperf_hpc.cli.output import say, say_result, say_to_stderr
from aiperf_hpc.cli.parameters import Json, flag, path_option
from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.host.processes import run_to_its_end
from aiperf_hpc.primary.control.controller import INTERRUPTED
from aiperf_hpc.primary.control.prepare import make_manifest, remove_run_directory
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import TIME_OVER, TRAININGS_DONE
from aiperf_hpc.run.storage import require_writable


def study(
    file: Annotated[Path, Argument(metavar="FILE", parser=Path, help="The study's YAML file.")],
    out: Annotated[
        Path | None, path_option("--out", "DIR", "Folder of the study. Default: studies/NAME.")
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Print the planned runs.")] = False,
    json: Json = False,
) -> int:
    """Measure the contribution of each factor, alone and in combination.

    Examples:
      $ aiperf study study.yaml --dry-run
      $ aiperf study study.yaml --out studies/mine
    """
    planned = read_study(file)
    check(planned)
    folder = StudyFolder(out or Path("studies") / planned.name)
    if dry_run:
        for variation, repeat in schedule(planned):
            settings = " ".join(variation.assignments(planned))
            say(f"{variation.name}, run {repeat} of {planned.repeats}: {settings}".rstrip(": "))
        return 0
    require_writable(folder.root, "the study", "--out")
    folder.begin(planned)
    result = conduct(planned, folder, say_to_stderr)
    folder.save(result)
    text = chain(lines(result), [f"written to {folder.result} and {folder.plot}"])
    say_result(as_json(result.model_dump(mode="json")), text, as_json=json)
    return 0 if result.complete else 1


MOST_ATTEMPTS = 100


class StudyFolder:
    """Paths of a study's file, runs and result."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.study = root / "study.json"
        """Study file at the first start."""
        self.result = root / "result.json"
        """Results so far."""
        self.plot = root / "study.svg"
        """Plot of the contributions."""

    def attempts(self, variation: Variation, repeat: int) -> Iterator[Path]:
        """Yield the possible folders of a run, in order of its attempts."""
        first = self.root / "runs" / f"{variation.name}-{repeat}"
        yield first
        for again in range(2, MOST_ATTEMPTS + 1):
            yield first.with_name(f"{first.name}-attempt-{again}")

    def begin(self, study: Study) -> None:
        """Store the study's file, or require that it equals the stored one.

        Raises:
            UsageError: the folder belongs to another study.
        """
        written = study.model_dump_json(indent=1)
        if self.study.exists():
            if self.study.read_text("utf-8") != written:
                raise UsageError(
                    f"{self.root}: this folder contains another study; name a new folder with --out"
                )
            return
        self.root.mkdir(parents=True, exist_ok=True)
        write_whole(self.study, written)

    def save(self, result: StudyResult) -> None:
        """Write and plot the results."""
        from aiperf_hpc.analysis.study_plot import write_factors

        write_whole(self.result, as_json(result.model_dump(mode="json")))
        write_factors(result.effects, self.plot)


def check(study: Study) -> None:
    """Require that every variation can be started, and that every factor has an effect.

    Raises:
        UsageError: a variation cannot be started, or a factor changes nothing.
    """
    configs = {v.factors: configuration(study, v) for v in variations(study)}
    launcher: str = study.launcher
    for config in configs.values():  # Results of the first are reused.
        launcher = make_manifest(config, study.nodes, study.hours, launcher).launcher
    for name in study.factors:
        if configs[frozenset({name})] == configs[frozenset()]:
            raise UsageError(f"the factor '{name}' changes nothing: {study.factors[name]}")


def conduct(study: Study, folder: StudyFolder, say: Callable[[str], None]) -> StudyResult:
    """Execute all missing runs, and compare the results of all.

    A completed run is kept, and an interrupted run is resumed. A failed run is kept too, and is
    repeated in another folder when the command is called again.

    Raises:
        AIPerfError: a run was interrupted; calling the command again resumes the study.
    """
    refused: dict[str, list[str]] = defaultdict(list)
    for variation, repeat in schedule(study):
        path = _next_attempt(folder, variation, repeat)
        if path is None:
            continue
        say(f"{variation.name}, run {repeat} of {study.repeats}: {path}")
        status = run_to_its_end(_command(study, variation, path), sys.stderr)
        if status >= 128 or _interrupted(path):
            raise AIPerfError(
                f"interrupted; run the same `aiperf study` again to resume it in {folder.root}"
            )
        if status and not path.exists():
            refused[variation.name].append(f"{path}: not started, with exit status {status}")
    return read_result(study, folder, refused)


def read_result(
    study: Study, folder: StudyFolder, refused: Mapping[str, Sequence[str]] | None = None
) -> StudyResult:
    """Compare the runs of a study so far.

    Args:
        study: requested study.
        folder: folder of the study.
        refused: runs that could not be started now, by the name of the variation.
    """
    values: dict[str, list[float]] = defaultdict(list)
    missing: dict[str, list[str]] = defaultdict(list)
    for name, reasons in (refused or {}).items():
        missing[name] += reasons
    for variation, repeat in schedule(study):
        reasons = []
        for path in folder.attempts(variation, repeat):
            if not path.exists():
                break
            try:
                values[variation.name].append(_value(path, study))
                break
            except NotMeasuredError as error:
                reasons.append(f"{path}: {error}")
        else:
            reasons.append(f"{variation.name}, run {repeat}: {MOST_ATTEMPTS} attempts failed")
        missing[variation.name] += reasons
    return make_result(study, values, missing)


def _value(path: Path, study: Study) -> float:
    view = RunView.read(RunPaths(path))
    if (reason := _not_by_its_time(view)) is not None:
        raise NotMeasuredError(reason)
    return measured(view, study)


def _not_by_its_time(view: RunView) -> str | None:
    """Return the end reason for which a run does not count, or None if it counts."""
    reason = _end_reason(view)
    if reason is None:
        return "the run has not ended"
    as_asked = reason in (TIME_OVER, TRAININGS_DONE)
    return None if as_asked else f"the run ended early: {reason}"


def _end_reason(view: RunView) -> str | None:
    ended = view.history.run_ended
    return None if ended is None else str(getattr(ended.event, "reason", ""))


def _next_attempt(folder: StudyFolder, variation: Variation, repeat: int) -> Path | None:
    """Return the folder in which a run is started or resumed, or None if it is complete."""
    for path in folder.attempts(variation, repeat):
        if not path.exists():
            return path
        view = RunView.read(RunPaths(path))
        if view.history.primary_utc is None:  # Killed before it started: it has no results.
            remove_run_directory(view.paths)
            return path
        reason = _not_by_its_time(view)
        if reason is None:
            return None
        if view.history.run_ended is None:
            return path
    return None


def _command(study: Study, variation: Variation, path: Path) -> list[str]:
    command = [sys.executable, "-m", "aiperf_hpc.cli"]
    if path.exists():
        return [*command, "resume", str(path)]
    command += ["start", "--yes", "--run-dir", str(path), "--config", study.config]
    command += ["--nodes", str(study.nodes), "--hours", repr(study.hours)]
    command += ["--launcher", study.launcher]
    for assignment in variation.assignments(study):
        command += ["--set", assignment]
    return command


def _interrupted(path: Path) -> bool:
    """Return whether the user has ended a run by Ctrl-C, which shuts it down cleanly."""
    if not path.exists():
        return False
    view = RunView.read(RunPaths(path))
    return _end_reason(view) == INTERRUPTED
