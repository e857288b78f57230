"""What every section of the configuration is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from aiperf_hpc.untrusted.bounds import Bounded

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(Bounded):
    """Base of all configuration sections: unknown keys refused, immutable once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
