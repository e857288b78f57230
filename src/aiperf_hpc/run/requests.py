"""Files by which commands reach a run's primary: stop and scale requests, its service address."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import RunStarted
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import MOST_NODES
from aiperf_hpc.untrusted.files import NotRegularError, bytes_inside

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


class Service(Value):
    """What a primary listens at, and which primary that is."""

    host: str
    """The host as it was requested: a name or an address."""
    port: int
    url: str
    primary_host: str
    primary_pid: int
    token_file: Path | None = None
    """The file of the tokens, where there is one; not what is in it."""
    certificate: Path | None = None
    key: Path | None = None

    def belongs_to(self, primary: RunStarted) -> bool:
        """Return whether it was this primary's, and not that of an earlier one."""
        return (self.primary_host, self.primary_pid) == (primary.host, primary.pid)

    def save(self, paths: RunPaths, retry: Retry) -> None:
        """Write it into the run directory."""
        text = self.model_dump_json(indent=1) + "\n"
        retry(partial(write_whole, paths.service, text), str(paths.service))

    @classmethod
    def load(cls, paths: RunPaths) -> Service | None:
        """Read it; None for a run that never was served. Raises RunDirectoryError if damaged."""
        try:
            return cls.model_validate_json(bytes_inside(paths.root, paths.service))
        except FileNotFoundError:
            return None
        except (ValidationError, NotRegularError):
            raise RunDirectoryError(
                f"{paths.service} is damaged; remove it, which only forgets where the run is served"
            ) from None


def requested_stop(request: Path) -> str | None:
    """Return what a stop request says, or None where nobody has asked."""
    try:
        # Perhaps written by hand, in whatever encoding.
        said = request.read_text("utf-8", errors="backslashreplace")
        return said.strip() or "a stop was requested"
    except OSError:
        return None  # Not there, or not to be seen now: a file server may be away.
