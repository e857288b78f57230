"""Rule on external witnesses: the run's times agree with theirs, and no record is newer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.formatting import utc_text
from aiperf_hpc.grouping import grouped
from aiperf_hpc.integrity.signatures import PublicKey
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.consistency.journal import Journal, WitnessAnswer
from aiperf_hpc.rules.consistency.journal_digests import latest, longest_gap, prefixes
from aiperf_hpc.rules.rule import Checked, Findings, Note
from aiperf_hpc.run.journal_digest import NoStatementError, Statement, checked_statement
from aiperf_hpc.run.records import TimeStamped, Witnessed
from aiperf_hpc.untrusted.files import open_regular

DRIFT: Final = 1.0
"""Maximum drift in seconds of the primary's clock from a witness's during a run."""
APART: Final = 60.0
"""Maximum offset between the two clocks in seconds."""


class Seen(NamedTuple):
    """A journal digest confirmed by a witness or authority."""

    early: float
    """Earliest possible time by its clock, UTC seconds."""
    late: float
    """Latest possible time, UTC seconds."""
    shown: WitnessAnswer


class Witness(NamedTuple):
    """The valid answers of a witness or authority."""

    seen: list[Seen]
    trusted: bool
    """Whether the verifier trusts it."""
    every: float
    """Configured seconds between two submitted digests."""
    wrong: str
    """Reason why the following answers are invalid; empty if all are valid."""


def witnesses(run: Evidence) -> Findings:
    """The statements of each witness match the run's records and times.

    A trusted witness must cover the run from its start to its end.
    """
    own = run.journals.get(run.paths.primary_journal)
    yield Checked(0 if own is None else len(own.answers))
    if own is None:
        return
    believed = False
    for url, shown in grouped((each.answer.url, each) for each in own.answers).items():
        found = _stated(run, shown)
        failures = [found.wrong] if found.wrong else list(_times(run, own, found))
        if run.manifest.monitored:
            found, covered = _of_all_journals(own, found)
            yield Note(f"{url}: its statements cover {covered} journals of replicas")
        if found.trusted:
            believed = True
            failures += [] if found.wrong else _unseen(run, own, found)
        yield from (f"{url}: {failure}" for failure in failures)
    if (run.trusted.witnesses or run.trusted.authorities) and not believed:
        yield "no trusted witness has confirmed this run"


def _stated(run: Evidence, shown: Sequence[WitnessAnswer]) -> Witness:
    """Return the valid answers from one address."""
    if isinstance(shown[0].answer, Witnessed):
        return _statements(run, shown)
    return _time_stamps(run, shown)


def _statements(run: Evidence, shown: Sequence[WitnessAnswer]) -> Witness:
    run_id, seen, wrong = run.manifest.run_id, list[Seen](), ""
    key: PublicKey | None = None
    before: Statement | None = None
    for each in shown:
        if not isinstance(each.answer, Witnessed):
            wrong = "a witness and a timestamp authority have the same address"
            break
        statement = each.answer.statement
        try:
            key = checked_statement(statement, run_id, before, key)
        except AIPerfError as error:
            wrong = f"statement {statement.run_number}: {error}"
            break
        if each.answer.key != key.fingerprint:
            wrong = f"statement {statement.run_number} is by {key.fingerprint}"
            break
        before = statement
        seen.append(Seen(statement.utc, statement.utc, each))
    trusted = key is not None and key.raw in {each.raw for each in run.trusted.witnesses}
    return Witness(seen, trusted, run.config.witness.interval_seconds, wrong)


def _time_stamps(run: Evidence, shown: Sequence[WitnessAnswer]) -> Witness:
    from aiperf_hpc.run.time_stamps import check_stamp, is_trusted

    run_id, roots, seen, wrong = run.manifest.run_id, run.trusted.authorities, list[Seen](), ""
    trusted = bool(roots)
    for number, each in enumerate(shown, 1):
        try:
            if not isinstance(each.answer, TimeStamped):
                raise NoStatementError("it is a witness's statement")
            seen.append(Seen(*check_stamp(run_id, each.answer), each))
        except AIPerfError as error:
            wrong = f"timestamp {number}: {error}"
            break
        trusted = trusted and is_trusted(run_id, each.answer, roots)
    return Witness(seen, trusted, run.config.timestamps.interval_seconds, wrong)


def _times(run: Evidence, own: Journal, witness: Witness) -> Iterator[str]:
    """The digests are of this journal, and its clock agrees with the witness's."""
    written = list(_written(run, own, witness.seen))
    if len(written) < len(witness.seen):
        digest = witness.seen[len(written)].shown.digest
        yield f"answer {len(written) + 1} is of another journal (its first {digest.bytes} bytes)"
        return
    # A record is written before its digest reaches the witness, and the answer is recorded later.
    # Each digest therefore bounds the seconds by which the primary's clock is ahead.
    bounds = list(zip(written, witness.seen, strict=True))
    least, first = max(bounds, key=lambda each: each[0] - each[1].late)
    last = min(witness.seen, key=lambda each: each.shown.utc - each.early)
    low, high = least - first.late, last.shown.utc - last.early
    stepped = run.steps_of(run.paths.primary_journal)
    if low > high + DRIFT + stepped:
        yield (
            "the run's time differs from the witness's: the primary's clock was at least "
            f"{low:.1f} s ahead at {utc_text(least)}, and at most {high:.1f} s at "
            f"{utc_text(last.shown.utc)}"
        )
    elif low > APART + stepped or high < -APART - stepped:
        by = low if low > APART else -high
        way = "ahead of" if low > APART else "behind"
        yield f"the run's time is {by:.1f} s {way} the witness's"


