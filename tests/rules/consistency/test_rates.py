"""Rates beyond what devices can do, and times that no machine takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks import synthetic_run
from tests.forgery.forger import ForgedRun, at
from tests.support.nodes import node, rank
from tests.support.rules import check_rule

from aiperf_hpc.rules.consistency.journal import Executed
from aiperf_hpc.rules.consistency.rates import even
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run import records
from aiperf_hpc.run.records import AnyEvent
from aiperf_hpc.system.description import RankDescription
from aiperf_hpc.trial import DevicePeak

SPANS = 3 * sum(synthetic_run.EPOCHS)
"""Records of samples of a replica."""


@pytest.fixture
def run(tmp_path: Path) -> ForgedRun:
    return ForgedRun(synthetic_run.write_run(tmp_path / "run", 1).paths)


def told(run: ForgedRun, *events: AnyEvent) -> None:
    """Have r0 record events right after its start."""
    lines = run.trainer()
    lines[1:1] = [{**lines[0], "event": event.model_dump(mode="json")} for event in events]


def peak(rate: float, **changed: Any) -> records.PeakMeasured:  # noqa: ANN401 -- of any field
    values = {"device": "cuda:0", "model": "Example A", "precision": "fp32", "seconds": 4.0}
    values |= {"rates": {"matrix product": rate, "convolution": rate / 2}, **changed}
    return records.PeakMeasured(rank=0, peak=DevicePeak.model_validate(values))


def checked(run: ForgedRun) -> RuleResult:
    run.save()
    return check_rule("rates", run.paths)


def failures(run: ForgedRun) -> list[str]:
    return list(checked(run).failures)


def fastest(run: ForgedRun) -> float:
    """Return the most operations a second that r0 executed, without what may be left out."""
    told(run, peak(1.0))
    rates = [line.split()[2:4] for line in failures(run)]
    scale = {"MOPS": 1e6, "GOPS": 1e9}
    return max(float(number) * scale[unit] for number, unit in rates)


def test_a_run_within_its_peak_is_no_fault(run: ForgedRun) -> None:
    told(run, peak(1e12))
    result = checked(run)
    assert (result.failures, result.notes, result.checked) == ((), (), SPANS)


def test_without_a_peak_the_rule_says_so(run: ForgedRun) -> None:
    result = checked(run)
    assert (result.failures, result.checked) == ((), 0)
    assert result.notes == ("no peak was measured by replicas/r0/0.0/journal.jsonl",)


def test_more_than_twice_the_peak_that_it_measured_is_too_much(run: ForgedRun) -> None:
    rate = fastest(run)
    peak = run.trainer()[1]["event"]["peak"]
    peak["rates"] = {"convolution": 0.51 * rate}
    assert failures(run) == []
    peak["rates"] = {"convolution": 0.48 * rate}
    said = failures(run)
    assert said
    assert all("2 times the peak that it measured" in line for line in said)


def test_a_peak_above_the_published_one_is_none(run: ForgedRun) -> None:
    """989.5 TOPS in bf16, 1.25 times that by its clock, and 4 times by Winograd's filtering."""
    h100 = {"model": "NVIDIA H100 80GB HBM3", "precision": "bf16"}
    told(run, peak(0.0, rates={"matrix product": 1.2e15, "convolution": 4.8e15}, **h100))
    assert failures(run) == []
    run.trainer()[1]["event"]["peak"]["rates"]["matrix product"] = 1.3e15
    assert failures(run) == [
        "replicas/r0/0.0/journal.jsonl: rank 0 measured 1.30 POPS (matrix product, bf16), of "
        "NVIDIA H100 80GB HBM3 990 TOPS are published"
    ]


def described(*vectors: str) -> RankDescription:
    found = node()
    assert found.processors is not None
    processors = found.processors.model_copy(update={"vectors": vectors, "max_mhz": 2000.0})
    return rank("n0", found.model_copy(update={"processors": processors}))


def test_of_a_cpu_what_its_vectors_can_do_is_the_limit(run: ForgedRun) -> None:
    told(
        run,
        records.SystemDescribed(rank=0, description=described("avx2")),
        peak(1.25 * 2 * 2e9 * 32, threads=2),
    )
    assert failures(run) == []
    run.trainer()[2]["event"]["peak"]["threads"] = 1
    (said,) = failures(run)
    assert said.endswith("of Example A 64.0 GOPS are published")


def _shorten(run: ForgedRun, seconds: float) -> None:
    """Let the first samples take no longer than this."""
    lines = run.trainer()
    first = at(lines, "progress")
    lines[first]["mono"] = lines[first - 1]["mono"] + seconds


def test_without_a_measured_peak_the_published_one_is_the_limit(run: ForgedRun) -> None:
    run.trainer()[0]["event"]["machine"]["accelerators"] = ["Tesla T4"]
    _shorten(run, 1e-6)
    (said,) = failures(run)
    assert said.startswith("r0-t1 executed ")
    assert said.endswith(
        "for 0.000 s of epoch 1, more than 325 TOPS, 1.25 x 4 times the published peak of its "
        "devices"
    )


def spans(seconds: list[float], samples: int = 100) -> list[Executed]:
    return [Executed(0.0, "t", 1, samples, 0, each) for each in seconds]


TRIALS = [
    Executed(0.0, f"t{number // 2}", 1, 100 * (1 - number % 2), 100 * (number % 2), 5.0)
    for number in range(60)
]
"""Training and validation of many trials, which are compared separately."""
EQUAL = ["12 of 12 spans have implausibly equal times per sample"]


@pytest.mark.parametrize(
    ("executed", "failures"),
    [
        (spans([5.0] * 13), EQUAL),
        (spans([5.0] * 13, samples=1), EQUAL),
        (spans([5.0] * 12), []),  # Too few to tell.
        (spans([5.0 + 1e-4 * (number % 2) for number in range(100)]), []),  # 20 ppm of jitter.
        # Some are equal, as on a clock that ticks coarsely.
        (spans([5.0, 5.0, 5.1] * 10 + [5.2]), []),
        ([], []),
        (TRIALS, []),
    ],
)
def test_times_that_are_equal_to_the_last_digits_are_made_up(
    executed: list[Executed], failures: list[str]
) -> None:
    assert list(even(executed)) == failures
