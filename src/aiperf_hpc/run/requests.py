"""Files by which commands reach a run's primary: stop and scale requests, its service address."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import Field, ValidationError

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import RunStarted
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import MOST_NODES
from aiperf_hpc.untrusted.files import NotRegularError, bytes_inside

MOST_BYTES, MOST_REQUEST_BYTES = 100_000, 10_000
"""Maximum size of a file, and of a scale request, in bytes."""
T = TypeVar("T", bound=Value)


class ScaleRequest(Value):
    """A request to change the number of nodes of a run."""

    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]
    reason: Annotated[str, Field(max_length=200)]
    """Origin of the request, for the records."""

    def save(self, paths: RunPaths) -> None:
        """Write the request into the run directory for the primary."""
        write_whole(paths.scale_request, f"{self.model_dump_json()}\n")

    @classmethod
    def load(cls, paths: RunPaths) -> Self | None:
        """Return the pending request, or None if there is none.

        Raises:
            RunDirectoryError: the file of the request is malformed.
        """
        try:
            return cls.model_validate_json(
                bytes_inside(paths.root, paths.scale_request, MOST_REQUEST_BYTES)
            )
        except OSError:
            return None  # Missing, or not visible now: the file server may be unavailable.
        except ValidationError:
            raise RunDirectoryError(
                f"{paths.scale_request} is not a request for nodes; `aiperf scale` writes one"
            ) from None


class Service(Value):
    """Address of a primary's REST service, with the primary's host and process."""

    host: str
    """Requested host: a name or an address."""
    port: int
    url: str
    primary_host: str
    primary_pid: int
    token_file: Path | None = None
    """Path of the token file, if there is one; not its content."""
    certificate: Path | None = None
    key: Path | None = None

    def belongs_to(self, primary: RunStarted) -> bool:
        """Return whether this is the service of ``primary`` and not of an earlier one."""
        return (self.primary_host, self.primary_pid) == (primary.host, primary.pid)

    def save(self, paths: RunPaths, retry: Retry) -> None:
        """Write the address into the run directory."""
        text = self.model_dump_json(indent=1) + "\n"
        retry(partial(write_whole, paths.service, text), str(paths.service))

    @classmethod
    def load(cls, paths: RunPaths) -> Service | None:
        """Return the service, or None if there was none. Raises RunDirectoryError if damaged."""
        return read_if_present(paths, paths.service, cls, "the address of the service")


def requested_stop(request: Path) -> str | None:
    """Return the reason of a stop request, or None if there is no request."""
    try:
        # The file may be written by hand in any encoding.
        said = request.read_text("utf-8", errors="backslashreplace")
        return said.strip() or "a stop was requested"
    except OSError:
        return None  # Missing, or not visible now: the file server may be unavailable.


def read_if_present(paths: RunPaths, path: Path, model: type[T], content: str) -> T | None:
    """Return a file's content, or None if it does not exist.

    Raises:
        OSError: it cannot be read.
        RunDirectoryError: it is damaged; the message names the ``content`` that removing it loses.
    """
    try:
        return model.model_validate_json(bytes_inside(paths.root, path, MOST_BYTES))
    except FileNotFoundError:
        return None
    except (ValidationError, NotRegularError):
        raise RunDirectoryError(f"{path} is damaged; removing it discards only {content}") from None
