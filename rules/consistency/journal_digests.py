"""Rules on journal digests: no single journal was rewritten or moved in time."""

from __future__ import annotations

import os
import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import ValidationError

from aiperf_hpc.errors import reason_of
from aiperf_hpc.formatting import utc_text
from aiperf_hpc.rules.consistency.evidence import TRAINER_JOURNAL, Evidence
from aiperf_hpc.rules.consistency.journal import Journal
from aiperf_hpc.rules.rule import Checked, Findings, Note
from aiperf_hpc.run import records
from aiperf_hpc.run.journal_digest import PREFIX_DIGITS, Hash, digest_line, new_hash
from aiperf_hpc.run.liveness import LISTING_SECONDS, PAUSE_SECONDS
from aiperf_hpc.run.records import JournalDigestsRecord
from aiperf_hpc.run.records.parsing import model_of
from aiperf_hpc.untrusted.bounds import MOST_COUNT
from aiperf_hpc.untrusted.files import open_inside, open_regular

APART: Final = 5.0
"""Maximum seconds by which records of two hosts may be out of order, in addition to the known
offset of their clocks."""
GAP_INTERVALS: Final = 3.0
"""Maximum number of intervals between two recorded digests, or two sent to a trusted witness."""
GAP_SECONDS: Final = 60.0
"""Seconds that are added to these intervals for delays of storage and network."""
MOST_PAUSES: Final = 3
"""Number of pauses between two recorded digests that do not count as work; later ones count as
``PAUSE_SECONDS``."""
LATE: Final = 60.0
"""Seconds before the end in which processes other than trainers may still have written."""


class Prefix(NamedTuple):
    """The first bytes of a journal."""

    sha256: str
    lines: int


def prefixes(content: bytes, sizes: Iterable[int]) -> Iterator[Prefix]:
    """Yield the SHA-256 and the line count of the first ``sizes`` bytes, ascending, in one pass.

    It ends at a size that exceeds the content or is smaller than the previous size.
    """
    view, sha, at, lines = memoryview(content), new_hash(), 0, 0
    for size in sizes:
        if not at <= size <= len(content):
            return
        sha.update(view[at:size])
        lines += content.count(b"\n", at, size)
        at = size
        yield Prefix(sha.hexdigest(), lines)


@dataclass(slots=True)
class _Growth:
    """The growth of one journal as recorded by the primary."""

    numbers: array[int] = field(default_factory=lambda: array("L"))
    """Numbers of the digest records in which the journal had grown."""
    sizes: array[int] = field(default_factory=lambda: array("q"))
    """Size of the journal in each of them, in bytes."""
    digest_prefixes: list[str] = field(default_factory=list)

    def cut(self, size: int) -> int:
        """Remove digests beyond ``size`` bytes; return the number of the first removed record."""
        keep = next((n for n, each in enumerate(self.sizes) if each > size), len(self.sizes))
        first = self.numbers[keep] if keep < len(self.sizes) else sys.maxsize
        del self.numbers[keep:], self.sizes[keep:], self.digest_prefixes[keep:]
        return first


class _Digests:
    """The recorded journal digests, as far as the primary's journal confirms their file."""

    def __init__(self) -> None:
        self.times: list[float] = []
        """Time of each record, UTC seconds."""
        self.sums: list[str] = []
        """SHA-256 over the digests of each record."""
        self.growths: defaultdict[str, _Growth] = defaultdict(_Growth)
        self._names: list[str] = []
        self._sizes: list[int] = []

    def add(self, utc: float, event: JournalDigestsRecord) -> bool:
        """Add the next record; return whether it is consistent with the previous ones."""
        if event.new_primary:
            self._names, self._sizes = [], []
        self._names += event.new_journals
        self._sizes += [0] * len(event.new_journals)
        grew = sum(1 for more in event.appended_bytes if more)
        fits = (
            len(event.appended_bytes) == len(self._names)
            and len(event.digest_prefixes) == PREFIX_DIGITS * grew
        )
        if not fits or len(set(self._names)) != len(self._names):
            return False
        at = 0
        for number, more in enumerate(event.appended_bytes):
            if more:
                self._sizes[number] += more
                if not 0 <= self._sizes[number] <= MOST_COUNT:
                    return False
                growth = self.growths[self._names[number]]
                growth.numbers.append(len(self.times))
                growth.sizes.append(self._sizes[number])
                growth.digest_prefixes.append(event.digest_prefixes[at : at + PREFIX_DIGITS])
                at += PREFIX_DIGITS
        self.times.append(utc)
        self.sums.append(event.sha256)
        return True


