"""Replicas, hosts and accelerators: counted once, and the same on every page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.command import aiperf, printed
from tests.support.nodes import node, rank
from tests.support.run_factory import Plan, write_run
from tests.support.run_writer import MACHINE, START, RunWriter

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.resources import Resources, resources_of
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.validity.replicas import accelerator_use
from aiperf_hpc.run.records import ReplicaLaunched, ReplicaStarted, SystemDescribed
from aiperf_hpc.system.description import NodeDescription, Processors
from aiperf_hpc.system.summary import summarize

EPYC = NodeDescription(
    processors=Processors(model="AMD EPYC", architecture="x86_64", sockets=1, cores=2, threads=2)
)


def resources(
    root: Path, hosts: Sequence[Sequence[str]], described: NodeDescription | None, *, cpu: bool
) -> Resources:
    """Return the resources of a run whose replicas have a rank on each of some hosts."""
    run = RunWriter(root)
    for number, own in enumerate(hosts):
        name = f"r{number}"
        machine = MACHINE.model_copy(update={"host": own[0]})
        run.primary(0, ReplicaLaunched(replica=name, job="1"))
        started = ReplicaStarted(
            replica=name, pid=1, engine="torch", machine=machine, hosts=tuple(own)
        )
        told = [
            SystemDescribed(rank=place, description=rank(host, described))
            for place, host in enumerate(own)
        ]
        run.replica(1, started, *told, name=name)
    replicas = list(run.history().replicas.values())
    ranks = [each for replica in replicas for each in replica.described.values()]
    use = accelerator_use(replicas, on_cpus=cpu)
    return resources_of(replicas, 7, summarize(ranks), use)


@pytest.mark.parametrize(
    ("hosts", "described", "cpu", "line"),
    [
        ([], None, False, "7 replicas, none started yet"),
        ([["vm"], ["vm"]], EPYC, False,
         "2 replicas on 1 host, no accelerators (CPU: AMD EPYC, 2 cores)"),
        ([[f"n{number:02d}"] * 8 for number in range(16)], node(), False,
         "16 replicas on 16 hosts, 128 accelerators (NVIDIA H100)"),
        ([["a"] * 8 + ["b"] * 8], node(), False,
         "1 replica on 2 hosts, 16 accelerators (NVIDIA H100)"),
        ([["a"], ["a"]], node(), True,
         "2 replicas on 1 host, 8 accelerators (NVIDIA H100), 0 of them used"),
    ],
)  # fmt: skip
def test_replicas_hosts_and_accelerators_in_a_line(
    hosts: list[list[str]], described: NodeDescription | None, cpu: bool, line: str, tmp_path: Path
) -> None:
    found = resources(tmp_path, hosts, described, cpu=cpu)
    assert (found.summary, found.replicas) == (line, len(hosts) or 7)
    assert found.hosts == len({host for own in hosts for host in own})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of two replicas with eight accelerators each, with its report."""
    paths = write_run(tmp_path / "mine", Plan(replicas=2, trials=2, hpo_trials=0, failed=0))
    writer, view = RunWriter(paths.root), RunView(paths)
    view.refresh()
    for number in range(2):
        told = rank(f"node{number:03d}", node(number))
        described = SystemDescribed(rank=0, description=told)
        writer.replica(view.until - START, described, name=f"r{number}")
    write_report(RunView(paths))
    return paths.root


LINE = "2 replicas on 2 hosts, 16 accelerators (NVIDIA H100), 2 of them used"


def test_every_page_and_document_says_the_same(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert f"\n  {LINE}\n" in printed("status", run)
    assert f"<span>{html.escape(LINE)}, launcher " in (run / "report/report.html").read_text()
    assert f": {LINE}\n" in (run / "report/result.txt").read_text()
    for command in ("analyze", "card"):
        assert LINE in aiperf(command, run).stdout
    other = write_run(run.parent / "other", Plan(replicas=2, trials=1))
    assert LINE in aiperf("compare", run, other.root).stdout
    runs = json.loads(printed("list", run.parent, "--json"))["runs"]
    (listed,) = (each for each in runs if each["name"] == "mine")
    documents = [
        json.loads(printed("status", run, "--json")),
        listed,
        json.loads((run / "report/report.json").read_text()),
        json.loads((run / "report/summary.json").read_text()),
    ]
    assert {document["resources"]["summary"] for document in documents} == {LINE}
