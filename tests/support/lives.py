"""Attempts of replicas according to the records."""

from __future__ import annotations

from aiperf_hpc.run.history import RunHistory


def launched_again(history: RunHistory) -> bool:
    """Return whether all replicas' latest lives are of one later primary, and its first of each.

    Which number its launch has does not follow: a primary that was silent for long takes another
    claim, and the next launch is numbered behind that.
    """
    latest = {max(replica.starts) for replica in history.replicas.values()}
    return len(latest) == 1 and all(life.launch > 0 and life.restart == 0 for life in latest)
