"""Sections of the configuration on architecture search, rounds and hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from aiperf_hpc.config.sections import Fraction, Positive, Section

LARGEST_SIZE = 1_048_576
"""Maximum of an integer dimension, which is the maximum batch size."""
MOST_SIZES = 10_000
"""Maximum number of choices; the paper has 4 batch sizes and 3 kernel sizes."""
MOST_EPOCHS = 100_000
KERNELS = (1, 3, 5, 7)
"""Allowed kernel sizes of convolutions."""


_Size = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]


class Integers(Section):
    """Integer dimension: unordered `choices`, or `low` to `high` by `step`."""

    choices: Annotated[tuple[_Size, ...], Field(min_length=1, max_length=MOST_SIZES)] | None = None
    """Allowed values, unordered; replaces low and high."""
    low: _Size | None = None
    """Minimum."""
    high: _Size | None = None
    """Maximum; low plus a multiple of step."""
    step: Positive = 1
    """Difference between neighboring values."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Integers:
        ends = (self.low, self.high)
        if self.choices is not None:
            if ends != (None, None) or len(set(self.choices)) < len(self.choices):
                raise ValueError("write distinct choices, or low and high, not both")
        elif self.low is None or self.high is None:
            raise ValueError("write choices, or low and high, such as {low: 256, high: 448}")
        elif self.high < self.low or (self.high - self.low) % self.step:
            raise ValueError(
                f"high {self.high} is not low {self.low} plus a multiple of {self.step}"
            )
        return self

    @property
    def values(self) -> Sequence[int]:
        """Allowed values in ascending order."""
        if self.low is not None and self.high is not None:
            return range(self.low, self.high + 1, self.step)
        return tuple(sorted(self.choices or ()))


class Reals(Section):
    """Real dimension, searched on a logarithmic scale by default."""

    low: float = Field(ge=0.0, le=100.0)
    """Minimum; above 0 if log is true."""
    high: float = Field(gt=0.0, le=100.0)
    """Maximum."""
    log: bool = True
    """Search on a logarithmic scale."""

    @model_validator(mode="after")
    def _ascending(self) -> Reals:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.log and self.low == 0.0:
            raise ValueError("low 0 has no logarithm; write log: false or a larger low")
        return self


class SpaceConfig(Section):
    """Hyperparameter space. The defaults of batch size and kernel size are those of Ren et al.
    2021."""

    batch_size: Integers = Integers(low=256, high=448, step=64)
    """Batch size of a replica, over all its ranks."""
    kernel_size: Integers = Integers(low=3, high=7, step=2)
    """Kernel size of inserted convolutions; odd and at most 7."""
    learning_rate: Reals | None = None
    """Peak learning rate; not searched by default."""
    momentum: Reals | None = None
    """Momentum, below 1; not searched by default."""
    weight_decay: Reals | None = None
    """Weight decay, at most 1; not searched by default."""

    @model_validator(mode="after")
    def _can_be_trained(self) -> SpaceConfig:
        if not set(self.kernel_size.values) <= set(KERNELS):
            raise ValueError(f"kernel_size: sizes are of {KERNELS}, such as {{choices: [3, 5]}}")
        if self.momentum is not None and self.momentum.high >= 1.0:
            raise ValueError(f"momentum: high {self.momentum.high:g} is not below 1")
        if self.weight_decay is not None and self.weight_decay.high > 1.0:
            raise ValueError(f"weight_decay: high {self.weight_decay.high:g} is above 1")
        return self


class HpoConfig(Section):
    """Hyperparameter optimization by TPE within a round."""

    trials_per_round: int = Field(3, ge=1, le=10_000)
    """Trials of a candidate in each round after warm-up."""
    startup_trials: int = Field(4, ge=1, le=10_000)
    """Randomly sampled trials before TPE starts."""
    space: SpaceConfig = SpaceConfig()


_Epochs = Annotated[int, Field(ge=1, le=MOST_EPOCHS)]


class RoundsConfig(Section):
    """Rounds. A round trains one candidate on one replica."""

    warmup_epochs: Annotated[tuple[_Epochs, ...], Field(min_length=1, max_length=1_000)] = (
        15,
        30,
        45,
    )
    """Epoch limits of the warm-up rounds; HPO starts after them."""
    predict_at_epoch: int = Field(90, ge=1, le=MOST_EPOCHS)
    """Epoch to which the accuracy of warm-up trials is extrapolated."""


class SearchConfig(Section):
    """Architecture search by network morphism."""

    workers: int = Field(1, ge=1, le=256)
    """Number of search processes per replica."""
    queue_depth: int = Field(2, ge=1, le=64)
    """Number of candidates kept in the candidate queue."""
    method: Literal["guided", "greedy", "fixed"] = "guided"
    """Search method. guided: Bayesian optimization with a Gaussian process over graphs. greedy:
    mutate the best. fixed: no search; train the initial network."""
    max_trainings: int | None = Field(None, ge=1, le=1_000_000)
    """Maximum number of training runs per replica with method fixed; by default, as many as the
    time allows."""
    kappa: float = Field(1.0, ge=0.0, le=100.0)
    """Weight of the standard deviation in the acquisition function mean + kappa * sigma, on average
    over candidates (guided only)."""
    acquisition_evaluations: int = Field(16, ge=1, le=100_000)
    """Number of graphs evaluated by the acquisition function for each candidate (guided only)."""
    max_morphisms: int = Field(4, ge=1, le=64)
    """Maximum number of morphisms between a candidate and its parent (guided only)."""
    random_parent_probability: Fraction = 0.3
    """Probability of choosing a parent uniformly instead of the best (greedy only)."""
    max_parameters: int = Field(500_000_000, ge=1)
    """Maximum number of trainable parameters of a candidate."""
    max_operations_ratio: float = Field(8.0, ge=1.0, le=1e6)
    """Maximum ratio of a candidate's forward operations to those of the initial network."""
    max_depth: int = Field(400, ge=1, le=100_000)
    """Maximum number of layers with weights on the longest path of a candidate."""
    max_growth: float = Field(2.0, ge=1.0, le=1e6)
    """Maximum ratio of a candidate's forward operations to those of its parent."""
    keep_checkpoints: int = Field(8, ge=1, le=100_000)
    """Number of trained checkpoints that a replica keeps as possible parents; the best ones are
    kept."""
    weight_noise: float = Field(0.0, ge=0.0)
    """Standard deviation of noise on new and changed kernels, relative to He initialization; 0
    preserves the network's function."""

    @model_validator(mode="after")
    def _counts_trainings_of_one_network(self) -> SearchConfig:
        if self.max_trainings is not None and self.searches:
            raise ValueError(
                f"max_trainings {self.max_trainings} requires method fixed; "
                f"method {self.method} searches for as long as the run lasts"
            )
        return self

    @property
    def searches(self) -> bool:
        """Whether the run searches for networks instead of training the initial one."""
        return self.method != "fixed"

    @property
    def processes(self) -> int:
        """Number of search processes of a replica."""
        return self.workers if self.searches else 0
