"""What a study's file asks for, and the variations that follow from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, field_validator

from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.errors import ConfigError, UsageError
from aiperf_hpc.run.manifest import RequestedLauncher
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import yaml_model

MOST_BYTES = 1_000_000
MOST_FACTORS = 50
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")

MeasureName = Literal["ops", "throughput", "time_to_quality"]
Settings = dict[str, Any]


class Study(Value):
    """A study's file."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = "study"
    config: str = "quickstart"
    """The preset or YAML file that every variation is made of; a file as seen from the study's."""
    settings: Settings = {}
    """What every variation has beside it: ``{training.batch_size: 32}``."""
    nodes: int = Field(1, ge=1)
    hours: float = Field(gt=0.0, le=8760.0)
    """Of each run."""
    launcher: RequestedLauncher = "auto"
    measure: MeasureName = "ops"
    quality: float | None = None
    """The quality of ``time_to_quality``, by the workload's measure."""
    repeats: int = Field(1, ge=1, le=100)
    factors: Annotated[dict[str, Settings], Field(min_length=1, max_length=MOST_FACTORS)]
    """By name, what is set where the factor is there."""

    @field_validator("factors")
    @classmethod
    def _folder_names(cls, factors: dict[str, Settings]) -> dict[str, Settings]:
        for name, settings in factors.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"'{name}': a factor's name is letters, digits, '.', '_' and '-'")
            if not settings:
                raise ValueError(f"the factor '{name}' sets nothing")
        return factors

    @property
    def higher_is_better(self) -> bool:
        """Whether the measure is a rate, not a time."""
        return self.measure != "time_to_quality"


class Variation(NamedTuple):
    """One system: some of the factors are there."""

    name: str
    factors: frozenset[str]

    def assignments(self, study: Study) -> list[str]:
        """Return what differs from the configuration's file, as ``--set`` takes it."""
        chosen = [study.factors[name] for name in study.factors if name in self.factors]
        return [
            f"{key}={json.dumps(value)}"
            for settings in (study.settings, *chosen)
            for key, value in settings.items()
        ]


def read_study(path: Path) -> Study:
    """Read a study's file.

    Raises:
        ConfigError: it cannot be read, or is no study; the message names the key.
    """
    try:
        study = yaml_model(path, Study, MOST_BYTES)
    except UsageError as error:
        raise ConfigError(f"cannot read the study {path}: {error}") from None
    if (study.measure == "time_to_quality") != (study.quality is not None):
        raise ConfigError(f"{path}: 'quality' goes with 'measure: time_to_quality', and it alone")
    sibling = path.parent / study.config
    if sibling.is_file():
        study = study.model_copy(update={"config": str(sibling.resolve())})
    return study


def variations(study: Study) -> tuple[Variation, ...]:
    """Return the systems to measure: none of the factors, all, each alone, all but each."""
    every = frozenset(study.factors)
    found = {frozenset[str](): "none", every: "all"} if len(every) > 1 else {frozenset(): "none"}
    for name in study.factors:
        found.setdefault(frozenset({name}), f"only-{name}")
    for name in study.factors:
        found.setdefault(every - {name}, f"without-{name}")
    return tuple(Variation(name, factors) for factors, name in found.items())


def configuration(study: Study, variation: Variation) -> RunConfig:
    """Return the configuration of one variation. Raises ConfigError, which names the variation."""
    try:
        return load_config(study.config, variation.assignments(study))
    except ConfigError as error:
        raise ConfigError(f"the variation '{variation.name}': {error}") from None


def schedule(study: Study) -> Iterator[tuple[Variation, int]]:
    """Yield every run of a study: all variations once, then all again.

    What changes slowly on a machine so falls on all variations alike.
    """
    for repeat in range(1, study.repeats + 1):
        for variation in variations(study):
            yield variation, repeat
