"""The run as a log of MLPerf, read by MLPerf's own tools and by ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser
from mlperf_logging.package_checker.package_checker import check_training_result_files
from tests.support.run_factory import Plan, write_manifest, write_run

from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.objective import QUALITY_METRICS
from aiperf_hpc.results.report.document import make_report
from aiperf_hpc.results.report.mllog import MARK, mllog_text, quality_key
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.system.description import Accelerator, NodeDescription
from aiperf_hpc.system.summary import MachineSummary, NodeGroup

USAGE, RULESET = "hpc", "3.0.0"
COMMON = Path(mlp_compliance.__file__).parent / f"{USAGE}_{RULESET}" / "common.yaml"


def _values(path: Path) -> dict[str, object]:
    lines, errors = mlp_parser.parse_file(str(path), ruleset=RULESET)
    assert errors == []
    return {line.key: line.value["value"] for line in lines}


def test_mlperfs_parser_reads_every_line_and_the_run_is_in_it(default_run: RunPaths) -> None:
    lines, errors = mlp_parser.parse_file(str(default_run.result_log), ruleset=RULESET)
    text = default_run.result_log.read_text("utf-8")
    assert (errors, len(lines)) == ([], len(text.splitlines()))
    final, view = RunView.read(default_run).final(), RunView.read(default_run)
    at = {line.key: line.timestamp for line in lines}
    assert at["run_stop"] - at["run_start"] == pytest.approx(1000 * final.elapsed_seconds, abs=1.0)
    values = _values(default_run.result_log)
    assert values["aiperf_ops"] == final.ops
    assert values["aiperf_regulated_ops"] == final.regulated
    assert values["submission_benchmark"] == "aiperf_automl"
    accuracies = [line.value["value"] for line in lines if line.key == "eval_accuracy"]
    assert accuracies == sorted(set(accuracies))
    assert final.error == pytest.approx(1 - accuracies[-1])
    epochs = [line.value["metadata"]["epoch_num"] for line in lines if line.key == "eval_accuracy"]
    evaluations = sum(len(trial.evaluations) for trial in view.history.trials.values())
    assert epochs[0] == 1
    assert epochs[-1] <= evaluations


@pytest.mark.parametrize(("there", "nodes"), [(8, 2), (0, 16)])
def test_nodes_that_are_shares_of_accelerators_are_not_counted_twice(
    default_run: RunPaths, there: int, nodes: int
) -> None:
    """Two hosts of a run of 16 nodes; without accelerators a node is what the run says."""
    node = NodeDescription(
        accelerators=tuple(Accelerator(vendor="V", model="A", index=n) for n in range(there))
    )
    machine = MachineSummary(nodes=(NodeGroup(count=2, hosts=("a", "b"), node=node),))
    view = RunView.read(default_run)
    document = make_report(view).model_copy(update={"nodes_requested": 16, "system": machine})
    told = [line for line in mllog_text(view, document).splitlines() if "_node" in line]
    values = dict(_of_line(line) for line in told)
    assert values == {"number_of_nodes": nodes, "accelerators_per_node": there}


def test_every_metric_has_one_of_mlperfs_keys() -> None:
    keys = {name: quality_key(metric) for name, metric in QUALITY_METRICS.items()}
    assert keys.pop("mean_absolute_error") == "eval_error"
    assert set(keys.values()) == {"eval_accuracy"}


def _of_line(line: str) -> tuple[str, object]:
    entry = json.loads(line.removeprefix(MARK))
    return entry["key"], entry["value"]


def test_the_checkers_common_rules_hold_but_for_what_cannot_apply(default_run: RunPaths) -> None:
    lines, _ = mlp_parser.parse_file(str(default_run.result_log), ruleset=RULESET)
    checker = mlp_compliance.make_checker(USAGE, RULESET, quiet=True, werror=False)
    checker.configured_checks(lines, str(COMMON))
    mlp_compliance.enqueued_configs.clear()  # Those of its own benchmarks.
    said = [*checker.overwritable, *checker.not_overwritable]
    assert len(said) == 1
    assert "cache_clear" in said[0]


def test_the_package_checker_takes_the_folder_and_skips_the_benchmark(
    default_run: RunPaths, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "results" / "example" / "strong" / "aiperf_automl"
    place.mkdir(parents=True)
    shutil.copy(default_run.result_log, place)
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "example.json").write_text('{"division": "open"}', "utf-8")
    check_training_result_files(str(tmp_path), USAGE, RULESET, True, False, False, False, False)
    assert "Skipping benchmark: aiperf_automl" in caplog.text


def test_our_own_analysis_reads_it_as_one_training(default_run: RunPaths, tmp_path: Path) -> None:
    shutil.copy(default_run.result_log, tmp_path / "result_0.txt")
    (entry,) = read_sources([tmp_path], Options()).entries
    (training,) = entry.logs
    final = RunView.read(default_run).final()
    assert training.run is not None
    assert training.run.seconds == pytest.approx(final.elapsed_seconds, abs=0.002)
    assert max(e.quality or 0.0 for e in training.evaluations) == pytest.approx(
        1 - (final.error or 0.0)
    )
    assert entry.benchmark == "aiperf_automl"


def test_a_run_that_lasts_has_no_end_and_one_that_has_not_begun_no_start(tmp_path: Path) -> None:
    small = Plan(replicas=1, trials=1, hpo_trials=0, failed=0, ended=False)
    lasts = write_run(tmp_path / "lasts", small)
    write_report(RunView(lasts))
    assert "run_stop" not in _values(lasts.result_log)
    assert "run_start" in _values(lasts.result_log)
    write_manifest(waits := RunPaths(tmp_path / "waits"), small)
    write_report(RunView(waits))
    assert "run_start" not in _values(waits.result_log)
