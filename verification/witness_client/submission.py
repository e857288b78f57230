"""Submission of journal heads to witnesses, by a thread for each: the run never waits for one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.records import WitnessState
from aiperf_hpc.verification.witness_client.witness import AwayError, Witness

ANSWER_SECONDS: Final = 10.0
"""How long an answer is waited for."""
END_SECONDS: Final = 10.0
"""How long, behind the end of a run, a witness is waited for that has not seen it."""
PAUSES: Final = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Seconds until one that is away is asked again; the last one over and over."""
END_PAUSE: Final = 0.5


@contextmanager
def submitting(
    witnesses: Sequence[tuple[Witness, float]],
    journal: JournalWriter,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[Callable[[], None]]:
    """Show the head of the primary's journal while the block runs, and once more behind it.

    Gives what is called when there is a new one to show.

    Args:
        witnesses: the witnesses, with the seconds between two heads for each.
        journal: the primary's, where the answers are recorded.
        say: told when one is away, and when it is there again.
    """
    submitters = [_Submitter(witness, journal, seconds, say) for witness, seconds in witnesses]
    for submitter in submitters:
        submitter.start()

    def show() -> None:
        for submitter in submitters:
            submitter.wake()

    try:
        yield show
    finally:
        for submitter in submitters:
            submitter.end()
        until = time.monotonic() + END_SECONDS + 1.0
        for submitter in submitters:
            submitter.join(max(0.0, until - time.monotonic()))


class _Submitter(threading.Thread):
    """Shows one witness what there is to see."""

    def __init__(
        self,
        witness: Witness,
        journal: JournalWriter,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(name=f"witness {witness.url}", daemon=True)
        self._witness = witness
        self._journal = journal
        self._seconds = seconds
        self._say = say
        self._new = threading.Event()
        self._over = threading.Event()
        self._away = ""

    def wake(self) -> None:
        """Tell that there is a new head."""
        self._new.set()

    def end(self) -> None:
        """Tell that the run is over: its last head is shown, and no other."""
        self._over.set()
        self._new.set()

    def run(self) -> None:
        try:
            self._show_while_it_lasts()
            self._show_the_end()
        except AIPerfError as error:
            # The journal takes no more: the run itself says why.
            self._say(f"{self._witness.url} is shown no more: {error}")

    def _show_while_it_lasts(self) -> None:
        due, failures = 0.0, 0
        while not self._over.is_set():
            self._new.wait()
            self._new.clear()
            if self._over.is_set() or time.monotonic() < due:
                continue
            if self._shown(ANSWER_SECONDS):
                # A little less, or one that is taken as often would be shown every other time.
                due, failures = time.monotonic() + 0.9 * self._seconds, 0
            else:
                self._over.wait(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1
                self._new.set()

    def _show_the_end(self) -> None:
        until = time.monotonic() + END_SECONDS
        while (left := until - time.monotonic()) > 0.0 and not self._shown(left):
            time.sleep(min(END_PAUSE, left))

    def _shown(self, seconds: float) -> bool:
        """Show what there is now; return whether it was answered."""
        try:
            events = self._witness.show(self._journal.head, seconds)
        except AwayError as error:
            self._is_away(str(error))
            return False
        if self._away:
            self._is_away("")
        self._journal.append_all(events)
        return True

    def _is_away(self, why: str) -> None:
        if bool(why) != bool(self._away):
            url = self._witness.url
            self._journal.append(WitnessState(url=url, answers=not why, detail=why))
            self._say(f"{url} is no witness now: {why}" if why else f"{url} is a witness again")
        self._away = why
