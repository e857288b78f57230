"""A served run is never walked by the garbage collector, and needs none to be freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from benchmarks import synthetic_run

from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.service.served_run import Readers, ServedRun


@pytest.fixture
def views() -> list[RunView]:
    """The views that were made, for a moment."""
    return []


@pytest.fixture
def served(tmp_path: Path, views: list[RunView]) -> Iterator[ServedRun]:
    paths = synthetic_run.write_run(tmp_path / "run", 2).paths

    def made() -> RunView:
        views.append(RunView(paths))
        return views[-1]

    readers = Readers()
    readers.start()
    run = ServedRun("run", CachedView(made), readers)
    run.load().result()
    yield run
    run.close()
    readers.stop()


def test_the_collector_does_not_walk_what_was_read(served: ServedRun, views: list[RunView]) -> None:
    (view,) = views
    assert gc.isenabled()
    walked = {id(each) for each in gc.get_objects()}
    trials = [*view.history.trials.values()]
    assert trials
    assert not any(id(trial) in walked for trial in trials)


def test_a_run_that_is_no_longer_served_is_freed_without_it(tmp_path: Path) -> None:
    paths = synthetic_run.write_run(tmp_path / "run", 2).paths
    freed = {"view": Event(), "history": Event()}
    watched: list[weakref.ref[object]] = []

    def made() -> RunView:
        view = RunView(paths)
        watched.append(weakref.ref(view, lambda _: freed["view"].set()))
        watched.append(weakref.ref(view.history, lambda _: freed["history"].set()))
        return view

    readers = Readers()
    readers.start()
    run = ServedRun("run", CachedView(made), readers)
    gc.disable()
    try:
        run.load().result()
        run.row()
        run.close()
        readers.stop()
        del run
        # Threads let go of what they did a moment after they have said so.
        assert all(event.wait(60) for event in freed.values())
    finally:
        gc.enable()
