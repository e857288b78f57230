"""Rules on trials: their names and seeds, the trials that they resume, and their batch sizes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from aiperf_hpc.formatting import size
from aiperf_hpc.grouping import grouped
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.rule import Checked, Findings
from aiperf_hpc.run.history import Proposal, Trial
from aiperf_hpc.run.paths import FIRST, Identity, seed_of
from aiperf_hpc.run.records import TrialStarted
from aiperf_hpc.trial import RoundPhase, TrialState

RESUMED_FIELDS = ("round", "phase", "graph", "parent", "proposal", "morphisms", "epoch_limit")
"""Fields that a trial shares with the trial that it resumes or repeats in smaller batches."""
HALVED = re.compile(
    r"(\S+) did not fit on the accelerator in batches of (\d+); (\d+) with the same learning rate"
)
"""Note on a trial that repeats another one with half its batch size."""
SHRUNK = "batch size {planned} does not fit in memory; {used} is used"
"""Note on a trial whose batch size is smaller than planned."""


def names(run: Evidence) -> Findings:
    """Trials and proposals are numbered, and their seeds follow from the run's seed and names."""
    yield Checked(len(run.trials))
    attempts: defaultdict[str, dict[int, Trial]] = defaultdict(dict)
    for trial in run.begun:
        attempt = Identity(trial.replica, trial.incarnation).name
        before, _, number = trial.id.rpartition("-t")
        if before != attempt or not number.isdecimal():
            yield f"{trial.id} is not a valid name of a trial of {attempt}"
            continue
        attempts[attempt][int(number)] = trial
        wanted = _seed(run, trial, attempt, int(number))
        if trial.started.seed != wanted:
            yield f"{trial.id} has the seed {trial.started.seed}, the run's seed gives {wanted}"
    for attempt, trials in attempts.items():
        yield from _missing(attempt, trials)
        yield from _rounds(run, [trials[number] for number in sorted(trials)])
    for proposal in run.history.proposals.values():
        yield from _proposal(run, proposal)


def _seed(run: Evidence, trial: Trial, attempt: str, number: int) -> int:
    """Return the expected seed of a trial: its own, or the seed of the trial that it continues."""
    before = run.history.trials.get(trial.started.resumes or halved_trial(trial) or "")
    if before is not None:
        return before.started.seed
    return seed_of(run.config.seed, attempt, "trial", number)


def _missing(attempt: str, trials: dict[int, Trial]) -> Iterator[str]:
    """Each number has a trial.

    The exception is a trial that was planned while another one did not fit in memory: the latter
    is first repeated in half its batch size, and the run may end then.
    """
    last = max(trials)
    late = {n - 1 for n, trial in trials.items() if halved_trial(trial) and n == last}
    missing = sorted(set(range(1, last)) - trials.keys() - late)
    if missing:
        yield f"{attempt} has no trial {', '.join(map(str, missing[:5]))} of {last}"


def _rounds(run: Evidence, trials: Sequence[Trial]) -> Iterator[str]:
    """Rounds are consecutive, and each has the configured number of trials."""
    found = grouped((t.started.round, t) for t in trials if halved_trial(t) is None)
    rounds = sorted(found)
    if trials and trials[0].incarnation == FIRST:
        rounds = [0, *rounds]
    for one, other in pairwise(rounds):
        if other != one + 1:
            yield f"{found[other][0].id} is of round {other}, the previous one is of round {one}"
    for number, of_it in found.items():
        hpo = of_it[0].started.phase is RoundPhase.HPO
        wanted = run.config.hpo.trials_per_round if hpo else 1
        cut = number == rounds[-1] or of_it[0].started.resumes is not None
        if len(of_it) > wanted or (len(of_it) < wanted and not cut):
            yield f"{of_it[0].id}: round {number} has {len(of_it)} trials, there are {wanted}"


def _proposal(run: Evidence, proposal: Proposal) -> Iterator[str]:
    """A proposal is named by its search worker and a number."""
    worker, _, number = proposal.id.rpartition("-")
    attempt, _, which = worker.rpartition("-w")
    if not (number.isdecimal() and which.isdecimal()):
        yield f"{proposal.id} is not a valid name of a proposal"
        return
    attempts = run.history.replicas[proposal.replica].starts
    if attempt not in {Identity(proposal.replica, each).name for each in attempts}:
        yield f"{proposal.id} is not a valid name of a proposal of {proposal.replica}"
    wanted = seed_of(run.config.seed, attempt, "search", int(which), int(number))
    if proposal.proposed.seed != wanted:
        seed = proposal.proposed.seed
        yield f"{proposal.id} has the seed {seed}, the run's seed gives {wanted}"


