"""Names that tell every entry of an analysis from all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.streams import without_controls, without_stand_ins

_SUFFIXES: tuple[Callable[[Entry], str | None], ...] = (
    lambda entry: entry.division,
    lambda entry: entry.round,
    lambda entry: entry.path,
)


def named_apart(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries of which no two have one name.

    Those that share one are told apart by their division, by their round, by their path, and at
    last by a number. Names can be shown anywhere: what is no character is escaped.
    """
    entries = [entry.model_copy(update={"name": _shown(entry.name)}) for entry in entries]
    for suffix in _SUFFIXES:
        entries = _suffixed(entries, suffix)
    return _numbered(entries)


def _shown(name: str) -> str:
    return without_controls(without_stand_ins(name))


def _suffixed(entries: Sequence[Entry], suffix: Callable[[Entry], str | None]) -> tuple[Entry, ...]:
    """Add what tells entries of one name apart, where it does."""
    told: dict[str, set[str | None]] = {}
    for entry in entries:
        told.setdefault(entry.name, set()).add(suffix(entry))
    return tuple(
        entry.model_copy(update={"name": _shown(f"{entry.name} ({suffix(entry)})")})
        if len(told[entry.name]) > 1 and suffix(entry) is not None
        else entry
        for entry in entries
    )


def _numbered(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    counts = Counter(entry.name for entry in entries)
    met: Counter[str] = Counter()
    apart = []
    for entry in entries:
        met[entry.name] += 1
        again = counts[entry.name] > 1
        name = f"{entry.name} #{met[entry.name]}" if again else entry.name
        apart.append(entry.model_copy(update={"name": name}))
    return tuple(apart)
