"""What is said of trials that are executed again, by what executing them gave."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks import synthetic_run
from tests.support.clock import Clock

from aiperf_hpc.cli import main
from aiperf_hpc.errors import UsageError
from aiperf_hpc.graph import Dropout, Graph, Node
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.run import records
from aiperf_hpc.run.history import Evaluation, Trial
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.replica_requests import (
    CheckpointValues,
    EpochAgain,
    EvaluationAgain,
    ExecutionRequest,
    ExecutionResult,
    MatrixOperations,
    Movement,
    RecordedEpoch,
    TrainingAgain,
)
from aiperf_hpc.verification.audit import evidence_of
from aiperf_hpc.verification.execution import outcome
from aiperf_hpc.verification.execution.checks import EARLIER, EXACT, ROUNDED, Verdict
from aiperf_hpc.verification.execution.outcome import Outcome, execute_again, table

Found = dict[str, Any]
"""What of an honest execution is changed."""
LOSSES = (2.0, 1.5, 1.0)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """A run of two replicas, of which all trials but one have kept files, of no sense."""
    paths = synthetic_run.write_run(tmp_path_factory.mktemp("run"), 2, distinct=2).paths
    view = RunView.read(paths)
    for name, replica in view.history.replicas.items():
        with JournalWriter(paths.replica_journal(name), clock=Clock(replica.last_utc)) as journal:
            for trial in replica.trials[:-1]:
                journal.append(_kept(paths, view.history.trials[trial]))
    return paths


def _kept(paths: RunPaths, trial: Trial) -> records.BestEpochSaved:
    files = []
    for place in (paths.epoch_began, paths.epoch_evaluated):
        path = place(trial.replica, trial.id)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"weights")
        files.append(records.SavedFile(bytes=7, sha256="0" * 64))
    assert trial.best is not None
    return records.BestEpochSaved(
        trial=trial.id,
        epoch=trial.best.epoch,
        start_checkpoint=files[0],
        end_checkpoint=files[1],
    )


@pytest.fixture(scope="module")
def run(paths: RunPaths) -> Evidence:
    """The run, as if its replicas had trained on CPUs."""
    run = evidence_of(RunView(paths))
    for replica in run.history.replicas.values():
        utc, started = replica.all_started[-1]
        machine = started.machine.model_copy(update={"accelerators": ()})
        replica.all_started[-1] = utc, started.model_copy(update={"machine": machine})
    return run


@pytest.fixture
def executed(run: Evidence, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Execute again, by a replica's side that finds what was recorded, but for what is said."""

    def execute(drawn: int = 0, *, device: str | None = None, **changed: object) -> Outcome:
        def answer(request: ExecutionRequest, _: float | None) -> ExecutionResult:
            machine = run.history.replicas["r0"].machine
            assert machine is not None
            epochs = [_again(run, epoch, changed) for epoch in request.epochs]
            return ExecutionResult(
                engine="tensorflow",
                versions={},
                device=device or machine.cpu,
                cores=len(machine.cores),
                epochs=tuple(epochs),
            )

        monkeypatch.setattr(outcome, "execute", answer)
        return execute_again(run, drawn, "seed")

    monkeypatch.setattr(outcome, "possible", lambda _: None)
    return execute


