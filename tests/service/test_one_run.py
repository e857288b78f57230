"""One run that is served alone, at the addresses that it has always had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient
from tests.service.serving import serving
from tests.support.run_factory import Plan, write_manifest, write_run
from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.ops_counter.score import ScoreStatus
from aiperf_hpc.results.report.document import make_report
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_view import RunStatus, RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.answers.trials import TrialRow
from aiperf_hpc.service.problem import Problem
from aiperf_hpc.service.runs import OneRun
from aiperf_hpc.service.served_run import Readers


@contextmanager
def _client(paths: RunPaths, fresh: float = 1.0) -> Iterator[TestClient]:
    with _client_of(CachedView(lambda: RunView(paths), fresh=fresh)) as client:
        yield client


@contextmanager
def _client_of(live: CachedView) -> Iterator[TestClient]:
    with serving(OneRun("run", live, Readers(PATIENCE_SECONDS, PATIENCE_SECONDS))) as client:
        yield client


# The answers.


def test_health_is_that_of_a_service_that_can_read_its_run(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    with _client(paths, fresh=0.0) as client:
        assert client.get("/healthz").status_code == 200, "the service itself is there"
        refused = client.get("/readyz")
        _is_one_clear_message(refused, "not a run directory")
        assert refused.headers["retry-after"] == "1"
        write_manifest(paths, Plan())
        answer = client.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"


def test_status_is_what_the_view_says(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    with _client(paths) as client:
        answer = client.get("/api/v1/status")
    assert answer.status_code == 200
    expected = RunView.read(paths).status()
    got = RunStatus.model_validate(answer.json())
    unsteady = {"replicas": ()}  # seconds since a record
    assert got.model_copy(update=unsteady) == expected.model_copy(update=unsteady)
    assert [r.id for r in got.replicas] == ["r0", "r1"]


def test_score_is_what_the_view_says(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    with _client(paths) as client:
        answer = client.get("/api/v1/score").json()
    view = RunView.read(paths)
    assert answer["run_id"] == view.manifest.run_id
    assert answer["final"] is True
    assert answer["interval_hours"] == 0.02
    assert [ScoreStatus.model_validate(p) for p in answer["points"]] == view.series.official()
    assert answer["points"][-1] == answer["score"]


def test_trials_by_state_and_replica(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    everything = RunView.read(paths).trials()
    with _client(paths) as client:

        def ids(**query: str | int) -> list[str]:
            answer = client.get("/api/v1/trials", params=query)
            assert answer.status_code == 200
            return [TrialRow.model_validate(t).id for t in answer.json()["trials"]]

        assert ids() == [t.id for t in everything]
        assert sorted(ids(state="failed")) == ["r0-t006", "r1-t006"]
        assert ids(state="stopped early", replica="r1") == ["r1-t004"]
        assert ids(replica="r7") == []
        assert ids(limit=3, offset=2) == [t.id for t in everything[2:5]]
        assert ids(offset=10**30) == []
        first = {t.id for t in everything if t.round == 1}
        assert set(ids(round=1)) == first != {t.id for t in everything}
        page = client.get("/api/v1/trials", params={"limit": 3, "offset": 2}).json()
    assert (page["total"], page["offset"], page["limit"]) == (14, 2, 3)


@pytest.mark.parametrize(
    "query", ["state=unheard", "limit=0", "limit=10001", "limit=x", "offset=-1"]
)
def test_a_question_that_makes_no_sense_is_refused(tmp_path: Path, query: str) -> None:
    with _client(write_run(tmp_path, Plan(trials=0, hpo_trials=0))) as client:
        answer = client.get(f"/api/v1/trials?{query}")
    assert answer.status_code == 422


# What goes wrong.


def _is_one_clear_message(answer: httpx2.Response, *words: str) -> None:
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    message = Problem.model_validate(answer.json()).detail
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert "Traceback" not in message


EVERYTHING = ("/readyz", "/api/v1/status", "/api/v1/score", "/api/v1/trials")


def _move(path: Path, away: Path) -> Callable[[], object]:
    path.rename(away)
    return lambda: away.rename(path)


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> Callable[[], object]:
    content = path.read_bytes()
    path.write_bytes(change(content))
    return lambda: path.write_bytes(content)


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (
            lambda p: _move(p.root, p.root.with_name("elsewhere")),
            "run or its run.yaml is missing; restore it",
        ),
        (
            lambda p: _move(p.manifest, p.root.with_name("elsewhere")),
            "run or its run.yaml is missing; restore it",
        ),
        (lambda p: _rewrite(p.manifest, lambda _: b"{"), "run.yaml has changed"),
        (
            lambda p: _move(p.primary_journal, p.root.with_name("elsewhere")),
            "primary/journal.jsonl is missing; restore it",
        ),
    ],
)
def test_a_run_that_is_no_longer_there_is_503_until_it_is_back(
    tmp_path: Path, lose: Callable[[RunPaths], Callable[[], object]], words: str
) -> None:
    paths = write_run(tmp_path / "run", Plan(replicas=1, trials=1, hpo_trials=0))
    # A view that is there already, as `aiperf serve` and `aiperf start --serve` have.
    with _client_of(CachedView(RunView(paths), fresh=0.0)) as client:
        before = client.get("/api/v1/status").json()
        put_back = lose(paths)
        for path in EVERYTHING:
            _is_one_clear_message(client.get(path), words)
        put_back()
        assert {client.get(path).status_code for path in EVERYTHING} == {200}
        assert client.get("/api/v1/status").json() == before


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (lambda p: _move(p.replica("r0"), p.root.with_name("elsewhere")), "is missing; restore"),
        (
            lambda p: _rewrite(p.replica_journal("r0"), lambda content: content[:1000]),
            "has become shorter: 1000 bytes;",
        ),
    ],
)
def test_a_lost_journal_of_a_replica_is_a_problem_until_it_is_back(
    tmp_path: Path, lose: Callable[[RunPaths], Callable[[], object]], words: str
) -> None:
    paths = write_run(tmp_path / "run", Plan(replicas=1, trials=1, hpo_trials=0))
    with _client_of(CachedView(RunView(paths), fresh=0.0)) as client:
        before = client.get("/api/v1/status").json()
        put_back = lose(paths)
        assert {client.get(path).status_code for path in EVERYTHING} == {200}
        after = client.get("/api/v1/status").json()
        said = f"{paths.replica_journal('r0')}, line 1: the journal {words}"
        assert [p for p in after["problems"] if p.startswith(said)]
        put_back()
        assert client.get("/api/v1/status").json() == before


def test_a_run_that_may_no_longer_be_read_is_503(unprivileged: Path) -> None:
    paths = write_run(unprivileged / "run", Plan(replicas=1, trials=1, hpo_trials=0))
    with _client_of(CachedView(RunView(paths), fresh=0.0)) as client:
        assert client.get("/readyz").status_code == 200
        for path, words in (
            (paths.manifest, "run.yaml: Permission denied"),
            (paths.replica_journal("r0"), "r0/0.0/journal.jsonl: Permission denied"),
            (paths.root, "run.yaml: Permission denied"),
        ):
            mode = path.stat().st_mode
            path.chmod(0)
            for address in EVERYTHING:
                _is_one_clear_message(client.get(address), words)
            path.chmod(mode)
            assert client.get("/readyz").status_code == 200


def test_a_live_score_goes_by_the_records_and_needs_no_graph(tmp_path: Path) -> None:
    """Thousands of graphs are not read for it: the report and verify count them."""
    paths = write_run(tmp_path, Plan(replicas=1, trials=2, hpo_trials=0, failed=0))
    counted = make_report(RunView.read(paths)).score.ops
    for graph in paths.candidates.glob("*.json"):
        graph.unlink()
    with _client(paths) as client:
        assert client.get("/api/v1/score").json()["score"]["ops"] == counted


def test_a_file_system_that_fails_is_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(_: RunView) -> None:
        raise OSError(116, "Stale file handle", "/shared/run")

    paths = write_run(tmp_path, Plan(trials=0, hpo_trials=0))
    monkeypatch.setattr(RunView, "refresh", stale)
    with _client(paths) as client:
        _is_one_clear_message(client.get("/api/v1/status"), "Stale file handle", "/shared/run")
