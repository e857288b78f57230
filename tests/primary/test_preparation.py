from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from aiperf_hpc.primary import preparation
from aiperf_hpc.primary.preparation import DataDisplay, fitted, progress_line
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
        "preparing   30 %  19 min left  412,000 of 1,331,167 images  812/s"
    )
    assert progress_line({**PROGRESS, "per_second": None, "done": 0}) == (
        "preparing    0 %  0 of 1,331,167 images"
    )
    assert "  42 s left  " in progress_line({**PROGRESS, "per_second": 919_167 / 42.2})
    assert "  2 h 05 min left  " in progress_line({**PROGRESS, "per_second": 919_167 / 7_510})


@pytest.mark.parametrize("columns", [10, 40, 65, 72, 79, 100, 200])
def test_a_bar_where_the_window_has_room(columns: int) -> None:
    shown = fitted(PROGRESS, columns)
    assert ("[" in shown) == (columns > 70)
    assert width(shown) <= columns or shown == progress_line(PROGRESS)
    assert ("812/s" in shown) == (columns not in (72,))
    if columns == 200:
        assert "[#########---------------------]" in shown


def _events(*events: object) -> list[str]:
    return [f"{json.dumps(event)}\n" for event in events]


def test_in_a_file_there_are_lines_and_seldom_progress() -> None:
    now = 0.0
    output, errors = io.StringIO(), io.StringIO()
    display = DataDisplay(output, errors, clock=lambda: now)
    display.follow(_events({"line": "a source\x1b[2J"}, {"progress": PROGRESS}))
    now = preparation.LOG_SECONDS
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


@pytest.mark.parametrize("columns", [30, 100])
def test_a_terminal_has_a_bar_that_fits(columns: int, tmp_path: Path) -> None:
    script = f"""
import json, sys
from aiperf_hpc.primary.preparation import DataDisplay
DataDisplay(sys.stdout, sys.stderr).follow(json.dumps(e) + "\\n" for e in (
    {{"progress": {PROGRESS!r}}}, {{"line": "between"}}, {{"complaint": "wrong"}},
    {{"progress": {PROGRESS!r}}}))
"""
    primary, secondary = pty.openpty()
    environment = {**os.environ, "COLUMNS": "", "LINES": ""}
    import fcntl
    import struct
    import termios

    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    subprocess.run(
        [sys.executable, "-c", script], stdout=secondary, stderr=secondary, check=True,
        env=environment,
    )  # fmt: skip
    os.close(secondary)
    shown = os.read(primary, 65_536).decode()
    os.close(primary)
    pieces = [piece for piece in shown.replace("\r\n", "\r\033[K").split("\r\033[K") if piece]
    assert all(width(piece) < columns for piece in pieces)
    assert pieces[0].startswith("preparing   30 %" if columns == 30 else "preparing  [###")
    assert "between" in pieces
    assert "aiperf: wrong" in pieces
    assert shown.endswith("\r\033[K")
