"""What is searched: candidates, their rounds of trials, and the hyperparameters in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from aiperf_hpc.config.section import Fraction, Positive, Section

LARGEST_SIZE = 1_048_576
"""The largest value of a dimension of integers: the largest batch size."""
MOST_SIZES = 10_000
"""Choices that are written one by one; 4 batch sizes and 3 kernel sizes in the paper."""
MOST_EPOCHS = 100_000
KERNELS = (1, 3, 5, 7)
"""Sizes of convolutions that a network may have."""


_Size = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]


class Integers(Section):
    """A dimension of integers: ``choices`` without an order, or ``low`` to ``high`` by ``step``."""

    choices: Annotated[tuple[_Size, ...], Field(min_length=1, max_length=MOST_SIZES)] | None = (
        Field(None, description="the values, without an order; in place of low and high")
    )
    low: _Size | None = Field(None, description="the least value")
    high: _Size | None = Field(None, description="the largest value: low and some steps")
    step: Positive = Field(1, description="between values")

    @model_validator(mode="after")
    def _one_of_both(self) -> Integers:
        ends = (self.low, self.high)
        if self.choices is not None:
            if ends != (None, None) or len(set(self.choices)) < len(self.choices):
                raise ValueError("write choices that differ, or low and high, not both")
        elif self.low is None or self.high is None:
            raise ValueError("write choices, or low and high, such as {low: 256, high: 448}")
        elif self.high < self.low or (self.high - self.low) % self.step:
            raise ValueError(
                f"high {self.high} is not low {self.low} and some steps of {self.step}"
            )
        return self

    @property
    def values(self) -> Sequence[int]:
        """All that can be chosen, ascending."""
        if self.low is not None and self.high is not None:
            return range(self.low, self.high + 1, self.step)
        return tuple(sorted(self.choices or ()))


class Reals(Section):
    """A dimension of real numbers, by default searched by their logarithm."""

    low: float = Field(ge=0.0, le=100.0, description="the least value; above 0 with log")
    high: float = Field(gt=0.0, le=100.0, description="the largest value")
    log: bool = Field(True, description="whether it is searched by its logarithm")

    @model_validator(mode="after")
    def _ascending(self) -> Reals:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.log and self.low == 0.0:
            raise ValueError("low 0 has no logarithm; write log: false or a larger low")
        return self


class SpaceConfig(Section):
    """What is searched, the first two as in Ren et al. 2021; what is not given is not searched."""

    batch_size: Integers = Field(
        Integers(low=256, high=448, step=64), description="of a replica, over all its ranks"
    )
    kernel_size: Integers = Field(
        Integers(low=3, high=7, step=2), description="of inserted convolutions; odd, at most 7"
    )
    learning_rate: Reals | None = Field(None, description="the peak of the schedule")
    momentum: Reals | None = Field(None, description="below 1")
    weight_decay: Reals | None = Field(None, description="at most 1")

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
    """Hyperparameter optimisation by TPE within a round."""

    trials_per_round: int = Field(
        3, ge=1, le=10_000, description="trials of a candidate in each round after warm-up"
    )
    startup_trials: int = Field(4, ge=1, le=10_000, description="random before TPE models")
    space: SpaceConfig = SpaceConfig()


_Epochs = Annotated[int, Field(ge=1, le=MOST_EPOCHS)]


class RoundsConfig(Section):
    """A round is one candidate architecture on one replica."""

    warmup_epochs: Annotated[tuple[_Epochs, ...], Field(min_length=1, max_length=1_000)] = Field(
        (15, 30, 45), description="epoch limit of each warm-up round; HPO starts after them"
    )
    predict_at_epoch: int = Field(
        90, ge=1, le=MOST_EPOCHS, description="where warm-up accuracy is extrapolated to"
    )


class SearchConfig(Section):
    """How candidates are grown."""

    workers: int = Field(1, ge=1, le=256, description="search processes a replica")
    stock: int = Field(2, ge=1, le=64, description="candidates kept ready on the shared directory")
    method: Literal["guided", "greedy", "fixed"] = Field(
        "guided",
        description="guided: Bayesian, by a Gaussian process over graphs; greedy: the best; "
        "fixed: none, the initial network is trained as it is",
    )
    trainings: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="fixed: of each replica, which then ends; none: as many as there is time for",
    )
    confidence: float = Field(
        1.0, ge=0.0, le=100.0, description="guided: deviations added to what is expected"
    )
    expansions: int = Field(
        16, ge=1, le=100_000, description="guided: graphs made and judged for a candidate"
    )
    levels: int = Field(
        4, ge=1, le=64, description="guided: most morphisms between a candidate and its parent"
    )
    exploration: Fraction = Field(
        0.3, description="greedy: share of parents drawn from all, not the best"
    )
    max_parameters: int = Field(500_000_000, ge=1, description="trainable scalars of a candidate")
    max_operations_ratio: float = Field(
        8.0, ge=1.0, le=1e6, description="forward operations of a candidate over the initial's"
    )
    max_depth: int = Field(
        400, ge=1, le=100_000, description="layers with weights on a candidate's longest path"
    )
    max_growth: float = Field(
        2.0, ge=1.0, le=1e6, description="forward operations of a candidate over its parent's"
    )
    keep_checkpoints: int = Field(8, ge=1, le=100_000, description="best trained weights a replica")
    noise: float = Field(
        0.0, ge=0.0, description="on kernels that a morphism makes or changes; 0 keeps the function"
    )

    @model_validator(mode="after")
    def _counts_trainings_of_one_network(self) -> SearchConfig:
        if self.trainings is not None and self.searches:
            raise ValueError(
                f"trainings {self.trainings} is of method fixed, which trains one network; method "
                f"{self.method} searches for as long as the run lasts"
            )
        return self

    @property
    def searches(self) -> bool:
        """True unless the initial network is trained as it is."""
        return self.method != "fixed"

    @property
    def processes(self) -> int:
        """The number of search processes that a replica really has."""
        return self.workers if self.searches else 0
