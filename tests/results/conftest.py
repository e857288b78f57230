"""Runs that several tests read and none changes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.reports import document_of
from tests.support.run_factory import write_run

from aiperf_hpc.results.report.document import Report, make_report
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
    return make_report(RunView.read(default_run))


@pytest.fixture(scope="session")
def page(default_run: RunPaths) -> str:
    """The page of that report."""
    return default_run.report_html.read_text("utf-8")


@pytest.fixture(scope="session")
def document(default_run: RunPaths) -> dict[str, Any]:
    """The document of that report."""
    return document_of(default_run)
