"""One machine on one sheet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.pages import check_page
from tests.support.present import present
from tests.support.result_logs import unpacked
from tests.support.run_factory import Plan, write_run
from tests.support.training_logs import entry, training

from aiperf_hpc.analysis.analysis import analyze
from aiperf_hpc.analysis.card import Card, Figure, lines, make_card
from aiperf_hpc.analysis.options import Options, target
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.analysis.training_log import Interval, ReadResult
from aiperf_hpc.cli import main
from aiperf_hpc.formatting import percent, si
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        write_run(folder / str(seed), Plan(trials=3, hpo_trials=0, run_id=f"run-{seed}", seed=seed))
    return folder


def card_of(folder: Path, options: Options | None = None) -> Card:
    chosen = options or Options()
    return make_card(analyze(read_sources([folder], chosen), chosen))


def figure(card: Card, benchmark: str, name: str) -> Figure:
    (found,) = (each for each in card.benchmarks if each.benchmark == benchmark)
    (one,) = (each for each in found.figures if each.name == name)
    return one


def test_the_card_shows_the_best_run(runs: Path) -> None:
    finals = [RunView.read(RunPaths(runs / name)).final() for name in ("1", "2")]
    card = card_of(runs)
    best = max(range(2), key=lambda place: finals[place].ops)
    ops = figure(card, "AIPerf", "operations per second")
    assert ops.value == si(finals[best].ops, "OPS")
    assert (ops.detail, ops.workload) == (f"run-{best + 1}", "automl on digits")
    errors = [final.error for final in finals if final.error is not None]
    assert figure(card, "AIPerf", "error").value == percent(min(errors))
    assert card.runs == ("run-1", "run-2")
    assert [each.benchmark for each in card.benchmarks] == [
        "AIPerf", "MLPerf HPC", "HPC AI500", "DAWNBench", "MLBench",
    ]  # fmt: skip


def test_missing_figures_have_a_reason(runs: Path) -> None:
    card = card_of(runs)
    missing = [one for each in card.benchmarks for one in each.figures if not one.value]
    assert missing
    assert all(one.detail for one in missing)
    roofline = figure(card, "AIPerf", "fraction of the attainable rate")
    assert "aiperf peaks --out" in roofline.detail
    text = list(lines(card))
    assert any("not measured: " in line for line in text)
    official = " ".join(" ".join(text).partition("Not an official AIPerf result: ")[2].split())
    rules = list(dict.fromkeys(each.rule for each in card.violations))
    assert len(card.violations) > len(rules)
    where = "`aiperf report RUN` lists the reasons"
    assert official == f"{len(rules)} rules violated ({', '.join(rules)}); {where}"
    assert figure(card, "MLPerf HPC", "training, per rank").value == ""


def test_a_search_has_a_time_to_accuracy_and_no_time_to_solution(runs: Path) -> None:
    """Its run lasts as long as it was asked to, whatever it reaches meanwhile."""
    card = card_of(runs)
    solution = figure(card, "MLPerf HPC", "time to solution")
    assert solution.value == ""
    assert "ends when its time is over" in solution.detail
    assert figure(card, "DAWNBench", "time to accuracy").value


def test_runs_of_other_workloads_have_figures_of_their_own(runs: Path) -> None:
    """One run taken for another workload's, of more operations than the other and less quality."""
    analysis = analyze(read_sources([runs]), Options())
    first, second = analysis.entries
    (log,) = second.logs
    more = log.model_copy(update={"operations": 10 * present(log.operations)})
    other = second.model_copy(update={"benchmark": "volumes", "logs": (more,)})
    card = make_card(analyze(ReadResult((first, other)), Options()))
    both = [("automl on digits", "run-1"), ("volumes", "run-2")]
    assert of_workloads(card, "AIPerf", "operations per second") == both
    assert of_workloads(card, "HPC AI500", "Valid FLOPS") == both
    one = of_workloads(card, "MLPerf HPC", "time to solution")
    assert one == [("", "a search ends when its time is over; see the time to accuracy")]
    assert "volumes run-2" in " ".join(" ".join(lines(card)).split())


def test_public_logs_of_the_same_benchmark_are_not_on_the_card(runs: Path) -> None:
    ends = (Interval(started=0.0, ended=600.0 + seconds) for seconds in range(3))
    logs = [training([(9.0, 0.95)]).model_copy(update={"run": run}) for run in ends]
    public = entry("elsewhere", *logs, benchmark="automl on digits")
    card = make_card(analyze(ReadResult((public, *read_sources([runs]).entries)), Options()))
    assert figure(card, "HPC AI500", "variation over runs (CoV)").value == ""
    assert "elsewhere" not in "\n".join(lines(card))


def test_runs_with_a_price_have_a_cost_and_a_price_index(runs: Path) -> None:
    entries = []
    for each in read_sources([runs]).entries:
        system = each.system.model_copy(update={"cost_per_hour": 3.6})
        entries.append(each.model_copy(update={"system": system}))
    options = Options(targets=(target("0.3"),))
    card = make_card(analyze(ReadResult(tuple(entries)), options))
    assert figure(card, "DAWNBench", "cost to accuracy").value.endswith(" USD")
    assert figure(card, "MLBench", "price index").detail == "median of 2 runs"


def of_workloads(card: Card, benchmark: str, name: str) -> list[tuple[str, str]]:
    (found,) = (each for each in card.benchmarks if each.benchmark == benchmark)
    return [(one.workload, one.detail.split(",")[0]) for one in found.figures if one.name == name]


def test_a_card_is_of_runs_and_of_one_machine(runs: Path, tmp_path: Path) -> None:
    assert main(["card", str(unpacked(tmp_path, "0.7", "corigpu_n64_tf1.15.0"))]) == 2
    assert main(["card", str(tmp_path / "nothing")]) == 2


def test_the_command_writes_a_page(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["card", str(runs), "--report", str(tmp_path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "card.json").read_text("utf-8"))
    page = (tmp_path / "card.html").read_text("utf-8")
    assert all(f">{each['benchmark']}</h2>" in page for each in printed["benchmarks"])
    check_page(page)
