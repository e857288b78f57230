"""What all answers have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.trial import Value


class Answer(Value):
    """Base of answers. What stands below a field describes it in the interface's description."""


MOST = 10_000
"""The largest number of items in an answer."""
Limit = Annotated[int, Field(ge=1, le=MOST)]


class Question(BaseModel):
    """Base of questions: what stands below a field describes a parameter of the query."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    @abstractmethod
    def __call__(self, view: RunView) -> BaseModel:
        """Return the answer."""


class PageQuestion(Question):
    """Base of questions for some of many."""

    limit: Limit = 100
    """How many are given at most."""
    offset: int = Field(0, ge=0)
    """How many are passed over."""


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
