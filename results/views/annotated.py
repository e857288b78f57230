"""Views of a run with its tags and note, which reports do not include."""

from __future__ import annotations

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.results.views.run_summary import RunSummary
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.run.annotations import Annotations, read_annotations
from aiperf_hpc.run.paths import RunPaths


class ListedRun(Annotations, RunSummary):
    """Summary of a run in a list, with its tags and note."""


class AnnotatedStatus(Annotations, RunStatus):
    """Current status of a run, with its tags and note."""


def listed(summary: RunSummary, paths: RunPaths) -> ListedRun:
    """Return a summary with the present tags and note."""
    return ListedRun(**{**dict(summary), **dict(_annotations(paths))})


def annotated_status(view: RunView) -> AnnotatedStatus:
    """Return the status of a run with its tags and note."""
    return AnnotatedStatus(**dict(view.status()), **dict(_annotations(view.paths)))


def _annotations(paths: RunPaths) -> Annotations:
    """Return a run's annotations; if they cannot be read, the note says so: the run can."""
    try:
        return read_annotations(paths)
    except RunDirectoryError as error:
        return Annotations(note=str(error)[:2000])