def resumes(run: Evidence) -> Findings:
    """A trial begins with epoch 1 or resumes a trial of an earlier attempt of its replica."""
    yield Checked(len(run.trials))
    gone_on: dict[str, str] = {}
    for trial in run.begun:
        started = trial.started
        if started.resumes is None:
            if started.first_epoch != 1:
                yield f"{trial.id} begins with epoch {started.first_epoch}, and resumes no trial"
            continue
        before = run.history.trials.get(started.resumes)
        if before is None:
            yield f"{trial.id} resumes {started.resumes}, which is unknown"
            continue
        yield from (
            f"{trial.id} resumes {before.id}, {what}" for what in _wrong(run, trial, before)
        )
        if halved_trial(trial) is None:
            other = gone_on.setdefault(before.id, trial.id)
            if other != trial.id:
                yield f"{trial.id} resumes {before.id}, as {other} did"


def _wrong(run: Evidence, trial: Trial, before: Trial) -> Iterator[str]:
    """Yield the reasons why a trial cannot resume another."""
    if before.replica != trial.replica or before.incarnation >= trial.incarnation:
        yield "which is not of a previous attempt of its replica"
    if before.ended is not None:
        yield "which was not interrupted"
    own = (run.history.trials[name] for name in run.history.replicas[trial.replica].trials)
    for other in own:
        if other.incarnation < trial.incarnation and other.started_utc > before.started_utc:
            yield f"although {other.id} came after that"
            break
    if changed := _other_field(before.started, trial.started):
        yield f"but its {changed} is another"
    first, last = before.started.first_epoch, run.trial_endings.evaluated.get(before.id, 0)
    if not first < trial.started.first_epoch <= last + 1:
        yield (
            f"which had evaluated epochs {first} to {last}, from epoch {trial.started.first_epoch}"
        )
    used = trial.started.hyperparameters
    planned = trial.started.planned_batch_size or used.batch_size
    wanted = before.started.hyperparameters
    if halved_trial(trial) is None and (
        planned != wanted.batch_size or used.model_copy(update={"batch_size": planned}) != wanted
    ):
        yield "but with other hyperparameters"


def _other_field(one: TrialStarted, other: TrialStarted) -> str | None:
    """Return the first of ``RESUMED_FIELDS`` that differs."""
    return next((n for n in RESUMED_FIELDS if getattr(one, n) != getattr(other, n)), None)


def halved_trial(trial: Trial) -> str | None:
    """Return the trial that this one repeats with half its batch size, according to its notes."""
    found = [match for note in trial.started.notes if (match := HALVED.fullmatch(note))]
    return found[0][1] if found else None


def batches(run: Evidence) -> Findings:
    """A trial has a configured batch size, or a smaller one that fits in memory."""
    yield Checked(len(run.trials))
    for trial in run.begun:
        started = trial.started
        used = started.hyperparameters.batch_size
        planned = used if started.planned_batch_size is None else started.planned_batch_size
        yield from _planned(run, trial, planned)
        if started.planned_batch_size is not None:
            yield from _shrunk(run, trial, planned, used)


def _planned(run: Evidence, trial: Trial, planned: int) -> Iterator[str]:
    """The planned batch size is in the search space, or that of the resumed trial."""
    resumes, halves = trial.started.resumes, halved_trial(trial)
    if halves is not None:
        yield from _halved(run, trial, halves, planned)
        return
    if resumes is not None:
        return  # Compared with the resumed trial by the rule ``resumes``.
    searched = run.config.hpo.space if trial.started.phase is RoundPhase.HPO else None
    allowed = searched.batch_size.values if searched else (run.config.training.batch_size,)
    if planned not in allowed:
        yield f"{trial.id}: batch size {planned} is not one of {list(allowed[:8])}"


def _halved(run: Evidence, trial: Trial, halves: str, planned: int) -> Iterator[str]:
    """A trial that repeats another one with half its batch size follows its failure."""
    before = run.history.trials.get(halves)
    if before is None or before.replica != trial.replica:
        yield f"{trial.id} is {halves} in smaller batches, which is no trial of {trial.replica}"
        return
    one = before.started
    if other := _other_field(one, trial.started):
        yield f"{trial.id} is {halves} in smaller batches, but its {other} is another"
    failed = before.ended is not None and before.ended.state is TrialState.FAILED
    if not failed or before.started_utc > trial.started_utc:
        yield f"{trial.id} is {halves} in smaller batches, which had not failed"
    if planned != one.hyperparameters.batch_size // 2:
        yield (
            f"{trial.id}: batch size {planned} is not half of {one.hyperparameters.batch_size}, "
            f"which {halves} had"
        )


def _shrunk(run: Evidence, trial: Trial, planned: int, used: int) -> Iterator[str]:
    """The batch size was halved until its estimate fits in memory, and there is a note on it."""
    if SHRUNK.format(planned=planned, used=used) not in trial.started.notes:
        yield f"{trial.id}: no note states that {used} is used where {planned} was planned"
    limit = run.memory_limit(trial)
    if limit is None:
        if not run.manifest.earlier:
            yield f"{trial.id}: batch size {used} is used, but no memory limit was recorded"
        return
    fitting = limit.fitting_batch(run.graph(trial), planned)
    if fitting != used:
        yield (
            f"{trial.id}: batch size {used} is used where {planned} was planned; in "
            f"{size(limit.bytes)} fit {fitting}"
        )
