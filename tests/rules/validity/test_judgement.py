"""Every rule on a run's records: a run that keeps them all, and what breaks each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.clock import Clock
from tests.support.nodes import rank
from tests.support.official_run import (
    IMAGENET,
    LATER,
    MANIFEST,
    RELEASED,
    Rewrite,
    as_it_is,
    official_evidence,
)
from tests.support.present import present
from tests.support.run_writer import START

from aiperf_hpc.config import TrainingConfig
from aiperf_hpc.integrity.release import FILES
from aiperf_hpc.morphism.resnet import resnet50
from aiperf_hpc.results.views.nodes import kinds_of
from aiperf_hpc.rules.judgement import Judgement, judge, judge_briefly
from aiperf_hpc.rules.registry import BRIEF, CLOSED
from aiperf_hpc.rules.rule import Division
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.rules.validity.search import RESNET50
from aiperf_hpc.run import records
from aiperf_hpc.run.clocks import Clocks
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.records import AnyEvent
from aiperf_hpc.system.description import Accelerator, NodeDescription, ProcessDescription
from aiperf_hpc.trial import Machine

E = TypeVar("E", bound=records.Event)


OTHER_VERSIONS = {FILES: RELEASED, "torch": "2.4"}


def judged(root: Path, rewrite: Rewrite = as_it_is) -> Judgement:
    return judge(official_evidence(root, rewrite))


def changed(kind: type[E], change: Callable[[str, float, E], dict[str, Any]]) -> Rewrite:
    """Change events of a kind by what is returned for the writer, the time and the event."""
    return lambda who, at, event: (
        event.model_copy(update=change(who, at, event)) if isinstance(event, kind) else event
    )


def of(kind: type[records.Event], **changes: Any) -> Rewrite:  # noqa: ANN401 -- an event's fields
    """Change all events of a kind."""
    return changed(kind, lambda *_: changes)


def without(kind: type, keep: Callable[[str, float], bool] = lambda who, at: False) -> Rewrite:
    """Leave out events of a kind, but those to keep."""
    return lambda who, at, event: None if isinstance(event, kind) and not keep(who, at) else event


def trials(**changes: Any) -> Rewrite:  # noqa: ANN401 -- hyperparameters
    """Change the hyperparameters of all trials."""
    return changed(
        records.TrialStarted,
        lambda _, __, event: {"hyperparameters": event.hyperparameters.model_copy(update=changes)},
    )


def one_trial(name: str, **changes: Any) -> Rewrite:  # noqa: ANN401 -- an event's fields
    return changed(
        records.TrialStarted, lambda _, __, event: changes if event.trial == name else {}
    )


def described(**changes: Any) -> Rewrite:  # noqa: ANN401 -- fields of a description
    return changed(
        records.SystemDescribed,
        lambda _, __, event: {"description": event.description.model_copy(update=changes)},
    )


def clocks(change: Callable[[float, Clocks], dict[str, Any]]) -> Rewrite:
    """Have the clocks read otherwise, by the time in the run."""

    def rewrite(_: str, at: float, event: records.ClocksRead) -> dict[str, Any]:
        return {"clocks": event.clocks.model_copy(update=change(at, event.clocks))}

    return changed(records.ClocksRead, rewrite)


def slowed(seconds: float) -> Rewrite:
    """Have the monotonic clock lose these seconds in an hour."""
    return clocks(lambda at, _: {"monotonic": at - seconds * (at > 9.0)})


other_version = changed(
    records.ReplicaStarted,
    lambda who, _, event: (
        {"machine": event.machine.model_copy(update={"versions": OTHER_VERSIONS})}
        if who == "r1"
        else {}
    ),
)
more_work = changed(
    records.Progress, lambda _, at, __: {"train_samples": 10_000} if at > 3000.0 else {}
)
"""A replica does much in the last minutes."""
unlike_the_servers = clocks(
    lambda at, read: {"server": read.server.model_copy(update={"ahead_seconds": -3.0 * (at > 9.0)})}
)
"""UTC falls behind the file server's clock by three seconds in an hour."""


IDLE = NodeDescription(
    accelerators=tuple(Accelerator(vendor="Example", model="A", index=n) for n in range(2))
)
FAST = ProcessDescription(cores=(0,), environment={"ONEDNN_DEFAULT_FPMATH_MODE": "ANY"})
FAILED = {"reason": "failed: EngineError"}


