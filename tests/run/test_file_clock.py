"""A host's clock beside the file server's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aiperf_hpc.run.clocks import read_clock


@pytest.mark.parametrize("offset", [0.0, 2.5, -7200.0])
def test_a_clock_that_is_off_is_found_out(tmp_path: Path, offset: float) -> None:
    reading = read_clock(tmp_path, lambda: time.time() + offset)
    # A local file system stamps by the kernel's clock, which ticks every few milliseconds.
    assert reading.ahead_seconds == pytest.approx(offset, abs=0.1)
    assert 0.0 <= reading.precision_seconds < 0.1
    assert list(tmp_path.iterdir()) == []


def test_a_slow_server_makes_it_less_precise(tmp_path: Path) -> None:
    now = time.time()
    answers = iter((now, now + 4.0, now, now + 0.2, now, now + 3.0))
    reading = read_clock(tmp_path, lambda: next(answers))
    assert reading.precision_seconds == pytest.approx(0.1)  # The best of three.


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_clock(tmp_path / "nowhere")
