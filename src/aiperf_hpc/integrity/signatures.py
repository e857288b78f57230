"""Ed25519 keys and signatures in OpenSSH formats, compatible with ``ssh-keygen -Y``.

Keys have the format of ``ssh-keygen -t ed25519``. Signatures have the SSHSIG format: they contain
the public key and a namespace, so that a signature for one purpose is invalid for another.
[OpenSSH, PROTOCOL.sshsig, PROTOCOL.key; RFC 8032; RFC 4253, section 6.6]
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from aiperf_hpc.errors import AIPerfError, UsageError, raising, reason_of, restated
from aiperf_hpc.untrusted.files import open_regular, text_of

KIND = b"ssh-ed25519"
MAGIC = b"SSHSIG"
VERSION = 1
HASHES = ("sha512", "sha256")
"""Hash algorithms of OpenSSH for messages, its default first."""
COLUMNS = 70
"""Line length of OpenSSH's base64 output."""
BEGIN, END = "-----BEGIN SSH SIGNATURE-----\n", "-----END SSH SIGNATURE-----\n"
LONGEST = 4096
"""Maximum size of a signature in bytes; an Ed25519 signature has 300 to 400."""
MOST_KEYS = 1024 * 1024
"""Maximum size of a file of public keys in bytes, enough for ten thousand keys."""
LARGEST_KEY = 2**16
"""Maximum size of a private key file in bytes; an Ed25519 key has 400."""


class BadSignatureError(AIPerfError):
    """A signature is damaged or does not match the message or its purpose."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key that verifies signatures."""

    raw: bytes
    """The 32 bytes of the key."""
    name: str = ""
    """Name of the owner according to the key file; may be empty."""

    @property
    def blob(self) -> bytes:
        """The key in OpenSSH's binary encoding."""
        return _string(KIND) + _string(self.raw)

    @property
    def fingerprint(self) -> str:
        """Fingerprint in the format of ``ssh-keygen -l``."""
        digest = hashlib.sha256(self.blob).digest()
        return "SHA256:" + b64encode(digest).decode().rstrip("=")

    @property
    def line(self) -> str:
        """The key as a line of an OpenSSH file."""
        return f"{KIND.decode()} {b64encode(self.blob).decode()} {self.name}".rstrip() + "\n"

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint})" if self.name else self.fingerprint


class PrivateKey:
    """A private key that signs messages."""

    def __init__(self, key: Ed25519PrivateKey, name: str = "") -> None:
        self._key = key
        raw = key.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        self.public = PublicKey(raw, name)

    def sign(self, message: bytes, namespace: str) -> bytes:
        """Return the signature of a message in OpenSSH's file format."""
        made = _Signature(self.public.raw, namespace, HASHES[0], b"")
        signature = self._key.sign(made.signed(message))
        return _Signature(self.public.raw, namespace, HASHES[0], signature).armored()


def make_key(path: Path, name: str) -> PublicKey:
    """Create a key pair: a private key readable only by its owner, and the public key next to it.

    Args:
        path: path of the private key; the path of the public key has ``.pub`` appended.
        name: name of the owner.

    Raises:
        UsageError: one of the files already exists or cannot be written.
    """
    if not name.isprintable():
        raise UsageError("the name of a key must be one line of text")
    key = Ed25519PrivateKey.generate()
    public = PrivateKey(key, name).public
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    beside = public_path(path)
    try:
        if beside.exists():
            raise FileExistsError(None, "it already exists", str(beside))
        _write_new(path, private, 0o600)
        _write_new(beside, public.line.encode(), 0o644)
    except OSError as error:
        where = error.filename or path
        said = "it already exists" if isinstance(error, FileExistsError) else reason_of(error)
        raise UsageError(f"cannot create the key {where}: {said}; name another file") from None
    return public


def public_path(path: Path) -> Path:
    """Return the path of the public key that belongs to a private key file."""
    return path.with_name(f"{path.name}.pub")


def load_private_key(path: Path) -> PrivateKey:
    """Read a private key that only its owner may read.

    Raises:
        UsageError: the file cannot be read, is readable by others, or is not an Ed25519 key.
    """
    with restated(f"cannot read the key {path}"), open_regular(path) as file:
        mode = os.fstat(file.fileno()).st_mode
        content = file.read(LARGEST_KEY)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"others may read the private key {path}: `chmod 600 {path}`")
    try:
        key = serialization.load_ssh_private_key(content, password=None)
    except TypeError:
        raise UsageError(
            f"the key {path} has a passphrase: sign with `ssh-keygen -Y sign`, which asks for it"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            f"{path} is not an Ed25519 private key in OpenSSH's format; `aiperf keygen` creates one"
        )
    beside = public_path(path)
    found = PrivateKey(key)
    named = (each for each in _keys_in(beside) if each.raw == found.public.raw)
    return PrivateKey(key, next((each.name for each in named), "") if beside.is_file() else "")