VIRTUALENV = {"/env/_virtualenv.pth": hashlib.sha256(b"import _virtualenv").hexdigest()}
MANY = {f"/{n}{path}": sha256 for n in range(100) for path, sha256 in VIRTUALENV.items()}


@pytest.mark.parametrize(
    "rewrite", [as_it_is, slowed(0.99), of(records.ModulesImported, foreign=VIRTUALENV)]
)
def test_a_run_that_keeps_every_rule_is_closed(tmp_path: Path, rewrite: Rewrite) -> None:
    judgement = judged(tmp_path, rewrite)
    assert list(map(str, judgement.violations)) == []
    assert judgement.division is Division.CLOSED
    assert (judgement.declared, judgement.closed_violations) == ((), ())
    assert len({each.rule for each in judgement.results}) == len(judgement.results)


def test_the_first_network_is_resnet50() -> None:
    assert resnet50((224, 224, 3), 1000, stem="imagenet", base_width=64).hash == RESNET50


@pytest.mark.parametrize(
    ("rewrite", "rule", "reason"),
    [
        (of(records.ReplicaStarted, engine="simulated"), "engine", "simulated engine: nothing"),
        (of(records.RunStarted, hours=1.2), "duration",
         "1 h 00 min 00 s of 1 h 12 min 00 s requested; at least 99% is"),
        (of(records.Evaluated, sums={"correct": 10}), "error", "99.98%; at most 30% is required"),
        (of(records.Evaluated, sums={"correct": 34_999}), "error", "30.002%; at most 30% is"),
        (without(records.Evaluated), "error", "no evaluation was completed"),
        (without(records.DatasetLoaded), "dataset", "no replica loaded a dataset"),
        (of(records.TrialStarted, morphisms=()), "network morphism",
         "no trial trained a network grown by morphism"),
        (of(records.DatasetLoaded, dataset=IMAGENET.model_copy(update={"archives": {}})),
         "content", "it was not prepared from the official archives, and SHA-256 abab"),
        (other_version, "versions", "r1 has torch 2.4; most replicas have another"),
        (without(records.ReplicaStarted), "versions", "no replica stated its versions"),
        (described(process=FAST), "environment",
         "ONEDNN_DEFAULT_FPMATH_MODE=ANY computes in any, but bf16 is recorded; unset it"),
        (without(records.SystemDescribed), "environment", "r0 did not record its variables"),
        (without(records.ModulesImported), "release",
         "r0, r1 did not record the imported modules of each rank"),
        (of(records.ModulesImported, foreign={"/a/json.py": "0" * 64}), "release",
         "/a/json.py belongs to no installed distribution; remove it or start without it"),
        (of(records.ModulesImported, foreign={"/env/_virtualenv.py": "0" * 64}), "release",
         "/env/_virtualenv.py belongs to no installed distribution; remove it or start without it"),
        (of(records.ModulesImported, foreign=MANY), "release",
         "100 or more imported files belong to no installed distribution; remove them"),
        (of(records.ModulesImported, modified=("/lib/torch/optim/sgd.py",)), "release",
         "/lib/torch/optim/sgd.py differs from the installed file of its distribution; reinstall"),
        (of(records.ModulesImported, package_sha256="ab" * 32), "release",
         "other files of the package on r0, r1; install the same release on all nodes"),
        (of(records.ReplicaStarted, hosts=("n", "m")), "release",
         "r0, r1 did not record the imported modules of each rank"),
        (trials(precision="fp8"), "precision", "fp8; at least FP16 is required"),
        (one_trial("r1-t0", graph="small"), "initial network", "r1 begins with small; ResNet-50"),
        (one_trial("r1-t2", graph="large"), "proposals", "r1-t2 trained another network than"),
        (one_trial("r1-t2", proposal=None), "proposals", "r1-t2 has a network that no record"),
        (without(records.Proposed), "proposals", "r0-t1 has a network that no record proposes"),
        (without(records.Evaluated, lambda who, at: who == "r0" or at < 2000.0), "TPE",
         "r1 reached round 5 and evaluated 1 trials of hyperparameter optimization; 4 are random"),
        (without(records.BestEpochSaved), "weights", "the weights of r0-t0 were not kept"),
        (of(records.BestEpochSaved, epoch=2), "weights", "the weights of r0-t0 were not kept"),
        (without(records.ClocksRead, lambda who, at: who != "r1" or at < 9.0), "clocks",
         "r1 did not record its clocks from its start to its end"),
        (slowed(1.5), "clocks", "the clocks of the primary diverged by 1.490 s per hour, answered"),
        (unlike_the_servers, "clocks", "the clocks of the primary diverged by 2.98"),
        (without(records.ReplicaEnded), "replicas", "r0 has not ended"),
        (of(records.ReplicaEnded, **FAILED), "replicas", "r0 failed: EngineError"),
        (without(records.ReplicaLaunched), "replicas", "r0 was never launched"),
        (without(records.Heartbeat, lambda who, at: at < 900.0), "heartbeats",
         "r0 was silent for 2730.0 s"),
        (without(records.PeakMeasured), "peaks", "r0 did not measure the peak of each of its"),
        (more_work, "peaks", "r0 computed at 8.35 times the peak of its devices"),
        (more_work, "rates", "r0 was 83.5 times as fast in 0.1 h as in the median"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_breaks_a_rule_of_both_divisions_is_official_in_none(
    tmp_path: Path, rewrite: Rewrite, rule: str, reason: str
) -> None:
    judgement = judged(tmp_path, rewrite)
    assert judgement.division is None
    said = [v.reason for v in judgement.violations if v.rule == rule]
    assert any(each.startswith(reason) for each in said), (said, judgement.violations)


@pytest.mark.parametrize(
    ("rewrite", "reason"),
    [
        (trials(batch_size=64), "hyperparameters: r0-t0: batch size 64, kernel size none"),
        (trials(momentum=0.8), "hyperparameters: r0-t0: momentum 0.8"),
        (one_trial("r0-t1", epoch_limit=10), "hyperparameters: r0-t1: 10 epochs in round 2"),
        (described(node=IDLE), "accelerators: n-r0 has 2 accelerators and 1 ranks"),
        (described(node=None), "accelerators: n-r0 did not record its accelerators"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_breaks_a_rule_of_the_closed_division_alone_is_open(
    tmp_path: Path, rewrite: Rewrite, reason: str
) -> None:
    judgement = judged(tmp_path, rewrite)
    assert (judgement.division, judgement.violations) == (Division.OPEN, [])
    assert str(judgement.closed_violations[0]) == reason


def test_variables_of_an_earlier_attempt_are_judged_too(tmp_path: Path) -> None:
    run = official_evidence(tmp_path, described(process=FAST))
    paths = RunPaths(tmp_path)
    for name in ("r0", "r1"):
        again = Incarnation(0, 1)
        first, *_ = JournalReader(paths.replica_journal(name)).read()
        clock = Clock(LATER)
        with JournalWriter(paths.replica_journal(name, again), clock=clock) as attempt:
            attempt.append(first.event)
            attempt.append(records.SystemDescribed(rank=0, description=rank("n", None)))
    history = RunHistory.read(paths)
    assert history.replicas["r0"].described[0].process.environment != FAST.environment
    found = judge(RunEvidence(history, MANIFEST, run.final, LATER + 1.0)).violations
    assert "environment" in {each.rule for each in found}


def test_a_replica_that_executed_nothing_needs_no_peak(tmp_path: Path) -> None:
    def rewrite(who: str, _: float, event: AnyEvent) -> AnyEvent | None:
        idle = isinstance(event, records.Progress | records.PeakMeasured)
        return None if who == "r1" and idle else event

    assert "peaks" not in {each.rule for each in judged(tmp_path, rewrite).violations}


def test_the_division_that_was_asked_for_decides(tmp_path: Path) -> None:
    other = MANIFEST.config.model_copy(update={"training": TrainingConfig(batch_size=64)})
    run = official_evidence(tmp_path, trials(batch_size=64))

    def in_division(division: str | None) -> Judgement:
        manifest = MANIFEST.model_copy(update={"config": other, "division": division})
        return judge(RunEvidence(run.history, manifest, run.final, LATER))

    assert in_division(None).division is Division.OPEN
    assert in_division("open").division is Division.OPEN
    assert list(map(str, in_division("open").declared)) == ["training.batch_size 64 (closed: 448)"]
    closed = in_division("closed")
    assert closed.division is None
    assert str(closed.violations[0]) == (
        "closed settings: training.batch_size is 64; 448 is required"
    )


def test_what_the_manifest_says_is_judged_too(tmp_path: Path) -> None:
    run = official_evidence(tmp_path)

    def broken(now: float = LATER, **changes: Any) -> list[str]:  # noqa: ANN401 -- its fields
        manifest = MANIFEST.model_copy(update=changes)
        return list(map(str, judge(RunEvidence(run.history, manifest, run.final, now)).violations))

    changed = {**MANIFEST.versions, FILES: "ab" * 32}
    assert broken(versions=changed, release_changes=("primary/doctor.py changed",)) == [
        "release: not release 1.0.0: primary/doctor.py changed; install the release unchanged",
        "release: other files of the package on r0, r1; install the same release on all nodes",
    ]
    assert broken(now=present(run.history.end_utc) - 59.0) == []  # Its clock was ahead.
    assert broken(now=START) == ["end: 1970-01-12T14:46:40Z is in the future"]
    assert broken(nodes=4) == ["replicas: 2 of 4 replicas"]
    assert judge(RunEvidence(run.history, MANIFEST.model_copy(update={"nodes": 4}),
                             run.final, LATER)).closed_violations[0].rule == "nodes"  # fmt: skip


@pytest.mark.parametrize(
    ("there", "bound", "said"),
    [
        (2, ("GPU-a", "GPU-b"), ""),
        (2, ("GPU-a", "GPU-a"), "nodes: 1 hosts; 2 nodes are stated"),
        (0, (None, None), "nodes: 1 hosts; 2 nodes are stated"),
    ],
)
def test_a_node_may_be_a_share_of_a_host_with_an_accelerator_of_its_own(
    tmp_path: Path, there: int, bound: tuple[str | None, str | None], said: str
) -> None:
    node = NodeDescription(
        accelerators=tuple(Accelerator(vendor="Example", model="A", index=n) for n in range(there))
    )

    def on_one_host(who: str, _: float, event: records.AnyEvent) -> records.AnyEvent:
        match event:
            case records.ReplicaStarted(machine=machine):
                return event.model_copy(update={"machine": moved(machine)})
            case records.SystemDescribed(description=description):
                own = {"accelerator": bound[int(who == "r1")]}
                process = description.process.model_copy(update=own)
                told = {"host": "n", "node": node, "process": process}
                changed = description.model_copy(update=told)
                return event.model_copy(update={"description": changed})
        return event

    def moved(machine: Machine) -> Machine:
        return machine.model_copy(update={"host": "n"})

    found = judge(official_evidence(tmp_path, on_one_host))
    assert [str(each) for each in found.closed_violations if each.rule == "nodes"] == [said] * bool(
        said
    )
    kept = [each.found for each in found.results if each.rule == "nodes"]
    assert kept == ["1 hosts in 2 shares"] * (not said)


@pytest.mark.parametrize(
    ("rewrite", "sets"), [(as_it_is, "1 set"), (other_version, "2 sets")], ids=["same", "different"]
)
def test_the_sets_of_versions_are_counted(tmp_path: Path, rewrite: Rewrite, sets: str) -> None:
    found = [each.found for each in judged(tmp_path, rewrite).results if each.rule == "versions"]
    assert found == [f"{sets} of versions on 2 replicas"]


def test_a_run_that_lasts_is_asked_what_is_quick_to_say(tmp_path: Path) -> None:
    run = official_evidence(tmp_path, without(records.RunEnded))
    assert [str(each) for each in judge_briefly(run)] == ["duration: the run has not ended"]
    assert len(BRIEF) + len(CLOSED) < len(judge(run).results)


def test_a_run_on_two_kinds_of_nodes_is_closed(tmp_path: Path) -> None:
    def rewrite(who: str, _: float, event: AnyEvent) -> AnyEvent:
        if who == "r1" and isinstance(event, records.SystemDescribed):
            other = NodeDescription(accelerators=(Accelerator(vendor="E", model="B", index=0),))
            told = event.description.model_copy(update={"node": other})
            return event.model_copy(update={"description": told})
        if who == "r1" and isinstance(event, records.Progress):
            return event.model_copy(update={"train_samples": 10 * event.train_samples})
        return event

    run = official_evidence(tmp_path / "run", rewrite)
    assert set(kinds_of(run.replicas).values()) == {"A", "B"}
    assert judge(run).division is Division.CLOSED
