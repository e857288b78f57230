"""The page of an analysis: what is on it, that it stands alone, and that it stays small."""

from __future__ import annotations

import json
import math
from html import unescape
from pathlib import Path

import pytest
from tests.support.pages import check_page
from tests.support.result_logs import unpacked
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.analysis.analysis import SECTIONS, Analysis, analyze
from aiperf_hpc.analysis.document import as_json
from aiperf_hpc.analysis.metrics import METRICS
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.overview import entries_table
from aiperf_hpc.analysis.page.plots import PLOTS
from aiperf_hpc.analysis.page.render import render
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.cli import main

ROUND_ENTRIES = 30
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Public logs of three rounds and two runs of ours, in one folder."""
    folder = tmp_path_factory.mktemp("sources")
    unpacked(folder, "0.7", "corigpu_n64_tf1.15.0")
    unpacked(folder, "0.7", "abci_512xV100_tensorflow_closed")
    unpacked(folder, "2.0", "helmholtzai_horeka_n64_deepcam_weak")
    unpacked(folder, "3.0", "clemson_18xR750_openfold_strong")
    write_run(folder / "run-1", Plan(replicas=1, trials=3, hpo_trials=0, run_id="one", seed=1))
    write_run(folder / "run-2", Plan(replicas=1, trials=3, hpo_trials=0, run_id="two", seed=2))
    return folder


@pytest.fixture(scope="module")
def analysis(sources: Path) -> Analysis:
    return analyze(read_sources([sources]), Options())


@pytest.fixture(scope="module")
def page(analysis: Analysis) -> str:
    return render(analysis)


def test_every_section_has_its_tables(analysis: Analysis) -> None:
    names = {section.name for section in SECTIONS}
    assert set(PLOTS) <= names
    assert set(analysis.sections) | set(analysis.missing) == names
    for section in SECTIONS:
        if section.name in analysis.sections:
            assert any(table.rows for table in section.tables(analysis.sections[section.name]))


def test_the_page_has_the_published_figures(page: str) -> None:
    for figure in ("364.73 ± 32.77", "34.34 ± 4.03", "53.88 ± 4.85", "1.0231"):
        assert figure in page
    for title in ("Parts of the time to solution", "Score over time", "Weak scaling"):
        assert title in page


def test_notes_without_a_table_have_its_title(page: str, analysis: Analysis) -> None:
    (repeatability,) = (s for s in SECTIONS if s.name == "repeatability")
    notes = repeatability.tables(analysis.sections["repeatability"])
    titles = [each.title for each in notes if not each.rows and each.remarks]
    assert titles
    assert all(f'<p class="caption">{title}</p>' in page for title in titles)


def test_definitions_are_plain_text_and_columns_are_not_empty(sources: Path, page: str) -> None:
    assert "``" not in page
    ours = analyze(read_sources([sources / "run-1", sources / "run-2"]), Options())
    table = entries_table(ours)
    assert "staging" not in table.columns
    assert [table.columns[place] for place in table.words][-2:] == ["model", "framework"]


def test_the_page_is_whole_and_needs_nothing_else(page: str) -> None:
    check_page(page)


def test_every_metric_is_defined_with_its_source(page: str) -> None:
    for metric in METRICS:
        assert metric.source.split(",")[0] in page
        assert metric.definition.replace("`", "") in unescape(page)


def test_names_from_logs_are_escaped(analysis: Analysis) -> None:
    entry = analysis.entries[0]
    hostile = entry.model_copy(update={"name": "<script>alert(1)</script>"})
    metrics = analysis.metrics[0].model_copy(update={"entry": hostile.name})
    changed = {
        "entries": (hostile, *analysis.entries[1:]), "metrics": (metrics, *analysis.metrics[1:]),
    }  # fmt: skip
    text = render(analysis.model_copy(update=changed))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_the_page_of_a_whole_round_stays_small(sources: Path) -> None:
    """Thirty entries, the logs of two repeated: each with its own name and numbers of its own."""
    reading = read_sources([sources])
    logs = [entry for entry in reading.entries if entry.format == "mllog"]
    entries = tuple(
        logs[number % len(logs)].model_copy(update={"name": f"Lab system_{number} benchmark"})
        for number in range(ROUND_ENTRIES)
    )
    text = render(analyze(reading._replace(entries=entries), Options()))
    assert len(text.encode()) < 5 * MEGABYTE


def test_the_command_writes_page_and_document(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "made/here"
    assert main(["analyze", str(sources), "--report", str(target)]) == 0
    assert str(target / "analysis.html") in capsys.readouterr().out
    document = json.loads((target / "analysis.json").read_text("utf-8"))
    assert len(document["entries"]) == 6
    assert not {"epochs", "evaluations"} & document["entries"][0]["logs"][0].keys()
    assert (target / "analysis.html").read_text("utf-8").startswith("<!DOCTYPE html>")


def test_a_page_that_cannot_be_written_is_refused(
    sources: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["analyze", str(sources), "--report", str(tmp_path / "file/x")]) == 2
    said = capsys.readouterr().err
    assert "cannot write the analysis" in said
    assert len(said.splitlines()) == 1


def test_any_text_and_number_of_a_log_becomes_json() -> None:
    values = {"name": "\udcff\ud800×", "rates": [1.5, math.nan, {"most": -math.inf}], "none": None}
    text = as_json(values)
    assert text.isascii()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    read = json.loads(text, parse_constant=refuse)
    assert read == {**values, "rates": [1.5, "NaN", {"most": "-Infinity"}]}
