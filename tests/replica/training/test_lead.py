"""How early the preparation of the next trial begins."""

from __future__ import annotations

from tests.support.clock import Clock

from aiperf_hpc.replica.training.trainer import Lead


def prepared(lead: Lead, clock: Clock, seconds: float) -> None:
    end = lead.begin()
    clock.advance(seconds)
    end(None)


def test_the_lead_is_one_and_a_half_times_the_longest_of_the_last_five_preparations() -> None:
    clock = Clock()
    lead = Lead(clock)
    assert lead.seconds == 60.0
    prepared(lead, clock, 100.0)
    assert lead.seconds == 150.0
    for seconds in (80.0, 1.0, 2.0, 3.0):
        prepared(lead, clock, seconds)
        assert lead.seconds == 150.0
    prepared(lead, clock, 4.0)
    assert lead.seconds == 120.0
    for seconds in (5.0, 6.0, 7.0, 8.0):
        prepared(lead, clock, seconds)
    assert lead.seconds == 60.0
