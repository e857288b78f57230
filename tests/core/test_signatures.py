"""Keys and signatures, and that OpenSSH reads ours and we read OpenSSH's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aiperf_hpc.errors import UsageError
from aiperf_hpc.integrity.signatures import (
    BadSignatureError,
    PublicKey,
    check_signature,
    load_private_key,
    make_key,
    public_path,
    read_trusted,
)

SPACE, MESSAGE = "run@example.org", b"what is signed"
openssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not here")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "key"
    make_key(path, "Someone, Somewhere")
    return path


def signed(key: Path, namespace: str = SPACE) -> bytes:
    return load_private_key(key).sign(MESSAGE, namespace)


def ssh_keygen(*words: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ssh-keygen", *words], input=stdin, capture_output=True, check=False)


def test_a_signature_says_which_key_made_it(key: Path) -> None:
    (trusted,) = read_trusted([public_path(key)])
    assert trusted.name == "Someone, Somewhere"
    assert check_signature(MESSAGE, signed(key), SPACE).raw == trusted.raw
    assert str(trusted) == f"Someone, Somewhere ({trusted.fingerprint})"
    assert load_private_key(key).public == trusted


def test_only_the_owner_may_read_a_private_key(key: Path, tmp_path: Path) -> None:
    assert key.stat().st_mode & 0o777 == 0o600
    copy = Path(shutil.copy(key, tmp_path))
    copy.chmod(0o640)
    with pytest.raises(UsageError, match=r"others may read the private key .*: `chmod 600 "):
        load_private_key(copy)


@pytest.mark.parametrize("name", ["key", "key.pub"])
def test_no_key_is_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name}: it already exists"):
        make_key(tmp_path / "key", "")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_every_byte_of_a_signature_counts(key: Path) -> None:
    """Base64 has bits that decode to nothing, and spaces that decoders skip."""
    whole = signed(key)
    for place in range(len(whole)):
        for other in {whole[place] ^ 1, ord("\n"), ord("B")} - {whole[place]}:
            with pytest.raises(BadSignatureError):
                check_signature(MESSAGE, whole[:place] + bytes([other]) + whole[place + 1 :], SPACE)
    for text in (b"", whole[:-1], whole + b"\n", whole.replace(b"\n", b"\r\n"), whole * 20):
        with pytest.raises(BadSignatureError):
            check_signature(MESSAGE, text, SPACE)


def test_a_signature_is_of_one_content_for_one_purpose(key: Path) -> None:
    with pytest.raises(BadSignatureError, match="it does not match this content"):
        check_signature(MESSAGE + b".", signed(key), SPACE)
    with pytest.raises(BadSignatureError, match="made for 'email@example.org', not for 'run@"):
        check_signature(MESSAGE, signed(key, "email@example.org"), SPACE)


def test_trusted_keys_are_in_files_of_three_kinds(key: Path, tmp_path: Path) -> None:
    line = public_path(key).read_text()
    kind, blob, *_ = line.split()
    (tmp_path / "one.pub").write_text(line)
    (tmp_path / "signers").write_text(f"# who\n\nme@example.org {kind} {blob}\nyou ssh-rsa AAAA\n")
    (tmp_path / "no.txt").write_text("not looked at")
    found = read_trusted([tmp_path, tmp_path / "signers"])
    assert [each.name for each in found] == ["Someone, Somewhere", "me@example.org"]
    assert len({each.raw for each in found}) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no Ed25519 public key"),
        ("ssh-rsa AAAA me", "has no Ed25519 public key"),
        ("ssh-ed25519", "line 1: this is not an Ed25519 public key"),
        ("ssh-ed25519 AAAA", "line 1: this is not an Ed25519 public key"),
        (
            "me valid-before=1 ssh-ed25519 AAAA",
            "line 1: options of allowed signers are not supported",
        ),
        ("\udcff", "cannot read the key"),
    ],
)
def test_what_is_no_trusted_key_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(UsageError, match=said):
        read_trusted([path])


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN OPENSSH PRIVATE KEY-----\n"])
def test_what_is_no_private_key_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not an Ed25519 private key"):
        load_private_key(path)
    with pytest.raises(UsageError, match="cannot read the key"):
        load_private_key(tmp_path / "none")


@openssh
def test_openssh_checks_our_signatures(key: Path, tmp_path: Path) -> None:
    _, kind, blob = "", *public_path(key).read_text().split()[:2]
    signers, signature = tmp_path / "signers", tmp_path / "signature"
    signers.write_text(f"me@example.org {kind} {blob}\n")
    signature.write_bytes(signed(key))
    words = ("-Y", "verify", "-f", signers, "-I", "me@example.org", "-n", SPACE, "-s", signature)
    done = ssh_keygen(*words, stdin=MESSAGE)
    assert done.returncode == 0, done.stderr
    assert load_private_key(key).public.fingerprint in done.stdout.decode()
    assert ssh_keygen(*words, stdin=MESSAGE + b".").returncode != 0


@openssh
@pytest.mark.parametrize("hashed_by", ["sha512", "sha256"])
def test_we_check_openssh_s_keys_and_signatures(tmp_path: Path, hashed_by: str) -> None:
    key, content = tmp_path / "key", tmp_path / "content"
    ssh_keygen("-q", "-t", "ed25519", "-N", "", "-C", "made by ssh", "-f", key)
    content.write_bytes(MESSAGE)
    words = ("-Y", "sign", "-O", f"hashalg={hashed_by}", "-n", SPACE, "-f", key, content)
    assert ssh_keygen(*words).returncode == 0
    found: PublicKey = check_signature(MESSAGE, (tmp_path / "content.sig").read_bytes(), SPACE)
    assert found.raw == load_private_key(key).public.raw
    assert load_private_key(key).public.name == "made by ssh"


@openssh
@pytest.mark.parametrize(
    ("words", "said"),
    [(["-t", "ed25519", "-N", "secret"], "has a passphrase: sign with `ssh-keygen -Y sign`"),
     (["-t", "ecdsa", "-N", ""], "is not an Ed25519 private key")],
)  # fmt: skip
def test_other_keys_of_openssh_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    ssh_keygen("-q", *words, "-f", tmp_path / "key")
    with pytest.raises(UsageError, match=said):
        load_private_key(tmp_path / "key")


@pytest.mark.parametrize("kind", ["fifo", "terabyte", "zeros"])
def test_a_key_is_a_regular_file_of_bounded_size(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "keys.pub"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "terabyte":
            path.touch()
            os.truncate(path, 10**12)
        case _:
            path.symlink_to("/dev/zero")
    said = "not a regular file|larger than 1,048,576 bytes"
    for named in (path, tmp_path):
        with pytest.raises(UsageError, match=f"cannot read the key {path}: ({said})$"):
            read_trusted([named])


def test_a_fifo_is_no_private_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(UsageError, match="cannot read the key .*: not a regular file"):
        load_private_key(tmp_path / "key")
