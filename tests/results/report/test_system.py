"""Machines as lines, as a box of the report and as MLPerf's file; the file that people write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc
from tests.support.clock import Clock
from tests.support.command import aiperf, printed
from tests.support.nodes import node, rank
from tests.support.refusals import refused_line
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.cli import start
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
from aiperf_hpc.system.description import SiteDescription


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("submiter: X", "submiter: is not known"),
        ("status: onprem", "status: should be ''"),
        ("division: fast", "division: should be"),
        ("cooling: [air]", "cooling: should be text"),
        ("cooling: {a: b", "not YAML"),
        ("", "not a mapping"),
        ("cooling: a\ncooling: b", "occurs twice"),
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


def test_a_run_says_what_machine_it_had(told: RunPaths) -> None:
    lines = printed("system", told.root).splitlines()
    assert lines[0] == "Booster <3>, A centre"
    assert lines[1].split() == ["status", "Preview"]
    assert lines[2] == "2 hosts: n0, n1"
    rows = {line[2:24].strip(): line[24:] for line in lines[2:]}
    assert rows["accelerators"].startswith("8 × NVIDIA H100, 80 GiB, at most 1.98 GHz, 650 W")
    assert rows["not known"] == "AMD: rocm-smi is not installed"
    assert rows["libraries"] == "NCCL 2.21.5, PyTorch 2.5.1+cu124, cuDNN 9.1.0"
    assert rows["variable"] == "NCCL_DEBUG=INFO"
    assert rows["SLURM"] == "job 4711, partition gpu, nodes n[01-04]"


def test_json_and_mlperfs_file_at_once(told: RunPaths, tmp_path: Path) -> None:
    path = tmp_path / "system.json"
    done = aiperf("system", told.root, "--json", "--mlperf", path)
    assert done.returncode == 0
    assert json.loads(done.stdout)["nodes"][0]["count"] == 2
    assert f"written to {path}; not known, and empty: division, " in done.stderr
    assert "give it by --system" in done.stderr
    valid, name, *_ = check_system_desc(str(path), "training", "5.0.0")
    assert (valid, name) == (True, "Booster <3>")


def test_a_file_on_the_command_line_counts_more_than_the_runs(
    told: RunPaths, tmp_path: Path
) -> None:
    path = tmp_path / "system.yaml"
    path.write_text("system_name: Other")
    assert printed("system", told.root, "--system", path).splitlines()[0] == "Other"


def test_this_machine() -> None:
    (group,) = json.loads(printed("system", "--json"))["nodes"]
    assert group["node"]["memory"]["total_bytes"] > 0
    assert "  processors " in printed("system")


def test_the_template() -> None:
    assert "\nsubmitter: " in printed("system", "--template")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["NOWHERE"], "there is no run NOWHERE"),
        (["--system", "none.yaml"], "none.yaml: No such file"),
        (["--mlperf", "/proc/none/system.json"], "cannot write /proc/none/system.json: "),
    ],
)
def test_what_cannot_be_is_said_in_a_line(arguments: list[str], words: str) -> None:
    done = aiperf("system", *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert words in done.stderr


def test_a_run_of_before_says_that_it_does_not_know(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run", Plan(replicas=1, trials=1))
    refused = refused_line("system", paths.root)
    assert "does not describe its machine: its records are from before" in refused
    view = RunView.read(paths)
    assert view.status().machine == ""
    assert make_report(view).system is None
    assert "site" not in paths.manifest.read_text()


def test_status_and_report_say_it(told: RunPaths) -> None:
    view = RunView.read(told)
    assert view.status().machine == LINE
    assert view.machine.summary() is view.machine.summary(), "it is summed up once"
    assert f"  {LINE}" in printed("status", told.root).splitlines()
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


def test_a_run_is_not_started_with_a_wrong_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("system.yaml").write_text("status: onprem")
    start = ("start", "--nodes", 1, "--hours", 0.01, "--yes", "--launcher", "local")
    refused = refused_line(*start, "--system", "system.yaml")
    assert "system.yaml: status: should be" in refused
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
