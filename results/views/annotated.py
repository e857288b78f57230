"""Views of a run with its tags and note, which reports do not include."""

from __future__ import annotations

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.results.views.run_summary import RunSummary
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.run.annotations import Annotations, read_annotations
from aiperf_hpc.run.paths import RunPaths


class Annotated(Annotations):
    """Tags and note of a run, or the reason why they cannot be read."""

    annotations_error: str = ""
    """Reason why the tags and the note cannot be read; empty if they can."""


class ListedRun(Annotated, RunSummary):
    """Summary of a run in a list, with its tags and note."""


class AnnotatedStatus(Annotated, RunStatus):
    """Current status of a run, with its tags and note."""


def listed(summary: RunSummary, paths: RunPaths) -> ListedRun:
    """Return a summary with the present tags and note."""
    return ListedRun(**dict(summary), **_annotations(paths))


def annotated_status(view: RunView) -> AnnotatedStatus:
    """Return the status of a run with its tags and note."""
    return AnnotatedStatus(**dict(view.status()), **_annotations(view.paths))


def _annotations(paths: RunPaths) -> dict[str, object]:
    try:
        return dict(read_annotations(paths))
    except RunDirectoryError as error:
        return {"annotations_error": str(error)}
