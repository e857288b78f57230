"""Nodes of a run: the contribution of each kind, and changes of their number over time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from aiperf_hpc.formatting import duration, percent, si
from aiperf_hpc.grouping import grouped
from aiperf_hpc.ops_counter.score import credited, score_series
from aiperf_hpc.run.history import ReplicaHistory, RunHistory
from aiperf_hpc.run.history.presence import Step, presences, requested_nodes, steps
from aiperf_hpc.run.records import NodesRefused
from aiperf_hpc.system.summary import kind_of
from aiperf_hpc.trial import TimePhase, Value

UNTOLD: Final = "not reported"
"""Kind of a replica that recorded no description of its node."""
BUSY: Final = (TimePhase.TRAIN, TimePhase.EVALUATE)
LEAST_SHARE: Final = 0.01
"""Fraction of the elapsed time below which a number of nodes is ignored as a transition: records of
executed samples are seconds apart, so its OPS would be meaningless."""


class KindStatus(Value):
    """One kind of node in a heterogeneous run, with its contribution."""

    kind: str
    """Accelerators of a node or, if it has none, its processors."""
    replicas: int
    """Number of replicas."""
    nodes: int
    """Number of nodes."""
    trials: int
    """Number of trials that its replicas started."""
    operations: int
    """Operations credited to its replicas."""
    ops: float
    """``operations`` divided by the elapsed time: its part of the score."""
    fraction: float
    """Fraction of all operations."""
    node_hours: float
    """Node hours, each node from its replica's first record to the last."""
    operations_per_node_hour: float
    """``operations`` divided by ``node_hours``."""
    busy_fraction: float
    """Fraction of its replicas' time spent on training and evaluation."""


def kinds_of(replicas: Iterable[ReplicaHistory]) -> dict[str, str]:
    """Return the kind of node of each replica; empty if all recorded kinds are equal.

    A replica that was restarted on another kind of node has a kind that names both.
    """
    found = {replica.id: _kind(replica) for replica in replicas}
    return found if len(set(found.values()) - {UNTOLD}) > 1 else {}


def kinds_status(
    history: RunHistory, kinds: Mapping[str, str], nodes_each: int, until: float
) -> tuple[KindStatus, ...]:
    """Return the contribution of each kind, most operations first; none if all nodes are alike.

    Args:
        history: records of the run.
        kinds: kind of node of each replica.
        nodes_each: number of nodes of a replica.
        until: end of the run or current time, UTC seconds.
    """
    start = history.start_utc
    if not kinds or start is None or until <= start:
        return ()
    members = grouped((kind, history.replicas[name]) for name, kind in kinds.items())
    operations = _operations(history, until)
    whole = operations.total()
    hours: defaultdict[str, float] = defaultdict(float)
    for presence in presences(history, until):
        hours[presence.replica] += (presence.end - presence.begin) / 3600.0
    found = []
    for kind, replicas in members.items():
        done = sum(operations[each.id] for each in replicas)
        there = sum(hours[each.id] for each in replicas)
        busy = sum(each.seconds.get(phase, 0.0) for each in replicas for phase in BUSY) / 3600.0
        status = KindStatus(
            kind=kind,
            replicas=len(replicas),
            nodes=len(replicas) * nodes_each,
            trials=sum(len(each.trials) for each in replicas),
            operations=done,
            ops=done / (until - start),
            fraction=done / whole if whole else 0.0,
            node_hours=there * nodes_each,
            operations_per_node_hour=done / (there * nodes_each) if there else 0.0,
            busy_fraction=min(1.0, busy / there) if there else 0.0,
        )
        found.append(status)
    return tuple(sorted(found, key=lambda status: (-status.operations, status.kind)))


def _operations(history: RunHistory, until: float) -> Counter[str]:
    """Return the operations credited to each replica."""
    late = history.executions.after(until)
    found: Counter[str] = Counter()
    for name in history.executions.trials:
        trial, after = history.trials[name], late.get(name, (0, 0))
        samples = trial.train_samples - after[0], trial.validation_samples - after[1]
        found[trial.replica] += credited(trial.started, *samples)
    return found


def _kind(replica: ReplicaHistory) -> str:
    """Return the kinds of node on which a replica's attempts ran."""
    kinds = (
        " and ".join(sorted(set(map(kind_of, nodes)))) for _, nodes in sorted(replica.nodes.items())
    )
    return ", then ".join(dict.fromkeys(kinds)) or UNTOLD


def kind_lines(kinds: Sequence[KindStatus]) -> Iterator[str]:
    """Yield the lines on kinds of nodes for a terminal."""
    for kind in kinds:
        yield (
            f"{kind.nodes} node{'s' * (kind.nodes > 1)} of {kind.kind}: {si(kind.ops, 'OPS')}, "
            f"{percent(kind.fraction)} of all, {si(kind.operations_per_node_hour, 'operations')} a "
            f"node-hour, busy {percent(kind.busy_fraction)}, {kind.trials} trials"
        )


class NodesStep(Value):
    """Number of replicas from a time on."""

    elapsed_seconds: float
    """Seconds since the run's start."""
    replicas: int
    """Number of replicas."""


