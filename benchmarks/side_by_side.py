"""Measuring one thing beside others: in turns, in one process tree, on the same cores."""

from __future__ import annotations

import ctypes
import json
import platform
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

Measured = TypeVar("Measured")
_PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""


def signal_when_parent_ends(number: signal.Signals) -> None:
    """Have this process get a signal as soon as its parent has ended, however that did."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def in_turns(cases: Mapping[str, Callable[[], Measured]], rounds: int) -> dict[str, list[Measured]]:
    """Measure each case once a round, every other round in the opposite order."""
    found: dict[str, list[Measured]] = {name: [] for name in cases}
    for number in range(rounds):
        for name in list(cases)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(cases[name]())
    return found


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Return the median, and in brackets the least and the most."""
    figures = (median(values), min(values), max(values))
    middle, low, high = (f"{float(f'{value:.{digits}g}'):,g}" for value in figures)
    return f"{middle} ({low} to {high})"


def machine() -> str:
    """Return the processor's name."""
    with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        names = (line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
        return next(names, platform.machine())


def save(path: Path | None, machine: str, found: Mapping[str, object]) -> None:
    """Write all that was measured as JSON, where a file is given."""
    if path is not None:
        path.write_text(
            json.dumps({"machine": machine, "measured": found}, indent=1) + "\n", "utf-8"
        )
