"""The heads of all journals, taken now and then, so that no journal can be rewritten alone."""

from __future__ import annotations

from pathlib import Path

from aiperf_hpc.run.heads import MARK, Head, new_hash, over, publish
from aiperf_hpc.run.history import RunHistory, no_collections
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.records import HeadsTaken, JournalHeads
from aiperf_hpc.run.storage import Retry

_NOTHING = new_hash()
"""The hash of a journal that is gone."""


class HeadsTaker:
    """Takes the heads of a run's journals, as far as its primary has read them."""

    def __init__(
        self, history: RunHistory, primary: JournalWriter, own: JournalWriter, *, seconds: float
    ) -> None:
        """Take none yet.

        Args:
            history: the run's, which is refreshed by whoever owns it.
            primary: the primary's journal.
            own: ``heads.jsonl``.
            seconds: between two times.
        """
        self._history = history
        self._primary = primary
        self._own = own
        self._seconds = seconds
        self._due: float | None = None
        self._names: dict[Path, str] = {}
        self._sizes: dict[str, int] = {}

    def is_due(self, now: float) -> bool:
        """Return whether it is time to, by a monotonic clock in seconds."""
        return self._due is None or now >= self._due

    def take(self, now: float) -> HeadsTaken:
        """Record the heads; return what the primary's journal is to say of it.

        Raises:
            JournalError: they cannot be written.
        """
        # Thousands of short-lived tuples would have the collector walk all of the history.
        with self._history.lock, no_collections(keep_all=False):
            heads = self._grown(anew=self._due is None)
        self._due = now + self._seconds
        self._own.append(heads)
        return HeadsTaken(heads=self._own.head)

    def publish(self, retry: Retry) -> Head:
        """Tell the replicas the head of the primary's journal, and return it.

        Raises:
            StorageError: it cannot be written.
        """
        paths, head = self._history.paths, self._primary.head
        retry(lambda: publish(paths, head), str(paths.primary_head))
        return head

    def _grown(self, *, anew: bool) -> JournalHeads:
        """Return what has grown since the last time."""
        found = self._history.hashes
        new = self._named(found.keys() - self._names.keys())
        grown, heads = list[int](), list[tuple[str, int, str]]()
        for path, name in self._names.items():
            size, sha = found.get(path, (0, _NOTHING))
            grown.append(size - self._sizes.get(name, 0))
            if grown[-1]:
                self._sizes[name] = size
                heads.append((name, size, sha.hexdigest()))
        return JournalHeads(
            anew=anew,
            names=tuple(new),
            grown=tuple(grown),
            marks="".join(sha256[:MARK] for _, _, sha256 in heads),
            sha256=over(heads),
        )

    def _named(self, paths: set[Path]) -> list[str]:
        """Take journals that were not there before; return their names.

        One whose name is in no encoding that a record has is none of a run's own.
        """
        root, primary = self._history.paths.root, self._history.paths.primary_journal
        new = {path: str(path.relative_to(root)) for path in sorted(paths - {primary})}
        own = {path: n for path, n in new.items() if n.isascii() and n.isprintable()}
        self._names |= own
        return list(own.values())
