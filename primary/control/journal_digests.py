"""Digests of all journals, recorded periodically to detect any rewritten journal.

Witnesses, if the configuration names some, sign the digest of the primary's journal.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from aiperf_hpc.errors import JournalError
from aiperf_hpc.run.history import RunHistory, no_collections
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.journal_digest import PREFIX_DIGITS, combined_sha256, new_hash, publish
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records import DigestsRecorded, JournalDigestsRecord
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.verification.witness_client import (
    StampingAuthority,
    StatingWitness,
    Witness,
    token_in,
)

_NOTHING = new_hash()
"""Hash of a missing journal."""


class JournalDigests:
    """Records the digests of a run's journals, up to the records that its primary has read."""

    def __init__(
        self, history: RunHistory, primary: JournalWriter, own: JournalWriter, *, seconds: float
    ) -> None:
        """Create a recorder of digests.

        Args:
            history: records of the run, which the owner refreshes.
            primary: journal of the primary.
            own: journal of the digests, ``journal_digests.jsonl``.
            seconds: interval in seconds.
        """
        self._history = history
        self._primary = primary
        self._own = own
        self._seconds = seconds
        self._due: float | None = None
        self._begun = False
        """Whether digests were recorded, so that numbers and bytes continue from them."""
        self._names: dict[Path, str] = {}
        self._sizes: dict[str, int] = {}

    def is_due(self, now: float) -> bool:
        """Return whether digests are due, by a monotonic clock in seconds."""
        return self._due is None or now >= self._due

    def take(self, now: float) -> DigestsRecorded:
        """Record the digests; return the record for the primary's journal.

        Raises:
            JournalError: the digests cannot be written. The next call continues from the last ones
                that were written.
        """
        names, sizes = dict(self._names), dict(self._sizes)
        self._due = now + self._seconds
        try:
            # Thousands of short-lived tuples would make the garbage collector traverse the history.
            with self._history.lock, no_collections(keep_all=False):
                digests = self._grown(new_primary=not self._begun)
            self._own.append(digests)
        except JournalError:
            self._names, self._sizes = names, sizes
            raise
        self._begun = True
        return DigestsRecorded(digest=self._own.digest, journals=len(self._names))

    def publish(self, retry: Retry) -> None:
        """Publish the digest of the primary's journal to the replicas.

        Raises:
            StorageError: the digest cannot be written.
        """
        paths, digest = self._history.paths, self._primary.digest
        retry(lambda: publish(paths, digest), str(paths.primary_digest))

    def _grown(self, *, new_primary: bool) -> JournalDigestsRecord:
        """Return the journals that have grown since the last digests."""
        found = self._history.hashes
        new = self._named(found.keys() - self._names.keys())
        grown, digests = list[int](), list[tuple[str, int, str]]()
        for path, name in self._names.items():
            size, sha = found.get(path, (0, _NOTHING))
            grown.append(size - self._sizes.get(name, 0))
            if grown[-1]:
                self._sizes[name] = size
                digests.append((name, size, sha.hexdigest()))
        return JournalDigestsRecord(
            new_primary=new_primary,
            new_journals=tuple(new),
            appended_bytes=tuple(grown),
            digest_prefixes="".join(sha256[:PREFIX_DIGITS] for _, _, sha256 in digests),
            sha256=combined_sha256(digests),
        )

    def _named(self, paths: set[Path]) -> list[str]:
        """Add new journals; return their names.

        A name that cannot be encoded in a record belongs to no journal of a run.
        """
        root, primary = self._history.paths.root, self._history.paths.primary_journal
        new = {path: str(path.relative_to(root)) for path in sorted(paths - {primary})}
        own = {path: n for path, n in new.items() if n.isascii() and n.isprintable()}
        self._names |= own
        return list(own.values())


def witnesses_of(manifest: RunManifest, history: RunHistory) -> list[Witness]:
    """Return the witnesses of a run.

    Args:
        manifest: manifest of the run.
        history: records of the run, including the statements of each witness.

    Raises:
        AIPerfError: the run's token for witnesses cannot be read or written.
    """
    config, run = manifest.config, manifest.run_id
    found: list[Witness] = []
    if config.witness.urls:
        token, every = token_in(history.paths.witness_token), config.witness.interval_seconds
        for url in config.witness.urls:
            known = history.witnesses.get(url)
            last = None if known is None else known.last
            found.append(StatingWitness(url, run, token, last, every))
    every = config.timestamps.interval_seconds
    return found + [StampingAuthority(url, run, every) for url in config.timestamps.urls]


def remove_token(history: RunHistory) -> None:
    """Remove the run's token for witnesses, which is not needed after the run's end."""
    if history.end_utc is not None:
        with suppress(OSError):  # It contains no information about the run.
            history.paths.witness_token.unlink(missing_ok=True)
