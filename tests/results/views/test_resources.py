"""Replicas, hosts and accelerators: counted once, and the same on every page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.nodes import node, rank
from tests.support.run_factory import Plan, write_run
from tests.support.run_writer import MACHINE, START, RunWriter

from aiperf_hpc.cli import main
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


def test_two_replicas_of_one_machine_are_on_one_host_without_accelerators(tmp_path: Path) -> None:
    found = resources(tmp_path, [["vm"], ["vm"]], EPYC, cpu=False)
    assert (found.replicas, found.hosts, found.accelerator_count) == (2, 1, 0)
    assert found.line == "2 replicas on 1 host, no accelerators (CPU: AMD EPYC, 2 cores)"


def test_replicas_on_a_cluster_have_the_accelerators_of_all_hosts(tmp_path: Path) -> None:
    hosts = [[f"n{number:02d}"] * 8 for number in range(16)]
    found = resources(tmp_path, hosts, node(), cpu=False)
    assert found.accelerators == {"NVIDIA H100": 128}
    assert found.line == "16 replicas on 16 hosts, 128 accelerators (NVIDIA H100)"


def test_a_replica_may_span_hosts(tmp_path: Path) -> None:
    found = resources(tmp_path, [["a"] * 8 + ["b"] * 8], node(), cpu=False)
    assert found.line == "1 replica on 2 hosts, 16 accelerators (NVIDIA H100)"


def test_accelerators_that_nothing_computes_on_are_said_to_be_idle(tmp_path: Path) -> None:
    found = resources(tmp_path, [["a"], ["a"]], node(), cpu=True)
    assert found.line == "2 replicas on 1 host, 8 accelerators (NVIDIA H100), 0 of them used"


def test_before_a_replica_was_launched_there_are_those_that_were_requested(tmp_path: Path) -> None:
    found = resources(tmp_path, [], None, cpu=False)
    assert (found.hosts, found.line) == (0, "7 replicas, none started yet")


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


def test_every_page_and_document_says_the_same(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def said(*arguments: str) -> str:
        main(list(arguments))
        return capsys.readouterr().out

    name = str(run)
    assert f"\n  {LINE}\n" in said("status", name)
    assert f"<span>{html.escape(LINE)}, launcher " in (run / "report/report.html").read_text()
    assert f": {LINE}\n" in (run / "report/result.txt").read_text()
    assert LINE in said("analyze", name)
    assert LINE in said("card", name)
    view = RunView(write_run(run.parent / "other", Plan(replicas=2, trials=1)))
    assert LINE in said("compare", name, str(view.paths.root))
    (listed,) = (
        each
        for each in json.loads(said("list", str(run.parent), "--json"))["runs"]
        if each["name"] == "mine"
    )
    documents = [
        json.loads(said("status", name, "--json")),
        listed,
        json.loads((run / "report/report.json").read_text()),
        json.loads((run / "report/summary.json").read_text()),
    ]
    assert {document["resources"]["line"] for document in documents} == {LINE}
