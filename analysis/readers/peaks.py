"""``peaks.json`` and ``peaks-after.json``: how fast the machine did fixed work around a run.

One measurement, or a list of them::

    {"utc": 1760000000.0, "rates": {"matrix fp32": 1.2e11, "convolution fp32": 0.9e11}}

with UTC seconds, and operations a second by the kind of work. Other keys are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from aiperf_hpc.analysis.training_log import Rates
from aiperf_hpc.config import TrainingConfig
from aiperf_hpc.errors import RunDirectoryError, UsageError
from aiperf_hpc.run.peaks import Rate, listed
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import text_of

PRECISIONS: tuple[str, ...] = (
    *get_args(TrainingConfig.model_fields["precision"].annotation),
    "tf32",
)
"""Those that runs have, and the one that only peaks do."""


class _Measured(BaseModel):
    model_config = ConfigDict(extra="ignore")
    utc: Annotated[float, Field(allow_inf_nan=False)]
    rates: Annotated[dict[str, Rate], Field(min_length=1)]


_FILE: TypeAdapter[list[_Measured]] = TypeAdapter(
    Annotated[list[_Measured], BeforeValidator(listed)]
)


def read_peaks(path: Path, precision: str) -> tuple[Rates, ...]:
    """Return what was measured beside a run, nothing where there is no such file.

    Of kinds that end in the name of a precision, those of the run's own count.

    Raises:
        RunDirectoryError: the file is none of this kind.
    """
    if not path.exists():
        return ()
    try:
        measured = _FILE.validate_json(text_of(path))
    except UsageError as error:
        raise RunDirectoryError(f"{path}: {error}") from None
    except ValidationError as error:
        raise RunDirectoryError(f"{path}: {first_fault(error)}") from None
    return tuple(Rates(utc=each.utc, rates=_own(each.rates, precision)) for each in measured)


def _own(rates: Mapping[str, float], precision: str) -> dict[str, float]:
    others = tuple(f" {name}" for name in PRECISIONS if name != precision)
    return {kind: rate for kind, rate in rates.items() if not kind.endswith(others)}
