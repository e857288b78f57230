"""Peaks as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.formatting import duration, percent, si, size, utc_text
from aiperf_hpc.run.peaks import PRODUCTS, Peaks, Reading


def lines(peaks: Peaks) -> Iterator[str]:
    """Yield the lines: the machine, a line for each kernel, and what is missing."""
    kind = "quick, " if peaks.quick else ""
    yield f"{peaks.host}: {peaks.cpu}, {peaks.cores} cores, {size(peaks.memory_bytes)}"
    yield f"{kind}{utc_text(peaks.utc)}, {duration(peaks.seconds)}"
    if peaks.busy:
        yield f"warning: {peaks.busy}"
    for device in peaks.devices:
        threads = "" if device.threads is None else f", {device.threads} threads"
        yield f"{device.engine} {device.name}: {device.model}{threads}"
    yield ""
    yield f"{'what':<46}{'median':>13}{'best':>13}{'spread':>9}  at"
    for sweep in peaks.sweeps:
        unit = "OPS" if sweep.kernel in PRODUCTS else "B/s"
        what = f"{sweep.engine} {sweep.device}, {sweep.kernel}, {sweep.precision}"
        yield _line(what, sweep.peak, unit) + ("; no time for more" if sweep.rising else "")
    for found in peaks.allreduce:
        what = f"all-reduce, {found.collective}, {found.ranks} ranks, {found.memory}, {found.dtype}"
        yield _line(what, found.reading, "B/s")
    if peaks.storage is not None:
        yield _line(f"read, {peaks.storage.file_system}", peaks.storage.peak, "B/s")
        yield f"  {peaks.storage.folder}: files {peaks.storage.files}, {CACHE[peaks.storage.cache]}"
    yield from (f"not measured: {m.what}: {m.reason}" for m in peaks.not_measured)


CACHE = {
    "bypassed": "page cache bypassed (O_DIRECT)",
    "dropped": "page cache dropped before each block",
    "in use": "the page cache could not be avoided: the rate may be memory's",
}


def _line(what: str, reading: Reading, unit: str) -> str:
    return (
        f"{what:<46}{si(reading.median, unit):>13}{si(reading.best, unit):>13}"
        f"{percent(reading.spread, 0):>9}  {reading.size}"
    )