def _again(run: Evidence, epoch: RecordedEpoch, changed: Found) -> EpochAgain:
    by_epoch = {e.epoch: e for e in run.history.trials[epoch.trial].evaluations}
    own, before = by_epoch[epoch.epoch], by_epoch[epoch.epoch - 1]
    assert epoch.losses == tuple(by_epoch[n].validation_loss for n in range(1, epoch.epoch))
    seconds = own.utc - before.utc
    graph = Graph.from_json(epoch.graph)
    kinds = count(graph).by_kind()
    layers = [kinds["conv2d"], kinds["dense"]]
    operations = MatrixOperations(
        forward=sum(each.forward for each in layers),
        training=sum(each.forward + each.backward - each.update for each in layers),
    )
    honest = EpochAgain(
        trial=epoch.trial,
        before=_evaluated(before),
        evaluated=_evaluated(own),
        train_loss=own.train_loss,
        recorded=CheckpointValues(
            train_losses=LOSSES, validation_losses=(own.validation_loss,), steps=20
        ),
        training=TrainingAgain(
            losses=LOSSES,
            steps=20,
            movements={
                name: Movement(recorded=1.0, again=1.0, between=0.0)
                for name in (*graph.parameters, *graph.statistics)
            },
        ),
        after=_evaluated(own),
        seconds=seconds,
        operations=operations,
    )
    changes = {key: value(honest) for key, value in changed.items()}
    return honest.model_copy(update=changes)


def _evaluated(recorded: Evaluation) -> EvaluationAgain:
    return EvaluationAgain(
        loss=recorded.validation_loss,
        losses=(recorded.validation_loss,),
        sums=dict(recorded.sums),
        samples=recorded.samples,
    )


def _less_correct(samples: int) -> Callable[[EpochAgain], EvaluationAgain]:
    def changed(honest: EpochAgain) -> EvaluationAgain:
        assert honest.evaluated is not None
        sums = {"correct": honest.evaluated.sums["correct"] - samples}
        return honest.evaluated.model_copy(update={"sums": sums})

    return changed


def _moved(**norms: float) -> Callable[[EpochAgain], TrainingAgain]:
    """Return the change to an execution in which all weights move differently."""

    def changed(honest: EpochAgain) -> TrainingAgain:
        assert honest.training is not None
        moved = {
            name: each.model_copy(update=norms) for name, each in honest.training.movements.items()
        }
        return honest.training.model_copy(update={"movements": moved})

    return changed


def _training(**changes: object) -> Callable[[EpochAgain], TrainingAgain]:
    def changed(honest: EpochAgain) -> TrainingAgain:
        assert honest.training is not None
        return honest.training.model_copy(update=changes)

    return changed


DISTANCES = ["distance that weights moved", "median distance of kernels, relative"]


def failed(found: Outcome) -> list[str]:
    """What failed of the best trial, without the numbers of epochs and samples."""
    checks = found.trials[0].checks
    return [c.name.partition(": ")[2] or c.name for c in checks if c.verdict is Verdict.FAILED]


def test_what_is_as_recorded_passes(executed: Callable[..., Outcome]) -> None:
    found = executed(3)
    assert {trial.verdict for trial in found.trials} <= {Verdict.PASSED, Verdict.NOT_EXECUTABLE}
    best = found.trials[0]
    assert best.verdict is Verdict.PASSED
    assert best.selected_by.startswith("the run's best")
    assert len(best.checks) == 17
    assert (found.population, found.stored) == (12, 10)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"evaluated": _less_correct(1)}, ["correct of 360"]),
        ({"evaluated": lambda e: e.evaluated.model_copy(update={"losses": (9.0,)})},
         ["validation loss of batch 1"]),
        ({"before": _less_correct(90)}, ["correct of 360", "validation loss"]),
        ({"after": _less_correct(90)}, ["accuracy"]),
        ({"after": _less_correct(3)}, []),
        ({"train_loss": lambda e: 1.1 * e.train_loss}, ["loss"]),
        ({"train_loss": lambda e: 1.01 * e.train_loss}, []),
        ({"train_loss": lambda _: math.nan}, ["loss"]),
        ({"seconds": lambda e: 2.0 * e.seconds + 11.0}, ["seconds"]),
        ({"seconds": lambda e: 2.0 * e.seconds}, []),
        ({"operations": lambda e: MatrixOperations(forward=1, training=e.operations.training)},
         ["operations of a validation sample"]),
        ({"operations": lambda _: None}, []),
        ({"training": _training(steps=21)}, ["steps of the optimizer"]),
        ({"training": _training(losses=(2.0, 1.51, 1.0))}, ["loss of batch 2"]),
        ({"training": _training(losses=(2.0, 1.5, 1.011))}, ["loss of batches 3 to 4"]),
        ({"training": _training(losses=(2.001, 1.501, 1.0))}, []),
        ({"training": _training(losses=(2.0, 1.5))}, ["loss: intervals"]),
        ({"training": _moved(again=1.02)}, DISTANCES),
        ({"training": _moved(recorded=0.0)},
         [*DISTANCES, "arrays that moved"]),
        ({"training": _moved(between=0.02)}, ["difference of weights", "difference of statistics"]),
        ({"training": _moved(recorded=math.inf)}, DISTANCES),
        ({"training": lambda _: None}, []),
        ({"recorded": lambda _: None}, []),
    ],
)  # fmt: skip
def test_only_differences_that_training_may_cause_pass(
    executed: Callable[..., Outcome], changed: Found, what: list[str]
) -> None:
    found = executed(**changed)
    assert (found.passed, failed(found)) == (not what, what)


