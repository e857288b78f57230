"""Showing heads to a real witness, to none, and to servers that are none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.http_server import answering
from tests.support.waiting import until
from tests.support.witness import listening

from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.journal_digest import JournalDigest
from aiperf_hpc.run.records import AnyEvent, PrimaryHeartbeat, Witnessed, WitnessState
from aiperf_hpc.verification import witness_client as module
from aiperf_hpc.verification.witness_client import (
    LONGEST_REASON,
    AwayError,
    StatingWitness,
    Witness,
    submitting,
    token_in,
)

TOKEN = "t" * 32
HEAD = JournalDigest(bytes=7, sha256="0" * 64)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalWriter]:
    with JournalWriter(tmp_path / "journal.jsonl") as writer:
        yield writer


def recorded(journal: JournalWriter) -> list[AnyEvent]:
    return [record.event for record in JournalReader(journal.path).read()]


def statements(journal: JournalWriter) -> list[Witnessed]:
    return [event for event in recorded(journal) if isinstance(event, Witnessed)]


def test_a_witness_is_shown_each_head_and_the_last_one_behind_the_run(
    tmp_path: Path, journal: JournalWriter
) -> None:
    with listening(tmp_path / "w") as (url, log):
        witness = StatingWitness(url, "run", TOKEN)
        with submitting([witness], journal) as show:
            for count in (1, 2):
                journal.append(PrimaryHeartbeat())
                show()
                until(partial(lambda n: len(statements(journal)) == n, count))
            journal.append(PrimaryHeartbeat())
            last = journal.digest
        found = statements(journal)
        assert [each.statement.run_number for each in found] == [1, 2, 3]
        assert found[-1].statement.head == last
        assert {each.key for each in found} == {log.key.public.fingerprint}


def test_a_witness_that_is_away_is_said_once_and_asked_again(
    tmp_path: Path, journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.01,))
    said: list[str] = []
    with listening(tmp_path / "w") as (url, _):
        pass
    with submitting([StatingWitness(url, "run", TOKEN)], journal, said.append) as show:
        show()
        until(lambda: said)
        with listening(tmp_path / "w", port=int(url.rpartition(":")[2])):
            until(lambda: statements(journal))
            until(lambda: len(said) == 2)
            show()
            until(lambda: len(statements(journal)) == 2)
            monkeypatch.setattr(module, "END_SECONDS", 0.2)
    states = [event for event in recorded(journal) if isinstance(event, WitnessState)]
    assert [(each.url, each.reachable) for each in states[:2]] == [(url, False), (url, True)]
    assert "refused" in states[0].detail
    assert said[:2] == [
        f"{url} does not respond as a witness: {states[0].detail}",
        f"{url} responds as a witness again",
    ]


class Slow(Witness):
    """A witness whose answer takes a while, and is a record of its own."""

    def show(self, head: JournalDigest, seconds: float) -> list[AnyEvent]:
        del head, seconds
        time.sleep(0.1)
        # A run that is interrupted must not wait for one that hangs.
        assert threading.current_thread().daemon
        return [PrimaryHeartbeat()]


class Away(Slow):
    """A witness that answers the fourth time."""

    asked = 0

    def show(self, head: JournalDigest, seconds: float) -> list[AnyEvent]:
        self.asked += 1
        if self.asked < 4:
            raise AwayError("not yet")
        return [PrimaryHeartbeat()]


def test_a_witness_that_stays_away_is_asked_at_the_last_pause_again_and_again(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES", (0.01,))
    witness = Away("http://away", "run", 60.0)
    with submitting([witness], journal) as show:
        show()
        until(lambda: PrimaryHeartbeat() in recorded(journal))
        show()  # Before it is due.
        time.sleep(0.05)
        assert witness.asked == 4


def test_the_end_of_a_run_waits_for_the_last_answer(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_SECONDS", 0.5)
    with submitting([Slow("http://slow", "run")], journal):
        pass
    assert recorded(journal) == [PrimaryHeartbeat()]


def test_an_answer_that_was_lost_comes_with_the_next(tmp_path: Path) -> None:
    with listening(tmp_path / "w") as (url, log):
        witness = StatingWitness(url, "run", TOKEN)
        witness.show(HEAD, 5.0)
        log.add("run", TOKEN, HEAD, 0)
        assert len(witness.show(HEAD, 5.0)) == 2


def test_a_primary_that_resumes_goes_on_with_the_statements(tmp_path: Path) -> None:
    with listening(tmp_path / "w") as (url, _):
        (first,) = StatingWitness(url, "run", TOKEN).show(HEAD, 5.0)
        assert isinstance(first, Witnessed)
        (second,) = StatingWitness(url, "run", TOKEN, first.statement).show(HEAD, 5.0)
        assert isinstance(second, Witnessed)
        assert second.statement.run_previous == first.statement.sha256


def test_another_runs_token_is_refused_with_the_witness_message(tmp_path: Path) -> None:
    with listening(tmp_path / "w") as (url, _):
        StatingWitness(url, "run", TOKEN).show(HEAD, 5.0)
        refused = "403: a run of this name was submitted with another token"
        with pytest.raises(AwayError, match=refused):
            StatingWitness(url, "run", "u" * 32).show(HEAD, 5.0)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 200, "no statements"),
        (b"[" * 100_000, 200, "no statements"),
        (b'{"statements":[]}', 200, "states nothing"),
        (b"x" * 1_000_000, 200, "no statements"),
        (b"x" * 1_000_001, 200, "longer than"),
        (b'{"detail":"\x1b[2Jbad\n' + b"d" * 9_000 + b'"}', 500, "500: "),
        (b"[]", 500, "500: "),
        (b"{}", 302, "302"),
    ],
)
def test_a_server_that_is_no_witness_is_said_in_one_line(
    body: bytes, status: int, said: str
) -> None:
    elsewhere = {"Location": "http://127.0.0.1:1/"}
    with answering(lambda *_: body, status, elsewhere) as url, pytest.raises(AwayError) as raised:
        StatingWitness(url, "run", TOKEN).show(HEAD, 5.0)
    text = str(raised.value)
    assert said in text
    assert text.isprintable()
    assert len(text) <= LONGEST_REASON


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line.replace(b'"bytes":7', b'"bytes":8'), "does not match this content"),
        (
            lambda line: line.replace(b'"run":"run"', b'"run":"other"'),
            "does not match this content",
        ),
        (lambda line: line, "does not follow"),
    ],
)
def test_a_statement_that_is_not_the_runs_next_is_not_taken(
    tmp_path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    with listening(tmp_path / "w") as (url, log):
        log.add("run", TOKEN, HEAD, 0)
        (second,) = log.add("run", TOKEN, HEAD, 1)
    del url
    body = b'{"statements":[' + change(second.line) + b"]}"
    with answering(lambda *_: body) as url, pytest.raises(AwayError, match=said):
        StatingWitness(url, "run", TOKEN).show(HEAD, 5.0)


def test_the_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert token_in(path) == token_in(path)
    assert len(token_in(path)) == 64
    assert path.stat().st_mode & 0o777 == 0o600
