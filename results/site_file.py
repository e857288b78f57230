"""The YAML file in which people say what a machine cannot tell of itself."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import UsageError
from aiperf_hpc.system.site import SiteDescription
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import yaml_of

MOST_BYTES = 1 << 20
"""The largest such file."""


def read_site(path: Path) -> SiteDescription:
    """Read what people say of their system.

    Raises:
        UsageError: it cannot be read, or an entry is not what it should be.
    """
    try:
        return SiteDescription.model_validate(yaml_of(path, MOST_BYTES))
    except ValidationError as error:
        fault = first_fault(error, "the file")
        raise UsageError(
            f"{path}: {fault}; `aiperf system --template` prints all entries"
        ) from None
    except UsageError as error:
        raise UsageError(
            f"{path}: {error}; `aiperf system --template` prints such a file"
        ) from None
