"""Nodes of a run: the contribution of each kind, and changes of their number over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aiperf_hpc.formatting import duration, percent, si
from aiperf_hpc.ops_counter.score import Elasticity, OperationsOf, elasticity, work_by_kind
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.history.presence import requested_nodes
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records import NodesRefused
from aiperf_hpc.trial import Value


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


def kinds_status(
    history: RunHistory,
    kinds: Mapping[str, str],
    manifest: RunManifest,
    counts: OperationsOf,
    until: float,
) -> tuple[KindStatus, ...]:
    """Return the contribution of each kind, most operations first; none if all nodes are alike.

    Args:
        history: records of the run.
        kinds: kind of node of each replica.
        manifest: manifest of the run.
        counts: operations per sample of each trial.
        until: end of the run or current time, UTC seconds.
    """
    start, each = history.start_utc, manifest.config.replica.nodes
    if not kinds or start is None or until <= start:
        return ()
    found = work_by_kind(history, kinds, counts, until, each)
    whole = sum(work.operations for work in found)
    return tuple(
        KindStatus(
            **KindStatus.fields_from(work),
            nodes=work.replicas * each,
            ops=work.operations / (until - start),
            fraction=work.operations / whole if whole else 0.0,
        )
        for work in found
    )


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
    history: RunHistory, manifest: RunManifest, counts: OperationsOf, until: float
) -> ElasticityStatus | None:
    """Return the changes, or None for a run with a constant requested number of nodes."""
    found = elasticity(history, counts, until, manifest.config.replica.nodes)
    start = history.start_utc
    if found is None or start is None:
        return None
    return ElasticityStatus(
        nodes=requested_nodes(history, manifest.nodes),
        replicas=0 if history.end_utc is not None else _now(found, until),
        requests=tuple(_requests(history, start)),
        steps=tuple(
            NodesStep(elapsed_seconds=s.utc - start, replicas=s.replicas) for s in found.steps
        ),
        node_hours=found.node_hours,
        operations_per_node_hour=found.operations_per_node_hour,
        points=tuple(
            NodesPoint(**NodesPoint.fields_from(point), ops_per_node=point.ops / point.nodes)
            for point in found.points
        ),
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


def _now(found: Elasticity, until: float) -> int:
    """Return the number of replicas just before ``until``, when all replicas leave."""
    return next((s.replicas for s in reversed(found.steps) if s.utc < until), 0)


def _requests(history: RunHistory, start: float) -> Iterator[NodesRequest]:
    for utc, event in history.scalings:
        refused = isinstance(event, NodesRefused)
        yield NodesRequest(
            elapsed_seconds=utc - start, nodes=event.nodes, reason=event.reason, refused=refused
        )
