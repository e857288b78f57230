"""Cached view of a run, shared by terminal progress, controller and REST clients.

Reading and answering use a small fraction of one core for runs of any size, because an answer
stays valid for twenty times the time that it took to compute.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from pydantic import BaseModel

from aiperf_hpc.errors import AIPerfError, JournalError
from aiperf_hpc.host.processes import in_background
from aiperf_hpc.results.views.run_view import RunView

FRESH_SECONDS = 1.0
"""Minimum validity of an answer in seconds, during which the journals are not read again."""
COST_FACTOR, MOST_SECONDS = 20.0, 10.0
"""Validity of an answer as a multiple of the time spent on reading and answering, and its maximum
in seconds."""
AHEAD = 0.75
"""Fraction of the validity after which requested answers are refreshed, so that no client has to
wait for them."""

T = TypeVar("T")
Question: TypeAlias = "Callable[[RunView], Any] | _AsJson"


def rest_after(cost: float, least: float) -> float:
    """Return the seconds between two refreshes after one that took ``cost`` seconds."""
    return max(least, min(MOST_SECONDS, COST_FACTOR * cost))


class Text(NamedTuple):
    """An answer as JSON, with the age of its data in seconds."""

    body: bytes
    age: float


@dataclass(frozen=True, slots=True)
class _AsJson:
    """Query for the answer of another query as JSON."""

    question: Callable[[RunView], BaseModel]


@dataclass(slots=True)
class _Look:
    """Snapshot of one read of the journals, with the answers computed from it."""

    read_at: float
    good_for: float
    cost: float = 0.0
    """Seconds spent on reading and answering."""
    failure: AIPerfError | None = None
    answers: dict[Question, Any] = field(default_factory=dict)
    asked: set[Question] = field(default_factory=set)
    """Queries requested from this snapshot."""


class CachedView:
    """A thread-safe view of a run.

    Args:
        source: view that nothing else refreshes, or function that creates one on first use.
        fresh: minimum validity of an answer in seconds.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        source: RunView | Callable[[], RunView],
        *,
        fresh: float = FRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._fresh = fresh
        self._clock = clock
        self._lock = threading.RLock()
        self._view = source if isinstance(source, RunView) else None
        self._look: _Look | None = None

    def ask(self, question: Callable[[RunView], T]) -> T:
        """Return an answer no older than ``fresh`` seconds or ``COST_FACTOR`` times its cost.

        Raises:
            AIPerfError: the run cannot be read; the error is cached like an answer.
        """
        return cast(T, self._look_for(question).answers[question])

    def uncached(self, question: Callable[[RunView], T]) -> T:
        """Return an uncached answer, computed now from the data that was read last."""
        with self._lock:
            view = self._opened()
            with view.history.lock:
                return question(view)

    def text(self, question: Callable[[RunView], BaseModel]) -> Text:
        """Return the answer as JSON, which is cached. Raises AIPerfError like ``ask``."""
        return self._text(self._look_for(_AsJson(question)), question)

    def text_at_hand(self, question: Callable[[RunView], BaseModel]) -> Text | None:
        """Return the answer if it is cached; never blocks. Raises like ``ask``."""
        look = self._current()
        if look is None or _AsJson(question) not in look.answers:
            return None
        look.asked.add(_AsJson(question))
        return self._text(look, question)

    def _text(self, look: _Look, question: Callable[[RunView], BaseModel]) -> Text:
        return Text(look.answers[_AsJson(question)], self._clock() - look.read_at)

    def _look_for(self, question: Question) -> _Look:
        """Return a valid snapshot with the answer, and register the query for refreshes."""
        look = self._current()
        if look is None or question not in look.answers:
            with self._lock:
                look = self._current() or self._read()
                self._answer(look, question)
        look.asked.add(question)
        return look

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Refresh requested answers before they expire, while the block executes.

        A view whose answers are never valid has none to refresh.
        """
        if self._fresh <= 0.0:
            yield
            return
        with in_background(self._renew_until, "look"):
            yield

    def _renew_until(self, over: threading.Event) -> None:
        while not over.wait(self._until_due()):
            self._renew()

    def _until_due(self) -> float:
        """Return the seconds until the next refresh of requested answers."""
        look = self._look
        if look is None or not look.asked or look.failure is not None:
            return self._fresh
        return max(0.01, look.read_at + AHEAD * look.good_for - self._clock())

    def _renew(self) -> None:
        """Read the run and compute the requested answers; the old ones stay valid meanwhile."""
        with self._lock:
            old = self._look
            if old is None or not old.asked or old.failure is not None:
                return
            if self._clock() < old.read_at + AHEAD * old.good_for:
                return  # A client that could not wait has just read the run.
            # No client waits for this, even if the file system is slow.
            old.good_for = self._clock() - old.read_at + MOST_SECONDS
            new = self._made()
            for question in () if new.failure else tuple(old.asked):
                with contextlib.suppress(AIPerfError):  # The error is raised by the next request.
                    self._answer(new, question)
            self._look = new

    def _current(self) -> _Look | None:
        """Return the last snapshot while it is valid. Raises its error."""
        look = self._look
        if look is None or self._clock() - look.read_at >= look.good_for:
            return None
        if look.failure is not None:
            raise look.failure
        return look

    def _read(self) -> _Look:
        look = self._look = self._made()
        if look.failure is not None:
            raise look.failure
        return look

    def _made(self) -> _Look:
        began = self._clock()
        look = _Look(began, self._fresh)
        try:
            self._opened().refresh()
        except AIPerfError as error:
            look.failure = error
        except OSError as error:
            look.failure = _unreadable(error)
        self._charge(look, began)
        return look

    def _opened(self) -> RunView:
        """Return the view, which is created on first use."""
        if self._view is None:
            self._view = cast("Callable[[], RunView]", self._source)()
        return self._view

    def _answer(self, look: _Look, question: Question) -> None:
        if question in look.answers:
            return
        if isinstance(question, _AsJson):
            self._answer(look, question.question)
            began = self._clock()
            look.answers[question] = look.answers[question.question].model_dump_json().encode()
            self._charge(look, began)
            return
        began, view = self._clock(), self._opened()
        try:
            with view.history.lock:
                look.answers[question] = question(view)
        except OSError as error:
            raise _unreadable(error) from None
        self._charge(look, began)

    def _charge(self, look: _Look, began: float) -> None:
        """Add the time since ``began`` to the cost, which determines the validity of a snapshot."""
        look.cost += self._clock() - began
        if self._fresh > 0.0:
            look.good_for = rest_after(look.cost, self._fresh)


def _unreadable(error: OSError) -> JournalError:
    where = error.filename or "the run directory"
    return JournalError(f"cannot read the run: {where}: {error.strerror}")
