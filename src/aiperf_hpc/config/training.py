"""The training section of the configuration: optimizer, learning rate, stopping criteria."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from aiperf_hpc.config.section import Section
from aiperf_hpc.trial import ScheduleSettings


class TrainingConfig(Section):
    """Training of a trial: optimizer, learning rate and stopping criteria."""

    batch_size: int = Field(448, ge=1, le=1_048_576)
    """Batch size of a replica, over all its ranks, unless HPO chooses it."""
    optimizer: Literal["sgd", "adam", "adamw", "lamb", "asgd"] = "sgd"
    """Optimizer. asgd has no momentum and evaluates the average of the parameters over steps."""
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    """Momentum (sgd only)."""
    beta1: float = Field(0.9, ge=0.0, lt=1.0)
    """Decay rate of the first moment (adam, adamw, lamb)."""
    beta2: float = Field(0.999, ge=0.0, lt=1.0)
    """Decay rate of the second moment (adam, adamw, lamb)."""
    epsilon: float = Field(1e-8, gt=0.0, le=1.0)
    """Term added to the denominator of the update (adam, adamw, lamb)."""
    averaging_start: int = Field(0, ge=0)
    """Number of steps before averaging starts (asgd only)."""
    max_gradient_norm: float | None = Field(None, gt=0.0)
    """Maximum global norm of the gradients; larger gradients are scaled down to it."""
    learning_rate: float = Field(0.1, gt=0.0, le=100.0)
    """Peak learning rate of the schedule."""
    schedule: ScheduleSettings = ScheduleSettings()
    weight_decay: float = Field(0.0, ge=0.0, le=1.0)
    """Weight decay. L2 regularization in the gradient with adam, decoupled otherwise."""
    weight_decay_of: Literal["kernels", "all"] = "kernels"
    """Parameters to decay: kernels only, or also biases and the scales and shifts of
    normalizations."""
    weight_decay_in: Literal["update", "loss"] = "update"
    """Where weight decay applies: in the optimizer's update, or as an L2 penalty in the loss."""
    label_smoothing: float = Field(0.0, ge=0.0, lt=1.0)
    """Label smoothing factor."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Numeric format of the computation; fp16 requires engine torch and an accelerator."""
    max_epochs: int = Field(60, ge=1, le=100_000)
    """Epoch limit of HPO rounds and of fixed networks."""
    target: float | None = None
    """Target quality at which a trial ends, in the workload's metric."""
    patience: int = Field(10, ge=1, le=100_000)
    """Number of epochs without a lower validation loss before early stopping."""
    keep_predictions: bool = False
    """Save the predicted class of every validation sample for each trial (classifiers only)."""
    checkpoint_interval_seconds: float = Field(120.0, ge=0.0, le=86_400.0)
    """Interval in seconds between checkpoints of a running trial."""
