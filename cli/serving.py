"""Common parameters of commands that serve a run, or all runs in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from aiperf_hpc.cli.parameters import path_option, value

if TYPE_CHECKING:
    from aiperf_hpc.service.endpoint import Endpoint

Certificate = Annotated[
    Path | None, path_option("--tls-certificate", "FILE", "Certificate for HTTPS, in PEM format.")
]
CertificateKey = Annotated[
    Path | None, path_option("--tls-key", "FILE", "Private key of the certificate, in PEM format.")
]


@dataclass(frozen=True)
class ServerSecurity:
    """Options of a server's authentication and encryption."""

    token_file: Annotated[Path | None, value("FILE", Path)] = None
    """File with one token per line. Required for write access, and for read access from other
    hosts."""
    tls_certificate: Certificate = None
    tls_key: CertificateKey = None


def endpoint_of(text: str, security: ServerSecurity) -> Endpoint:
    """Return the listening address and its protection. Raises UsageError."""
    from aiperf_hpc.service.endpoint import Endpoint, parse_address

    files = (security.token_file, security.tls_certificate, security.tls_key)
    absolute = (None if each is None else each.absolute() for each in files)
    return Endpoint(*parse_address(text), *absolute)


def free_endpoint(text: str, security: ServerSecurity) -> Endpoint:
    """Return an available listening address, checked before anything is created or started."""
    from aiperf_hpc.service.server import check_free

    endpoint = endpoint_of(text, security)
    check_free(endpoint)
    return endpoint


def arguments_of(security: ServerSecurity) -> list[str]:
    """Return the options as command-line arguments of another process."""
    options = {
        "--token-file": security.token_file,
        "--tls-certificate": security.tls_certificate,
        "--tls-key": security.tls_key,
    }
    return [f"{name}={path.absolute()}" for name, path in options.items() if path is not None]
