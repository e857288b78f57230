"""Learning rates, compared with PyTorch's schedulers and reference code of other benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from aiperf_hpc.config import TrainingConfig, load_config
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.replica.training.schedule import Schedule
from aiperf_hpc.trial import Hyperparameters, ScheduleSettings

STEPS, EPOCHS = 5, 8
TOTAL = STEPS * EPOCHS
Made = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]


def schedule(
    rate: float = 0.3,
    batch_size: int = 8,
    **settings: Any,  # noqa: ANN401 -- of several types
) -> Schedule:
    used = Hyperparameters(
        batch_size=batch_size,
        learning_rate=rate,
        schedule=ScheduleSettings.model_validate(settings),
    )
    return Schedule(used, STEPS, EPOCHS)


def rates(of: Schedule, losses: Sequence[float] = ()) -> list[float]:
    """Return the rates of a trial with these losses after its epochs."""
    return [of.rate(step, losses[: step // STEPS]) for step in range(of.total)]


def pytorchs(make: Made, every: int = 1) -> list[float]:
    """Return the rates of PyTorch's scheduler, which is stepped at this interval."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = make(optimizer)
    found = []
    for step in range(TOTAL):
        if step and step % every == 0:
            optimizer.step()
            scheduler.step()
        found.append(optimizer.param_groups[0]["lr"])
    return found


SAME: list[tuple[dict[str, Any], Made, int]] = [
    ({"name": "constant"}, lambda o: lr_scheduler.ConstantLR(o, 1.0), 1),
    ({}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, TOTAL), 1),
    ({"name": "polynomial", "power": 2.5}, lambda o: lr_scheduler.PolynomialLR(o, TOTAL, 2.5), 1),
    (
        {"name": "polynomial", "power": 2.0, "end_factor": 0.1},
        lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.1 + 0.9 * (1 - step / TOTAL) ** 2),
        1,
    ),
    (
        {"name": "cosine", "end_factor": 0.1},
        lambda o: lr_scheduler.CosineAnnealingLR(o, TOTAL, eta_min=0.03),
        1,
    ),
    (
        {"name": "cosine", "interval": "epoch"},
        lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS),
        STEPS,
    ),
    (
        {"name": "multi_step", "milestones": [2, 5], "factor": 0.3},
        lambda o: lr_scheduler.MultiStepLR(o, [2, 5], 0.3),
        STEPS,
    ),
    (
        {"name": "multi_step", "milestones": [3, 21, 22], "milestone_unit": "step"},
        lambda o: lr_scheduler.MultiStepLR(o, [3, 21, 22], 0.1),
        1,
    ),
    (
        {"name": "constant", "warmup_steps": 7, "warmup_start_factor": 0.25},
        lambda o: lr_scheduler.LinearLR(o, 0.25, 1.0, 7),
        1,
    ),
    (
        {"name": "constant", "warmup_epochs": 3, "warmup_start_factor": 0.1, "interval": "epoch"},
        lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 3),
        STEPS,
    ),
]


@pytest.mark.parametrize(("settings", "make", "every"), SAME)
def test_rates_match_pytorch_and_settings_can_be_read_from_a_record(
    settings: dict[str, Any], make: Made, every: int
) -> None:
    found = schedule(**settings)
    assert rates(found) == pytest.approx(pytorchs(make, every), rel=1e-9, abs=1e-9)
    assert Hyperparameters.model_validate_json(found.used.model_dump_json()) == found.used
    config = TrainingConfig(schedule=found.used.schedule)
    assert TrainingConfig.model_validate_json(config.model_dump_json()) == config
    for epoch in range(EPOCHS):
        bounded = rates(found, [1.0] * epoch)
        assert 0.0 <= min(bounded) <= max(bounded) <= 0.3


def test_the_default_schedule_is_exact_to_the_last_bit() -> None:
    assert rates(schedule(0.1)) == [0.1 * (1.0 - step / TOTAL) for step in range(TOTAL)]


