"""The tables of what ``gpu.py`` measured; what was not measured is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import harmonic_mean, median
from typing import Any

Rows = Sequence[Mapping[str, Any]]
Said = Mapping[str, Rows]

LEAST_OVER_LOOP, LEAST_WHOLE, MEMORY_WITHIN = 1.0, 0.95, 0.15
"""What is aimed at: over a plain loop (1.2 is better), of the steady rate, and of the estimate."""
BUSY = ("train", "evaluate")


def report(said: Said) -> Iterator[str]:
    """Yield the lines of all tables, by the sections that there are."""
    found = {row["what"]: row["rate"] for row in said.get("peaks", ())}
    for name, table in TABLES.items():
        rows = said.get(name, ())
        if rows:
            yield f"\n{name}\n"
            yield from table(rows, found)


def peaks(rows: Rows, found: Mapping[str, float]) -> Iterator[str]:
    """Yield what the device does at most."""
    yield "| | a second |"
    yield "|---|---|"
    for row in rows:
        unit = "GB, read and written" if row["what"] == "memory" else "tera-operations, bf16"
        scale = 1e9 if row["what"] == "memory" else 1e12
        yield f"| {row['what']} | {row['rate'] / scale:.4g} {unit} |"


def against(rows: Rows, found: Mapping[str, float]) -> Iterator[str]:
    """Yield the engine beside a plain loop, and which share it is of what can be had."""
    yield "| | images/s (least to most) | of the matrix peak | of attainable: separate | fused |"
    yield "|---|---|---|---|---|"
    for row in rows:
        images = row["images"]
        rate = median(images)
        shares = [share(rate * row["operations"], found.get("matrix"))]
        for bound in ("separate_bytes", "fused_bytes"):
            most = attainable(row["operations"], row[bound], found)
            shares.append(share(rate, most))
        yield (
            f"| {row['what']}, batch {row['batch']} | {rate:,.1f} ({min(images):,.1f} to "
            f"{max(images):,.1f}) | {' | '.join(shares)} |"
        )
    by_name = {row["what"]: row["images"] for row in rows}
    if len(by_name) == 2:
        ratios = sorted(a / b for a, b in zip(*by_name.values(), strict=True))
        yield (
            f"\n{' over '.join(by_name)}: {median(ratios):.2f} ({ratios[0]:.2f} to "
            f"{ratios[-1]:.2f}); at least {LEAST_OVER_LOOP:g}, better 1.2"
        )


def attainable(operations: float, moved: float, found: Mapping[str, float]) -> float | None:
    """Return the images a second at which either the arithmetic or the memory is at its peak."""
    if not {"matrix", "memory"} <= found.keys():
        return None
    return 1.0 / max(operations / found["matrix"], moved / found["memory"])


def share(part: float, whole: float | None) -> str:
    """Return a share in percent."""
    return "not measured" if whole is None else f"{part / whole:.1%}"


def variants(rows: Rows, found: Mapping[str, float]) -> Iterator[str]:
    """Yield the engine in other ways."""
    yield "| precision | | batch | images/s |"
    yield "|---|---|---|---|"
    for row in rows:
        how = "compiled" if row["compiled"] else "eager"
        if row["batch"] != row["whole"]:
            how = f"compiled for {row['whole']}"
        yield f"| {row['precision']} | {how} | {row['batch']} | {row['images']:,.1f} |"


def memory(rows: Rows, found: Mapping[str, float]) -> Iterator[str]:
    """Yield peaks beside their estimates."""
    yield "| | batch | | measured, MiB | estimate, MiB | estimate over measured |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        how = f"{row['precision']}, {'compiled' if row['compiled'] else 'eager'}"
        ratio = row["estimate"] / row["measured"]
        verdict = "" if abs(ratio - 1.0) <= MEMORY_WITHIN else f", not within {MEMORY_WITHIN:.0%}"
        yield (
            f"| {row['what']} | {row['batch']} | {how} | {row['measured'] / 2**20:,.0f} | "
            f"{row['estimate'] / 2**20:,.0f} | {ratio:.2f}{verdict} |"
        )


def kernels(rows: Rows, found: Mapping[str, float]) -> Iterator[str]:
    """Yield what morphisms cost."""
    yield "| network | batch | tera-operations/s | of the matrix peak | until ready, s |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield (
            f"| {row['what']} | {row['batch']} | {row['ops'] / 1e12:.4g} | "
            f"{share(row['ops'], found.get('matrix'))} | {row['prepared']:.1f} |"
        )
    alike = harmonic_mean([row["ops"] for row in rows])
    yield f"| all of them alike | | {alike / 1e12:.4g} | {share(alike, found.get('matrix'))} | |"


def idle(rows: Rows, found: Mapping[str, float]) -> Iterator[str]:
    """Yield what training loses while the next network is compiled, and between the two."""
    yield "| the next network | step alone, ms | beside, ms | longest launch, ms | lost | gap, s |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        if not row["steps"]:
            continue  # It was ready before a single step.
        beside = row["seconds"] / row["steps"]
        yield (
            f"| {row['what']} | {1e3 * row['alone']:.1f} | {1e3 * beside:.1f} | "
            f"{1e3 * row['longest']:.1f} | {1.0 - row['alone'] / beside:.1%} | {row['gap']:.2f} |"
        )
    gaps, whole = (sum(row[key] for row in rows) for key in ("gap", "seconds"))
    yield f"\nidle between the networks: {gaps / (gaps + whole):.1%}"


def host(rows: Rows, found: Mapping[str, float]) -> Iterator[str]:
    """Yield what it costs that batches come from the host."""
    yield "| images | batch | images/s |"
    yield "|---|---|---|"
    for row in rows:
        yield f"| {row['what']} | {row['batch']} | {row['images']:,.1f} |"


def profile(rows: Rows, found: Mapping[str, float]) -> Iterator[str]:
    """Yield where the time of a step goes."""
    names = sorted({name for row in rows for name in row["categories"]})
    yield (
        f"| of the device's time, by {rows[0]['timed']} | "
        + " | ".join(f"batch {row['batch']}" for row in rows)
        + " |"
    )
    yield "|---|" + "---|" * len(rows)
    for name in names:
        cells = (f"{row['categories'].get(name, 0.0):.1%}" for row in rows)
        yield f"| {name} | {' | '.join(cells)} |"
    # What the profiler adds is the host's: beside steps without it.
    cells = (f"{max(0.0, 1.0 - row['device'] / row['plain']):.1%}" for row in rows)
    yield f"| idle, of the time of steps that are not profiled | {' | '.join(cells)} |"


def run(rows: Rows, found: Mapping[str, float]) -> Iterator[str]:
    """Yield what a whole run makes of the rate of its fastest epochs."""
    (row,) = rows
    whole = sum(row["phases"].values())
    yield "| phase | seconds | share |"
    yield "|---|---|---|"
    for phase, seconds in row["phases"].items():
        yield f"| {phase} | {seconds:.1f} | {seconds / whole:.1%} |"
    started = whole - row["phases"].get("start", 0.0)
    yield (
        f"\nthe run's rate over the steady rate: {row['steady'] / whole:.3f} of all "
        f"{whole:.0f} s, {row['steady'] / started:.3f} after the start, {row['trials']} trials; "
        f"at least {LEAST_WHOLE:g} of a run of hours"
    )


Table = Callable[[Rows, Mapping[str, float]], Iterator[str]]
TABLES: dict[str, Table] = {
    "peaks": peaks, "448": against, "56": against, "variants": variants, "memory": memory,
    "kernels": kernels, "idle 5 ms": idle, "idle 50 us": idle, "host": host, "profile": profile,
    "run": run,
}  # fmt: skip
