from __future__ import annotations

import io
import json

import pytest
from tests.support.terminal import Terminal

from aiperf_hpc.primary import data_progress
from aiperf_hpc.primary.data_progress import DataDisplay, progress_line
from aiperf_hpc.streams import width

PROGRESS: dict[str, object] = {
    "what": "preparing",
    "done": 412_000,
    "total": 1_331_167,
    "unit": "images",
    "per_second": 812.4,
}


def test_a_line_says_what_is_done_and_how_long_it_takes() -> None:
    assert progress_line(PROGRESS) == (
        "preparing   30%  19 min left  412,000 of 1,331,167 images  812/s"
    )
    assert progress_line({**PROGRESS, "per_second": None, "done": 0}) == (
        "preparing    0%  0 of 1,331,167 images"
    )
    assert "  42 s left  " in progress_line({**PROGRESS, "per_second": 919_167 / 42.2})
    assert "  2 h 05 min left  " in progress_line({**PROGRESS, "per_second": 919_167 / 7_510})


def _events(*events: object) -> list[str]:
    return [f"{json.dumps(event)}\n" for event in events]


def test_in_a_file_there_are_lines_and_seldom_progress() -> None:
    now = 0.0
    output, errors = io.StringIO(), io.StringIO()
    display = DataDisplay(output, errors, clock=lambda: now)
    display.follow(_events({"line": "a source\x1b[2J"}, {"progress": PROGRESS}))
    now = data_progress.LOG_SECONDS
    display.follow(_events({"progress": PROGRESS}, {"progress": PROGRESS}, {"complaint": "bad"}))
    display.follow(["what a library prints\n"])
    assert output.getvalue().splitlines() == [
        "a source\\x1b[2J",
        progress_line(PROGRESS),
        "what a library prints",
    ]
    assert errors.getvalue() == "aiperf: bad\n"


def test_whoever_stops_reading_ends_nothing() -> None:
    class Gone(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    events = iter(_events({"line": "1"}, {"line": "2"}, {"complaint": "3"}))
    errors = io.StringIO()
    DataDisplay(Gone(), errors).follow(events)
    assert list(events) == []
    assert errors.getvalue() == "aiperf: 3\n"


@pytest.mark.parametrize("columns", [10, 30, 64, 72, 79, 100, 200])
def test_a_terminal_has_a_bar_that_fits(columns: int) -> None:
    terminal, errors = Terminal(columns), io.StringIO()
    display = DataDisplay(terminal.output, errors)
    display.follow(_events({"progress": PROGRESS}, {"line": "between"}))
    lines = terminal.new()
    assert max(map(width, lines)) < columns
    assert lines[0].startswith("preparing"[: columns - 1])
    assert ("━" in lines[0]) == (columns > 70)
    assert ("812/s" in lines[0]) == (columns > 72)
    assert terminal.rows() == ["between"]  # What changed was taken away.
    display.follow(_events({"progress": PROGRESS}, {"complaint": "wrong"}))
    assert terminal.rows() == ["between"]
    assert errors.getvalue() == "aiperf: wrong\n"
    terminal.close()
