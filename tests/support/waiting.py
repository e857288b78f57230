"""Waiting for events, never for a fixed time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from aiperf_hpc.run.history import RunHistory

PATIENCE_SECONDS = 600.0
"""Seconds after which an event that must come is missed. Only a test that fails waits so long,
however busy the machine is."""


def until(
    condition: Callable[[], object],
    missed: Callable[[], object] = lambda: "it did not come",
    *,
    pause: float = 0.01,
    of: subprocess.Popen[str] | None = None,
) -> None:
    """Wait until ``condition`` holds. A process ``of`` which it is must not end before."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert of is None or of.poll() is None, of.communicate()
        if condition():
            return
        assert time.monotonic() < end, missed()
        time.sleep(pause)


def until_recorded(
    condition: Callable[[RunHistory], bool], history: RunHistory, primary: subprocess.Popen[str]
) -> None:
    """Wait until the records of a run that is under way say so."""

    def recorded() -> bool:
        history.refresh()
        return condition(history)

    until(recorded, lambda: (history.replicas, history.trials), pause=0.2, of=primary)
