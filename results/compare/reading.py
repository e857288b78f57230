"""Reads what is compared of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from aiperf_hpc.errors import UsageError
from aiperf_hpc.results.compare.comparison import RunFacts, flat
from aiperf_hpc.results.report.time_split import total_time
from aiperf_hpc.results.views.run_catalog import find_runs
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.manifest import no_run
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.system.summary import node_rows


def read_groups(folders: Sequence[Path]) -> dict[str, list[RunFacts]]:
    """Return the runs of each folder, a run or runs that repeat each other, by its name.

    Raises:
        UsageError: there is nothing to compare.
        RunDirectoryError: a folder has no run.
        JournalError: a journal cannot be read.
    """
    if len(folders) < 2:
        raise UsageError("name at least two runs, or folders of repeated runs, to compare")
    if twice := [str(name) for name, number in Counter(folders).items() if number > 1]:
        raise UsageError(f"{twice[0]} is named twice")
    groups: dict[str, list[RunFacts]] = {}
    for folder in folders:
        found = list(find_runs(folder)[0].values()) if folder.is_dir() else []
        if not found:
            raise no_run(folder)
        groups[str(folder)] = [_read(paths) for paths in found]
    return groups


def _read(paths: RunPaths) -> RunFacts:
    view = RunView(paths)
    view.refresh()
    return facts_of(view)


def facts_of(view: RunView) -> RunFacts:
    """Return what is compared of a run as it was read.

    Raises:
        GraphError: a network that a trial trained is not known.
    """
    status, manifest, final = view.status(view.until), view.manifest, view.final()
    broken = tuple(dict.fromkeys(each.rule for each in view.violations()))
    energy = None if status.telemetry is None else status.telemetry.energy
    return RunFacts(
        name=str(view.paths.root),
        ended=view.history.end_utc is not None,
        broken=broken,
        simulated="engine" in broken,
        settings=flat(manifest.config.model_dump(mode="json")),
        dataset=_dataset(view),
        machine=_machine(view),
        versions={**manifest.versions, "commit": manifest.commit or ""},
        resources=status.resources,
        seconds=final.elapsed,
        ops=final.ops,
        regulated=final.regulated,
        error=final.error,
        time_shares={
            name: phase.share for name, phase in total_time(view, final.elapsed).phases.items()
        },
        joules=None if energy is None else energy.joules,
        energy_label="absent" if energy is None else str(energy.label),
    )


def _dataset(view: RunView) -> str:
    told = {r.dataset for r in view.history.replicas.values() if r.dataset is not None}
    return ", ".join(sorted(f"{each.name} {each.sha256[:12]}" for each in told))


def _machine(view: RunView) -> dict[str, str]:
    """Return what is known of the nodes, equal ones together; of older runs, the processors."""
    groups = view.machine.summary().nodes
    found: dict[str, list[str]] = {}
    for group in groups:
        for name, value in node_rows(group.node):
            if not name.startswith("file system"):
                found.setdefault(name, []).append(value)
    if not groups:
        machines = (replica.machine for replica in view.history.replicas.values())
        known = {machine.cpu for machine in machines if machine is not None}
        found["processors"] = sorted(known)
    return {name: "; ".join(dict.fromkeys(values)) for name, values in found.items()}
