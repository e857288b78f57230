"""How one trial is trained: optimizer, learning rate and its schedule, when it ends."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from aiperf_hpc.config.section import Section
from aiperf_hpc.trial import ScheduleSettings


class TrainingConfig(Section):
    """How one trial is trained."""

    batch_size: int = Field(
        448, ge=1, le=1_048_576, description="of a replica, over all its ranks, where HPO has none"
    )
    optimizer: Literal["sgd", "adam", "adamw", "lamb", "asgd"] = Field(
        "sgd", description="asgd: without momentum, evaluated by the average over the steps"
    )
    momentum: float = Field(0.9, ge=0.0, lt=1.0, description="sgd only")
    beta1: float = Field(0.9, ge=0.0, lt=1.0, description="adam, adamw, lamb")
    beta2: float = Field(0.999, ge=0.0, lt=1.0, description="adam, adamw, lamb")
    epsilon: float = Field(1e-8, gt=0.0, le=1.0, description="adam, adamw, lamb")
    averaging_start: int = Field(0, ge=0, description="asgd: steps before it averages")
    max_gradient_norm: float | None = Field(
        None, gt=0.0, description="of all gradients together; larger ones are scaled down to it"
    )
    learning_rate: float = Field(0.1, gt=0.0, le=100.0, description="the peak of schedule")
    schedule: ScheduleSettings = ScheduleSettings()
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="of kernels; in the gradient (L2) with adam, else beside it",
    )
    weight_decay_of: Literal["kernels", "all"] = Field(
        "kernels", description="all: biases, and normalisations' scales and shifts, too"
    )
    weight_decay_in: Literal["update", "loss"] = Field(
        "update", description="loss: half of it times the squares of parameters is minimized too"
    )
    label_smoothing: float = Field(
        0.0, ge=0.0, lt=1.0, description="share of a target that is spread over all classes"
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "bf16", description="fp16: by the engine torch, on an accelerator"
    )
    max_epochs: int = Field(
        60, ge=1, le=100_000, description="epoch limit of HPO rounds, and of fixed networks"
    )
    target: float | None = Field(
        None, description="quality at which a trial ends, by the workload's measure"
    )
    patience: int = Field(
        10, ge=1, le=100_000, description="epochs without a lower validation loss before stopping"
    )
    keep_predictions: bool = Field(
        False, description="keep each trial's class of every validation sample; classifiers only"
    )
    checkpoint_seconds: float = Field(
        120.0, ge=0.0, le=86_400.0, description="between checkpoints of a trial under way"
    )
