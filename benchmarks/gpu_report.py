"""The tables of ``gpu.py``'s measurements, without those that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

Rows = Sequence[Mapping[str, Any]]
Found = Mapping[str, float]
"""The peaks, and the engine's rate with the large batch, as far as they were measured."""
ENGINE, EAGER, TENSORFLOW = "engine", "eager", "engine tensorflow"
OVER_BEST, OVER_EAGER, WHOLE, MEMORY_WITHIN = 1.0, 1.15, 0.95, 0.15
"""The goals: over the best peer, over the eager one, of the steady rate, and of the estimate."""


def report(sections: Mapping[str, Rows]) -> Iterator[str]:
    """Yield the lines of all tables."""
    found: dict[str, float] = {}
    for row in sections["peaks"]:
        found[row["what"]] = max(found.get(row["what"], 0.0), row["rate"])
    if rates := by_name(sections["448"]).get(ENGINE):
        found[ENGINE] = median(rates.values())
    for name, rows in sections.items():
        if rows:
            yield f"\n{name}\n"
            yield from TABLES[name](rows, found)


def by_name(rows: Rows) -> dict[str, dict[int, float]]:
    """Return the images a second of the engine and its peers, by the number of the turn."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if "joules" in row:
            found.setdefault(row["what"], {})[row["number"]] = row["images"]
    return found


def peaks(rows: Rows, found: Found) -> Iterator[str]:
    """Yield the device's peaks."""
    units = {"memory": "GB, read and written", "all-reduce": "GB, by one rank"}
    yield "| | a second |\n|---|---|"
    for name, rate in found.items():
        if name != ENGINE:
            unit = units.get(name, "tera-operations, bf16")
            yield f"| {name} | {rate / (1e9 if name in units else 1e12):.4g} {unit} |"


def against(rows: Rows, found: Found) -> Iterator[str]:
    """Yield the rates of the engine and its peers, and their fractions of the attainable rate."""
    rates = by_name(rows)
    limits = next((row for row in rows if "operations" in row), None)
    yield "| | images/s (least to most) | J/image | of the matrix peak | attainable | if fused |"
    yield "|---|---|---|---|---|---|"
    for name, turns in rates.items():
        energy = [row["joules"] for row in rows if row["what"] == name]
        rate, joules = median(turns.values()), "" if None in energy else f"{median(energy):.3g}"
        yield (
            f"| {name} | {rate:,.1f} ({min(turns.values()):,.1f} to {max(turns.values()):,.1f}) | "
            f"{joules} | {' | '.join(shares(rate, limits, found))} |"
        )
    for row in rows:
        if row["what"] == TENSORFLOW:
            yield f"| {TENSORFLOW} | {row['images'] or 'not installed'} | | | | |"
        if "estimate" in row:
            yield f"\nmemory of {row['what']}: {memory(row)}"
    yield from over_peers(rates)


