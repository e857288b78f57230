"""Whether the replicas of a run are alike, as they have to be for one score."""

from __future__ import annotations

from collections import defaultdict

from aiperf_hpc.formatting import few
from aiperf_hpc.run.history import RunHistory


def disagreements(history: RunHistory) -> list[str]:
    """Return a line for every version or dataset that is not the same on all replicas."""
    replicas = list(history.replicas.values())
    versions = [r.machine.versions for r in replicas if r.machine is not None]
    datasets = {r.dataset.sha256 for r in replicas if r.dataset is not None}
    if all(each == versions[0] for each in versions) and len(datasets) < 2:
        return []  # As nearly always, and this is asked for every status.
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for replica in replicas:
        if replica.machine is not None:
            for name, version in replica.machine.versions.items():
                found[f"the version of {name}"][version].append(replica.id)
        if replica.dataset is not None:
            found["the dataset's SHA-256"][replica.dataset.sha256[:12]].append(replica.id)
    return [
        f"{what} differs: " + "; ".join(f"{value} on {few(r)}" for value, r in values.items())
        for what, values in found.items()
        if len(values) > 1
    ]


def clock_problems(history: RunHistory) -> list[str]:
    """Return a line for every replica whose clock was found to be off."""
    checked = (replica.checked for replica in history.replicas.values())
    return [problem for each in checked if each is not None for problem in each.problems]


def rejections(history: RunHistory) -> list[str]:
    """Return a line for every candidate that could not be loaded."""
    return [f"{name} could not be loaded: {why}" for name, why in history.rejected.items()]
