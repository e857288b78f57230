"""Views of a run with its tags and note, which reports do not include."""

from __future__ import annotations

from aiperf_hpc.results.views.run_summary import RunSummary
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.run.annotations import Annotations, read_annotations
from aiperf_hpc.run.paths import RunPaths


class ListedRun(Annotations, RunSummary):
    """Summary of a run in a list, with its tags and note."""


class AnnotatedStatus(Annotations, RunStatus):
    """Current status of a run, with its tags and note."""


def listed(summary: RunSummary, paths: RunPaths) -> ListedRun:
    """Return a summary with the present tags and note. Raises RunDirectoryError if damaged."""
    return ListedRun(**{**dict(summary), **dict(read_annotations(paths))})


def annotated_status(view: RunView) -> AnnotatedStatus:
    """Return the status of a run with its tags and note. Raises RunDirectoryError if damaged."""
    return AnnotatedStatus(**dict(view.status()), **dict(read_annotations(view.paths)))
