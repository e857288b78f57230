"""Where a service listens, and what protects it: all of it checked before anything starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from aiperf_hpc.errors import UsageError, reason_of
from aiperf_hpc.service.address import LOOPBACK, is_loopback
from aiperf_hpc.service.tokens import HOW_TO, Tokens


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address, the file of the tokens, and the files of TLS."""

    host: str = LOOPBACK
    port: int = 0
    """0 for any free one."""
    token_file: Path | None = None
    certificate: Path | None = None
    """The certificate, with the chain to the one that clients trust, in PEM."""
    key: Path | None = None
    """Its private key in PEM."""

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

    @property
    def open_reading(self) -> bool:
        """Whether who can reach it may read: only this machine can."""
        return is_loopback(self.host)

    @property
    def unencrypted(self) -> bool:
        """Whether tokens travel over a network as they are."""
        return self.certificate is None and not self.open_reading

    def tokens(self) -> Tokens | None:
        """Return the tokens; None where none are asked for.

        Raises:
            UsageError: they cannot be had, or are missing.
        """
        if self.token_file is not None:
            return Tokens.read(self.token_file)
        if not self.open_reading:
            raise UsageError(
                f"others can reach {self.host}: name who may read with --token-file FILE; {HOW_TO}"
            )
        return None

    def check_tls(self) -> None:
        """Raise UsageError unless the certificate and its key can be used, where there are any."""
        if self.certificate is None and self.key is None:
            return
        if self.certificate is None or self.key is None:
            raise UsageError("--tls-certificate and --tls-key go together; name both")
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (OSError, ValueError) as error:  # An SSLError is an OSError.
            raise UsageError(
                f"cannot use the certificate {self.certificate} with the key {self.key}: "
                f"{reason_of(error) if isinstance(error, OSError) else error}"
            ) from None


def _no_password() -> str:
    raise ValueError("the key has a password; `openssl pkey` writes one without")
