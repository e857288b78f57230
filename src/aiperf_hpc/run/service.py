"""Where a run is served: recorded in its directory, for ``aiperf status`` and ``aiperf resume``."""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records import RunStarted
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import NotRegularError, bytes_inside


class Service(Value):
    """What a primary listens at, and which primary that is."""

    host: str
    """The host as it was asked for: a name or an address."""
    port: int
    url: str
    primary_host: str
    primary_pid: int
    token_file: Path | None = None
    """The file of the tokens, where there is one; not what is in it."""
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def here(
        cls,
        host: str,
        port: int,
        url: str,
        *,
        token_file: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> Service:
        """Return that of this process."""
        return cls(
            host=host,
            port=port,
            url=url,
            token_file=token_file,
            certificate=certificate,
            key=key,
            primary_host=socket.gethostname(),
            primary_pid=os.getpid(),
        )

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
