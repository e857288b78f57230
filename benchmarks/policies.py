"""Ways to nodes on a busy machine, in simulation: queue, gang start, joins and preemptions.

python benchmarks/policies.py [--nodes 4096] [--hours 0.25] [--wait 60] [--folder runs/policies]

One run a policy, by the real code of both sides on a virtual clock. Nodes become free one by one;
efficiency is what was computed over what the nodes could have computed, by what is charged: the
score's time on all nodes, from the clock's start; or the nodes' own time, from when each was given.
Kept runs are not simulated again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from aiperf_hpc.config import load_config
from aiperf_hpc.ops_counter.score import recorded, score_series
from aiperf_hpc.replica.data import load_dataset
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.simulation.main import _allow_files, simulate
from aiperf_hpc.simulation.queue import Queue

POINTS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""The shares of the run's time at which efficiency is stated."""
SETTINGS = ("engine.simulation.charge_cpu=false",)


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to nodes."""

    name: str
    begins_with: float = 1.0
    """The share of the nodes that it begins with; it takes the others as they are given."""
    start_when: Literal["first", "all"] = "first"
    gang: bool = False
    taken: float = 0.0
    """How often a node is taken away in the run's time, on average."""


POLICIES = (
    Policy("array, the clock from the first node"),
    Policy("array, the clock once all are ready", start_when="all"),
    Policy("gang: all nodes at once", gang=True),
    Policy("elastic, a quarter to all", begins_with=0.25),
    Policy("elastic, half of the nodes taken away", begins_with=0.25, taken=0.5),
    Policy("gang, half of the nodes taken away", gang=True, taken=0.5),
)


class Outcome(NamedTuple):
    """What came of a policy."""

    waited: float
    """Seconds in the queue until the clock started."""
    charged: list[float]
    """The efficiency by the score's time on all nodes, at each of the points."""
    given: float
    """The efficiency by the nodes' own time, to the end."""
    lives: float
    """Lives of a replica, on average."""


def main() -> None:
    """Simulate what is missing, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=4096)
    parser.add_argument("--hours", type=float, default=0.25)
    parser.add_argument(
        "--wait", type=float, default=60.0, help="mean seconds until a node is free"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/policies"))
    parser.add_argument("--only", type=int, nargs="*", help="numbers of policies, from 0")
    options = parser.parse_args()
    _allow_files(options.nodes)
    alone = _run(Policy("one node"), 1, options.hours, 0.0, options.folder / "one")
    unit = alone.final().ops
    print(
        "| policy | in the queue | " + " | ".join(f"{p:.0%}" for p in POINTS) + " | given | lives |"
    )
    print("|---|---|" + "---|" * len(POINTS) + "---|---|")
    for number, policy in enumerate(POLICIES):
        if options.only is not None and number not in options.only:
            continue
        began = time.monotonic()
        folder = options.folder / f"p{number}"
        view = _run(policy, options.nodes, options.hours, options.wait, folder)
        found = _outcome(view, options.nodes, unit)
        charged = " | ".join(f"{share:.1%}" for share in found.charged)
        print(
            f"| {policy.name} | {found.waited:.0f} s | {charged} | {found.given:.1%} | "
            f"{found.lives:.2f} |",
            flush=True,
        )
        sys.stderr.write(f"{policy.name}: {time.monotonic() - began:.0f} s\n")


def _run(policy: Policy, nodes: int, hours: float, wait: float, folder: Path) -> RunView:
    paths = RunPaths(folder)
    if not folder.exists():
        least = max(1, round(policy.begins_with * nodes))
        config = load_config("simulated", SETTINGS)
        manifest = RunManifest(
            run_id=folder.name,
            nodes=least,
            nodes_max=nodes if least < nodes else None,
            hours=hours,
            launcher="simulated",
            start_when=policy.start_when,
            versions={},
            commit=None,
            rules=RULES,
            dataset=load_dataset(config.dataset, 1).info,
            config=config,
        )
        folder.mkdir(parents=True)
        manifest.save(paths)
        queue = Queue(wait, policy.gang, policy.taken / hours, away_seconds=wait)
        simulate(manifest, paths, queue=queue)
    view = RunView(paths)
    view.refresh()
    return view


def _outcome(view: RunView, nodes: int, unit: float) -> Outcome:
    history, until = view.history, view.until
    start, submitted = history.start_utc or until, history.run_starts[0][0]
    seconds = view.manifest.hours * 3600.0
    points = score_series(history, recorded, [start + share * seconds for share in POINTS])
    return Outcome(
        waited=start - submitted,
        charged=[point.ops / (nodes * unit) for point in points],
        given=view.final().operations / (unit * sum(_times(history, until))),
        lives=sum(len(replica.starts) for replica in history.replicas.values()) / nodes,
    )


def _times(history: RunHistory, until: float) -> Iterator[float]:
    """Yield how long each life of a replica had its node, also before the run's clock started."""
    for replica in history.replicas.values():
        for life, begin in replica.starts.items():
            yield max(0.0, min(replica.alive.get(life, begin), until) - begin)


if __name__ == "__main__":
    main()
