"""Base class of the configuration's sections."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from aiperf_hpc.untrusted.bounds import Bounded

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(Bounded):
    """Base of all configuration sections: immutable, and unknown keys are rejected."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