def read_trusted(files: Iterable[Path]) -> tuple[PublicKey, ...]:
    """Return the keys in public key files, allowed-signers files, or folders of ``*.pub`` files.

    Raises:
        UsageError: a file cannot be read or has no Ed25519 key.
    """
    return tuple(key for file in files for key in _trusted_in(file))


def _trusted_in(path: Path) -> list[PublicKey]:
    found = sorted(path.glob("*.pub")) if path.is_dir() else [path]
    keys = [key for file in found for key in _keys_in(file)]
    if not keys:
        raise UsageError(f"{path} has no Ed25519 public key; `aiperf keygen` creates a pair")
    return keys


def _keys_in(path: Path) -> Iterator[PublicKey]:
    with restated(f"cannot read the key {path}"):
        lines = text_of(path, MOST_KEYS).splitlines()
    for number, line in enumerate(lines, 1):
        words = line.split()
        if KIND.decode() in words and not words[0].startswith("#"):
            with restated(f"{path}, line {number}", caught=ValueError):
                key = _key_of(words)
            yield key


def _key_of(words: list[str]) -> PublicKey:
    """Return the key of a line: ``[who] ssh-ed25519 BASE64 [comment]``. Raises ValueError."""
    place = words.index(KIND.decode())
    if place > 1:
        raise ValueError("options of allowed signers are not supported; remove them")
    blob = b64decode(words[place + 1] if len(words) > place + 1 else "", validate=True)
    head = _string(KIND) + struct.pack(">I", 32)
    if not blob.startswith(head) or len(blob) != len(head) + 32:
        raise ValueError("this is not an Ed25519 public key")
    name = words[0] if place else " ".join(words[place + 2 :])
    return PublicKey(blob[len(head) :], name)


def check_signature(message: bytes, signature: bytes, namespace: str) -> PublicKey:
    """Return the key that signed a message. The signature does not identify its owner.

    Args:
        message: signed message.
        signature: content of a signature file, exactly as OpenSSH writes it.
        namespace: purpose of the signature.

    Raises:
        BadSignatureError: the signature is damaged, or for another message or namespace.
    """
    found = _Signature.parse(signature)
    if found.namespace != namespace:
        raise BadSignatureError(f"it was made for '{found.namespace}', not for '{namespace}'")
    try:
        key = Ed25519PublicKey.from_public_bytes(found.key)
        key.verify(found.signature, found.signed(message))
    except InvalidSignature:
        raise BadSignatureError("it does not match this content") from None
    except ValueError:
        raise BadSignatureError("its key is none") from None
    return PublicKey(found.key)


@dataclass(frozen=True, slots=True)
class _Signature:
    """Fields of a signature."""

    key: bytes
    namespace: str
    hashed_by: str
    signature: bytes

    def signed(self, message: bytes) -> bytes:
        """Return the data that is signed for a message."""
        digest = hashlib.new(self.hashed_by, message).digest()
        parts = (self.namespace.encode(), b"", self.hashed_by.encode(), digest)
        return MAGIC + b"".join(map(_string, parts))

    def armored(self) -> bytes:
        """Return the signature in OpenSSH's text format."""
        parts = (
            PublicKey(self.key).blob,
            self.namespace.encode(),
            b"",
            self.hashed_by.encode(),
            _string(KIND) + _string(self.signature),
        )
        blob = MAGIC + struct.pack(">I", VERSION) + b"".join(map(_string, parts))
        text = b64encode(blob).decode()
        lines = (text[at : at + COLUMNS] for at in range(0, len(text), COLUMNS))
        return "".join([BEGIN, *(f"{line}\n" for line in lines), END]).encode()

    @classmethod
    def parse(cls, text: bytes) -> _Signature:
        """Parse a signature. Raises BadSignatureError unless it is exactly as OpenSSH writes it."""
        with raising(BadSignatureError("it is not an Ed25519 signature"), ValueError, struct.error):
            found = cls._parsed(text)
        if found.armored() != text:
            raise BadSignatureError("it has been changed")
        return found

    @classmethod
    def _parsed(cls, text: bytes) -> _Signature:
        if len(text) > LONGEST:
            raise ValueError("too long")
        lines = text.decode("ascii").splitlines()
        blob = b64decode("".join(lines[1:-1]), validate=True)
        head = len(MAGIC) + 4
        key, namespace, _, hashed_by, signature = _strings(blob[head:])
        kind, raw = _strings(key)
        signed_by, value = _strings(signature)
        if (kind, signed_by) != (KIND, KIND) or hashed_by.decode() not in HASHES:
            raise ValueError("of another kind")
        return cls(raw, namespace.decode(), hashed_by.decode(), value)


def _string(content: bytes) -> bytes:
    """Return bytes prefixed with their length. [RFC 4251, section 5]"""
    return struct.pack(">I", len(content)) + content


def _strings(content: bytes) -> Iterator[bytes]:
    """Yield the strings in a concatenation of ``_string`` results. Raises struct.error."""
    at = 0
    while at < len(content):
        (length,) = struct.unpack_from(">I", content, at)
        yield content[at + 4 : at + 4 + length]
        at += 4 + length


def _write_new(path: Path, content: bytes, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