def test_what_was_not_executed_is_not_compared(executed: Callable[..., Outcome]) -> None:
    parts = ("before", "evaluated", "train_loss", "training", "after", "seconds", "operations")
    found = executed(**{part: lambda _: None for part in parts})
    assert found.passed
    assert [check.verdict for check in found.trials[0].checks] == [Verdict.NOT_COMPARED] * 3
    assert [line.split()[-7:-4] for line in table(found) if "operations of" in line] == [
        ["-", "not", "compared"]
    ] * 2


def test_of_several_ranks_no_time_is_compared(
    executed: Callable[..., Outcome], run: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = run.config.replica.model_copy(update={"ranks_per_node": 2})
    monkeypatch.setattr(run, "config", run.config.model_copy(update={"replica": replica}))
    found = executed(seconds=lambda _: 1e6)
    assert failed(found) == []
    (time,) = [c for c in found.trials[0].checks if c.verdict is Verdict.NOT_COMPARED]
    assert time.tolerance == "one process did the work of 2 ranks"


@pytest.mark.parametrize(("precision", "most"), [("fp32", 10), ("bf16", 100), ("fp16", 100)])
def test_of_many_samples_a_few_may_be_of_another_class(precision: str, most: int) -> None:
    assert ROUNDED[precision].samples(50_000) == most
    assert EXACT.samples(50_000) == 0


def test_on_another_device_times_are_not_compared_and_classes_may_be_rounded_away(
    executed: Callable[..., Outcome],
) -> None:
    found = executed(
        device="another",
        seconds=lambda _: 1e6,
        evaluated=_less_correct(1),
        train_loss=lambda e: 1.09 * e.train_loss,
    )
    assert found.passed
    (time,) = [c for c in found.trials[0].checks if c.verdict is Verdict.NOT_COMPARED]
    assert "executed on another" in time.tolerance
    assert failed(executed(device="another", evaluated=_less_correct(2))) == ["correct of 360"]


def test_what_earlier_versions_did_not_record_is_not_compared(
    run: Evidence, executed: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = CheckpointValues(train_losses=(), validation_losses=(), steps=None)
    names = {"validation loss by interval", "steps of the optimizer", "loss by interval"}
    own, earlier = (run.manifest.model_copy(update={"schema_version": v}) for v in (2, 1))
    monkeypatch.setattr(run, "manifest", own)
    removed = executed(recorded=lambda _: nothing)
    assert not removed.passed
    assert set(failed(removed)) == names
    monkeypatch.setattr(run, "manifest", earlier)
    found = executed(recorded=lambda _: nothing)
    assert found.passed
    lacking = {c.name for c in found.trials[0].checks if c.tolerance == EARLIER}
    assert {name.partition(": ")[2] for name in lacking} == names


def test_on_another_device_weights_may_be_elsewhere_and_losses_differ_in_later_steps(
    executed: Callable[..., Outcome],
) -> None:
    assert executed(device="another", training=_moved(between=1.0)).passed
    later = _training(losses=(2.0001, 1.501, 1.002))
    assert executed(device="another", training=later).passed
    sooner = executed(device="another", training=_training(losses=(2.01, 1.5, 1.0)))
    assert failed(sooner) == ["loss of batch 1"]
    for moved, apart, wrong in (
        (0.9, 0.2, DISTANCES),
        (0.97, 0.19, DISTANCES[1:]),
        (0.97, 0.21, []),
    ):
        changed = _moved(recorded=moved, between=apart)
        assert failed(executed(device="another", training=changed)) == wrong
    assert failed(executed(device="another", training=_training(steps=21))) == [
        "steps of the optimizer"
    ]


def test_a_dropout_draws_anew_so_that_trainings_part_but_not_evaluations(
    run: Evidence, executed: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dropping(trial: Trial) -> Graph:
        *before, dense, last = grown(trial).nodes
        drop = Node("drop", Dropout(0.5), dense.inputs)
        return Graph((*before, drop, Node(dense.name, dense.layer, ("drop",)), last))

    grown = run.graph
    monkeypatch.setattr(run, "graph", dropping)
    assert executed(train_loss=lambda e: 1.09 * e.train_loss).passed
    assert failed(executed(train_loss=lambda e: 1.11 * e.train_loss)) == ["loss"]
    assert failed(executed(evaluated=_less_correct(1))) == ["correct of 360"]
    found = executed(training=_training(losses=(9.0, 9.0, 9.0)))
    assert found.passed
    assert executed(training=_moved(recorded=0.9, between=1.0)).passed
    assert failed(executed(training=_moved(recorded=0.79))) == DISTANCES


def test_what_could_not_be_executed_fails(executed: Callable[..., Outcome]) -> None:
    found = executed(failure=lambda _: "the checkpoint is not the file that was recorded")
    assert not found.passed
    assert found.trials[0].verdict is Verdict.FAILED
    assert "  the checkpoint is not the file that was recorded" in table(found)


def test_a_drawn_trial_of_which_nothing_is_kept_is_named(
    executed: Callable[..., Outcome],
) -> None:
    found = executed(12)
    assert not found.passed
    lacking = {t.trial: t.failure for t in found.trials if t.verdict is Verdict.NOT_EXECUTABLE}
    assert len(lacking) == 2
    assert set(lacking.values()) == {"nothing was saved, or it was deleted to free space"}
    lines = list(table(found))
    assert "10 are re-executable; sampled with seed seed (as given)" in lines[0]
    assert outcome.differing(found) == f"not re-executable: {', '.join(lacking)}"


def test_files_that_are_gone_fail(
    executed: Callable[..., Outcome], run: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = replace(run.paths, root=Path("/nowhere"))
    monkeypatch.setattr(run, "paths", nowhere)
    found = executed()
    assert found.trials[0].verdict is Verdict.FAILED
    assert "cannot be read" in found.trials[0].failure


def test_what_was_simulated_cannot_be_executed(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = paths.manifest.read_text()
    paths.manifest.write_text(text.replace("name: tensorflow", "name: simulated"))
    try:
        assert main(["verify", str(paths.root), "--execute", "1"]) == 2
    finally:
        paths.manifest.write_text(text)
    assert "'simulated' computed nothing" in capsys.readouterr().err


def test_options_of_an_execution_need_one(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(paths.root), "--seed", "x"]) == 2
    assert "--seed requires --execute K" in capsys.readouterr().err


def test_nothing_evaluated_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "possible", lambda _: None)
    empty = synthetic_run.write_run(tmp_path, 1, distinct=1).paths
    view = RunView(empty)
    evidence = evidence_of(view)
    monkeypatch.setattr(type(evidence.history), "best", None)
    with pytest.raises(UsageError, match="nothing was evaluated"):
        execute_again(evidence, 1)
