"""A timestamp authority: openssl's, behind HTTP."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tests.support.http_server import answering

CONFIG = """
[ req ]
distinguished_name = name
prompt = no
[ name ]
CN = {name}
[ root ]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[ stamping ]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
[ tsa ]
default_tsa = here
[ here ]
serial = {folder}/serial
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha512
accuracy = secs:1
ess_cert_id_alg = sha256
"""


def openssl(folder: Path, *words: str, given: bytes = b"") -> bytes:
    return subprocess.run(
        ["openssl", *words], cwd=folder, input=given, capture_output=True, check=True
    ).stdout


def make_authority(folder: Path, name: str = "root") -> Path:
    """Make an authority's keys; return the certificate of its root."""
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG.format(name=name, folder=folder)
    (folder / "root.conf").write_text(config, "utf-8")
    (folder / "tsa.conf").write_text(config.replace(f"CN = {name}", f"CN = {name} TSA"), "utf-8")
    (folder / "serial").write_text("01\n", "ascii")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9000")
    openssl(folder, "req", "-x509", *key, "-keyout", "root.key", "-out", "root.pem",
            "-config", "root.conf", "-extensions", "root")  # fmt: skip
    openssl(folder, "req", *key[:-2], "-keyout", "tsa.key", "-out", "tsa.csr",
            "-config", "tsa.conf")  # fmt: skip
    openssl(folder, "x509", "-req", "-in", "tsa.csr", "-CA", "root.pem", "-CAkey", "root.key",
            "-CAcreateserial", "-days", "8000", "-out", "tsa.pem", "-extfile", "tsa.conf",
            "-extensions", "stamping")  # fmt: skip
    return folder / "root.pem"


def reply(folder: Path, query: bytes) -> bytes:
    """Return an authority's answer."""
    (folder / "query").write_bytes(query)
    words = ("ts", "-reply", "-config", "tsa.conf", "-queryfile", "query")
    return openssl(folder, *words)


def stamping(folder: Path) -> AbstractContextManager[str]:
    """Give the URL of an authority whose keys are in a folder."""

    def answer(headers: Mapping[str, str], query: bytes) -> bytes:
        assert headers["Content-Type"] == "application/timestamp-query"
        return reply(folder, query)

    return answering(answer, headers={"Content-Type": "application/timestamp-reply"})
