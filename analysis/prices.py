"""Price table: hourly prices of machines from a YAML file of the user (docs/prices.md)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, ValidationError, field_validator

from aiperf_hpc.errors import UsageError, restated
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import first_fault, in_words
from aiperf_hpc.untrusted.files import yaml_of

_CURRENCY = in_words("^[A-Z]{3}$", "an ISO 4217 currency code, e.g. USD")
MOST_BYTES = 256 * 1024
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
        values = yaml_of(path, MOST_BYTES)
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
