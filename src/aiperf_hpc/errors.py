"""The exceptions of this package. They share one base class and have one-line messages."""

import difflib
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from aiperf_hpc.streams import without_stand_ins

Error = TypeVar("Error", bound=BaseException)

UNEXPECTED_STATUS = 70
"""Exit status of a replica after an unexpected error (EX_SOFTWARE)."""
PREFLIGHT_STATUS = 78
"""Exit status of a replica whose node differs from the others (EX_CONFIG)."""
UNSEEN_RUN_STATUS, UNSEEN_PYTHON_STATUS = 79, 80
"""Exit statuses of the batch script on a node without access to the run directory or to Python.

They must not change, because a site's own template may contain the numbers."""


def reason_of(error: Exception) -> str:
    """Return the reason of an error in one line; for files, without name and error number."""
    said = error.strerror if isinstance(error, OSError) else None
    return said or " ".join(str(error).split()) or type(error).__name__


def did_you_mean(word: str, known: Iterable[str], before: str = "") -> str:
    """Return "; did you mean '...'?" with the most similar known name after the text ``before``,
    or an empty text."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; did you mean '{before}{close[0]}'?" if close else ""


def without_frames(error: Error) -> Error:
    """Clear the local variables of all frames in an error's traceback; return the error.

    Otherwise a stored error keeps them alive, such as the tensors of a step that ran out of
    accelerator memory.
    """
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
    return error


class AIPerfError(Exception):
    """Base class of the package's errors; the message contains the problem, place and remedy.

    The command line prints only the message and exits with ``exit_status``.
    """

    exit_status = 1

    def __init__(self, message: str) -> None:
        """Store the message, encodable as UTF-8 for records, whatever file names it contains."""
        super().__init__(without_stand_ins(message))


class EndedEarlyError(AIPerfError):
    """A signal interrupted a command; the message describes the remaining state."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class UsageError(AIPerfError):
    """The requested command cannot start; nothing was started."""

    exit_status = 2


@contextmanager
def restated(
    before: str,
    raised: type[AIPerfError] = UsageError,
    after: str = "",
    *,
    caught: type[Exception] | tuple[type[Exception], ...] = (OSError, UnicodeError, UsageError),
) -> Iterator[None]:
    """Raise an error of the block as ``raised``: the text before, the reason, the text after."""
    try:
        yield
    except caught as error:
        raise raised(f"{before}: {reason_of(error)}{after}") from None


@contextmanager
def raising(error: Exception, *caught: type[Exception]) -> Iterator[None]:
    """Raise ``error`` instead of the caught exceptions of the block."""
    try:
        yield
    except caught:
        raise error from None


class ConfigError(UsageError):
    """A run configuration is not valid."""

    def __init__(self, message: str, faults: Mapping[str, str] | None = None) -> None:
        """Create an error from its message and the errors of settings by their dotted keys."""
        super().__init__(message)
        self.faults = faults or {}


class DatasetError(UsageError):
    """A dataset is missing, unreadable or inconsistent with its description."""


class RunDirectoryError(UsageError):
    """A run directory cannot be used as requested."""


class PreflightError(AIPerfError):
    """A node does not meet the run's requirements; the message names the node and the remedy."""

    exit_status = PREFLIGHT_STATUS


class SchedulerError(AIPerfError):
    """The cluster's scheduler rejected a request; the message quotes it."""


class SchedulerSilentError(SchedulerError):
    """The scheduler did not respond, so the outcome of the request is unknown."""


class GraphError(AIPerfError):
    """A graph of layers is not valid; the message names the node."""


class MorphismError(AIPerfError):
    """A morphism does not apply to this graph or these weights."""


class CountError(AIPerfError):
    """A layer has no operation count. The counter never guesses or assumes zero."""


class StorageError(AIPerfError):
    """A file cannot be written."""


class JournalError(StorageError):
    """A journal cannot be read or written as requested."""


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

    Not an ``AIPerfError``, which fails only one trial: every later trial would fail too. The
    replica exits instead, with a status for which its launcher restarts it.
    """

    exit_status = UNEXPECTED_STATUS