def digests(run: Evidence) -> Findings:
    """Journals match the digests recorded by the primary, and its own the replicas' digests.

    They were recorded as often as configured, and at the end. Earlier versions recorded none, and
    simulations record none.
    """
    yield Checked(sum(len(each.digests) + len(each.seen) for each in run.journals.values()))
    own = run.journals.get(run.paths.primary_journal)
    if own is None:
        return
    if run.manifest.monitored:
        yield from _missing(run, own)
    yield from _seen(run, own)
    if own.digests:
        found = _Digests()
        yield from _read(run, own, found)
        yield from _journals(run, found)


def _missing(run: Evidence, own: Journal) -> Iterator[str]:
    """Digests were recorded while a primary worked, and at the end of the run.

    The first pauses without any record do not count as work: the primary may have been suspended.
    """
    most = longest_gap(run.config.digest_seconds)
    begins = {each.utc for each in own.digests} | {each.start.utc for each in own.processes}
    silent = longest = 0.0
    pauses = 0
    for before, utc in pairwise(own.times):
        gap = max(utc - before, 0.0)
        if utc in begins:
            silent, pauses = 0.0, 0
        elif gap <= PAUSE_SECONDS:
            silent += gap
        else:
            pauses += 1
            silent += PAUSE_SECONDS if pauses > MOST_PAUSES else 0.0
        longest = max(longest, silent)
    if longest > most:
        yield (
            f"the primary worked for {longest:.0f} s without recording the journals' digests; "
            f"at most {most:.0f} s are allowed"
        )
    if own.ends_without_digests:
        yield "the run ended without final digests of the journals"


def longest_gap(interval: float) -> float:
    """Return the most seconds between two digests recorded or sent at this interval."""
    return GAP_INTERVALS * interval + GAP_SECONDS


def _read(run: Evidence, own: Journal, found: _Digests) -> Iterator[str]:
    """Read the file of journal digests as far as it is confirmed by the primary's journal."""
    path = run.paths.journal_digests
    if not path.exists():
        path = run.paths.earlier_journal_digests
    try:
        with open_inside(run.paths.root, path) as file:
            content = file.read(min(own.digests[-1].digest.bytes, os.fstat(file.fileno()).st_size))
    except OSError as error:
        yield f"{path.name} cannot be read: {reason_of(error)}"
        return
    stated = [each.digest for each in own.digests]
    made = list(prefixes(content, (digest.bytes for digest in stated)))
    same = (m.sha256 == digest.sha256 for m, digest in zip(made, stated, strict=False))
    if len(made) < len(stated) or not all(same):
        yield f"{path.name} is not the file that the primary wrote"
        return
    for number, line in enumerate(content.splitlines()):
        try:
            record = model_of(line)
        except ValidationError:
            yield f"{path.name}, line {number + 1} is not a record"
            return
        event = record.event
        if not isinstance(event, JournalDigestsRecord) or not found.add(record.utc, event):
            yield f"{path.name}, line {number + 1} does not follow from the previous line"
            return
        covered = own.digests[number].journals if number < len(own.digests) else None
        if covered not in (None, len(event.appended_bytes)):
            yield (
                f"{path.name}, line {number + 1} has {len(event.appended_bytes)} journals, the "
                f"primary recorded {covered}"
            )


def _journals(run: Evidence, found: _Digests) -> Findings:
    """Each journal matches the primary's digest of it at each recorded length."""
    root, sizes = run.paths.root, run.history.bytes_read
    paths = {str(path.relative_to(root)): path for path in run.journals}
    sums, wrong, whole = [new_hash() for _ in found.sums], False, len(found.sums)
    unknown = set[int]()
    for name in sorted(found.growths):
        path, growth = paths.get(name), found.growths[name]
        if run.history.end_utc is None:
            # Records written after the journals were read are ignored.
            whole = min(whole, growth.cut(0 if path is None else sizes[path]))
        if path is None and root / name in run.lost_paths:
            unknown |= set(growth.numbers)
            failures = []
        elif path is None:
            failures = [f"{name} is missing, of which the primary had read"] if growth.sizes else []
        else:
            failures = list(_journal(run, name, path, found, sums))
        wrong |= bool(failures)
        yield from failures
    for number, stated in enumerate(found.sums[:whole]):
        if not wrong and number not in unknown and sums[number].hexdigest() != stated:
            yield f"the journals differ from what the primary had read by {_time(found, number)}"
            break
    primary = run.paths.primary_journal
    if run.history.end_utc is not None and run.journals[primary].digests[-1].utc == run.end:
        yield from _after(run, {paths[n]: c for n, c in found.growths.items() if n in paths})


