"""Who outside has seen a run go on, as its records say it; ``aiperf verify`` checks it."""

from __future__ import annotations

from collections.abc import Sequence

from aiperf_hpc.formatting import duration, utc_text
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.history.state import WitnessHistory
from aiperf_hpc.trial import Value

UNWITNESSED = "unwitnessed"


class WitnessStatus(Value):
    """A witness or a time-stamp authority, by what the primary recorded of it."""

    url: str
    """Where the primary reached it."""
    key: str
    """The fingerprint of its key; empty for a time-stamp authority."""
    times: int
    """How often it was shown how far the run had come."""
    first_utc: float
    """When it was for the first time, UTC seconds."""
    last_utc: float
    """When it was for the last time, UTC seconds."""
    greatest_gap_seconds: float
    """The longest time that it saw nothing, from the run's start on."""
    saw_end: bool
    """Whether it saw the run's end."""
    away: str
    """Why it does not answer; empty while it does."""


def witnesses_of(history: RunHistory) -> tuple[WitnessStatus, ...]:
    """Return who was asked to see the run, whether or not anybody answered."""
    return tuple(_status(history, each) for each in history.witnesses.values())


def witness_line(witnesses: Sequence[WitnessStatus], *, ended: bool) -> str:
    """Return in one line who saw a run, from when to when; or that nobody did."""
    seen = [each for each in witnesses if each.times]
    away = [f"{each.url} does not answer: {each.away}" for each in witnesses if each.away]
    said = [_said(each, ended=ended) for each in seen] or [UNWITNESSED]
    return "; ".join(said + away)


def _said(witness: WitnessStatus, *, ended: bool) -> str:
    who = f"{witness.key} ({witness.url})" if witness.key else witness.url
    first, last = (str(utc_text(utc))[:19] for utc in (witness.first_utc, witness.last_utc))
    gap = duration(witness.greatest_gap_seconds)
    end = ", not the end" if ended and not witness.saw_end else ""
    return (
        f"{'witnessed' if witness.key else 'time-stamped'} by {who} from {first}Z to {last}Z, "
        f"{witness.times:,} times, greatest gap {gap}{end}"
    )


def _status(history: RunHistory, witness: WitnessHistory) -> WitnessStatus:
    return WitnessStatus(
        **WitnessStatus.fields_from(witness),
        greatest_gap_seconds=witness.greatest_gap,
        saw_end=history.end_utc is not None and witness.covered >= history.end_bytes,
    )
