"""Witnesses of a run's progress, from its records; ``aiperf verify`` checks their statements."""

from __future__ import annotations

from collections.abc import Sequence

from aiperf_hpc.formatting import duration, utc_text
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.history.state import WitnessHistory
from aiperf_hpc.trial import Value

UNWITNESSED = "unwitnessed"


class WitnessStatus(Value):
    """A witness or a timestamp authority, from the primary's records."""

    url: str
    """URL of the witness or authority."""
    key: str
    """Fingerprint of its key; empty for a timestamp authority."""
    statement_count: int
    """Number of its statements on the run."""
    first_utc: float
    """Time of its first statement in UTC seconds."""
    last_utc: float
    """Time of its last statement in UTC seconds."""
    max_gap_seconds: float
    """Longest time without a statement in seconds, from the run's start on."""
    signed_end: bool
    """Whether it signed the run's end."""
    unreachable_reason: str
    """Reason why it does not respond; empty while it does."""


def witnesses_of(history: RunHistory) -> tuple[WitnessStatus, ...]:
    """Return the configured witnesses and authorities of the run, including those without a
    response."""
    return tuple(_status(history, each) for each in history.witnesses.values())


def witness_line(witnesses: Sequence[WitnessStatus], *, ended: bool) -> str:
    """Return one line with the witnesses of a run and their first and last times, or that there are
    none."""
    seen = [each for each in witnesses if each.statement_count]
    away = [
        f"{each.url} does not respond: {each.unreachable_reason}"
        for each in witnesses
        if each.unreachable_reason
    ]
    said = [_said(each, ended=ended) for each in seen] or [UNWITNESSED]
    return "; ".join(said + away)


def _said(witness: WitnessStatus, *, ended: bool) -> str:
    who = f"{witness.key} ({witness.url})" if witness.key else witness.url
    first, last = (str(utc_text(utc))[:19] for utc in (witness.first_utc, witness.last_utc))
    gap = duration(witness.max_gap_seconds)
    end = ", not the end" if ended and not witness.signed_end else ""
    return (
        f"{'witnessed' if witness.key else 'timestamped'} by {who} from {first}Z to {last}Z, "
        f"{witness.statement_count:,} times, longest gap {gap}{end}"
    )


def _status(history: RunHistory, witness: WitnessHistory) -> WitnessStatus:
    return WitnessStatus(
        **WitnessStatus.fields_from(witness),
        statement_count=witness.times,
        unreachable_reason=witness.away,
        max_gap_seconds=witness.greatest_gap,
        signed_end=history.end_utc is not None and witness.covered >= history.end_bytes,
    )