def _of_all_journals(own: Journal, witness: Witness) -> tuple[Witness, int]:
    """Keep the answers that confirm new digests of the replicas' journals.

    Also returns the number of journals that the last of them covers.
    """
    offsets = [each.offset for each in own.digests]
    seen, known = list[Seen](), 0
    for each in witness.seen:
        if (covered := bisect_right(offsets, each.shown.digest.bytes)) > known:
            seen.append(each)
            known = covered
    journals = own.digests[known - 1].journals if known else None
    return witness._replace(seen=seen), journals or 0


def _written(run: Evidence, own: Journal, seen: Sequence[Seen]) -> Iterator[float]:
    """Yield the time of the last record of each digest, UTC seconds.

    It ends at the first digest that does not match this journal.
    """
    primary = run.paths.primary_journal
    with open_regular(primary, follow=False) as file:
        content = file.read(run.history.bytes_read[primary])
    times = latest(own)
    made = prefixes(content, (each.shown.digest.bytes for each in seen))
    for each, prefix in zip(seen, made, strict=False):
        shown = each.shown
        same = prefix.lines and prefix.sha256 == shown.digest.sha256
        if not same or shown.offset <= shown.digest.bytes:
            return
        # Malformed lines, reported by the rule ``journals``, have no time.
        yield times[min(prefix.lines, len(times)) - 1]


def _unseen(run: Evidence, own: Journal, witness: Witness) -> Iterator[str]:
    """A trusted witness received digests from the run's start to its end, without a long gap."""
    start, end = run.history.origin_utc, run.history.end_utc
    if start is None:
        return
    most = longest_gap(witness.every)
    seen = linked(witness.seen)
    if not seen:
        yield "it saw no digests of the replicas' journals"
        return
    times = [each.early for each in seen]
    covered = own.end_offset and any(e.shown.digest.bytes >= own.end_offset for e in seen)
    if end is not None and not covered:
        yield f"it did not see the end; it saw the run until {utc_text(times[-1])}"
    for before, after in zip([start, *times], times, strict=False):
        if after - before > most:
            yield f"it saw nothing for {after - before:.0f} s from {utc_text(before)}"
    if end is not None and covered and times[-1] - end > most:
        yield f"it saw the end {times[-1] - end:.0f} s late"


def linked(seen: Sequence[Seen]) -> list[Seen]:
    """Return the digests whose answer was recorded before the next digest was submitted.

    Only then are the following records of the journal known to be later than the digest.
    """
    found: list[Seen] = []
    for each in seen:
        while found and found[-1].shown.offset > each.shown.digest.bytes:
            found.pop()
        found.append(each)
    return found
