"""What each kind of node contributed to a run that has several: a pure function of its history.

The score is of the whole run. Beside it stands which of its operations were done on what.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiperf_hpc.ops_counter.score import OperationsOf
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.history.presence import presences
from aiperf_hpc.system.summary import kind_of
from aiperf_hpc.trial import TimePhase

UNTOLD: Final = "not told"
"""The kind of a replica that has described no node."""
BUSY: Final = (TimePhase.TRAIN, TimePhase.EVALUATE)


@dataclass(frozen=True, slots=True)
class KindWork:
    """What the replicas on one kind of node did."""

    kind: str
    replicas: int
    trials: int
    """How many they began."""
    operations: int
    node_hours: float
    """The hours of all nodes, each from its replica's first record to its last."""
    busy_share: float
    """The share of these hours in which they trained and evaluated."""

    @property
    def operations_per_node_hour(self) -> float:
        return self.operations / self.node_hours if self.node_hours else 0.0


def kinds_of(replicas: Iterable[ReplicaHistory]) -> dict[str, str]:
    """Return the kind of node of each replica; none where all that told have the same.

    A replica that was started again on another kind has one of its own, which names both.
    """
    found = {replica.id: _kind(replica) for replica in replicas}
    return found if len(set(found.values()) - {UNTOLD}) > 1 else {}


def work_by_kind(
    history: RunHistory,
    kinds: Mapping[str, str],
    counts: OperationsOf,
    until: float,
    nodes_each: int,
) -> list[KindWork]:
    """Return what was done on each kind of node up to ``until``, the most operations first.

    Args:
        history: the run's records.
        kinds: the kind of each replica.
        counts: the operations of a sample of each trial.
        until: the run's end, or now, UTC seconds.
        nodes_each: how many nodes a replica spans.
    """
    members: dict[str, list[ReplicaHistory]] = {}
    for name, kind in kinds.items():
        members.setdefault(kind, []).append(history.replicas[name])
    operations = _operations(history, counts, until)
    hours: defaultdict[str, float] = defaultdict(float)
    for life in presences(history, until):
        hours[life.replica] += (life.end - life.begin) / 3600.0
    found = [_work(kind, own, operations, hours, nodes_each) for kind, own in members.items()]
    return sorted(found, key=lambda work: (-work.operations, work.kind))


def _work(
    kind: str,
    replicas: Sequence[ReplicaHistory],
    operations: Mapping[str, int],
    hours: Mapping[str, float],
    nodes_each: int,
) -> KindWork:
    there = sum(hours[each.id] for each in replicas)
    busy = sum(each.seconds.get(phase, 0.0) for each in replicas for phase in BUSY) / 3600.0
    return KindWork(
        kind=kind,
        replicas=len(replicas),
        trials=sum(len(each.trials) for each in replicas),
        operations=sum(operations[each.id] for each in replicas),
        node_hours=there * nodes_each,
        busy_share=min(1.0, busy / there) if there else 0.0,
    )


def _operations(history: RunHistory, counts: OperationsOf, until: float) -> Counter[str]:
    """Return the operations that each replica was credited."""
    late = history.executions.after(until)
    found: Counter[str] = Counter()
    for name in history.executions.trials:
        trial = history.trials[name]
        (training, validation), after = counts(trial.started), late.get(name, (0, 0))
        found[trial.replica] += (trial.train_samples - after[0]) * training
        found[trial.replica] += (trial.validation_samples - after[1]) * validation
    return found


def _kind(replica: ReplicaHistory) -> str:
    """Return what a replica's lives told of their nodes."""
    lives = (
        " and ".join(sorted(set(map(kind_of, nodes)))) for _, nodes in sorted(replica.nodes.items())
    )
    return ", then ".join(dict.fromkeys(lives)) or UNTOLD
