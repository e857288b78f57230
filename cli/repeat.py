"""``aiperf start --repeat N``: repeated runs of one configuration, and their variation.

The runs are folders ``1`` to ``N`` of one folder, which ``aiperf analyze`` reads as a whole.
``repeat.json`` in the same folder records the outcome of each run. Each run's seed is one higher
than the previous one's unless ``--same-seed`` is given. After a failed run, the next one is
started, because the failure rate is part of the result; two consecutive failures end the series.
So does a run that a user stops.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from aiperf_hpc.cli.output import say, say_result
from aiperf_hpc.cli.parameters import value
from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.errors import (
    AIPerfError,
    EndedEarlyError,
    RunDirectoryError,
    UsageError,
    restated,
)
from aiperf_hpc.host.processes import ending_early, interruptible, run_in_session
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import TIME_OVER
from aiperf_hpc.run.storage import require_writable
from aiperf_hpc.streams import warn, window_columns
from aiperf_hpc.trial import Value

if TYPE_CHECKING:
    from aiperf_hpc.integrity.signatures import PrivateKey

MOST_FAILURES = 2
"""Consecutive failed runs after which no other is started."""
PEAKS_SECONDS = 300.0
"""Time limit of the machine's measurement."""


StartRun = Callable[[RunConfig, Path, bool], int]
"""Runs a configuration in a folder to its end and returns its status; True allows prompts before
the start."""


class Outcome(Value):
    """Outcome of one run."""

    run: str
    """Folder of the run."""
    seed: int
    exit_status: int
    stopped_by: str
    """Source of an early stop; empty if there was none."""
    error: str
    """Error message of the command; empty if there was none."""


class Outcomes(Value):
    """Outcomes of all started runs."""

    requested: int
    same_seed: bool
    runs: tuple[Outcome, ...]


@dataclass(frozen=True)
class RepeatOptions:
    """The number of runs, and their seeds."""

    repeat: Annotated[int | None, value("N")] = None
    """Run N times in sequence and report the variation."""
    same_seed: bool = False
    """Use the same seed for all runs of --repeat."""

    def check(self, *, detach: bool) -> None:
        """Raise UsageError for options that conflict with ``--repeat``."""
        if self.repeat is None:
            if self.same_seed:
                raise UsageError("--same-seed requires --repeat N")
            return
        if self.repeat < 2:
            raise UsageError(
                f"--repeat {self.repeat}: there is nothing to compare with fewer than 2 runs"
            )
        if detach:
            raise UsageError(
                "--repeat and --detach are mutually exclusive; use nohup or a terminal multiplexer"
            )

    def configurations(self, source: str, assignments: Sequence[str]) -> list[RunConfig]:
        """Return the configuration of each run. Raises ConfigError."""
        first = load_config(source, assignments)
        step = 0 if self.same_seed else 1
        later = [
            load_config(source, [*assignments, f"seed={first.seed + step * number}"])
            for number in range(1, self.repeat or 1)
        ]
        return [first, *later]

    def seeds_line(self, configs: Sequence[RunConfig]) -> str:
        """Return the description of the further runs, for the end of a dry run's output."""
        seeds = [config.seed for config in configs]
        seeds_text = f"seed {seeds[0]}" if self.same_seed else f"seeds {seeds[0]} to {seeds[-1]}"
        return f"{self.repeat} such runs one after another, {seeds_text}"


