"""Rankings: which runs have a place, in which order, and how that is shown."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.forgery.forger import copy_of, event_of
from tests.support.pages import check_page
from tests.support.rules import satisfying_all_rules
from tests.support.run_factory import Plan
from tests.support.run_factory import write_run as write_planned_run

from aiperf_hpc.analysis import ranking as rank_module
from aiperf_hpc.analysis.ranking import Ranking, rank_runs, render, tables_of
from aiperf_hpc.cli import main
from aiperf_hpc.integrity.signatures import PrivateKey, load_private_key, make_key
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_catalog import RunDetails
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.telemetry import EnergyStatus
from aiperf_hpc.rules.rule import Division, Violation

ENERGY = EnergyStatus(
    label="estimated", joules=1.0, watts=12_340.0, ops_per_watt=4.2e9, parts={}, missing=()
)
HOSTILE = "<script>alert(1)</script>"


def _reported(root: Path, nodes: int, key: PrivateKey | None = None) -> None:
    start = synthetic_run.START + 86_400.0 * nodes
    written = synthetic_run.write_run(root, nodes, distinct=1, start=start)
    write_report(RunView(written.paths), key=key)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two verified runs, one of them twice, and what is none."""
    root = tmp_path_factory.mktemp("rank")
    key = tmp_path_factory.mktemp("keys") / "key"
    make_key(key, "Example Centre")
    with satisfying_all_rules():
        for nodes in (1, 2):
            _reported(root / f"nodes{nodes}", nodes, load_private_key(key))
    shutil.copytree(root / "nodes2", root / "nodes2-again")
    renamed = copy_of(root / "nodes2", root / "renamed")
    renamed.set(lambda stated: stated.update(run_id="another"))
    event_of(renamed.primary, "run_started").update(run_id="another", pid=77)
    renamed.save()
    shutil.rmtree(renamed.paths.report)
    with satisfying_all_rules():
        write_report(RunView(renamed.paths), key=load_private_key(key))
    changed = shutil.copytree(root / "nodes1", root / "changed")
    report = json.loads((changed / "report/report.json").read_text("utf-8"))
    report["score"]["ops"] *= 2.0
    (changed / "report/report.json").write_text(json.dumps(report), "utf-8")
    small = Plan(replicas=1, trials=1, hpo_trials=0, failed=0, ended=False)
    write_planned_run(root / "lasts", small)
    (root / "notes").mkdir()
    (root / "broken").mkdir()
    (root / "broken/run.yaml").write_text("run_id: [", "utf-8")
    return root


@pytest.fixture(scope="module")
def ranking(folder: Path) -> Ranking:
    with satisfying_all_rules():
        return rank_runs(folder)


@pytest.fixture(scope="module")
def invalid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A verified run that does not keep the rules."""
    root = tmp_path_factory.mktemp("invalid") / "digits"
    _reported(root, 1)
    return root


def test_verified_runs_are_ranked_by_their_recounted_score(ranking: Ranking) -> None:
    assert [entry.run_id for entry in ranking.valid] == ["synthetic-2n", "synthetic-1n"]
    first, second = ranking.valid
    assert first.score.ops > second.score.ops
    assert first.score.regulated is not None
    assert first.signed_by.endswith(", key not checked")
    found = first.resources
    assert (found.accelerators, found.processors) == ({"Example A": 16}, ("Example CPU 9000",))
    assert (found.replicas, found.hosts, found.cores) == (2, 2, 16)


def test_a_closed_run_that_nobody_witnessed_is_ranked_as_open(ranking: Ranking) -> None:
    assert list(ranking.divisions) == [Division.OPEN]
    assert "nodes1 is not closed: evidence: self-reported: " in " ".join(
        note for table in tables_of(ranking) for note in table.notes
    )
    assert "<dt>not closed</dt><dd>evidence: self-reported: " in render(ranking)
    assert [entry.violations for entry in ranking.valid] == [(), ()]


def test_excluded_runs_do_not_exclude_others(
    ranking: Ranking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An excluded run does not exclude another one that has its id."""
    ids = {"first": ("a", 1), "second": ("b", 1), "third": ("b", 3)}

    def entry(name: str, *_: object) -> tuple[RunDetails, frozenset[tuple[float, int]]]:
        run_id, pid = ids[name]
        details = ranking.valid[0].model_copy(update={"name": name, "run_id": run_id})
        return details, frozenset({(0.0, pid)})

    monkeypatch.setattr(rank_module, "find_runs", lambda _: (dict.fromkeys(ids), ()))
    monkeypatch.setattr(rank_module, "_entry", entry)
    found = rank_runs(tmp_path)
    assert {each.name: each.reasons for each in found.excluded} == {
        "second": ("it is a copy of the run first",)
    }


