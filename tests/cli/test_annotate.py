"""Tags and notes of runs: commands, lists, pages, and that no evidence includes them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from benchmarks import synthetic_run
from tests.service.serving import serving_folder
from tests.support.command import aiperf, printed
from tests.support.refusals import refused_line
from tests.support.rules import check_rule
from tests.support.run_factory import DATASET, Plan, write_run

from aiperf_hpc.config import load_config
from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.primary.control.prepare import (
    make_manifest,
    make_run_directory,
    remove_run_directory,
)
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.annotations import Annotations, read_annotations, write_annotations
from aiperf_hpc.run.paths import RunPaths

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e, \"'\n=cmd"
SMALL = Plan(replicas=1, trials=1, hpo_trials=0, failed=0, epochs=1)


def test_tags_and_a_note_are_added_shown_and_removed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", SMALL).root
    write_run(tmp_path / "b", SMALL)
    assert not printed("list", tmp_path).splitlines()[0].endswith("tags")
    assert "a: no tags and no note" in printed("annotate", run)
    words = ("--tag", "v100", "--tag", "fw:2.1", "--tag", "v100", "--note", "before\n the update")
    lines = printed("annotate", run, *words).splitlines()
    assert lines[1:] == ["  tags  v100, fw:2.1", "  note  before the update"]
    assert "\n  tags  v100, fw:2.1\n  note  before the update\n" in printed("status", run)
    status = json.loads(printed("status", run, "--json"))
    assert (status["tags"], status["note"]) == (["v100", "fw:2.1"], "before\n the update")
    assert "v100 fw:2.1" in printed("list", tmp_path)
    for tags, names in ((("v100",), ["a"]), (("v100", "x"), []), ((), ["a", "b"])):
        options = [word for tag in tags for word in ("--tag", tag)]
        rows = json.loads(printed("list", tmp_path, "--json", *options))["runs"]
        assert sorted(row["name"] for row in rows) == names
    assert f"no run in {tmp_path} with the tag x" in printed("list", tmp_path, "--tag", "x")
    printed("annotate", run, "--untag", "v100", "--note", "")
    assert read_annotations(RunPaths(run)) == Annotations(tags=("fw:2.1",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tag", "two words"), "--tag two words: should be at most 64 letters, digits and "),
        (("--tag", "-x"), "--tag -x: should be at most 64 letters"),
        (("--untag", "absent"), "--untag absent: the run does not have this tag"),
        (("--note", "\udcff"), "--note: should be a valid string"),
        (("--note", "x" * 2001), "--note: string should have at most 2000 characters"),
    ],
)
def test_invalid_ones_are_refused(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SMALL)
    assert message in refused_line("annotate", run.root, *words)
    assert not run.annotations.exists()
    refused_line("annotate", tmp_path, "--tag", "x")
    assert not RunPaths(tmp_path).annotations.exists()


def test_a_hostile_note_stays_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", SMALL)
    write_annotations(run, Annotations(note=HOSTILE))
    for command in ("annotate", "status"):
        assert r"<img src=x onerror=alert(1)>\x1b[31m\u202e" in printed(command, run.root)
    (row,) = csv.DictReader(io.StringIO(printed("list", tmp_path, "--csv")))
    assert row["note"] == HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")


@pytest.mark.parametrize("content", ["{", '{"tags": ["a b"]}', '{"other": 1}'])
def test_a_damaged_file_is_reported(content: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", SMALL)
    run.annotations.write_text(content)
    with pytest.raises(RunDirectoryError, match=r"annotations\.json is damaged; removing it"):
        read_annotations(run)
    done = aiperf("list", tmp_path, "--tag", "v100")
    assert done.returncode == 0
    assert "a: " in done.stderr
    assert "annotations.json is damaged; removing it" in done.stderr
    status = printed("status", run.root, "--json")
    assert "annotations.json is damaged" in json.loads(status)["annotations_error"]
    assert "problem: " in printed("status", run.root)
    run.annotations.unlink()
    run.annotations.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirectoryError, match="is damaged"):
        read_annotations(run)


def test_no_report_or_manifest_includes_them(tmp_path: Path) -> None:
    run = synthetic_run.write_run(tmp_path / "run", 2, distinct=1).paths
    write_annotations(run, Annotations(tags=("first",), note="secret remark"))
    write_report(RunView(run))
    before = {path.name: path.read_bytes() for path in run.report.iterdir()}
    assert not any(b"secret remark" in content for content in before.values())
    run.annotations.unlink()
    assert check_rule("files", run).failures == ()
    write_annotations(run, Annotations(tags=("second",)))
    assert check_rule("files", run).failures == ()
    write_report(RunView(run))
    assert {path.name: path.read_bytes() for path in run.report.iterdir()} == before
    (run.root / ".annotations.json.node.1.2").write_text("{")  # Of a killed `aiperf annotate`.
    assert check_rule("files", run).failures == ()
    others = ("replicas/annotations.json", ".annotations.json.d/1.2", ".annotations.json.zip")
    for name in others:
        (run.root / name).parent.mkdir(exist_ok=True)
        (run.root / name).write_text("{}")
    failures = " ".join(check_rule("files", run).failures)
    assert [name for name in others if name not in failures] == []


def test_the_service_lists_them_as_they_are_now(tmp_path: Path) -> None:
    ended, other = write_run(tmp_path / "ended", SMALL), write_run(tmp_path / "other", SMALL)
    write_report(RunView(ended))
    with serving_folder(tmp_path) as client:
        for number in range(2):
            expected = {}
            for run in (ended, other):
                note = f"{run.root.name} {number}"
                write_annotations(run, Annotations(tags=("x",), note=note))
                expected[run.root.name] = (["x"], note)
            rows = client.get("/api/v1/runs").json()["runs"]
            assert {row["name"]: (row["tags"], row["note"]) for row in rows} == expected
        ended.annotations.write_text("{")
        rows = {row["name"]: row for row in client.get("/api/v1/runs").json()["runs"]}
        assert "is damaged; removing it" in rows["ended"]["annotations_error"]
        assert rows["other"]["note"] == "other 1"


def test_a_run_starts_with_its_tags(tmp_path: Path) -> None:
    start = ("start", "--nodes", 1, "--hours", 1, "--run-dir", tmp_path / "bad")
    refused = refused_line(*start, "--launcher", "local", "--dry-run", "--tag", "two words")
    assert "--tag two words: should be at most 64 letters" in refused
    manifest = make_manifest(load_config("quickstart", ()), 1, 1.0, "local")
    tags = Annotations(tags=("v100",))
    run = make_run_directory(manifest, tmp_path / "run", DATASET, tags)
    assert read_annotations(run) == tags
    remove_run_directory(run)
    assert not run.root.exists()