@dataclass
class Series:
    """Consecutive runs of one command."""

    folder: Path
    """New folder of the runs."""
    configs: list[RunConfig]
    same_seed: bool
    start_run: StartRun
    measures_peaks: bool
    """Whether the runs are on this machine."""
    key: PrivateKey | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, *, as_json: bool) -> int:
        """Execute all runs and print their variation; return 0 if every run ended normally.

        Args:
            as_json: whether standard output is reserved for JSON.

        Raises:
            UsageError: no run can be started.
            EndedEarlyError: a signal ended the command between two runs.
            AIPerfError: a user stopped a run, or too many runs failed.
        """
        created = _make(self.folder)
        output = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
        try:
            with output, ending_early(self._interrupted), interruptible():
                self._run_all()
        finally:
            if self.outcomes:
                self._summarize(as_json=as_json)
            elif created and not any(self.folder.iterdir()):
                self.folder.rmdir()
        return 0 if all(each.exit_status == 0 for each in self.outcomes) else 1

    def _interrupted(self) -> str:
        return (
            f"interrupted after {len(self.outcomes)} of {len(self.configs)} runs; "
            f"`aiperf analyze {self.folder}` compares them"
        )

    def _run_all(self) -> None:
        """Execute the runs, and measure the machine's peaks before and after each."""
        before = self._peaks(self.configs[0])
        for number, config in enumerate(self.configs, 1):
            say(f"run {number} of {len(self.configs)}, seed {config.seed}")
            paths = RunPaths(self.folder / str(number))
            self._run_one(paths, config, asks=number == 1)
            self._check_stopped(number)
            after = self._peaks(config)
            self._store_peaks(paths, {paths.peaks: before, paths.peaks_after: after})
            before = after
            self._check_failures(number)

    def _store_peaks(self, paths: RunPaths, measured: Mapping[Path, str | None]) -> None:
        """Store a run's peaks, and list them in its report's manifest if there is one."""
        texts = {path: text for path, text in measured.items() if text is not None}
        if not texts or not paths.root.is_dir():
            return
        for path, text in texts.items():
            write_whole(path, text)
        if paths.report_manifest.exists():
            from aiperf_hpc.results.report.writer import write_report

            write_report(RunView(paths), key=self.key)

    def _run_one(self, paths: RunPaths, config: RunConfig, *, asks: bool) -> None:
        """Execute one run, and record its outcome if it had started.

        A failure is an outcome; a failed start and an interruption by a signal are raised.
        """
        status, message, ends_all = 0, "", False
        try:
            status = self.start_run(config, paths.root, asks)
        except AIPerfError as error:
            status, message = error.exit_status, str(error)
            ends_all = isinstance(error, UsageError | EndedEarlyError)
            if ends_all:
                raise
            warn(f"{paths.root}: {error}")
        finally:
            if not ends_all or paths.primary_journal.exists():
                self._record(paths, config, status, message)

    def _record(self, paths: RunPaths, config: RunConfig, status: int, message: str) -> None:
        outcome = Outcome(
            run=paths.root.name,
            seed=config.seed,
            exit_status=status,
            stopped_by=_stopped(paths),
            error=message,
        )
        self.outcomes.append(outcome)
        done = Outcomes(
            requested=len(self.configs),
            same_seed=self.same_seed,
            runs=tuple(self.outcomes),
        )
        write_whole(self.folder / "repeat.json", f"{done.model_dump_json(indent=1)}\n")

    def _check_stopped(self, number: int) -> None:
        stopped = self.outcomes[-1].stopped_by
        if stopped and number < len(self.configs):
            raise AIPerfError(
                f"run {number} of {len(self.configs)} was stopped ({stopped}); no further run is "
                "started"
            )

    def _check_failures(self, number: int) -> None:
        last = self.outcomes[-MOST_FAILURES:]
        failed = len(last) == MOST_FAILURES and all(each.exit_status for each in last)
        if failed and number < len(self.configs):
            raise AIPerfError(f"{MOST_FAILURES} runs in a row failed; no further run is started")

    def _peaks(self, config: RunConfig) -> str | None:
        """Return the peaks of this machine from `aiperf peaks`, for runs on this machine."""
        if not self.measures_peaks or config.engine.name == "simulated":
            return None
        with TemporaryDirectory(prefix=".peaks-", dir=self.folder) as out:
            command = [sys.executable, "-m", "aiperf_hpc.cli", "peaks", "--quick", "--json"]
            command += ["--engine", config.engine.name, "--out", out]
            try:
                return run_in_session(command, PEAKS_SECONDS, late="it took more than {:g} s")
            except UsageError as error:
                self.measures_peaks = False
                warn(f"the machine's peaks are not measured: {error}")
                return None

    def _summarize(self, *, as_json: bool) -> None:
        """Print the variation of the runs so far."""
        from aiperf_hpc.analysis import document
        from aiperf_hpc.analysis.layout import tables_as_lines
        from aiperf_hpc.analysis.metric import NotMeasuredError
        from aiperf_hpc.analysis.options import Options
        from aiperf_hpc.analysis.readers.run_directory import read_run
        from aiperf_hpc.analysis.sections.repeatability import repeatability, tables

        readings = [read_run(self.folder / each.run) for each in self.outcomes]
        entries = [entry for reading in readings for entry in reading.entries]
        for unreadable in (each for reading in readings for each in reading.unreadable):
            warn(f"not read: {unreadable.path}: {unreadable.reason}")
        try:
            found = repeatability(entries, Options(), metrics=())
        except NotMeasuredError as error:
            warn(f"repeatability is not measured: {error}")
            return
        table = tables_as_lines(tables(found), window_columns())
        text = chain(("", "Repeatability"), table)
        say_result(document.as_json(found.model_dump(mode="json")), text, as_json=as_json)


def _make(folder: Path) -> bool:
    """Create the folder of the runs; return whether it is new."""
    require_writable(folder)
    created = not folder.exists()
    with restated(f"cannot create the folder {folder}", RunDirectoryError, caught=OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunDirectoryError(f"the folder {folder} is not empty; name a new one")
    return created


def _stopped(paths: RunPaths) -> str:
    """Return the source of a run's early stop, or an empty string if none or never started."""
    if not paths.manifest.exists():
        return ""
    history = RunHistory.read(paths)
    reasons = [request.reason for _, request in history.stop_requests]
    return next((reason for reason in reasons if reason != TIME_OVER), "")
