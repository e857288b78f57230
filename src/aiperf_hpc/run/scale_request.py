"""A request for other nodes, from whoever asks to the primary: a file, until it is carried out."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, ValidationError

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import MOST_NODES
from aiperf_hpc.untrusted.files import bytes_inside

MOST_BYTES = 10_000


class ScaleRequest(Value):
    """How many nodes a run is to have from now on."""

    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    why: Annotated[str, Field(max_length=200)]
    """Who asks, for the records."""

    def save(self, paths: RunPaths) -> None:
        """Let the primary find it."""
        write_whole(paths.scale_request, f"{self.model_dump_json()}\n")

    @classmethod
    def load(cls, paths: RunPaths) -> Self | None:
        """Return the one that waits, None where none does.

        Raises:
            RunDirectoryError: its file cannot be understood.
        """
        try:
            return cls.model_validate_json(
                bytes_inside(paths.root, paths.scale_request, MOST_BYTES)
            )
        except OSError:
            return None  # Not there, or not to be seen now: a file server may be away.
        except ValidationError:
            raise RunDirectoryError(
                f"{paths.scale_request} is no request for nodes; `aiperf scale` writes one"
            ) from None
