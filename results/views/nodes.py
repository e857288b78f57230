"""The nodes of a run: what each kind contributed, and when nodes came and went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aiperf_hpc.formatting import duration, percent, si
from aiperf_hpc.ops_counter.contributions import Elasticity, elasticity, work_by_kind
from aiperf_hpc.ops_counter.score import OperationsOf
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.history.presence import requested_nodes
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records import NodesRefused
from aiperf_hpc.trial import Value


class KindStatus(Value):
    """One kind of node of a run that has several, and what was done on it."""

    kind: str
    """The accelerators of a node or, where it has none, its processors."""
    replicas: int
    """Number of replicas."""
    nodes: int
    """Number of nodes."""
    trials: int
    """How many its replicas began."""
    operations: int
    """Credited to its replicas."""
    ops: float
    """``operations`` over the elapsed time: its part of the score."""
    share: float
    """Its part of all operations."""
    node_hours: float
    """The hours of its nodes, each from its replica's first record to its last."""
    operations_per_node_hour: float
    """``operations`` over ``node_hours``."""
    busy_share: float
    """The share of its replicas' time in which they trained and evaluated."""


def kinds_status(
    history: RunHistory,
    kinds: Mapping[str, str],
    manifest: RunManifest,
    counts: OperationsOf,
    until: float,
) -> tuple[KindStatus, ...]:
    """Return it for each kind, the most operations first; none where all nodes are alike.

    Args:
        history: the run's records.
        kinds: the kind of each replica.
        manifest: the run.
        counts: the operations of a sample of each trial.
        until: the run's end, or now, UTC seconds.
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
            share=work.operations / whole if whole else 0.0,
        )
        for work in found
    )


def kind_lines(kinds: Sequence[KindStatus]) -> Iterator[str]:
    """Yield what a terminal shows of them."""
    for kind in kinds:
        yield (
            f"{kind.nodes} node{'s' * (kind.nodes > 1)} of {kind.kind}: {si(kind.ops, 'OPS')}, "
            f"{percent(kind.share)} of all, {si(kind.operations_per_node_hour, 'operations')} a "
            f"node-hour, busy {percent(kind.busy_share)}, {kind.trials} trials"
        )


class NodesStep(Value):
    """From when on a run had how many replicas."""

    seconds: float
    """Since the run's start."""
    replicas: int
    """Number of replicas."""


class NodesAskedFor(Value):
    """From when on a run was to have how many nodes."""

    seconds: float
    """Since the run's start."""
    nodes: int
    """How many were requested."""
    why: str
    """Who asked, or why it was refused."""
    refused: bool
    """Whether it could not be had, so that nothing changed."""


class NodesPoint(Value):
    """All the time in which a run had one number of nodes."""

    nodes: int
    """Number of nodes."""
    seconds: float
    """For how long it had them."""
    ops: float
    """Operations a second of that time."""
    ops_per_node: float
    """``ops`` over ``nodes``."""
    efficiency: float
    """``ops_per_node`` over that on the fewest nodes: weak scaling within the run."""


class ElasticityStatus(Value):
    """Nodes that come and go while a run lasts."""

    nodes: int
    """How many it is to have now."""
    replicas: int
    """How many replicas are there now: none once it has ended."""
    asked: tuple[NodesAskedFor, ...]
    """What was requested, in order of time."""
    steps: tuple[NodesStep, ...]
    """The number of replicas over time."""
    node_hours: float
    """The hours of all nodes, each from its replica's first record to its last."""
    operations_per_node_hour: float
    """Credited operations over ``node_hours``."""
    points: tuple[NodesPoint, ...]
    """What was done on each number of nodes, the fewest first, but for moments."""


def elasticity_status(
    history: RunHistory, manifest: RunManifest, counts: OperationsOf, until: float
) -> ElasticityStatus | None:
    """Return it; None for a run that was asked for no other nodes than it began with."""
    found = elasticity(history, counts, until, manifest.config.replica.nodes)
    start = history.start_utc
    if found is None or start is None:
        return None
    return ElasticityStatus(
        nodes=requested_nodes(history, manifest.nodes),
        replicas=0 if history.end_utc is not None else _now(found, until),
        asked=tuple(_asked(history, start)),
        steps=tuple(NodesStep(seconds=s.utc - start, replicas=s.replicas) for s in found.steps),
        node_hours=found.node_hours,
        operations_per_node_hour=found.operations_per_node_hour,
        points=tuple(
            NodesPoint(**NodesPoint.fields_from(point), ops_per_node=point.ops / point.nodes)
            for point in found.points
        ),
    )


def elasticity_lines(status: ElasticityStatus) -> Iterator[str]:
    """Yield what a terminal shows of it."""
    there = f"{status.replicas} replicas there, " if status.replicas else ""
    yield (
        f"nodes {status.nodes} requested, {there}{status.node_hours:.3g} node-hours, "
        f"{si(status.operations_per_node_hour, 'operations')} a node-hour"
    )
    for point in status.points:
        yield (
            f"on {point.nodes} node{'s' * (point.nodes > 1)} for {duration(point.seconds)}: "
            f"{si(point.ops, 'OPS')}, {si(point.ops_per_node, 'OPS')} each, "
            f"efficiency {percent(point.efficiency)}"
        )
    if status.asked and (last := status.asked[-1]).refused:
        yield f"{last.nodes} nodes were refused: {last.why}"


def _now(found: Elasticity, until: float) -> int:
    """Return how many replicas there are just before ``until``, where all of them leave."""
    return next((s.replicas for s in reversed(found.steps) if s.utc < until), 0)


def _asked(history: RunHistory, start: float) -> Iterator[NodesAskedFor]:
    for utc, event in history.scalings:
        refused = isinstance(event, NodesRefused)
        why = event.reason if isinstance(event, NodesRefused) else event.why
        yield NodesAskedFor(seconds=utc - start, nodes=event.nodes, why=why, refused=refused)
