"""Spans that overlap, against looking at each pair."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiperf_hpc.run.history.telemetry import Span, apart

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


def test_a_hundred_thousand_spans() -> None:
    spans = [Span(float(n), n + 1.0, 0.5) for n in range(100_000)]
    assert len(apart(spans)) == len(spans)
