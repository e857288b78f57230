"""``aiperf start --repeat N``: one configuration run again and again, and how well the runs agree.

The runs are folders ``1`` to ``N`` of one folder, which ``aiperf analyze`` reads as a whole.
``repeat.json`` beside them says how each went. Seeds differ by one from run to run unless
``--same-seed`` is given. A run that fails is recorded, and the next one is started, since how
often runs fail belongs to the result; after two failures in a row there is none. A run that
somebody stops is the last one.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.errors import (
    AIPerfError,
    EndedEarlyError,
    RunDirectoryError,
    UsageError,
    reason_of,
)
from aiperf_hpc.primary.cli.output import say, say_document
from aiperf_hpc.primary.control.controller import TIME_OVER
from aiperf_hpc.primary.file_system import require_writable
from aiperf_hpc.primary.launchers.process_session import failure_reason, run_in_session
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.signals import Interruption, interruptible
from aiperf_hpc.trial import Value

MOST_FAILURES = 2
"""Failed runs in a row after which no other is started."""
PEAKS_SECONDS = 300.0
"""The longest time that measuring the machine may take."""

StartOne = Callable[[argparse.Namespace, RunConfig, Path], int]
"""Starts a run of a configuration in a folder, and returns its exit status once it has ended."""


class Outcome(Value):
    """How one of the runs went."""

    run: str
    """Its folder."""
    seed: int
    exit_status: int
    stopped: str
    """Who ended it before its time; empty where nobody did."""
    error: str
    """What the command said of its failure; empty for none."""


class Outcomes(Value):
    """How all runs went that were started."""

    wanted: int
    same_seed: bool
    runs: tuple[Outcome, ...]


def add_repeat(start: argparse.ArgumentParser) -> None:
    """Add what repeats a run to ``aiperf start``."""
    start.add_argument(
        "--repeat", type=int, metavar="N", help="N runs one after another, and how well they agree"
    )
    start.add_argument("--same-seed", action="store_true", help="with --repeat: one seed for all")


def check_repeat(options: argparse.Namespace) -> None:
    """Raise UsageError for what does not go together with ``--repeat``."""
    if options.repeat is None:
        if options.same_seed:
            raise UsageError("--same-seed is about repeated runs; give --repeat N too")
        return
    if options.repeat < 2:
        raise UsageError(f"--repeat {options.repeat}: there is nothing to compare below 2 runs")
    if options.detach:
        raise UsageError(
            "--repeat waits for each run to end, and --detach for none; leave --detach out and "
            "start it with nohup or in a terminal multiplexer"
        )


def configurations(options: argparse.Namespace) -> list[RunConfig]:
    """Return the configuration of each run. Raises ConfigError."""
    first = load_config(options.config, options.assignments)
    step = 0 if options.same_seed else 1
    later = [
        load_config(options.config, [*options.assignments, f"seed={first.seed + step * number}"])
        for number in range(1, options.repeat)
    ]
    return [first, *later]


def repeat(options: argparse.Namespace, launcher: str, folder: Path, start_one: StartOne) -> int:
    """Make all runs, then say how well they agree; return 0 if every one ended in order.

    Args:
        options: of ``aiperf start``.
        launcher: the name of what starts the replicas.
        folder: a new one, for the runs.
        start_one: makes one run.

    Raises:
        UsageError: no run can be started as asked.
        EndedEarlyError: a signal ended it between two runs.
        AIPerfError: somebody stopped a run, or too many failed.
    """
    configs = configurations(options)
    made = _make(folder)
    repetition = _Repetition(options, launcher == "local", folder, start_one)
    # With --json, standard output is for the document alone.
    output = contextlib.redirect_stdout(sys.stderr) if options.json else contextlib.nullcontext()
    try:
        with output, interruptible():
            repetition.run(configs)
    except Interruption as interruption:
        raise EndedEarlyError(
            f"interrupted after {len(repetition.outcomes)} of {len(configs)} runs; "
            f"`aiperf analyze {folder}` compares them",
            interruption.exit_status,
        ) from None
    finally:
        if repetition.outcomes:
            repetition.summarize()
        elif made and not any(folder.iterdir()):
            folder.rmdir()
    return 0 if all(each.exit_status == 0 for each in repetition.outcomes) else 1


def _make(folder: Path) -> bool:
    """Make the folder of the runs; return whether it was not there before."""
    require_writable(folder)
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunDirectoryError(f"the folder {folder} is not empty; name a new one")
    except OSError as error:
        raise RunDirectoryError(f"cannot make the folder {folder}: {reason_of(error)}") from None
    return made


class _Repetition:
    """The runs of one command."""

    def __init__(
        self, options: argparse.Namespace, here: bool, folder: Path, start_one: StartOne
    ) -> None:
        self._options = options
        self._folder = folder
        self._start_one = start_one
        self._measures_peaks = here
        self.outcomes: list[Outcome] = []

    def run(self, configs: list[RunConfig]) -> None:
        """Make the runs, with the machine's peaks measured before and after each."""
        before = self._peaks(configs[0])
        for number, config in enumerate(configs, 1):
            say(f"run {number} of {len(configs)}, seed {config.seed}")
            paths = RunPaths(self._folder / str(number))
            self._one(paths, config)
            self._check_stopped(number, len(configs))
            after = self._peaks(config)
            for path, measured in ((paths.peaks, before), (paths.peaks_after, after)):
                if measured is not None and paths.root.is_dir():
                    write_whole(path, measured)
            before = after
            self._check_failures(number, len(configs))
            self._options.yes = True  # Asked once.

    def _one(self, paths: RunPaths, config: RunConfig) -> None:
        """Make one run, and record how it went if it had started.

        A failure is its outcome; what cannot be started, and a signal's end, is raised.
        """
        status, said, ends_all = 0, "", False
        try:
            status = self._start_one(self._options, config, paths.root)
        except AIPerfError as error:
            status, said = error.exit_status, str(error)
            ends_all = isinstance(error, UsageError | EndedEarlyError)
            if ends_all:
                raise
            sys.stderr.write(f"aiperf: {paths.root}: {error}\n")
        finally:
            if not ends_all or paths.primary_journal.exists():
                self._record(paths, config, status, said)

    def _record(self, paths: RunPaths, config: RunConfig, status: int, said: str) -> None:
        outcome = Outcome(
            run=paths.root.name,
            seed=config.seed,
            exit_status=status,
            stopped=_stopped(paths),
            error=said,
        )
        self.outcomes.append(outcome)
        done = Outcomes(
            wanted=self._options.repeat,
            same_seed=self._options.same_seed,
            runs=tuple(self.outcomes),
        )
        write_whole(self._folder / "repeat.json", f"{done.model_dump_json(indent=1)}\n")

    def _check_stopped(self, number: int, wanted: int) -> None:
        stopped = self.outcomes[-1].stopped
        if stopped and number < wanted:
            raise AIPerfError(
                f"run {number} of {wanted} was stopped ({stopped}); no other is started"
            )

    def _check_failures(self, number: int, wanted: int) -> None:
        last = self.outcomes[-MOST_FAILURES:]
        failed = len(last) == MOST_FAILURES and all(each.exit_status for each in last)
        if failed and number < wanted:
            raise AIPerfError(f"{MOST_FAILURES} runs in a row failed; no other is started")

    def _peaks(self, config: RunConfig) -> str | None:
        """Return what `aiperf peaks` measures of this machine, for runs that are on it."""
        if not self._measures_peaks or config.engine.name == "simulated":
            return None
        with TemporaryDirectory(prefix=".peaks-", dir=self._folder) as out:
            command = [sys.executable, "-m", "aiperf_hpc.primary.cli", "peaks", "--quick", "--json"]
            command += ["--engine", config.engine.name, "--out", out]
            measured, why = _said(command)
        if measured is None:
            self._measures_peaks = False
            sys.stderr.write(f"aiperf: the machine's peaks are not measured: {why}\n")
        return measured

    def summarize(self) -> None:
        """Say how well the runs agree that were made so far."""
        from aiperf_hpc.primary.analyze.document import as_json
        from aiperf_hpc.primary.analyze.measured import NotMeasuredError
        from aiperf_hpc.primary.analyze.options import Options
        from aiperf_hpc.primary.analyze.readers.run_directory import read_run
        from aiperf_hpc.primary.analyze.sections.repeatability import repeatability
        from aiperf_hpc.primary.analyze.sections.repeatability_text import lines

        readings = [read_run(self._folder / each.run) for each in self.outcomes]
        entries = [entry for reading in readings for entry in reading.entries]
        for unreadable in (each for reading in readings for each in reading.unreadable):
            sys.stderr.write(f"aiperf: not read: {unreadable.path}: {unreadable.reason}\n")
        try:
            found = repeatability((), entries, Options())
        except NotMeasuredError as error:
            sys.stderr.write(f"aiperf: how well they agree is not measured: {error}\n")
            return
        if self._options.json:
            say_document(as_json(found.model_dump(mode="json")))
        else:
            say("\n".join(["", "Repeatability", *lines(found)]))


def _stopped(paths: RunPaths) -> str:
    """Return who ended a run before its time; empty where nobody did or it never began."""
    if not paths.manifest.exists():
        return ""
    history = RunHistory(paths)
    history.refresh()
    asked = [request.reason for request in history.stop_requests]
    return next((reason for reason in asked if reason != TIME_OVER), "")


def _said(command: list[str]) -> tuple[str | None, str]:
    """Return what a command printed, or why it failed."""
    try:
        done = run_in_session(command, PEAKS_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"it took more than {PEAKS_SECONDS:g} s"
    if done.returncode:
        return None, failure_reason(done)
    return done.stdout, ""


def seeds_line(options: argparse.Namespace) -> Iterator[str]:
    """Yield, behind what a dry run shows of the first run, what the others are."""
    seeds = [config.seed for config in configurations(options)]
    said = f"seed {seeds[0]}" if options.same_seed else f"seeds {seeds[0]} to {seeds[-1]}"
    yield f"{options.repeat} such runs one after another, {said}"
