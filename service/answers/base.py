"""Base classes of questions and answers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.trial import Value


class Answer(Value):
    """Base of answers. The docstring of a field is its description in the OpenAPI document."""


MOST = 10_000
"""Maximum number of items in an answer."""
Limit = Annotated[int, Field(ge=1, le=MOST)]


class Question(BaseModel):
    """Base of questions: the docstring of a field describes a query parameter."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    @abstractmethod
    def __call__(self, view: RunView) -> BaseModel:
        """Return the answer."""


class PageQuestion(Question):
    """Base of questions with a paginated answer."""

    limit: Limit = 100
    """Maximum number of returned items."""
    offset: int = Field(0, ge=0)
    """Number of skipped items."""


class Page(Answer):
    """Base of paginated answers."""

    total: int
    """Total number of matching items."""
    offset: int
    """Number of matching items before the first returned one."""
    limit: int
    """Maximum number of returned items."""


class Loading(Answer):
    """The answer is pending, because the run's records are being read for the first time."""

    run: str
    """Name of the run."""
    state: str = "loading"
    """Always `loading`."""
    seconds: float
    """Seconds since the read started."""
