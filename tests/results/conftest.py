"""Runs that several tests read and none changes."""

from __future__ import annotations

import pytest
from tests.support.run_factory import refreshed, write_run

from aiperf_hpc.results.report.model import Report, make_report
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths


@pytest.fixture(scope="session")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """The run of the factory's own plan, with its report."""
    paths = write_run(tmp_path_factory.mktemp("default") / "run")
    assert write_report(RunView(paths)) == paths.report_html
    return paths


@pytest.fixture(scope="session")
def default_report(default_run: RunPaths) -> Report:
    """The report of that run."""
    return make_report(refreshed(default_run))
