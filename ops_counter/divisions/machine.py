"""Rules on the machine and the software, by what its processes told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aiperf_hpc.integrity.release import FILES
from aiperf_hpc.ops_counter.divisions.accelerators import accelerator_use, hosts_of
from aiperf_hpc.ops_counter.divisions.arithmetic import environment_rule, precision_rule
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence, told
from aiperf_hpc.ops_counter.divisions.release import release_rule, versions_rule
from aiperf_hpc.ops_counter.divisions.rule import RuleCheck


def release(run: RunEvidence) -> RuleCheck:
    """The run was started by a release, and all replicas ran the same files."""
    manifest = run.manifest
    files = manifest.versions.get(FILES)
    machines = ((each.id, each.machine) for each in run.replicas)
    others = (name for name, it in machines if it is not None and it.versions.get(FILES) != files)
    return release_rule(manifest.versions, manifest.release_changes, others)


def versions(run: RunEvidence) -> RuleCheck:
    """All replicas had the same versions of all packages."""
    machines = ((each.id, each.machine) for each in run.replicas)
    return versions_rule((name, it.versions) for name, it in machines if it is not None)


def environment(run: RunEvidence) -> RuleCheck:
    """No process was told to compute in fewer bits than it states."""
    stated = {trial.started.hyperparameters.precision for trial in run.trials}
    precision = stated.pop() if len(stated) == 1 else run.config.training.precision
    variables: list[Mapping[str, str]] = [
        description.process.environment
        for replica in run.replicas
        for description in replica.described.values()
    ]
    silent = (
        f"{each.id} did not tell its variables"
        for each in run.replicas
        if each.started is not None and not each.described
    )
    return environment_rule(variables, precision, told(silent))


def precision(run: RunEvidence) -> RuleCheck:
    """All was computed in 16 bits and more."""
    used = {trial.started.hyperparameters.precision for trial in run.trials}
    return precision_rule(used, _products(run) if "fp32" in used else {})


def _products(run: RunEvidence) -> dict[str, str]:
    """Return what the ranks' frameworks computed products of fp32 in, by library."""
    found: dict[str, set[str]] = {}
    for replica in run.replicas:
        for description in replica.described.values():
            for library, numbers in description.process.arithmetic.items():
                found.setdefault(library, set()).add(numbers)
    return {library: " and ".join(sorted(numbers)) for library, numbers in found.items()}


def nodes(run: RunEvidence) -> RuleCheck:
    """The run had as many nodes as it states, the same ones from its start to its end.

    A node may be a share of a host whose every rank has an accelerator of its own.
    """
    asked = run.manifest.nodes
    found = {host for each in run.replicas for host in hosts_of(each)}
    shares = f" in {asked:,} shares" if _in_shares(run, len(found)) else ""
    return RuleCheck.of(
        "nodes",
        f"{len(found):,} hosts{shares}",
        f"{asked:,}, constant",
        told(_changed(run, len(found))),
    )


def _in_shares(run: RunEvidence, hosts: int) -> bool:
    """Return whether a run's nodes are shares of fewer hosts, no two with the same accelerator."""
    use = accelerator_use(run.replicas, on_cpus=run.config.engine.device == "cpu")
    alone = all(use.used.get(host, 0) == ranks for host, ranks in use.ranks.items())
    return 0 < hosts < run.manifest.nodes == len(run.replicas) and alone


def _changed(run: RunEvidence, hosts: int) -> Iterator[str]:
    if hosts != run.manifest.nodes and not _in_shares(run, hosts):
        yield f"{hosts:,} hosts; {run.manifest.nodes:,} nodes are stated"
    if len({event.nodes for _, event in run.history.run_starts} | {run.manifest.nodes}) > 1:
        yield "the primaries had other numbers of nodes"
    for each in run.replicas:
        if each.restarts:
            yield f"{each.id} was started {each.restarts + 1} times"


def constant_nodes(run: RunEvidence) -> RuleCheck:
    """The run had the nodes that it began with: no more were asked for, and no fewer."""
    asked = [run.manifest.nodes, *(nodes for _, nodes in run.history.nodes_asked)]
    value = ", ".join(f"{nodes:,}" for nodes in dict.fromkeys(asked))
    broken = (f"{nodes:,} nodes were asked for while it went on" for nodes in asked[1:])
    return RuleCheck.of("constant nodes", f"{value} asked for", "constant", told(broken))
