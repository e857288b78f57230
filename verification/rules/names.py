"""Names, numbers and seeds: all of them follow from the run's seed, and none is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from aiperf_hpc.run.history import Proposal, Trial
from aiperf_hpc.run.paths import Identity, seed_of
from aiperf_hpc.trial import RoundPhase
from aiperf_hpc.verification.evidence import Evidence, Failures
from aiperf_hpc.verification.rules.batches import halved_trial

Life = tuple[str, str]
"""A replica, and the name that a life of it names its trials by."""


def names(run: Evidence) -> Failures:
    """Trials and proposals are numbered, and their seeds made of the run's and of their names."""
    lives: defaultdict[Life, dict[int, Trial]] = defaultdict(dict)
    for trial in run.begun:
        life = Identity(trial.replica, trial.incarnation).name
        before, _, number = trial.id.rpartition("-t")
        if before != life or not number.isdecimal():
            yield f"{trial.id} is no name of a trial of {life}"
            continue
        lives[trial.replica, life][int(number)] = trial
        wanted = _seed(run, trial, life, int(number))
        if trial.started.seed != wanted:
            yield f"{trial.id} has the seed {trial.started.seed}, from the run's follows {wanted}"
    for (_, life), trials in lives.items():
        yield from _missing(life, trials)
        yield from _rounds(run, [trials[number] for number in sorted(trials)])
    for proposal in run.history.proposals.values():
        yield from _proposal(run, proposal)


def _seed(run: Evidence, trial: Trial, life: str, number: int) -> int:
    """Return the seed of a trial; one that goes on with another has that one's."""
    before = run.history.trials.get(trial.started.resumes or halved_trial(trial) or "")
    if before is not None:
        return before.started.seed
    return seed_of(run.config.seed, life, "trial", number)


def _missing(life: str, trials: dict[int, Trial]) -> Failures:
    """Each number has its trial.

    But for one that was planned while another did not fit: that one, in half its batches, comes
    first, and the run's end may come then.
    """
    last = max(trials)
    late = {n - 1 for n, trial in trials.items() if halved_trial(trial) and n == last}
    missing = sorted(set(range(1, last)) - trials.keys() - late)
    if missing:
        yield f"{life} has no trial {', '.join(map(str, missing[:5]))} of {last}"


def _rounds(run: Evidence, trials: Sequence[Trial]) -> Failures:
    """Round follows round, each with as many trials as are configured."""
    found: defaultdict[int, list[Trial]] = defaultdict(list)
    for trial in trials:
        if halved_trial(trial) is None:
            found[trial.started.round].append(trial)
    rounds = sorted(found)
    if trials and trials[0].incarnation.launch + trials[0].incarnation.restart == 0:
        rounds = [0, *rounds]
    for one, other in zip(rounds, rounds[1:], strict=False):
        if other != one + 1:
            yield f"{found[other][0].id} is of round {other}, the one before is of round {one}"
    for number, of_it in found.items():
        hpo = of_it[0].started.phase is RoundPhase.HPO
        wanted = run.config.hpo.trials_per_round if hpo else 1
        cut = number == rounds[-1] or of_it[0].started.resumes is not None
        if len(of_it) > wanted or (len(of_it) < wanted and not cut):
            yield f"{of_it[0].id}: round {number} has {len(of_it)} trials, there are {wanted}"


def _proposal(run: Evidence, proposal: Proposal) -> Failures:
    """A search worker names what it proposes by itself and a number."""
    worker, _, number = proposal.id.rpartition("-")
    life, _, which = worker.rpartition("-w")
    if not (number.isdecimal() and which.isdecimal()):
        yield f"{proposal.id} is no name of a proposal"
        return
    lives = run.history.replicas[proposal.replica].starts
    if life not in {Identity(proposal.replica, each).name for each in lives}:
        yield f"{proposal.id} is no name of a proposal of {proposal.replica}"
    wanted = seed_of(run.config.seed, life, "search", int(which), int(number))
    if proposal.proposed.seed != wanted:
        seed = proposal.proposed.seed
        yield f"{proposal.id} has the seed {seed}, from the run's follows {wanted}"
