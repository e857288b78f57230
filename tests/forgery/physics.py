"""Forgeries of what machines do: clocks, peaks, and how long samples take."""

from __future__ import annotations

from itertools import pairwise

from tests.forgery.forger import ForgedRun, Line, forgery, like, shift
from tests.support.host_clocks import clocks

from aiperf_hpc.run.records import PeakMeasured
from aiperf_hpc.trial import DevicePeak


def _read_clocks(lines: list[Line], raw_speed: float) -> None:
    """Have the clocks read at the start and at the end, the raw one at some speed."""
    first, last = lines[0], lines[-1]
    for line in (first, last):
        passed = raw_speed * (line["mono"] - first["mono"])
        reading = clocks(line["utc"], line["mono"], raw=passed, boot=passed)
        lines.insert(
            lines.index(line) + (line is first), like(line, reading.model_dump(mode="json"))
        )


@forgery("time", "timekeeping", base="two-nodes")
def a_library_that_halves_the_speed_of_the_clock(run: ForgedRun) -> None:
    """What the program reads agrees with itself; the kernel's clock is twice as fast."""
    _read_clocks(run.trainer(), raw_speed=2.0)


def _measure(run: ForgedRun, model: str, rate: float) -> None:
    """Have each replica say that it measured such a peak."""
    peak = DevicePeak(
        device="cuda:0", model=model, precision="bf16", rates={"matrix product": rate}, seconds=4.0
    )
    event = PeakMeasured(rank=0, peak=peak).model_dump(mode="json")
    for replica in ("r0", "r1"):
        lines = run.trainer(replica)
        lines.insert(1, like(lines[0], event))


@forgery("hardware", "rates", base="two-nodes")
def a_peak_that_the_device_does_not_have(run: ForgedRun) -> None:
    _measure(run, "NVIDIA H100 80GB HBM3", 1e17)


@forgery("time", "rates", base="two-nodes")
def more_than_the_measured_peak(run: ForgedRun) -> None:
    """All samples of an epoch in a microsecond: on a device of 10 TOPS."""
    _measure(run, "Example", 1e13)
    lines = run.trainer()
    for before, after in pairwise(lines):
        if after["event"]["type"] == "progress":
            shift([after], before["mono"] + 1e-6 - after["mono"])


@forgery("time", "rates", base="two-nodes")
def samples_in_no_time(run: ForgedRun) -> None:
    lines = run.trainer()
    for before, after in pairwise(lines):
        if after["event"]["type"] == "progress":
            shift([after], before["mono"] - after["mono"])


def _in_parts(before: Line, line: Line, parts: int) -> list[Line]:
    """Return a record of samples as several that each took their share of the time."""
    event, seconds = line["event"], line["mono"] - before["mono"]
    told = []
    for part in range(parts):
        share = {
            kind: event[kind] * (part + 1) // parts - event[kind] * part // parts
            for kind in ("train_samples", "validation_samples")
        }
        ahead = seconds * (part + 1 - parts) / parts
        told.append(like(line, {**event, **share}, ahead))
    return told


@forgery("time", "rates", base="two-nodes")
def samples_that_always_take_the_same_time(run: ForgedRun) -> None:
    """Told eight times as often, as a program would that knows the sums alone."""
    lines = run.trainer()
    made = lines[:1]
    for before, after in pairwise(lines):
        is_progress = after["event"]["type"] == "progress"
        made += _in_parts(before, after, 8) if is_progress else [after]
    lines[:] = made
