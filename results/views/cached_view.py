"""A run that is read once for all who ask: progress on the terminal, controller, REST clients.

However large the run is, reading it and answering take a small share of one core: an answer is
given again until twenty times as long has passed as it took to make it.
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
"""How long an answer is given again at least, without reading the journals again."""
COST_FACTOR, MOST_SECONDS = 20.0, 10.0
"""How many times as long as reading and answering took it is given again, and for how long at
most."""
AHEAD = 0.75
"""The part of that time after which answers that are in demand are made anew, so that nobody
has to wait for them."""

T = TypeVar("T")
Question: TypeAlias = "Callable[[RunView], Any] | _AsJson"


def rest_after(cost: float, least: float) -> float:
    """Return how many seconds to rest between two looks when the last one took ``cost``."""
    return max(least, min(MOST_SECONDS, COST_FACTOR * cost))


class Text(NamedTuple):
    """An answer as JSON, and how old what it says is, in seconds."""

    body: bytes
    age: float


@dataclass(frozen=True, slots=True)
class _AsJson:
    """The question for another one's answer as JSON."""

    question: Callable[[RunView], BaseModel]


@dataclass(slots=True)
class _Look:
    """What one reading of the journals gave, and the answers made from it."""

    read_at: float
    good_for: float
    cost: float = 0.0
    """Seconds that reading and answering took."""
    failure: AIPerfError | None = None
    answers: dict[Question, Any] = field(default_factory=dict)
    asked: set[Question] = field(default_factory=set)
    """The questions that somebody asked of this look."""


class CachedView:
    """A view of a run that many threads may ask at once.

    Args:
        source: a view that nobody else refreshes, or what makes one when it is first needed.
        fresh: seconds for which an answer is given again, at least.
        clock: monotonic seconds.
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
        """Return the answer: at most ``fresh`` seconds old, or ``COST_FACTOR`` times its cost.

        Raises:
            AIPerfError: the run cannot be read; said again until it is time to try again.
        """
        return cast(T, self._look_for(question).answers[question])

    def uncached(self, question: Callable[[RunView], T]) -> T:
        """Return the answer of what was read last, made now and not given again."""
        with self._lock:
            view = self._opened()
            with view.history.lock:
                return question(view)

    def text(self, question: Callable[[RunView], BaseModel]) -> Text:
        """Return the answer as JSON, made once for all. Raises AIPerfError as ``ask``."""
        return self._text(self._look_for(_AsJson(question)), question)

    def text_at_hand(self, question: Callable[[RunView], BaseModel]) -> Text | None:
        """Return the answer if it is there already; never waits. Raises as ``ask``."""
        look = self._current()
        if look is None or _AsJson(question) not in look.answers:
            return None
        look.asked.add(_AsJson(question))
        return self._text(look, question)

    def _text(self, look: _Look, question: Callable[[RunView], BaseModel]) -> Text:
        return Text(look.answers[_AsJson(question)], self._clock() - look.read_at)

    def _look_for(self, question: Question) -> _Look:
        """Return a look that is good and has the answer, which is in demand from now on."""
        look = self._current()
        if look is None or question not in look.answers:
            with self._lock:
                look = self._current() or self._read()
                self._answer(look, question)
        look.asked.add(question)
        return look

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Make answers that are in demand anew before they are too old, while the block runs."""
        with in_background(self._renew_until, "look"):
            yield

    def _renew_until(self, over: threading.Event) -> None:
        while not over.wait(self._until_due()):
            self._renew()

    def _until_due(self) -> float:
        """Return the seconds until the answers are made anew if they are in demand."""
        look = self._look
        if look is None or not look.asked or look.failure is not None:
            return self._fresh or FRESH_SECONDS
        return max(0.01, look.read_at + AHEAD * look.good_for - self._clock())

    def _renew(self) -> None:
        """Read, and make the answers that were asked for; until they are there the old ones do."""
        with self._lock:
            old = self._look
            if old is None or not old.asked or old.failure is not None:
                return
            if self._clock() < old.read_at + AHEAD * old.good_for:
                return  # Somebody who could not wait has just read.
            # Nobody waits while this goes on, however slow the file system is just now.
            old.good_for = self._clock() - old.read_at + MOST_SECONDS
            new = self._made()
            for question in () if new.failure else tuple(old.asked):
                with contextlib.suppress(AIPerfError):  # Said to whoever asks next.
                    self._answer(new, question)
            self._look = new

    def _current(self) -> _Look | None:
        """Return the last look while it is good. Raises its failure."""
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
        """Return the view, which is made when it is first needed."""
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
        """Add what was done since ``began`` to the cost that decides how long a look is good."""
        look.cost += self._clock() - began
        if self._fresh > 0.0:
            look.good_for = rest_after(look.cost, self._fresh)


def _unreadable(error: OSError) -> JournalError:
    where = error.filename or "the run directory"
    return JournalError(f"cannot read the run: {where}: {error.strerror}")
