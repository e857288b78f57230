"""Errors of datasets and of commands, which are one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.support.command import aiperf

from aiperf_hpc.errors import DatasetError


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Require that the block raises a DatasetError of one line that matches."""
    with pytest.raises(DatasetError, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2


def refused_line(*arguments: object) -> str:
    """Return the one line by which a command is refused."""
    done = aiperf(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("aiperf: "), line
    return line.removeprefix("aiperf: ")
