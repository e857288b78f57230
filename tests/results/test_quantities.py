"""The table of quantities: a headline figure is one row, and every view shows it."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.support.command import aiperf, printed
from tests.support.refusals import refused_line
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.analysis.analysis import analyze
from aiperf_hpc.analysis.card import lines as card_lines
from aiperf_hpc.analysis.card import make_card
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.ranking import Ranking, tables_of
from aiperf_hpc.analysis.ranking import render as ranking_page
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.results.report.writer import summary_lines, write_report
from aiperf_hpc.results.terminal.status_line import status_line
from aiperf_hpc.results.views import quantities
from aiperf_hpc.results.views.quantities import QUANTITIES, Format, Quantity, View, quantities_in
from aiperf_hpc.results.views.run_catalog import RunDetails, RunSummary
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.runs import runs_in

PLAN = Plan(replicas=2, trials=2, hpo_trials=0, failed=0, epochs=1)
ROW = Quantity(
    "ops_per_replica",
    "Throughput",
    "OPS",
    lambda run: run.score.ops / run.resources.replicas,
    Format.SI,
    "Operations a second of each replica.",
    "higher",
)


@pytest.fixture(scope="module", autouse=True)
def _added() -> Iterator[None]:
    """Have one row more than the table."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantities, "QUANTITIES", (*QUANTITIES, ROW))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """A run with a report, among others."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "other", PLAN)
    paths = write_run(root / "run", PLAN)
    write_report(RunView(paths))
    return paths


@pytest.fixture
def text(run: RunPaths) -> str:
    """The value for people, as no other figure of the run is written."""
    found = ROW.text_of(RunSummary.of(RunView.read(run)))
    assert found not in [row.text_of(RunSummary.of(RunView.read(run))) for row in QUANTITIES]
    return found


def test_progress_status_and_the_end_of_a_run(run: RunPaths, text: str) -> None:
    view = RunView.read(run)
    assert f"Throughput {text}" in status_line(view.status())
    (line,) = (each for each in summary_lines(view) if each.startswith("Throughput "))
    assert line.startswith(f"Throughput       {text}  (")


@pytest.mark.parametrize("command", ["list", "compare"])
def test_tables_on_a_terminal(
    command: str, run: RunPaths, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    folder = run.root.parent
    what = [folder] if command == "list" else [folder / "run", folder / "other"]
    table = printed(command, *what)
    assert "Throughput" in table
    assert table.count(text) == 2
    document = json.loads(printed(command, *what, "--json"))
    for each in document["runs" if command == "list" else "sides"]:
        assert each["figures"][ROW.name] is not None


def test_the_list_as_csv(run: RunPaths) -> None:
    shutil.copytree(run.root, run.root.parent / "größe, 2")
    (run.root.parent / "broken").mkdir()
    (run.root.parent / "broken" / "run.yaml").write_text("nodes: [")
    done = aiperf("list", run.root.parent, "--csv")
    assert done.returncode == 0
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {Path(row["run"]).name for row in rows} == {"run", "other", "größe, 2", "broken"}
    assert "broken cannot be read: " in done.stderr
    own = next(row for row in rows if Path(row["run"]).name == "run")
    assert float(own[ROW.name]) == ROW.read(RunView.read(run).status())
    assert "mutually exclusive" in refused_line("list", "--csv", "--json")


def test_the_files_of_a_report(run: RunPaths, text: str) -> None:
    assert f"<dt>Throughput</dt><dd>{text.split()[0]}<span" in run.report_html.read_text("utf-8")
    assert json.loads(run.report_summary.read_bytes())["figures"][ROW.name] is not None
    result = run.result_text.read_text("utf-8").splitlines()
    value = ROW.read(RunView.read(run).status())
    assert value is not None
    heads, values = (
        next(line.split() for line in result if line.startswith(start))
        for start in ("T/V", "AIPERF ")
    )
    assert dict(zip(heads, values, strict=True))["Throughput"] == f"{value:.6e}"
    assert f" {ROW.name}={value!r} " in next(line for line in result if "AIPERF RESULT" in line)
    assert f'"aiperf_{ROW.name}", "value": {value!r}' in run.result_log.read_text("utf-8")


def test_the_service_and_its_page(run: RunPaths) -> None:
    runs = runs_in(run.root)
    with TestClient(create_app(runs), base_url="http://127.0.0.1") as client, runs.served():
        described = client.get("/api/v1/quantities").json()["quantities"]
        (row,) = (each for each in described if each["name"] == ROW.name)
        assert (row["page"], row["unit"], row["format"]) == ("Throughput", "OPS", "si")
        value = ROW.read(RunView.read(run).status())
        assert client.get("/api/v1/status").json()["figures"][ROW.name] == value
        (listed,) = client.get("/api/v1/runs").json()["runs"]
        assert listed["figures"][ROW.name] == value
        metrics = client.get("/metrics").text
    assert f"# HELP aiperf_run_{ROW.name} {ROW.help}" in metrics
    assert f'aiperf_run_{ROW.name}{{run="run"}} ' in metrics


def test_the_ranking(run: RunPaths, text: str) -> None:
    entry = RunDetails.of(RunView.read(run))
    ranking = Ranking(valid=(), invalid=(entry,), excluded=(), foreign=())
    (_, table) = tables_of(ranking)
    assert table.rows[0][table.columns.index("Throughput")] == text
    assert f'<td class="number">{text}</td>' in ranking_page(ranking)
    document = json.loads(ranking.model_dump_json())
    assert document["invalid"][0][ROW.name] == ROW.read(entry)


def test_the_card(run: RunPaths, text: str) -> None:
    card = make_card(analyze(read_sources([run.root]), Options()))
    assert any("Throughput" in line and text in line for line in card_lines(card, 200))


@pytest.mark.parametrize("view", View)
def test_every_view_shows_the_score_and_names_are_unique(view: View) -> None:
    shown = quantities_in(view)
    assert next(iter(shown.values())).better or view in (View.LIST, View.RESULT_LINE)
    assert "ops" in [row.name for row in shown.values()]
    assert len({row.name for row in QUANTITIES}) == len(QUANTITIES)


def test_a_summary_of_an_earlier_version_has_todays_figures(run: RunPaths) -> None:
    written = json.loads(run.report_summary.read_bytes())
    del written["figures"], written["energy"]
    run.report_summary.write_text(json.dumps(written))
    found = RunSummary.read(run, "mine")
    assert found is not None
    assert found.name == "mine"
    assert found.figures == quantities.figures_of(found)
