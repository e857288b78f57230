"""Journal digests of the primary: their cost, and who is shown them."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.run_factory import configuration
from tests.support.run_manifest import run_manifest

from aiperf_hpc.primary.control.journal_digests import JournalDigests, witnesses_of
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.journal_digest import new_hash
from aiperf_hpc.run.paths import RunPaths

JOURNALS = 3_000


def test_thousands_of_heads_do_not_have_the_collector_walk_the_history(tmp_path: Path) -> None:
    """That was two thirds of the time of 8,192 journals' heads."""
    paths = RunPaths(tmp_path)
    history: Any = SimpleNamespace(paths=paths, lock=threading.RLock(), hashes={})
    paths.journal_digests.parent.mkdir()
    collections = list[str]()
    with JournalWriter(paths.journal_digests) as own:
        taker = JournalDigests(history, own, own, seconds=30.0)
        for number in range(JOURNALS):
            history.hashes[paths.replica_journal(f"r{number}")] = (100, new_hash())
        taker.take(0.0)
        for path in history.hashes:
            history.hashes[path] = (200, new_hash())
        gc.collect()
        gc.callbacks.append(lambda phase, _: collections.append(phase))
        taken = taker.take(30.0)
        gc.callbacks.pop()
    assert taken.digest.bytes > JOURNALS
    assert gc.isenabled()
    # One of the youngest objects may follow, since freed tuples are kept for reuse.
    assert collections.count("start") <= 1


def test_each_witness_has_the_interval_of_its_section(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    history: Any = SimpleNamespace(paths=paths, witnesses={})
    paths.witness_token.parent.mkdir(parents=True, exist_ok=True)
    config = configuration(
        {
            "witness": {"urls": ["https://w:1"], "interval_seconds": 20.0},
            "timestamps": {"urls": ["https://t:2"], "interval_seconds": 400.0},
        }
    )
    found = witnesses_of(run_manifest(config), history)
    assert [(each.url, each.every) for each in found] == [
        ("https://w:1", 20.0), ("https://t:2", 400.0)
    ]  # fmt: skip
