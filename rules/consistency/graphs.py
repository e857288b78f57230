"""Rules on graphs: regrown from their morphisms, recounted, and proposed by the search."""

from __future__ import annotations

from collections.abc import Iterator

from aiperf_hpc.errors import AIPerfError, GraphError
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.proposal import unlike_proposal
from aiperf_hpc.rules.rule import Checked, Findings
from aiperf_hpc.run.history import Proposal, Trial
from aiperf_hpc.run.liveness import LISTING_SECONDS


def graphs(run: Evidence) -> Findings:
    """Every stored graph equals the graph regrown from its morphisms."""
    yield Checked(len(run.trials))
    looked: set[str] = set()
    for trial in run.trials:
        name = trial.started.graph
        try:
            regrown = run.graph(trial)  # Its hash is checked against the trial's record.
        except AIPerfError as error:
            yield f"{trial.id}: {error}"
            continue
        if name in looked:
            continue
        looked.add(name)
        try:
            run.graphs.load(name, regrown)  # Its hash is checked against its name.
        except GraphError as error:
            yield f"{trial.id}: {error}; the recorded morphisms give it again"


def counts(run: Evidence) -> Findings:
    """A trial's recorded counts are those of its regrown graph."""
    yield Checked(len(run.trials))
    for trial in run.trials:
        started = trial.started
        try:
            recount = run.count(trial)
        except AIPerfError as error:
            yield f"{trial.id}: {error}"
            continue
        recorded = (
            started.train_operations,
            started.validation_operations,
            started.parameters,
            started.depth,
        )
        if recount != recorded:
            yield f"{trial.id}: recorded {recorded}, recounted {tuple(recount)}"


def candidates(run: Evidence) -> Findings:
    """Each trial's graph was proposed before, within limits and from weights that existed."""
    yield Checked(len(run.history.proposals))
    taken: dict[str, Trial] = {}
    for trial in run.begun:
        started = trial.started
        if started.proposal is None:
            if started.parent is not None or started.morphisms:
                yield f"{trial.id} was grown, but no search worker proposed it"
            continue
        proposal = run.history.proposals.get(started.proposal)
        if proposal is None or proposal.replica != trial.replica:
            yield f"{trial.id}: no search worker of {trial.replica} proposed {started.proposal}"
            continue
        yield from (f"{trial.id}: {what}" for what in _proposed(run, trial, proposal))
        first = taken.setdefault(proposal.id, trial)
        if started.round != first.started.round:
            yield f"{trial.id}: {proposal.id} was of round {first.started.round} already"
        if first is trial:
            yield from (f"{proposal.id}: {what}" for what in _bounds(run, proposal))
    for proposal in run.history.proposals.values():
        yield from (f"{proposal.id}: {what}" for what in _parent(run, proposal))


def _proposed(run: Evidence, trial: Trial, proposal: Proposal) -> Iterator[str]:
    """A trial's graph is its proposal's, except for the size of inserted kernels."""
    yield from unlike_proposal(trial.started, proposal)
    if proposal.utc > trial.started_utc + run.tolerance(run.history.replicas[trial.replica]):
        yield f"{proposal.id} was proposed {proposal.utc - trial.started_utc:.3f} s later"


def _parent(run: Evidence, proposal: Proposal) -> Iterator[str]:
    """The weights of the parent were already stored and not yet deleted."""
    told, name = run.trial_endings, proposal.proposed.parent
    parent = run.history.trials.get(name)
    if parent is None:
        return  # Unknown, as reported by the rule ``graphs``, or not counted.
    apart = run.tolerance(run.history.replicas[proposal.replica])
    apart += run.tolerance(run.history.replicas[parent.replica])
    ended, kept = told.ends.get(name, (float("inf"), False))
    if not kept:
        yield f"it grew from {name}, whose weights were not kept"
    elif ended > proposal.utc + apart:
        yield f"it grew from {name} {ended - proposal.utc:.3f} s before that had ended"
    began = proposal.utc - proposal.proposed.seconds
    dropped = told.dropped.get(name, float("inf"))
    if dropped < began - apart - LISTING_SECONDS:
        yield f"it grew from {name} {began - dropped:.3f} s after its weights were deleted"


def _bounds(run: Evidence, proposal: Proposal) -> Iterator[str]:
    """A candidate is within the limits of the search."""
    search, proposed = run.config.search, proposal.proposed
    try:
        found = run.count_of(run.lineage.graph(proposal.id))
        parent = run.count_of(run.lineage.graph(proposed.parent))
        initial = run.count_of(run.lineage.initial)
    except AIPerfError as error:
        yield str(error)
        return
    limits = {
        "max_parameters": (found.parameters, search.max_parameters),
        "max_depth": (found.depth, search.max_depth),
        "max_operations_ratio": (
            found.forward, int(search.max_operations_ratio * initial.forward)
        ),
        "max_growth": (found.forward, search.max_growth * parent.forward),
    }  # fmt: skip
    for name, (value, limit) in limits.items():
        if value > limit:
            yield f"its graph exceeds search.{name}: {value} of {limit:g}"
