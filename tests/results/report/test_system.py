"""Machines as lines, as a box of the report and as MLPerf's file; the file that people write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc
from tests.support.clock import Clock
from tests.support.nodes import node, rank
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.cli import main, start
from aiperf_hpc.cli.parameters import NodeRange
from aiperf_hpc.config import load_config
from aiperf_hpc.errors import UsageError
from aiperf_hpc.results.report.document import Report, make_report
from aiperf_hpc.results.report.html import render
from aiperf_hpc.results.report.system import read_site
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.system.site import SiteDescription


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("submiter: X", "submiter: is not known"),
        ("status: onprem", "status: should be ''"),
        ("division: fast", "division: should be"),
        ("cooling: [air]", "cooling: should be text"),
        ("cooling: {a: b", "not YAML"),
        ("- a list", "not a mapping"),
        ("", "not a mapping"),
        ("cooling: a\ncooling: b", "stands twice"),
        ("hw_notes: " + "x" * 5000, "at most 4000"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "system.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_site(path)
    said = str(refused.value)
    assert words in said
    assert said.startswith(str(path))
    assert "aiperf system --template" in said
    assert "\n" not in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: No such file"):
        read_site(tmp_path / "none.yaml")


LINE = "2 × (8 × NVIDIA H100, 2 × Intel(R) Xeon(R) Platinum 8480+ (112 cores), 2 TiB)"


def told_run(folder: Path, site: SiteDescription | None = None) -> RunPaths:
    """Write a run of two replicas of two ranks each, on a node each, that told what they are."""
    paths = write_run(folder, Plan(replicas=2, trials=6))
    if site is not None:
        RunManifest.load(paths).model_copy(update={"site": site}).save(paths)
    history = RunHistory.read(paths)
    for number in range(2):
        journal = paths.replica_journal(f"r{number}")
        with JournalWriter(journal, clock=Clock(history.last_utc)) as writer:
            for local in range(2):
                described = rank(f"n{number}", node(number) if local == 0 else None)
                writer.append(records.SystemDescribed(rank=local, description=described))
    return paths


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    site = SiteDescription(system_name="Booster <3>", submitter="A centre", status="Preview")
    return told_run(tmp_path_factory.mktemp("told") / "run", site)


def test_a_run_says_what_machine_it_had(told: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["system", str(told.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Booster <3>, A centre"
    assert lines[1].split() == ["status", "Preview"]
    assert lines[2] == "2 hosts: n0, n1"
    rows = {line[2:24].strip(): line[24:] for line in lines[2:]}
    assert rows["accelerators"].startswith("8 × NVIDIA H100, 80 GiB, at most 1.98 GHz, 650 W")
    assert rows["not known"] == "AMD: rocm-smi is not installed"
    assert rows["libraries"] == "NCCL 2.21.5, PyTorch 2.5.1+cu124, cuDNN 9.1.0"
    assert rows["variable"] == "NCCL_DEBUG=INFO"
    assert rows["SLURM"] == "job 4711, partition gpu, nodes n[01-04]"


def test_json_and_mlperfs_file_at_once(
    told: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "system.json"
    assert main(["system", str(told.root), "--json", "--mlperf", str(path)]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["nodes"][0]["count"] == 2
    assert f"written to {path}; not known, and empty: division, " in output.err
    assert "give it by --system" in output.err
    valid, name, *_ = check_system_desc(str(path), "training", "5.0.0")
    assert (valid, name) == (True, "Booster <3>")


def test_a_file_on_the_command_line_counts_more_than_the_runs(
    told: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "system.yaml"
    path.write_text("system_name: Other")
    assert main(["system", str(told.root), "--system", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "Other"


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["system", "--json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["nodes"]
    assert group["node"]["memory"]["total_bytes"] > 0
    assert main(["system"]) == 0
    assert "  processors " in capsys.readouterr().out


def test_the_template(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["system", "--template"]) == 0
    assert "\nsubmitter: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["NOWHERE"], "is not a run directory"),
        (["--system", "none.yaml"], "none.yaml: No such file"),
        (["--mlperf", "/proc/none/system.json"], "cannot write /proc/none/system.json: "),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["system", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1


def test_a_run_of_before_says_that_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write_run(tmp_path / "run", Plan(replicas=1, trials=1))
    assert main(["system", str(paths.root)]) == 2
    assert "does not describe its machine: its records are from before" in (capsys.readouterr().err)
    view = RunView.read(paths)
    assert view.status().machine == ""
    assert make_report(view).system is None
    assert "site" not in paths.manifest.read_text()


def test_status_and_report_say_it(told: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    view = RunView.read(told)
    assert view.status().machine == LINE
    assert view.machine.summary() is view.machine.summary(), "it is summed up once"
    assert main(["status", str(told.root)]) == 0
    assert f"  {LINE}" in capsys.readouterr().out.splitlines()
    document = make_report(view)
    assert document.system is not None
    assert document.system.ranks == 4
    assert Report.model_validate_json(document.model_dump_json()) == document
    page = render(document, [])
    box = page[page.index('<section id="system"') : page.index('<section id="curves"')]
    assert page.index('<section id="result"') < page.index(box)
    assert "Booster &lt;3&gt;, A centre" in box
    assert "<dt>accelerators</dt><dd>8 × NVIDIA H100, 80 GiB" in box
    assert "<code>NCCL_DEBUG</code></dt><dd>INFO</dd>" in box
    assert '<li><a href="#system">System</a></li>' in page


def test_a_run_is_started_with_what_people_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("system.yaml").write_text("status: onprem")
    start = ["start", "--nodes", "1", "--hours", "0.01", "--yes", "--launcher", "local"]
    assert main([*start, "--system", "system.yaml"]) == 2
    assert "system.yaml: status: should be" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["system.yaml"]


def test_what_people_say_goes_into_the_run(tmp_path: Path) -> None:
    path = tmp_path / "system.yaml"
    path.write_text("system_name: Booster\nstatus: Preview")
    chosen = start.RunOptions(nodes=NodeRange(1, 1), hours=0.01, launcher="local", system=path)
    manifest = start._manifest(chosen, load_config("quickstart", []))
    assert manifest.site == SiteDescription(system_name="Booster", status="Preview")
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    manifest.save(paths)
    assert RunManifest.load(paths) == manifest
