"""Study file and the variations derived from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, field_validator

from aiperf_hpc.config import RunConfig, load_config
from aiperf_hpc.errors import ConfigError, restated
from aiperf_hpc.run.manifest import RequestedLauncher
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import yaml_model

MOST_BYTES = 1_000_000
MOST_FACTORS = 50
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")

MetricName = Literal["ops", "throughput", "time_to_quality"]
Settings = dict[str, Any]


class Study(Value):
    """A study's file."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: str = "study"
    config: str = "quickstart"
    """Preset or YAML file on which every variation is based, relative to the study's file."""
    settings: Settings = {}
    """Additional settings of every variation: ``{training.batch_size: 32}``."""
    nodes: int = Field(1, ge=1)
    hours: float = Field(gt=0.0, le=8760.0)
    """Length of each run in hours."""
    launcher: RequestedLauncher = "auto"
    metric: MetricName = "ops"
    quality: float | None = None
    """Target of ``time_to_quality``, in the workload's quality metric."""
    repeats: int = Field(1, ge=1, le=100)
    factors: Annotated[dict[str, Settings], Field(min_length=1, max_length=MOST_FACTORS)]
    """Settings of each factor by its name."""

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
        """Whether the metric is a rate, not a time."""
        return self.metric != "time_to_quality"


class Variation(NamedTuple):
    """One system, with a subset of the factors."""

    name: str
    factors: frozenset[str]

    def assignments(self, study: Study) -> list[str]:
        """Return the changes to the configuration file as ``--set`` arguments."""
        chosen = [study.factors[name] for name in study.factors if name in self.factors]
        return [
            f"{key}={json.dumps(value)}"
            for settings in (study.settings, *chosen)
            for key, value in settings.items()
        ]


def read_study(path: Path) -> Study:
    """Read a study's file.

    Raises:
        ConfigError: the file cannot be read or is not a study; the message states the key.
    """
    with restated(f"cannot read the study {path}", ConfigError):
        study = yaml_model(path, Study, MOST_BYTES)
    if (study.metric == "time_to_quality") != (study.quality is not None):
        raise ConfigError(f"{path}: set 'quality' if and only if 'metric' is 'time_to_quality'")
    sibling = path.parent / study.config
    if sibling.is_file():
        study = study.model_copy(update={"config": str(sibling.resolve())})
    return study


def variations(study: Study) -> tuple[Variation, ...]:
    """Return the systems to measure: no factor, all factors, each alone, all except each."""
    every = frozenset(study.factors)
    found = {frozenset[str](): "none", every: "all"} if len(every) > 1 else {frozenset(): "none"}
    for name in study.factors:
        found.setdefault(frozenset({name}), f"only-{name}")
    for name in study.factors:
        found.setdefault(every - {name}, f"without-{name}")
    return tuple(Variation(name, factors) for factors, name in found.items())


def configuration(study: Study, variation: Variation) -> RunConfig:
    """Return a variation's configuration. Raises ConfigError with the name of the variation."""
    with restated(f"the variation '{variation.name}'", ConfigError):
        return load_config(study.config, variation.assignments(study))


def schedule(study: Study) -> Iterator[tuple[Variation, int]]:
    """Yield every run of a study: all variations once, then all again.

    Slow changes of the machine then affect all variations equally.
    """
    for repeat in range(1, study.repeats + 1):
        for variation in variations(study):
            yield variation, repeat
