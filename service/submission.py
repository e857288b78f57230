"""Submissions of runs by clients, and their states."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from aiperf_hpc.config import RunConfig
from aiperf_hpc.config.loading import preset_text, validate
from aiperf_hpc.run.manifest import RequestedLauncher
from aiperf_hpc.service.answers.base import Answer

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"


class Submission(Answer):
    """A run that is to be started."""

    nodes: int = Field(ge=1, le=1_000_000, examples=[2])
    """How many nodes; a replica spans `replica.nodes` of them."""
    nodes_max: int | None = Field(None, ge=1, le=1_000_000, examples=[4])
    """How many it takes at most, as the scheduler gives them; no more when not given."""
    hours: Annotated[float, Field(gt=0.0, le=8760.0, allow_inf_nan=False, examples=[0.05])]
    """How long it lasts, in hours."""
    preset: str = Field("quickstart", max_length=64, examples=["imagenet"])
    """The preset that the configuration begins with; `aiperf config` lists them."""
    settings: dict[str, Any] = Field({}, examples=[{"training": {"batch_size": 64}}])
    """Sections and keys of the configuration that replace the preset's."""
    launcher: RequestedLauncher = "auto"
    """What starts the replicas; `auto` is a scheduler where there is one."""
    start_when: Literal["first", "all"] = "first"
    """Whether the clock starts with the first node, or once all replicas are ready to train."""
    division: Literal["closed", "open"] | None = None
    """The division in which its result is to be official; what cannot be is refused."""
    name: str | None = Field(None, pattern=NAME, examples=["nightly-1"])
    """The run's folder; by default its own name, of the time and the preset."""

    @model_validator(mode="after")
    def _can_be_written(self) -> Self:
        try:
            repr(self.settings).encode()
            self.preset.encode()
        except UnicodeEncodeError:
            raise ValueError("settings and preset are text that UTF-8 can write") from None
        return self

    def config(self) -> RunConfig:
        """Return the configuration. Raises ConfigError when it is none."""
        values = yaml.safe_load(preset_text(self.preset)) or {}
        return validate(_replaced(values, self.settings), self.preset)


class SubmissionState(StrEnum):
    """The state of a submission."""

    QUEUED = "queued"
    STARTING = "starting"
    STARTED = "started"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Submitted(Answer):
    """A submission and its state."""

    id: str = Field(examples=["000001"])
    """The submission's name in the queue."""
    state: SubmissionState
    """Its state."""
    submitted_utc: float
    """When it was submitted, UTC seconds."""
    submission: Submission
    """The submitted run."""
    run: str | None = None
    """The run that it has become."""
    reason: str = ""
    """The reason why it waits or has failed."""


class Queue(Answer):
    """All submissions."""

    queue: tuple[Submitted, ...]
    """Those that wait first, in the order in which they will start; then the latest first."""


def _replaced(values: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with some replaced, section by section."""
    result = dict(values)
    for key, value in by.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _replaced(old, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return result