def test_every_other_run_is_apart_with_its_reason(ranking: Ranking) -> None:
    assert {each.name: each.reasons for each in ranking.excluded if each.name != "broken"} == {
        "changed": (
            "not verified, report: the 'score' in report.json differs from the records and 1 more",
            "not verified, files: report/report.json has changed since the report was generated",
        ),
        "lasts": ("it has not ended",),
        "nodes2-again": ("it is a copy of the run nodes2",),
        "renamed": ("it is a copy of the run nodes2",),
    }
    (broken,) = (each for each in ranking.excluded if each.name == "broken")
    assert "run.yaml" in broken.reasons[0]
    assert ranking.foreign == ("notes",)


def test_a_run_that_violates_a_rule_has_no_rank(invalid: Path) -> None:
    found = rank_runs(invalid)
    assert found.valid == ()
    (entry,) = found.invalid
    assert "dataset: digits; ImageNet is required" in map(str, entry.violations)
    assert str(entry.violations[-1]).startswith("signature: the run is not signed")


def test_the_page_shows_all_runs_and_is_self_contained(ranking: Ranking) -> None:
    first, second = ranking.valid
    described = {"energy": ENERGY, "system": "Example-1", "submitter": HOSTILE}
    short = {"violations": (Violation(rule="duration", reason="0.4 h"),)}
    valid, invalid = first.model_copy(update=described), second.model_copy(update=short)
    page = render(ranking.model_copy(update={"valid": (valid,), "invalid": (invalid,)}))
    assert "Example-1, &lt;script&gt;" in page
    assert HOSTILE not in page
    check_page(page)
    for text in (
        "16 × Example A", "12.3 kW, estimated", "4.20 GOPS", "duration: 0.4 h",
        "it has not ended", "1 folder next to",
    ):  # fmt: skip
        assert text in page
    # One line a run, and the rest on demand.
    assert page.count("<details><summary>") == 2
    assert re.search(r'<dt>violations</dt><dd>duration: 0.4 h</dd>.*<td class="number">1</td></tr>',
                     page, re.DOTALL)  # fmt: skip
    assert "http" not in page.replace("http-equiv", "")
    assert render(ranking) == render(ranking)


def test_the_command_prints_tables_or_json_and_writes_the_page(
    invalid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "new" / "ranking.html"
    assert main(["rank", str(invalid), "--output", str(page)]) == 0
    text = capsys.readouterr().out
    assert "Unofficial runs: verified, without a rank" in text
    assert text.splitlines()[-1] == str(page)
    assert "<h2" in page.read_text("utf-8")
    assert main(["rank", str(invalid), "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)["invalid"]
    assert printed["name"] == "digits"
    assert printed["ops"] > 0.0
    assert printed["violations"][-1]["rule"] == "signature"


def test_errors_of_reading_and_writing_are_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rank", str(tmp_path / "missing")]) != 0
    assert "cannot list the runs in" in capsys.readouterr().err
    occupied = tmp_path / "file"
    occupied.write_text("", "utf-8")
    assert main(["rank", str(folder), "--output", str(occupied / "page.html")]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "--output" in line
