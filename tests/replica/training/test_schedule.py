"""Learning rates, against PyTorch's schedulers and the reference code of other benchmarks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from aiperf_hpc.config import TrainingConfig, load_config
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.replica.training.schedule import Schedule
from aiperf_hpc.trial import Hyperparameters, ScheduleSettings

STEPS, EPOCHS = 5, 8
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
    """All of a trial with these losses after its epochs."""
    return [of.rate(step, losses[: step // STEPS]) for step in range(of.total)]


def pytorchs(make: Made, every: int = 1, rate: float = 0.3) -> list[float]:
    """The same by a scheduler of PyTorch that is asked for a new rate every so many steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler = make(optimizer)
    found = []
    for step in range(STEPS * EPOCHS):
        if step and step % every == 0:
            optimizer.step()
            scheduler.step()
        found.append(optimizer.param_groups[0]["lr"])
    return found


SAME: list[tuple[dict[str, Any], Made, int]] = [
    ({"name": "constant"}, lambda o: lr_scheduler.ConstantLR(o, 1.0), 1),
    ({}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, STEPS * EPOCHS), 1),
    (
        {"name": "polynomial", "power": 2.5},
        lambda o: lr_scheduler.PolynomialLR(o, STEPS * EPOCHS, 2.5),
        1,
    ),
    (
        {"name": "polynomial", "power": 2.0, "end_factor": 0.1},
        lambda o: lr_scheduler.LambdaLR(
            o, lambda step: 0.1 + 0.9 * (1 - step / (STEPS * EPOCHS)) ** 2
        ),
        1,
    ),
    (
        {"name": "cosine", "end_factor": 0.1},
        lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS * EPOCHS, eta_min=0.03),
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
def test_rates_are_those_of_pytorch(settings: dict[str, Any], make: Made, every: int) -> None:
    assert rates(schedule(**settings)) == pytest.approx(pytorchs(make, every), rel=1e-9, abs=1e-9)


def test_the_default_is_what_it_always_was_to_the_last_bit() -> None:
    found = rates(schedule(0.1))
    assert found == [0.1 * (1.0 - step / (STEPS * EPOCHS)) for step in range(STEPS * EPOCHS)]


@pytest.mark.parametrize("mode", ["relative", "absolute"])
@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_a_plateau_is_that_of_pytorch(mode: str, patience: int, seed: int) -> None:
    """Losses that fall and rise by chance, over 60 epochs; the rate has a least value."""
    losses = np.random.default_rng(seed).normal(1.0, 0.1, 60) * np.linspace(1.0, 0.7, 60)
    used = schedule(
        name="plateau",
        patience=patience,
        factor=0.5,
        threshold=0.05,
        threshold_mode=mode,
        end_factor=0.1,
    )
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    scheduler = lr_scheduler.ReduceLROnPlateau(
        optimizer,
        factor=0.5,
        patience=patience,
        threshold=0.05,
        threshold_mode="rel" if mode == "relative" else "abs",
        min_lr=0.03,
    )
    seen: list[float] = []
    for epoch, loss in enumerate(losses):
        wanted = optimizer.param_groups[0]["lr"]
        assert used.rate(epoch * STEPS, seen) == pytest.approx(wanted)
        scheduler.step(float(loss))
        seen.append(float(loss))
    assert optimizer.param_groups[0]["lr"] < 0.3


def test_a_warm_up_is_followed_by_what_counts_from_the_first_step() -> None:
    """As ResNet-50 is trained: linear from 0 over the first epochs, a cosine over all of them."""
    found = rates(schedule(name="cosine", warmup_epochs=2))
    assert found[: 2 * STEPS] == pytest.approx([0.3 * step / 10 for step in range(10)])
    assert found[2 * STEPS :] == rates(schedule(name="cosine"))[2 * STEPS :]


def test_cosmoflows_schedule_can_be_written() -> None:
    """Warm-up by epoch from the base rate to that of the batch, then factors of it.

    Its code (mlcommons/hpc, cosmoflow, utils/optimizers.py) compares the epochs done, which are
    counted from 0, by ``boundary < epoch``.
    """
    base, batch, boundaries, factors = 0.001, 256, (3, 5), (0.25, 0.125)
    peak = base * batch / 64
    wanted = []
    for epoch in range(EPOCHS):
        rate = peak
        if epoch < 2:
            rate = base + epoch * (peak - base) / 2
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


def test_the_peak_is_linear_in_the_batch_size_where_a_base_is_given() -> None:
    assert schedule(0.3, 48, base_batch_size=16).peak == pytest.approx(0.9)
    assert schedule(0.3, 48).peak == 0.3


@pytest.mark.parametrize("settings", [settings for settings, _, _ in SAME])
def test_settings_come_back_from_a_record(settings: dict[str, Any]) -> None:
    used = schedule(**settings).used
    assert Hyperparameters.model_validate_json(used.model_dump_json()) == used
    config = TrainingConfig(schedule=used.schedule)
    assert TrainingConfig.model_validate_json(config.model_dump_json()) == config


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
def test_what_makes_no_sense_is_refused_in_one_line(settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"training.schedule.*{message}") as raised:
        load_config("quickstart", [f"training.schedule={settings}"])
    assert "\n" not in str(raised.value)


def test_no_rate_is_below_zero_or_above_the_peak() -> None:
    for settings, epoch in itertools.product((s for s, _, _ in SAME), range(EPOCHS)):
        found = rates(schedule(**settings), [1.0] * epoch)
        assert 0.0 <= min(found) <= max(found) <= 0.3


def test_a_cosine_of_so_many_steps_is_pytorchs_and_begins_behind_the_warm_up() -> None:
    """Of 12 steps in a trial of 40: it rises again."""
    wave: dict[str, Any] = {"name": "cosine", "decay_steps": 12, "end_factor": 0.1}
    wanted = pytorchs(lambda o: lr_scheduler.CosineAnnealingLR(o, 12, 0.03))
    assert rates(schedule(**wave)) == pytest.approx(wanted)
    behind = rates(schedule(**wave, warmup_steps=4))
    assert behind[:4] == pytest.approx([0.0, 0.075, 0.15, 0.225])
    assert behind[4:] == pytest.approx(wanted[:-4])
