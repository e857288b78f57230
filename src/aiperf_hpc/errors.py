"""Every error this package raises on purpose. One root, one clear line each."""

import difflib
import traceback
from collections.abc import Iterable
from typing import TypeVar

from aiperf_hpc.streams import without_stand_ins

Error = TypeVar("Error", bound=BaseException)

UNEXPECTED_STATUS = 70
"""Exit status of a replica that ended by an error that nobody foresaw (EX_SOFTWARE)."""
PREFLIGHT_STATUS = 78
"""Exit status of a replica whose node is not like the others (EX_CONFIG)."""
UNSEEN_RUN_STATUS, UNSEEN_PYTHON_STATUS = 79, 80
"""Exit statuses of the batch script on a node that does not see the run directory, or Python.

They may not change: a site's own template may have the numbers from an earlier script."""


def reason_of(error: OSError | UnicodeError) -> str:
    """Return in words why a file could not be read or written, without its name or a number."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or " ".join(str(error).split()) or type(error).__name__


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean '...'?" with the known name nearest to a word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; did you mean '{close[0]}'?" if close else ""


def without_frames(error: Error) -> Error:
    """Drop the variables of all calls that an error has ended; return the error.

    Whoever keeps it, or is kept by it, would keep them too: of a step that did not fit into an
    accelerator's memory, all that was in it.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    return error


class AIPerfError(Exception):
    """Root of the package's errors; the message says what, where and what to do.

    The command line prints the message alone and leaves with ``exit_status``.
    """

    exit_status = 1

    def __init__(self, message: str) -> None:
        """Take a message: it goes into records, whatever file it names."""
        super().__init__(without_stand_ins(message))


class EndedEarlyError(AIPerfError):
    """A signal ended a command; the message says what that leaves."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class UsageError(AIPerfError):
    """The user asked for something that cannot be started; nothing was started."""

    exit_status = 2


class ConfigError(UsageError):
    """A run configuration is not valid."""


class DatasetError(UsageError):
    """A dataset is missing, unreadable or not what it says it is."""


class RunDirectoryError(UsageError):
    """A run directory cannot be used as asked."""


class PreflightError(AIPerfError):
    """A node is not what the run needs; the message names the node, what, and what to do."""

    exit_status = PREFLIGHT_STATUS


class SchedulerError(AIPerfError):
    """The cluster's scheduler refused a request; the message has its own words."""


class SchedulerSilentError(SchedulerError):
    """The scheduler did not answer: what it would have said is unknown."""


class GraphError(AIPerfError):
    """A graph of layers is not valid; the message names the node."""


class MorphismError(AIPerfError):
    """A morphism does not apply to this graph or these weights."""


class CountError(AIPerfError):
    """A layer has no operation count. Counting never guesses and never says zero."""


class StorageError(AIPerfError):
    """Something cannot be written."""


class JournalError(StorageError):
    """A journal cannot be read or written as asked."""


class CheckpointError(AIPerfError):
    """A checkpoint's weights do not fit its graph, or its file is damaged."""


class EngineError(AIPerfError):
    """The engine cannot build or train a graph."""


class OutOfMemoryError(EngineError):
    """Training does not fit in the accelerator's memory."""


class NonFiniteLossError(EngineError):
    """The training loss became NaN or infinite."""


class DeviceLostError(Exception):
    """This process can no longer use its accelerator; a new process can.

    Not an ``AIPerfError``, which fails a trial and lets the next one begin: every trial would fail.
    The attempt of the replica ends, with a status for which its launcher starts another one.
    """

    exit_status = UNEXPECTED_STATUS