def over_peers(rates: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    """Yield the engine's rate over that of the best peer and of the eager one, by turns."""
    peers = {name: median(turns.values()) for name, turns in rates.items() if name != ENGINE}
    if ENGINE in rates and peers:
        best = max(peers, key=lambda name: peers[name])
        for name, goal in ((best, OVER_BEST), (EAGER, OVER_EAGER)):
            both = rates[ENGINE].keys() & rates.get(name, {}).keys()
            ratios = sorted(rates[ENGINE][turn] / rates[name][turn] for turn in both)
            if ratios:
                spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                yield f"\nengine over {name}: {median(ratios):.2f} ({spread}); goal {goal:g}"


def shares(rate: float, limits: Mapping[str, Any] | None, found: Found) -> Iterator[str]:
    """Yield fractions of the matrix peak and of the roofline."""
    if limits is None or not {"matrix", "memory"} <= found.keys():
        yield from [""] * 3
        return
    computing = limits["operations"] / found["matrix"]
    yield f"{rate * computing:.1%}"
    for moved in ("separate_bytes", "fused_bytes"):
        yield f"{rate * max(computing, limits[moved] / found['memory']):.1%}"


def memory(row: Mapping[str, Any]) -> str:
    """Return the peak memory and its estimate."""
    measured, ratio = row["measured"] / 2**20, row["estimate"] / row["measured"]
    verdict = "" if abs(ratio - 1.0) <= MEMORY_WITHIN else f", not within {MEMORY_WITHIN:.0%}"
    return f"{measured:,.0f} MiB, the estimate is {ratio:.2f} times that{verdict}"


def kernels(rows: Rows, found: Found) -> Iterator[str]:
    """Yield the cost of morphisms."""
    yield "| network | images/s | tera-operations/s | of the peak | until ready, s | memory |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        part = f"{row['ops'] / found['matrix']:.1%}" if "matrix" in found else ""
        yield (
            f"| {row['what']} | {row['images']:,.1f} | {row['ops'] / 1e12:.4g} | {part} | "
            f"{row['prepared']:.1f} | {memory(row)} |"
        )


def idle(rows: Rows, found: Found) -> Iterator[str]:
    """Yield the slowdown while the next network compiles, and the gap between trainings."""
    yield "| the next network | step alone, ms | beside, ms | longest launch, ms | lost | gap, s |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        beside = row["seconds"] / row["steps"]
        yield (
            f"| {row['what']} | {1e3 * row['alone']:.1f} | {1e3 * beside:.1f} | "
            f"{1e3 * row['longest']:.1f} | {1.0 - row['alone'] / beside:.1%} | {row['gap']:.2f} |"
        )


def host(rows: Rows, found: Found) -> Iterator[str]:
    """Yield the cost of batches from the host, and the rate of its JPEG decoder."""
    yield "| images | images/s |\n|---|---|"
    if ENGINE in found:
        yield f"| on the device (section 448) | {found[ENGINE]:,.1f} |"
    for row in rows:
        how = f", {row['threads']} threads, {row['bytes'] / 1e3:.0f} kB" if "bytes" in row else ""
        yield f"| {row['what']}{how} | {row['images']:,.1f} |"


def profile(rows: Rows, found: Found) -> Iterator[str]:
    """Yield the time breakdown of a step."""
    names = sorted({name for row in rows for name in row["categories"]})
    heads = " | ".join(f"batch {row['number']}" for row in rows)
    yield f"| of the device's time, by {rows[0]['timed']} | {heads} |"
    yield "|---|" + "---|" * len(rows)
    for name in names:
        cells = (f"{row['categories'].get(name, 0.0):.1%}" for row in rows)
        yield f"| {name} | {' | '.join(cells)} |"
    # What the profiler adds is the host's: beside steps without it.
    cells = (f"{max(0.0, 1.0 - row['device'] / row['plain']):.1%}" for row in rows)
    yield f"| idle, of the time of steps that are not profiled | {' | '.join(cells)} |"


def run(rows: Rows, found: Found) -> Iterator[str]:
    """Yield the time breakdown of a run, and its steady rate relative to that of section 448."""
    (row,) = rows
    whole = sum(row["phases"].values())
    yield "| phase | seconds | share |\n|---|---|---|"
    for phase, seconds in row["phases"].items():
        yield f"| {phase} | {seconds:.1f} | {seconds / whole:.1%} |"
    if row["steady"] and ENGINE in found:
        ratio = row["steady"] / found[ENGINE]
        yield f"\nsteady: {row['steady']:,.1f} images/s, {ratio:.3f} of 448's; goal {WHOLE:g}"


Table = Callable[[Rows, Found], Iterator[str]]
TABLES: dict[str, Table] = {
    "peaks": peaks, "448": against, "host": host, "profile": profile, "56": against,
    "kernels": kernels, "idle": idle, "run": run,
}  # fmt: skip
