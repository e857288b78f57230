"""Energies of nodes are sums that are written out; what a node did is kept at some resolution."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.run_writer import FIRST, SECOND, START, RunWriter, replica_started, run_started
from tests.support.telemetry import PACKAGE, equipment, sample

from aiperf_hpc.run.history import PartEnergy, SamplerHistory, counted
from aiperf_hpc.run.history.telemetry import MOST_POINTS, Span, apart
from aiperf_hpc.run.records import TelemetrySampled, TelemetryStarted
from aiperf_hpc.telemetry.values import Equipment, Part, TelemetrySample


def began(own: Equipment | None = None) -> TelemetryStarted:
    return TelemetryStarted(equipment=own or equipment())


def sampled(own: TelemetrySample | None = None) -> TelemetrySampled:
    return TelemetrySampled(sample=own or sample())


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    writer = RunWriter(tmp_path)
    writer.primary(0.0, run_started())
    return writer


def test_the_energy_is_the_sum_of_the_samples(run: RunWriter) -> None:
    run.replica(1.0, replica_started(), began())
    run.replica(31.0, sampled())
    run.replica(61.0, sampled(sample((12_000.5, 15_000.25, 0.001), covered=(30.0, 30.0, 10.0))))
    (sampler,) = run.history().telemetry["n"]
    assert sampler.energy(START + 61.0) == {
        Part.ACCELERATORS: PartEnergy(12_000 + 15_000 + 12_000.5 + 15_000.25, 60.0),
        Part.PROCESSORS: PartEnergy(6_000.001, 40.0),
    }
    early = sampler.energy(START + 60.9)
    assert early[Part.ACCELERATORS] == PartEnergy(27_000.0, 30.0)
    assert early[Part.PROCESSORS].watts == 200.0
    assert PartEnergy(0.0, 0.0).watts is None


def test_lives_of_a_replica_follow_one_another_and_a_replaced_one_counts_no_more(
    run: RunWriter,
) -> None:
    run.life(FIRST, 0.0, replica_started(), began())
    run.life(FIRST, 30.0, sampled())
    run.life(SECOND, 50.0, replica_started(), began())
    run.life(FIRST, 60.0, sampled())
    run.life(SECOND, 80.0, sampled())
    history = run.history()
    samplers = history.telemetry["n"]
    assert [s.energy(START + 100.0)[Part.PROCESSORS].joules for s in samplers] == [6_000.0] * 2
    assert counted(samplers) == samplers
    assert history.fenced == 1


def test_of_two_that_sampled_at_once_the_longest_counts(run: RunWriter) -> None:
    run.replica(0.0, replica_started(), began())
    run.replica(300.0, sampled(sample(seconds=300.0)))
    run.replica(100.0, replica_started("r1"), began(), name="r1")
    run.replica(200.0, sampled(sample(seconds=100.0)), name="r1")
    run.replica(310.0, replica_started("r2"), began(), name="r2")
    run.replica(340.0, sampled(), name="r2")
    assert [s.replica for s in counted(run.history().telemetry["n"])] == ["r0", "r2"]


def test_the_first_rank_of_another_node_has_a_journal_of_its_own(run: RunWriter) -> None:
    run.replica(0.0, replica_started())
    other = run.paths.telemetry_journal("r0", 4)
    run.append(other, 1.0, began(equipment("n2", (PACKAGE,))))
    run.append(other, 31.0, sampled(sample((6_000.0,))))
    history = run.history()
    assert history.problems == []
    (sampler,) = history.telemetry["n2"]
    assert sampler.energy(START + 31.0) == {Part.PROCESSORS: PartEnergy(6_000.0, 30.0)}


def test_samples_that_nothing_announced_are_problems(run: RunWriter) -> None:
    run.replica(0.0, replica_started(), sampled())
    run.replica(1.0, began(), sampled(sample((1.0,))))
    assert [problem.what for problem in run.history().problems] == [
        "a sample of a node, and no record of this journal began to sample",
        "a sample of a node that is not of its meters and accelerators",
    ]


def test_why_something_is_absent_is_what_was_last_said() -> None:
    sampler = SamplerHistory(START, "r0", equipment(AMD="none", Huawei="none"))
    sampler.add(START + 30.0, sample(Huawei="", RAPL="refused"))
    assert sampler.absent == {"AMD": "none", "RAPL": "refused"}


def test_points_become_longer_as_there_are_more() -> None:
    sampler = SamplerHistory(START, "r0", equipment())
    for number in range(3 * MOST_POINTS):
        sampler.add(START + 30.0 * (number + 1), sample())
    points = sampler.points
    assert MOST_POINTS // 2 <= len(points) < MOST_POINTS
    assert {round(point.seconds) for point in points} == {120}
    assert (points[0].begin, points[-1].end) == (START, START + 90.0 * MOST_POINTS)
    assert all(a.end == b.begin for a, b in zip(points, points[1:], strict=False))
    assert points[0].get("cpu") == 25.0
    assert points[0].get("watts") == 900.0
    assert points[0].get("celsius") == 65.0
    assert points[0].rate("network_received") == 300_000.0
    assert points[0].get("fabric_sent") is None
    assert list(points[0].utilization) == [80.0, 100.0]


def test_means_are_weighted_by_time() -> None:
    sampler = SamplerHistory(START, "r0", equipment())
    for number in range(MOST_POINTS):
        idle = number % 2
        own = sample(seconds=10.0 if idle else 30.0)
        use = own.node.model_copy(update={"cpu": 0.0 if idle else 40.0})
        sampler.add(START + number, own.model_copy(update={"node": use}))
    assert sampler.points[0].get("cpu") == 30.0
    assert sampler.points[0].get("disk_written") == 12e6


def test_what_lasted_no_time_is_in_no_point() -> None:
    sampler = SamplerHistory(START, "r0", equipment())
    assert (sampler.cpu_seconds, sampler.points) == (0.0, [])
    sampler.add(START, sample(seconds=0.0))
    assert sampler.points == []
    sampler.add(START + 0.5, sample(seconds=0.5))
    assert [(point.begin, point.end) for point in sampler.points] == [(START, START + 0.5)]
    assert sampler.cpu_seconds == 2 * sample().cpu_seconds > 0.0


SECONDS = st.integers(0, 40).map(float)
SPANS = st.lists(
    st.builds(lambda begin, length, shared: Span(begin, begin + length, shared), *[SECONDS] * 3)
)


def of_all_pairs(spans: list[Span]) -> list[int]:
    kept: list[int] = []
    for place in sorted(range(len(spans)), key=lambda p: spans[p].begin - spans[p].end):
        begin, end, tolerance = spans[place]
        shared = (min(end, spans[k].end) - max(begin, spans[k].begin) for k in kept)
        if all(seconds <= tolerance for seconds in shared):
            kept.append(place)
    return kept


@given(SPANS)
def test_what_is_kept_shares_no_more_than_it_may(spans: list[Span]) -> None:
    assert apart(spans) == of_all_pairs(spans)


def test_twenty_thousand_spans() -> None:
    spans = [Span(float(n), n + 1.0, 0.5) for n in range(20_000)]
    assert len(apart(spans)) == len(spans)