@pytest.mark.parametrize("mode", ["relative", "absolute"])
@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_plateaus_match_pytorch(
    mode: Literal["relative", "absolute"], patience: int, seed: int
) -> None:
    """With random losses that decrease over 60 epochs, and a lowest rate."""
    losses = np.random.default_rng(seed).normal(1.0, 0.1, 60) * np.linspace(1.0, 0.7, 60)
    shared: dict[str, Any] = {"patience": patience, "factor": 0.5, "threshold": 0.05}
    used = schedule(name="plateau", threshold_mode=mode, end_factor=0.1, **shared)
    theirs: Literal["rel", "abs"] = "rel" if mode == "relative" else "abs"
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    scheduler = lr_scheduler.ReduceLROnPlateau(
        optimizer, threshold_mode=theirs, min_lr=0.03, **shared
    )
    seen: list[float] = []
    for epoch, loss in enumerate(losses):
        wanted = optimizer.param_groups[0]["lr"]
        assert used.rate(epoch * STEPS, seen) == pytest.approx(wanted)
        scheduler.step(float(loss))
        seen.append(float(loss))
    assert optimizer.param_groups[0]["lr"] < 0.3


def test_the_schedule_after_a_warm_up_counts_from_the_first_step() -> None:
    """As for ResNet-50: linear from 0 over the first epochs, a cosine over all of them."""
    found = rates(schedule(name="cosine", warmup_epochs=2))
    assert found[: 2 * STEPS] == pytest.approx([0.3 * step / 10 for step in range(10)])
    assert found[2 * STEPS :] == rates(schedule(name="cosine"))[2 * STEPS :]


def test_the_schedule_of_cosmoflow_can_be_configured() -> None:
    """Warm-up by epoch from the base rate to the batch's, then factors of the latter.

    CosmoFlow's code (mlcommons/hpc, cosmoflow, utils/optimizers.py) compares the completed epochs,
    counted from 0, by ``boundary < epoch``.
    """
    base, batch, boundaries, factors = 0.001, 256, (3, 5), (0.25, 0.125)
    peak = base * batch / 64
    wanted = []
    for epoch in range(EPOCHS):
        rate = base + min(epoch, 2) * (peak - base) / 2
        for boundary, factor in zip(boundaries, factors, strict=True):
            if boundary < epoch:
                rate = peak * factor
        wanted += [rate] * STEPS
    found = schedule(
        base,
        batch,
        name="multi_step",
        interval="epoch",
        base_batch_size=64,
        warmup_epochs=2,
        warmup_start_factor=64 / 256,
        milestones=[4, 6],
        factors=factors,
    )
    assert rates(found) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{power: 2}", "power applies to polynomial, not to linear"),
        (
            "{name: constant, end_factor: 0.1}",
            "end_factor applies to polynomial and cosine and plateau",
        ),
        ("{name: multi_step}", "multi_step needs ascending milestones"),
        ("{name: multi_step, milestones: [3, 3]}", "multi_step needs ascending milestones"),
        ("{name: multi_step, milestones: [3, 4], factors: [0.1]}", "1 factors for 2 milestones"),
        (
            "{name: multi_step, milestones: [3], factors: [0.1], factor: 0.5}",
            "set either factors, relative to the peak, or",
        ),
        ("{warmup_start_factor: 0.5}", "warmup_start_factor is without a warm-up"),
        ("{warmup_steps: 1, warmup_epochs: 1}", "write warmup_epochs or warmup_steps, not both"),
        ("{name: plateau, factor: 1.5}", "factor: should be less than 1"),
        ("{name: exponential}", "name: should be 'constant'"),
    ],
)
def test_contradictory_settings_are_rejected_in_one_line(settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"training.schedule.*{message}") as raised:
        load_config("quickstart", [f"training.schedule={settings}"])
    assert "\n" not in str(raised.value)


def test_a_cosine_of_fixed_length_matches_pytorch_and_starts_after_the_warm_up() -> None:
    """It has 12 steps in a trial of 40, so it rises again."""
    wave: dict[str, Any] = {"name": "cosine", "decay_steps": 12, "end_factor": 0.1}
    wanted = pytorchs(lambda o: lr_scheduler.CosineAnnealingLR(o, 12, 0.03))
    assert rates(schedule(**wave)) == pytest.approx(wanted)
    behind = rates(schedule(**wave, warmup_steps=4))
    assert behind[:4] == pytest.approx([0.0, 0.075, 0.15, 0.225])
    assert behind[4:] == pytest.approx(wanted[:-4])
