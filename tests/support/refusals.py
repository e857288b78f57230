"""Errors of datasets, which are one line each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aiperf_hpc.errors import DatasetError


@contextmanager
def refused(message: str) -> Iterator[None]:
    """Require that the block raises a DatasetError of one line that matches."""
    with pytest.raises(DatasetError, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
