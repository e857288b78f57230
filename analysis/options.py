"""User options of an analysis, with the price table and the declared changes of entries.

Price table: hourly prices of machines from a YAML file of the user (docs/prices.md).

Declaration of an entry's changes to a benchmark, per layer, checked by the rules of its level: HPC
AI500 V2.0 (Jiang et al. 2020, arXiv:2007.00279) divides an HPC AI system into nine layers and
compares systems at three levels, each of which permits changes to certain layers.
docs/decisions/valid_flops.md explains this reading of the rules.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from aiperf_hpc.errors import UsageError, restated
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import first_fault, in_words
from aiperf_hpc.untrusted.files import yaml_model, yaml_of

_CURRENCY = in_words("^[A-Z]{3}$", "an ISO 4217 currency code, e.g. USD")
MOST_PRICE_BYTES = 256 * 1024
PricePerHour = Annotated[float, Field(gt=0.0, allow_inf_nan=False, strict=True)]


class Price(NamedTuple):
    """A price and the name of the priced item."""

    per_hour: float
    source: str


class PriceTable(Value):
    """Prices on one date in one currency."""

    currency: str = Field(pattern=_CURRENCY)
    """Currency code by ISO 4217: USD, EUR, CNY."""
    date: date
    """Date of the prices."""
    source: str = Field(min_length=1)
    """Source of the prices: provider, region, on demand or reserved."""
    systems: dict[str, PricePerHour] = Field(default_factory=dict)
    """Price of a whole system per hour, by the name of the system or the entry."""
    accelerators: dict[str, PricePerHour] = Field(default_factory=dict)
    """Price of one accelerator per hour, with its part of the machine, by its model."""

    @field_validator("systems", "accelerators")
    @classmethod
    def _named_once(cls, prices: dict[str, float]) -> dict[str, float]:
        names = Counter(map(_normal, prices))
        for name, count in names.items():
            if not name or count > 1:
                raise ValueError(f"'{name}' occurs {count} times" if name else "an empty name")
        return prices

    def price_of(
        self, names: tuple[str, ...], accelerator: str | None, accelerators: int | None
    ) -> Price | None:
        """Return the price of a system, by its name or by its accelerators, or None if unknown.

        Args:
            names: names of the system and of its entry.
            accelerator: full model name of its accelerators.
            accelerators: number of its accelerators.
        """
        wanted = set(map(_normal, names))
        for name, price in self.systems.items():
            if _normal(name) in wanted:
                return Price(price, "price table, system")
        model = self._model(accelerator or "")
        if model is None or not accelerators:
            return None
        price = self.accelerators[model] * accelerators
        return Price(price, f"price table, {accelerators} × {model}")

    def _model(self, accelerator: str) -> str | None:
        """Return the most specific name in the table that matches an accelerator, or None."""
        full = f" {_normal(accelerator)} "
        fitting = [name for name in self.accelerators if f" {_normal(name)} " in full]
        return max(fitting, key=lambda name: (_normal(name).count(" "), len(name)), default=None)


def load_prices(path: Path) -> PriceTable:
    """Read a price table.

    Raises:
        UsageError: the file cannot be read, is not YAML, or has a value out of range.
    """
    with restated(f"--prices {path}"):
        values = yaml_of(path, MOST_PRICE_BYTES)
    try:
        return PriceTable.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"--prices {path}: {_described(error)}") from None


def _described(error: ValidationError) -> str:
    given = error.errors()[0]["input"]
    received = "" if isinstance(given, Mapping | list) else f" (got {str(given)[:40]!r})"
    more = f"; {error.error_count() - 1} more like it" if error.error_count() > 1 else ""
    return f"{first_fault(error)}{received}{more}"


def _normal(name: str) -> str:
    """Return the words of a name in lower case, separated by spaces."""
    return " ".join(re.findall(r"[^\W_]+", name.lower()))


Level = Literal["hardware", "system", "free"]
LayerName = Literal[
    "hardware",
    "operating_system",
    "communication_libraries",
    "accelerator_libraries",
    "framework",
    "programming_model",
    "implementation",
    "hyperparameters",
    "problem_domain",
]
MOST_DECLARATION_BYTES = 1024 * 1024
LAYERS: tuple[LayerName, ...] = get_args(LayerName)
"""Layers from 1, the machine, to 9, which is common to all entries."""

Parts = frozenset[str] | None
"""Parts of a layer that may be changed; None for the whole layer."""

_HARDWARE: dict[LayerName, Parts] = {
    "hardware": None,
    "operating_system": None,
    "communication_libraries": None,
    "accelerator_libraries": None,
    "programming_model": frozenset({"parallel mode"}),
    "hyperparameters": frozenset({"batch size", "learning rate policy"}),
}
OPEN: dict[Level, dict[LayerName, Parts]] = {
    "hardware": _HARDWARE,
    "system": {**_HARDWARE, "framework": None, "programming_model": None, "implementation": None},
    "free": dict.fromkeys(LAYERS[:-1]),
}
"""Layers that each level permits to change. The others must match the benchmark."""


class Layer(Value):
    """Changes to one layer, if any."""

    changed: bool
    description: str | None = Field(None, min_length=1)
    """Description of the change; required for a changed layer, absent otherwise."""
    parts: tuple[str, ...] = ()
    """Changed parts of the layer, if the level permits only some."""

    @model_validator(mode="after")
    def _consistent(self) -> Layer:
        if self.changed and self.description is None:
            raise ValueError("describe the change in `description`")
        if not self.changed and (self.description or self.parts):
            raise ValueError("it is not changed, yet `description` or `parts` describe a change")
        return self


class Declaration(Value):
    """Changes of an entry per layer, and the level that it claims."""

    level: Level
    entry: str | None = None
    """Name of the declared entry; None for all analyzed entries."""
    layers: dict[LayerName, Layer]

    @field_validator("layers")
    @classmethod
    def _complete(cls, layers: dict[LayerName, Layer]) -> dict[LayerName, Layer]:
        missing = [name for name in LAYERS if name not in layers]
        if missing:
            raise ValueError(f"all nine layers are declared; missing: {', '.join(missing)}")
        return {name: layers[name] for name in LAYERS}

    @model_validator(mode="after")
    def _allowed(self) -> Declaration:
        for name, layer in self.layers.items():
            if layer.changed:
                _check(self.level, name, layer)
        return self


def read_declaration(path: Path) -> Declaration:
    """Read a declaration from YAML.

    Raises:
        UsageError: the file cannot be read, is incomplete, or violates the rules of its level.
    """
    with restated(f"cannot read the declaration {path}"):
        return yaml_model(path, Declaration, MOST_DECLARATION_BYTES)


def _check(level: Level, name: LayerName, layer: Layer) -> None:
    """Raise ValueError if the level does not permit a change."""
    number = LAYERS.index(name) + 1
    if name not in OPEN[level]:
        allowed = next((other for other in get_args(Level) if name in OPEN[other]), None)
        remedy = f"; that is the {allowed} level" if allowed else ", nor does any other"
        raise ValueError(f"the {level} level does not let layer {number}, {name}, change{remedy}")
    parts = OPEN[level][name]
    if parts is None:
        return
    if not layer.parts or not parts.issuperset(layer.parts):
        raise ValueError(
            f"the {level} level lets only {' and '.join(sorted(parts))} of layer {number}, {name}, "
            f"change; `parts` has {', '.join(layer.parts) or 'nothing'}"
        )


class Qualities(Value):
    """Qualities given by the user: thresholds or a target."""

    benchmark: str | None
    """Name of the benchmark; None if there is only one."""
    values: tuple[float, ...]


class Options(Value):
    """User options of an analysis."""

    accelerators: int | None = None
    """Number of accelerators of each training run whose source does not state it."""
    thresholds: tuple[Qualities, ...] = ()
    """Thresholds that replace the default range around the target."""
    targets: tuple[Qualities, ...] = ()
    """Targets that replace those of the benchmarks, one value each."""
    prices: PriceTable | None = None
    scales: tuple[int, ...] = ()
    """Numbers of accelerators to predict for; by default, a few beyond the largest."""
    vflops_exponent: int | None = Field(None, ge=1)
    """Exponent n of Valid FLOPS; None for HPC AI500's value for the kind of problem."""
    declarations: tuple[Declaration, ...] = ()
    """Declared changes of entries to their benchmarks."""
    precision: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.01
    """Requested relative precision of a mean over repeated runs, and of a run's score."""
    peaks: Path | None = None
    """Path of a peaks file for the machine of all runs; None to use the file of each run."""


def qualities(option: str, text: str) -> Qualities:
    """Parse ``[BENCHMARK=]A,B,...``.

    Raises:
        UsageError: a quality is not a finite number.
    """
    benchmark, equals, numbers = text.rpartition("=")
    try:
        values = tuple(float(number) for number in numbers.split(","))
    except ValueError:
        values = ()
    if not values or not all(math.isfinite(value) for value in values) or (
        equals and not benchmark.strip()
    ):  # fmt: skip
        raise UsageError(f"{option} {text}: write it as 94 or 93,94,95 or BENCHMARK=93,94,95")
    return Qualities(benchmark=benchmark.strip() or None, values=values)


def target(text: str) -> Qualities:
    """Parse ``[BENCHMARK=]A``. Raises UsageError if the value is not one finite number."""
    named = qualities("--target", text)
    if len(named.values) != 1:
        raise UsageError(f"--target {text}: one target per benchmark; use --thresholds for several")
    return named
