"""Re-execution of an epoch from its checkpoints gives the recorded results."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.engine_steps import ENGINES
from tests.support.networks import flat_images
from tests.support.recorded_epoch import SEED, Recorded

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data import Batch
from aiperf_hpc.replica.data.generated import TRAINING, GeneratedDataset
from aiperf_hpc.replica.reexecution import execute, main, make_samples
from aiperf_hpc.run.replica_requests import (
    ExecutionResult,
    SavedCheckpoint,
)
from aiperf_hpc.trial import DatasetInfo, Hyperparameters


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in all tests, because TensorFlow's threads are set once per process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1})


@pytest.fixture(scope="module", params=ENGINES)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def torchs(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("torch"), "torch")


def test_recorded_results_are_reproduced(recorded: Recorded) -> None:
    result = execute(recorded.request())
    assert result.engine == recorded.config.engine.name
    (again,) = result.epochs
    assert again.failure == ""
    assert again.train_loss == pytest.approx(recorded.losses[1], rel=1e-5)
    first, second = recorded.evaluations
    for found, (loss, correct) in (
        (again.before, first), (again.evaluated, second), (again.after, second)
    ):  # fmt: skip
        assert found is not None
        assert found.loss == pytest.approx(loss, rel=1e-5)
        assert (found.sums["correct"], found.samples) == (correct, 360)
    assert again.operations is not None


def test_another_order_of_samples_gives_another_loss(torchs: Recorded) -> None:
    (again,) = execute(torchs.request(seed=SEED + 1)).epochs
    assert again.train_loss != pytest.approx(torchs.losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"end_checkpoint": SavedCheckpoint(path="/nowhere", sha256="0")}, "No such file"),
        ({"graph": flat_images().to_json()}, "holds the graph"),
        ({"seed": -1}, "unexpected ValueError: "),
        (
            {"hyperparameters": Hyperparameters(batch_size=9, learning_rate=0.1, precision="fp8")},
            "unexpected KeyError: 'fp8'",
        ),
    ],
)
def test_an_epoch_that_cannot_be_executed_has_a_reason(
    torchs: Recorded, changed: dict[str, object], why: str
) -> None:
    (again,) = execute(torchs.request(**changed)).epochs
    assert why in again.failure
    assert again.evaluated is None


def test_a_replaced_checkpoint_is_rejected(torchs: Recorded) -> None:
    other = torchs.began.model_copy(update={"sha256": torchs.evaluated.sha256})
    (again,) = execute(torchs.request(start_checkpoint=other)).epochs
    assert "is not the file that was recorded" in again.failure


def test_another_dataset_is_rejected(torchs: Recorded) -> None:
    request = torchs.request()
    other = request.dataset.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(DatasetError, match="is not the run's"):
        execute(request.model_copy(update={"dataset": other}))


def test_the_program_reads_a_request_and_writes_the_result(
    torchs: Recorded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(text: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return main(["--out", str(tmp_path / "result.json")])

    nothing = torchs.request().model_copy(update={"epochs": ()})
    assert run(nothing.model_dump_json()) == 0
    assert ExecutionResult.model_validate_json((tmp_path / "result.json").read_text()).epochs == ()
    assert run("{}") == 2
    assert "standard input: config" in capsys.readouterr().err


@pytest.mark.parametrize(("epoch", "made"), [(1, []), (2, list(range(5)))])
def test_samples_are_generated_before_a_later_epoch_is_timed(epoch: int, made: list[int]) -> None:
    asked: list[int] = []

    def make(part: int, chosen: NDArray[np.intp]) -> Batch:
        assert part == TRAINING
        asked.extend(chosen.tolist())
        return Batch({}, {})

    info = DatasetInfo(
        name="made", sha256="0" * 64, inputs={}, targets={}, train_samples=5, validation_samples=2
    )
    make_samples(GeneratedDataset(info, make), epoch, 2, 7)
    assert sorted(asked) == made
