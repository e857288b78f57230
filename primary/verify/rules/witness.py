"""Witnesses outside: the run's time is theirs, and its records are no younger than they say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.primary.formatting import utc_text
from aiperf_hpc.primary.verify.evidence import Evidence, Failures
from aiperf_hpc.primary.verify.journal import Journal, Shown
from aiperf_hpc.primary.verify.rules.heads import latest, prefixes
from aiperf_hpc.primary.witnessing.signed import checked as checked_statement
from aiperf_hpc.run.records import Witnessed
from aiperf_hpc.run.statements import Statement
from aiperf_hpc.signatures import PublicKey
from aiperf_hpc.untrusted import open_regular

DRIFT: Final = 1.0
"""Seconds by which the primary's clock may run otherwise than a witness's over a run."""
APART: Final = 60.0
"""Seconds by which the two clocks may be apart."""
GAP_BEATS: Final = 3.0
"""How many periods may pass between two heads that a trusted witness is shown."""
GAP_SECONDS: Final = 60.0
"""What is added to these for a network that hesitates."""


class Seen(NamedTuple):
    """A head that a witness was shown."""

    utc: float
    """By the witness's clock, UTC seconds."""
    written: float
    """When the last record in it was written, by the primary's, UTC seconds."""
    shown: Shown


def witnesses(run: Evidence) -> Failures:
    """What each witness has stated is of this run's records, at the time that they tell.

    A witness that is trusted must have seen all of the run, from its start to its end.
    """
    own = run.journals.get(run.view.paths.primary_journal)
    if own is None:
        return
    trusted = {key.raw for key in run.witnesses}
    believed = False
    for url, shown in _by_url(own).items():
        key, wrong = _statements(run, own, shown)
        yield from (f"{url}: {each}" for each in wrong)
        if key is not None and key.raw in trusted:
            believed = True
            yield from (f"{url}: {each}" for each in _unseen(run, own, shown))
    if trusted and not believed:
        yield "no witness that is trusted has stated anything of this run"


def checked(run: Evidence) -> int:
    """Return how many answers of witnesses there are."""
    own = run.journals.get(run.view.paths.primary_journal)
    return 0 if own is None else sum(map(len, _by_url(own).values()))


def _by_url(own: Journal) -> dict[str, list[Shown]]:
    found = defaultdict[str, list[Shown]](list)
    for shown in own.shown:
        if isinstance(shown.answer, Witnessed):
            found[shown.answer.url].append(shown)
    return dict(found)


def _statements(
    run: Evidence, own: Journal, shown: Sequence[Shown]
) -> tuple[PublicKey | None, list[str]]:
    """Return whose statements these are, and what is wrong with them."""
    run_id, key, before = run.view.manifest.run_id, None, None
    for each in shown:
        statement = _statement(each)
        number = statement.run_number
        try:
            key = checked_statement(statement, run_id, before, key)
        except AIPerfError as error:
            return key, [f"statement {number}: {error}"]
        if isinstance(each.answer, Witnessed) and each.answer.key != key.fingerprint:
            return key, [f"statement {number} is by {key.fingerprint}, not by {each.answer.key}"]
        before = statement
    return key, list(_times(run, own, shown))


def _statement(shown: Shown) -> Statement:
    assert isinstance(shown.answer, Witnessed)  # noqa: S101 -- for the type checker
    return shown.answer.statement


def _times(run: Evidence, own: Journal, shown: Sequence[Shown]) -> Failures:
    """The heads are of this journal, and its clock ran as the witness's did."""
    seen = _seen(run, own, shown)
    for each, head in zip(seen, shown, strict=False):
        if each is None:
            number = _statement(head).run_number
            yield f"statement {number} is of another journal (its first {head.head.bytes} bytes)"
            return
    found = [each for each in seen if each is not None]
    # A record in a head was written before the witness saw it, its answer was recorded after: by
    # how much the primary's clock is ahead, seconds, is between these for every head.
    least = max(found, key=lambda each: each.written - each.utc)
    most = min(found, key=lambda each: each.shown.utc - each.utc)
    low, high = least.written - least.utc, most.shown.utc - most.utc
    if low > high + DRIFT:
        yield (
            "the run's time is not the witness's: the primary's clock was at least "
            f"{low:.1f} s ahead at {utc_text(least.written)}, and at most {high:.1f} s at "
            f"{utc_text(most.shown.utc)}"
        )
    elif low > APART or high < -APART:
        by = low if low > APART else -high
        way = "ahead of" if low > APART else "behind"
        yield f"the run's time is {by:.1f} s {way} the witness's"


def _seen(run: Evidence, own: Journal, shown: Sequence[Shown]) -> list[Seen | None]:
    """Return what was seen; None for what is not in this journal, and nothing behind it."""
    primary = run.view.paths.primary_journal
    with open_regular(primary, follow=False) as file:
        content = file.read(run.history.bytes_read[primary])
    found: list[Seen | None] = []
    times = latest(own)
    made = prefixes(content, (each.head.bytes for each in shown))
    for each in shown:
        prefix = next(made, None)
        if (
            prefix is None
            or not prefix.lines
            or prefix.sha256 != each.head.sha256
            or each.offset <= each.head.bytes
        ):
            return [*found, None]
        # A line that is no record, which the rule ``journals`` reports, has no time.
        written = times[min(prefix.lines, len(times)) - 1]
        found.append(Seen(_statement(each).utc, written, each))
    return found


def _unseen(run: Evidence, own: Journal, shown: Sequence[Shown]) -> Failures:
    """A trusted witness saw the run from its start to its end, without a long gap."""
    start, end = run.history.start_utc, run.history.end_utc
    if start is None:
        return
    most = GAP_BEATS * run.config.witness.seconds + GAP_SECONDS
    times = [_statement(each).utc for each in linked(shown)]
    covered = own.end_offset and any(each.head.bytes >= own.end_offset for each in shown)
    if end is not None and not covered:
        yield f"it did not see the end; it saw the run until {utc_text(times[-1])}"
    for before, after in zip([start, *times], times, strict=False):
        if after - before > most:
            yield f"it saw nothing for {after - before:.0f} s from {utc_text(before)}"
    if end is not None and covered and times[-1] - end > most:
        yield f"it saw the end {times[-1] - end:.0f} s late"


def linked(shown: Sequence[Shown]) -> list[Shown]:
    """Return the heads whose answer was recorded before the next head was shown.

    Only of those it is known that what follows in the journal was written after them.
    """
    found: list[Shown] = []
    for each in shown:
        while found and found[-1].offset > each.head.bytes:
            found.pop()
        found.append(each)
    return found
