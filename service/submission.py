"""Submissions of runs by clients, and their states."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from aiperf_hpc.config import RunConfig
from aiperf_hpc.config.loading import load_config, preset_names, preset_text, validate
from aiperf_hpc.run.manifest import RequestedLauncher
from aiperf_hpc.service.answers.base import Answer

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"


class Submission(Answer):
    """A run to start."""

    nodes: int = Field(ge=1, le=1_000_000, examples=[2])
    """Number of nodes; each replica spans `replica.nodes` nodes."""
    nodes_max: int | None = Field(None, ge=1, le=1_000_000, examples=[4])
    """Maximum number of nodes if the scheduler can allocate more; by default the number of
    nodes."""
    hours: Annotated[float, Field(gt=0.0, le=8760.0, allow_inf_nan=False, examples=[0.05])]
    """Length of the run in hours."""
    preset: str = Field("quickstart", max_length=64, examples=["imagenet"])
    """Preset as the base of the configuration; `aiperf config` lists all presets."""
    settings: dict[str, Any] = Field({}, examples=[{"training": {"batch_size": 64}}])
    """Configuration sections and keys that override the preset."""
    launcher: RequestedLauncher = "auto"
    """Launcher of the replicas; `auto` selects the scheduler if there is one."""
    start_when: Literal["first", "all"] = "first"
    """Start of the clock: with the first node, or when all replicas are ready to train."""
    division: Literal["closed", "open"] | None = None
    """Requested division of the result; violations of its rules are rejected."""
    name: str | None = Field(None, pattern=NAME, examples=["nightly-1"])
    """Name of the run's folder; by default generated from the time and the preset."""

    @model_validator(mode="after")
    def _can_be_written(self) -> Self:
        try:
            repr(self.settings).encode()
            self.preset.encode()
        except UnicodeEncodeError:
            raise ValueError("settings and preset must be valid UTF-8") from None
        return self

    def config(self) -> RunConfig:
        """Return the configuration. Raises ConfigError if it is invalid."""
        values = yaml.safe_load(preset_text(self.preset)) or {}
        return validate(_replaced(values, self.settings), self.preset)


class Preset(Answer):
    """A preset of the configuration."""

    name: str
    """Name of the preset."""
    configuration: dict[str, Any]
    """Configuration of the preset with all its settings."""


class Presets(Answer):
    """Presets, and the schema of the settings that a submission may override."""

    presets: tuple[Preset, ...]
    """Presets in order of their names."""
    configuration_schema: dict[str, Any]
    """JSON Schema of a configuration."""


@cache
def presets() -> Presets:
    """Return the presets and the schema of the configuration."""
    return Presets(
        presets=tuple(
            Preset(name=name, configuration=load_config(name).model_dump(mode="json"))
            for name in preset_names()
        ),
        configuration_schema=RunConfig.model_json_schema(),
    )


class SubmissionState(StrEnum):
    """State of a submission."""

    QUEUED = "queued"
    STARTING = "starting"
    STARTED = "started"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Submitted(Answer):
    """A submission and its state."""

    id: str = Field(examples=["000001"])
    """Name of the submission in the queue."""
    state: SubmissionState
    """State of the submission."""
    submitted_utc: float
    """Submission time in UTC seconds."""
    submission: Submission
    """Submitted run."""
    run: str | None = None
    """Name of the run that was started."""
    reason: str = ""
    """Reason for the wait or the failure."""


class Queue(Answer):
    """All submissions."""

    queue: tuple[Submitted, ...]
    """Submissions: first the waiting ones in their start order, then the others, latest first."""


def _replaced(values: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with overrides merged section by section."""
    result = dict(values)
    for key, value in by.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _replaced(old, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return result