def _journal(
    run: Evidence, name: str, path: Path, found: _Digests, sums: Sequence[Hash]
) -> Iterator[str]:
    growth, times = found.growths[name], latest(run.journals[path])
    with open_regular(path, follow=False) as file:
        content = file.read(max(growth.sizes, default=0))
    apart = APART + _known_apart(run, path)
    whole = content.count(b"\n") <= len(times)
    made = prefixes(content, growth.sizes)
    for number, size, digits in zip(
        growth.numbers, growth.sizes, growth.digest_prefixes, strict=True
    ):
        prefix = next(made, None)
        if prefix is None or prefix.sha256[:PREFIX_DIGITS] != digits:
            yield (
                f"{name} differs from what the primary had read by {_time(found, number)} "
                f"(its first {size} bytes)"
            )
            return
        sums[number].update(digest_line(name, size, prefix.sha256))
        if whole and prefix.lines and times[prefix.lines - 1] > found.times[number] + apart:
            yield (
                f"{name} has {utc_text(times[prefix.lines - 1])} in the part that the "
                f"primary had read by {_time(found, number)}"
            )
            return


def _after(run: Evidence, growths: Mapping[Path, _Growth]) -> Findings:
    """No record that counts follows the digests at the end."""
    for path, journal in run.journals.items():
        if path == run.paths.primary_journal:
            continue
        growth = growths.get(path)
        covered = 0
        if growth is not None and growth.sizes:
            with open_regular(path, follow=False) as file:
                covered = file.read(growth.sizes[-1]).count(b"\n")
        # Processes other than trainers may write while the run ends.
        until = run.end - (0.0 if path.name == TRAINER_JOURNAL else LATE)
        late = next((utc for utc in journal.times[covered:] if utc < until), None)
        if late is not None:
            name = path.relative_to(run.paths.root)
            if growth is None and _listed_late(run, path):
                yield Note(f"{name} was not yet visible to the primary when the run ended")
            else:
                yield f"{name}: a record of {utc_text(late)} did not exist when the run ended"


def _listed_late(run: Evidence, path: Path) -> bool:
    """Return whether a journal is so new that the primary may not have been shown it by the end.

    The primary must have recorded that the replica was started in that time.
    """
    name, since = path.parent.parent.name, run.end - LISTING_SECONDS
    replica, launched = run.history.replicas.get(name), records.ReplicaLaunched
    starts = [utc for utc, event in run.primary.records_of(launched) if event.replica == name]
    starts += [] if replica is None else [utc for utc, _ in replica.requeued]
    return run.journals[path].times[0] > since and any(since < utc for utc in starts)


def _seen(run: Evidence, own: Journal) -> Iterator[str]:
    """The primary's journal matches the digests that replicas recorded, each after its content."""
    primary = run.paths.primary_journal
    size = run.history.bytes_read[primary]
    sizes = sorted({digest.bytes for each in run.journals.values() for _, digest in each.seen})
    with open_regular(primary, follow=False) as file:
        content = file.read(size)
    made = dict(zip(sizes, prefixes(content, sizes), strict=False))
    times = latest(own)
    whole = content.count(b"\n") == len(times)
    for path, journal in run.journals.items():
        name, apart = path.relative_to(run.paths.root), APART + _known_apart(run, path)
        for utc, digest in journal.seen:
            prefix = made.get(digest.bytes)
            if prefix is None and run.history.end_utc is None:
                break  # The primary has written since its journal was read.
            if prefix is None or prefix.sha256 != digest.sha256:
                yield (
                    f"{name} saw another journal of the primary by {utc_text(utc)} "
                    f"(its first {digest.bytes} bytes)"
                )
                break
            if whole and prefix.lines and times[prefix.lines - 1] > utc + apart:
                yield (
                    f"{name} saw by {utc_text(utc)} what the primary wrote at "
                    f"{utc_text(times[prefix.lines - 1])}"
                )
                break


def latest(journal: Journal) -> list[float]:
    """Return the latest time up to each record, UTC seconds."""
    return list(accumulate(journal.times, max))


def _known_apart(run: Evidence, path: Path) -> float:
    """Return the known difference of a replica's clock from the primary's, in seconds."""
    replica = run.history.replicas.get(path.parent.parent.name)
    return 0.0 if replica is None else run.tolerance(replica)


def _time(found: _Digests, number: int) -> str:
    return str(utc_text(found.times[number]))
