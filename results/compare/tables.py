"""A comparison as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aiperf_hpc.formatting import percent
from aiperf_hpc.results.compare.comparison import Comparison, Side, Spread
from aiperf_hpc.results.table import NONE, Table
from aiperf_hpc.results.views.quantities import Quantity, View, quantities_in


def tables(found: Comparison) -> Iterator[Table]:
    """Yield what is said of runs side by side; the verdict is the last."""
    names = tuple(side.name for side in found.sides)
    yield Table(("", *names), tuple(_figures(found.sides)), title="What they reached")
    phases = dict.fromkeys(
        phase for side in found.sides for phase, share in side.time_shares.items() if share
    )
    shares = tuple(
        (phase, *(percent(side.time_shares.get(phase), 1) for side in found.sides))
        for phase in phases
    )
    if shares:
        yield Table(("phase", *names), shares, title="Time of the replicas")
    for title, differing in (
        ("Configuration", found.configuration),
        ("Machine", found.hardware),
        ("Versions", found.versions),
    ):
        yield _differing(title, differing, names)
    verdict = "comparable" if found.comparable else "NOT comparable"
    notes = tuple(f"because {reason}" for reason in found.reasons)
    yield Table(title=f"Scores: {verdict}", notes=(*notes, *found.notes))


def _figures(sides: Sequence[Side]) -> Iterator[tuple[str, ...]]:
    if any(len(side.runs) > 1 for side in sides):
        yield ("runs", *(str(len(side.runs)) for side in sides))
    for heading, quantity in quantities_in(View.COMPARISON).items():
        yield (heading, *(_figure(side.figures[quantity.name], quantity) for side in sides))
    yield ("energy is", *("/".join(side.energy_labels) for side in sides))


def _figure(spread: Spread | None, quantity: Quantity) -> str:
    if spread is None:
        return NONE
    varies = "" if spread.variation is None else f" ± {percent(spread.variation, 1)}"
    return f"{quantity.text(spread.mean)}{varies}"


def _differing(title: str, found: Mapping[str, Sequence[Any]], names: Sequence[str]) -> Table:
    if not found:
        return Table(title=f"{title}: no difference")
    rows = tuple((key, *map(_value, values)) for key, values in found.items())
    words = tuple(range(1, len(names) + 1))
    return Table(("", *names), rows, title=f"{title}: what differs", words=words)


def _value(value: object) -> str:
    return NONE if value in (None, "") else str(value)