class NodesRequest(Value):
    """Requested number of nodes from a time on."""

    elapsed_seconds: float
    """Seconds since the run's start."""
    nodes: int
    """Requested number of nodes."""
    reason: str
    """Source of the request, or the reason for its rejection."""
    refused: bool
    """Whether the request was rejected, so that nothing changed."""


class NodesPoint(Value):
    """All periods in which a run had the same number of nodes."""

    nodes: int
    """Number of nodes."""
    seconds: float
    """Total seconds with this number of nodes."""
    ops: float
    """Operations per second in these periods."""
    ops_per_node: float
    """``ops`` divided by ``nodes``."""
    efficiency: float
    """``ops_per_node`` relative to the fewest nodes: weak scaling within the run."""


class ElasticityStatus(Value):
    """Changes of the number of nodes during a run."""

    nodes: int
    """Number of currently requested nodes."""
    replicas: int
    """Current number of replicas; 0 after the end of the run."""
    requests: tuple[NodesRequest, ...]
    """Requests in chronological order."""
    steps: tuple[NodesStep, ...]
    """Number of replicas over time."""
    node_hours: float
    """Node hours of all nodes, each from its replica's first record to the last."""
    operations_per_node_hour: float
    """Credited operations divided by ``node_hours``."""
    points: tuple[NodesPoint, ...]
    """Results for each number of nodes, fewest first, without very short periods."""


def elasticity_status(
    history: RunHistory, nodes: int, nodes_each: int, until: float
) -> ElasticityStatus | None:
    """Return the changes, or None for a run with a constant requested number of nodes.

    Args:
        history: records of the run.
        nodes: number of nodes requested at its start.
        nodes_each: number of nodes of a replica.
        until: end of the run or current time, UTC seconds.
    """
    start = history.start_utc
    if not history.scalings or start is None or until <= start:
        return None
    found = presences(history, until)
    course = steps(found)
    edges = [start, *(step.utc for step in course if start < step.utc < until), until]
    operations = [point.operations for point in score_series(history, edges)]
    done = [after - before for before, after in pairwise(operations)]
    node_hours = sum(each.end - each.begin for each in found) * nodes_each / 3600.0
    return ElasticityStatus(
        nodes=requested_nodes(history, nodes),
        replicas=0 if history.end_utc is not None else _now(course, until),
        requests=tuple(_requests(history, start)),
        steps=tuple(NodesStep(elapsed_seconds=s.utc - start, replicas=s.replicas) for s in course),
        node_hours=node_hours,
        operations_per_node_hour=operations[-1] / node_hours if node_hours else 0.0,
        points=_points(_at_each(course, edges, done, nodes_each), LEAST_SHARE * (until - start)),
    )


def _at_each(
    course: Sequence[Step], edges: Sequence[float], done: Sequence[int], nodes_each: int
) -> dict[int, tuple[float, int]]:
    """Return seconds and operations of each number of nodes."""
    found: dict[int, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    replicas = dict(course)
    now = 0
    for (begin, end), operations in zip(pairwise(edges), done, strict=True):
        now = replicas.get(begin, now)
        seconds, before = found[now * nodes_each]
        found[now * nodes_each] = seconds + end - begin, before + operations
    return found


def _points(found: dict[int, tuple[float, int]], least: float) -> tuple[NodesPoint, ...]:
    kept = [(n, *each) for n, each in sorted(found.items()) if n and each[0] >= least]
    rates = [operations / seconds / nodes for nodes, seconds, operations in kept]
    unit = next((rate for rate in rates if rate > 0.0), 0.0)
    return tuple(
        NodesPoint(
            nodes=nodes,
            seconds=seconds,
            ops=operations / seconds,
            ops_per_node=rate,
            efficiency=rate / unit if unit else 0.0,
        )
        for (nodes, seconds, operations), rate in zip(kept, rates, strict=True)
    )


def elasticity_lines(status: ElasticityStatus) -> Iterator[str]:
    """Yield the lines on changes of nodes for a terminal."""
    there = f"{status.replicas} replicas there, " if status.replicas else ""
    yield (
        f"nodes {status.nodes} requested, {there}{status.node_hours:.3g} node-hours, "
        f"{si(status.operations_per_node_hour, 'operations')} per node-hour"
    )
    for point in status.points:
        yield (
            f"on {point.nodes} node{'s' * (point.nodes > 1)} for {duration(point.seconds)}: "
            f"{si(point.ops, 'OPS')}, {si(point.ops_per_node, 'OPS')} each, "
            f"efficiency {percent(point.efficiency)}"
        )
    if status.requests and (last := status.requests[-1]).refused:
        yield f"{last.nodes} nodes were refused: {last.reason}"


def _now(course: Sequence[Step], until: float) -> int:
    """Return the number of replicas just before ``until``, when all replicas leave."""
    return next((s.replicas for s in reversed(course) if s.utc < until), 0)


def _requests(history: RunHistory, start: float) -> Iterator[NodesRequest]:
    for utc, event in history.scalings:
        refused = isinstance(event, NodesRefused)
        yield NodesRequest(
            elapsed_seconds=utc - start, nodes=event.nodes, reason=event.reason, refused=refused
        )
