"""What all answers have in common."""

from __future__ import annotations

from pydantic import ConfigDict

from aiperf_hpc.trial import Value


class Answer(Value):
    """Base of answers. What stands below a field describes it in the interface's description."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Page(Answer):
    """Base of answers that give some of many."""

    total: int
    """How many there are in all that match."""
    offset: int
    """How many of them precede the first that is given."""
    limit: int
    """How many are given at most."""


class Loading(Answer):
    """The answer is being made: the run's records are read for the first time."""

    run: str
    """The run."""
    state: str = "loading"
    """Always `loading`."""
    seconds: float
    """For how many seconds they have been read."""
