"""The rule ``files``: what a manifest of a run that has ended says of every file of the run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.support.manifests import change_manifest
from tests.support.rules import append, check_rule

from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import RunPaths

OTHERS = {
    "primary/claims/0001.json": b'{"v": 1}',
    "primary/digest.jsonl": b'{"v": 1}\n',
    "primary/output.log": b"said\n",
    "replicas/r0/output.log": b"printed\n",
    "replicas/r0/0.0/study.log": b"[]\n",
    "replicas/r0/trained/r0-t1.safetensors": bytes(range(256)) * 5000,
    "replicas/r0/notes \u00e9.txt": b"",
}
"""Files of a run that no report is made from."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    paths = synthetic_run.write_run(tmp_path_factory.mktemp("files") / "run", 2, distinct=1).paths
    for name, content in OTHERS.items():
        path = paths.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_report(RunView(paths))
    return paths


@pytest.fixture
def run(finished: RunPaths, tmp_path: Path) -> RunPaths:
    """A copy that a test may change."""
    return RunPaths(shutil.copytree(finished.root, tmp_path / "run"))


def rule_files(paths: RunPaths) -> RuleResult:
    return check_rule("files", paths)


def test_every_file_is_named(finished: RunPaths) -> None:
    found = rule_files(finished)
    assert (found.failures, found.notes) == ((), ())
    there = sum(path.is_file() for path in finished.root.rglob("*"))
    assert found.checked == there - 1  # All but the manifest.


@pytest.mark.parametrize("name", ["primary/output.log", "report/report.schema.json"])
def test_a_file_that_is_gone_is_found(run: RunPaths, name: str) -> None:
    (run.root / name).unlink()
    assert rule_files(run).failures == (f"{name}: not a file of the run",)


def test_an_empty_folder_is_noted_unless_a_run_may_leave_it(run: RunPaths) -> None:
    for name in ("replicas/r9", "replicas/r0/7.0", "replicas/r0/kept", "primary/claims", "a/b"):
        (run.root / name).mkdir(parents=True, exist_ok=True)
    found = rule_files(run)
    assert found.failures == ()
    assert found.notes == ("a/b/ is an empty folder that the run did not create; remove it",)


@pytest.mark.parametrize("name", ["report/x/y", ".hidden"])
def test_a_file_that_is_added_is_found(run: RunPaths, name: str) -> None:
    path = run.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    said = f"manifest.json does not name {name}: it did not exist when the run ended"
    assert rule_files(run).failures == (said,)


def _link(path: Path) -> None:
    path.symlink_to("run.yaml")


def _nameless(path: Path) -> None:
    Path(os.fsdecode(os.fsencode(path) + b"\xff")).touch()


@pytest.mark.parametrize("make", [_link, os.mkfifo, _nameless])
def test_what_is_no_regular_file_is_found_and_not_opened(
    run: RunPaths, make: Callable[[Path], None]
) -> None:
    make(run.root / "other")
    (said,) = rule_files(run).failures
    assert said.startswith("'other")
    assert said.endswith("is not a regular file; a run contains only regular files")


def test_a_manifest_is_what_was_written_to_the_byte(run: RunPaths) -> None:
    content = run.report_manifest.read_bytes()
    for other in (
        content + b" ",
        content.replace(b"\n", b" ", 1),
        content.replace(b'"f', b'"\\u0066'),
    ):
        run.report_manifest.write_bytes(other)
        assert rule_files(run).failures == ("manifest.json has been changed",)
    run.report_manifest.write_bytes(content)
    change_manifest(run, lambda files: (*files, files[0]))
    assert rule_files(run).failures == ("manifest.json names a file twice",)


@pytest.mark.parametrize("name", ["/etc/passwd", "a\0b", "replicas/../run.yaml"])
def test_no_file_is_opened_but_those_of_the_run(run: RunPaths, name: str) -> None:
    change_manifest(run, lambda files: (*files, files[0].model_copy(update={"path": name})))
    assert rule_files(run).failures == (f"{name}: not a file of the run",)


def test_what_comes_after_the_end_is_noted_and_a_new_report_names_it(run: RunPaths) -> None:
    view = RunView.read(run)
    assert view.history.end_utc is not None
    late = records.ReplicaEnded(reason="it did not know")
    append(run.replica_journal("r0"), view.history.end_utc + 1.0, late)
    with run.replica_log("r0").open("a") as log:
        log.write("slurmstepd: it is over\n")
    found = rule_files(run)
    assert found.failures == ()
    assert [note.partition(" has ")[0] for note in found.notes] == [
        "replicas/r0/0.0/journal.jsonl", "replicas/r0/output.log"
    ]  # fmt: skip
    write_report(RunView(run))
    assert rule_files(run).notes == ()


def test_a_new_report_names_a_new_file_and_none_over_changed_records(run: RunPaths) -> None:
    (run.root / "notes.txt").write_text("ours")
    write_report(RunView(run))
    assert rule_files(run).failures == ()
    journal = run.replica_journal("r1")
    journal.write_bytes(journal.read_bytes().replace(b'"correct":', b'"correct": ', 1))
    with pytest.raises(RunDirectoryError, match="files have changed since: replicas/r1/0.0"):
        write_report(RunView(run))
