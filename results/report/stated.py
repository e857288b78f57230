"""What ``report.json`` states, as whoever has the run may have written it."""

from __future__ import annotations

from typing import Any

from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.untrusted.files import bytes_inside, parsed_json

MOST_REPORT_BYTES = 256 * 2**20
"""The largest report.json: that of 512 replicas for a day, 12.6 million records, has 14 MB."""


def report_bytes(paths: RunPaths) -> bytes:
    """Return the bytes of a run's report. Raises OSError when there is none that can be read."""
    return bytes_inside(paths.root, paths.report_json, MOST_REPORT_BYTES)


def stated_report(paths: RunPaths) -> Any:  # noqa: ANN401 -- whatever was written
    """Return what a run's report states.

    Raises:
        OSError: there is none that can be read.
        ValueError: it is damaged.
    """
    return parsed_json(report_bytes(paths))
