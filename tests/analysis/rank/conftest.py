"""Judgement of short runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.judgement import Judgement
from aiperf_hpc.rules.rule import Division, RuleResult

SATISFIED = Judgement(Division.CLOSED, (RuleResult("all", "satisfied", "satisfied"),))


@contextmanager
def satisfying_all_rules() -> Iterator[None]:
    """Judge short runs as if they satisfied the rules of the closed division."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunView, "judgement", lambda view: SATISFIED)
        yield
