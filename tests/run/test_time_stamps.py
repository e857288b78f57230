"""Time stamps by an authority that is openssl's."""

from __future__ import annotations

import random
import shutil
import time
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
from cryptography.x509 import Certificate
from tests.support.clock import Clock
from tests.support.heads import HeadedRun
from tests.support.rules import check_rule
from tests.support.run_factory import Plan
from tests.support.run_writer import run_ended
from tests.support.tsa import make_authority, openssl, stamping

from aiperf_hpc.errors import UsageError
from aiperf_hpc.run.journal_digest import JournalDigest
from aiperf_hpc.run.records import TimeStamped
from aiperf_hpc.run.time_stamps import NoStampError, check_stamp, is_trusted, message_of, read_roots
from aiperf_hpc.verification.witness_client import StampingAuthority

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not there")

HEAD = JournalDigest(bytes=7, sha256="0" * 64)
RUN = Plan().run_id


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tsa")
    make_authority(folder)
    return folder


@pytest.fixture(scope="module")
def roots(authority: Path) -> tuple[Certificate, ...]:
    return read_roots([authority / "root.pem"])


@pytest.fixture(scope="module")
def stamped(authority: Path) -> TimeStamped:
    with stamping(authority) as url:
        (event,) = StampingAuthority(url, RUN).show(HEAD, 30.0)
    assert isinstance(event, TimeStamped)
    return event


def test_openssl_checks_what_it_stamped_of_us(
    authority: Path, stamped: TimeStamped, tmp_path: Path
) -> None:
    (tmp_path / "head").write_bytes(message_of(RUN, HEAD))
    (tmp_path / "response").write_bytes(b64decode(stamped.response))
    said = openssl(
        tmp_path, "ts", "-verify", "-data", "head", "-in", "response",
        "-CAfile", str(authority / "root.pem"),
    )  # fmt: skip
    assert b"OK" in said


def test_a_stamp_tells_when_and_below_which_root(
    stamped: TimeStamped, roots: tuple[Certificate, ...], tmp_path: Path
) -> None:
    stamp = check_stamp(RUN, stamped)
    assert stamp.early <= time.time()
    assert stamp.late - stamp.early == pytest.approx(3.0)  # A second, and one in each direction.
    assert is_trusted(RUN, stamped, roots)
    others = read_roots([make_authority(tmp_path / "other", "other")])
    assert not is_trusted(RUN, stamped, others)


def test_a_stamp_is_of_one_head_of_one_run(stamped: TimeStamped) -> None:
    other = stamped.model_copy(update={"digest": JournalDigest(bytes=8, sha256="0" * 64)})
    for run, event in (("other", stamped), (RUN, other)):
        with pytest.raises(NoStampError, match="another message"):
            check_stamp(run, event)


def test_a_stamp_of_which_a_byte_is_changed_is_refused_or_not_trusted(
    stamped: TimeStamped, roots: tuple[Certificate, ...]
) -> None:
    rng, content = random.Random(0), b64decode(stamped.response)  # noqa: S311 -- places
    for _ in range(300):
        at = rng.randrange(len(content))
        changed = bytearray(content)
        changed[at] ^= 1 << rng.randrange(8)
        event = stamped.model_copy(update={"response": b64encode(changed).decode()})
        try:
            stamp = check_stamp(RUN, event)
        except NoStampError:
            continue
        # Outside of what is signed lie a few flags, such as of unused certificates.
        assert not is_trusted(RUN, event, roots) or stamp == check_stamp(RUN, stamped), at


@pytest.mark.parametrize("text", ["", "!", "MAA=", "MAMCAQI=", "MAUwAwIBAA=="])
def test_what_is_no_stamp_is_refused(text: str) -> None:
    with pytest.raises(NoStampError):
        check_stamp(RUN, TimeStamped(url="u", digest=HEAD, response=text))


def test_a_file_of_no_certificates_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no", "utf-8")
    for name in ("a", "b"):
        with pytest.raises(UsageError):
            read_roots([tmp_path / name])


def test_a_run_that_an_authority_saw(
    authority: Path, roots: tuple[Certificate, ...], tmp_path: Path
) -> None:
    """In the time of this machine, which openssl stamps; moved by an hour, it is not the run's."""
    for moved, said in ((0.0, None), (3600.0, "s ahead of the witness's")):
        run = HeadedRun(tmp_path / str(moved), Clock(time.time() + moved))
        with stamping(authority) as url:
            one = StampingAuthority(url, RUN)
            run.turn(0.0)
            run.primary.append_all(one.show(run.primary.digest, 30.0))
            run.primary.append_all([run.heads(), run_ended()])
            run.primary.append_all(one.show(run.primary.digest, 30.0))
        failures = check_rule("witness", run.paths, authorities=roots).failures
        found = [each for each in failures if said is None or said in each]
        assert len(found) == (said is not None), found
