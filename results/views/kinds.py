"""What each kind of node contributed, as status, report and REST state it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aiperf_hpc.formatting import percent, si
from aiperf_hpc.ops_counter.kinds import work_by_kind
from aiperf_hpc.ops_counter.score import OperationsOf
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.trial import Value


class KindStatus(Value):
    """One kind of node of a run that has several, and what was done on it."""

    kind: str
    """The accelerators of a node or, where it has none, its processors."""
    replicas: int
    nodes: int
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
            kind=work.kind,
            replicas=work.replicas,
            nodes=work.replicas * each,
            trials=work.trials,
            operations=work.operations,
            ops=work.operations / (until - start),
            share=work.operations / whole if whole else 0.0,
            node_hours=work.node_hours,
            operations_per_node_hour=work.operations_per_node_hour,
            busy_share=work.busy_share,
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
