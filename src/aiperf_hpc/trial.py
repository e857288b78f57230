"""The vocabulary of a trial: one graph, one set of hyperparameters, one training."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)


class TrialState(StrEnum):
    """The states of a trial, in the order in which it may pass through them."""

    COMPILING = "compiling"
    TRAINING = "training"
    COMPLETED = "completed"
    STOPPED = "stopped early"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True for the states that nothing follows."""
        return self in (TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED)


class RoundPhase(StrEnum):
    """What a round does with its candidate."""

    WARMUP = "warm-up"
    HPO = "hpo"


class TimePhase(StrEnum):
    """What a replica's trainer spends its wall time on. Every second has exactly one phase."""

    START = "start"
    SEARCH_WAIT = "search wait"
    BUILD = "build"
    DATA = "data"
    TRAIN = "train"
    EVALUATE = "evaluate"
    STORE = "store"
    OTHER = "other"


class StepPart(StrEnum):
    """What a rank of several spends the wall time of a training step on.

    The parts of HPC AI500's table of communication; docs/decisions/ranks.md defines them.
    """

    COMPUTE = "compute"
    WAIT = "wait"
    QUEUE = "queue"
    COPY_IN = "copy in"
    COPY_OUT = "copy out"
    REDUCE = "reduce"


class JobPhase(StrEnum):
    """What a launcher knows about a replica's job."""

    PENDING = "pending"
    RUNNING = "running"
    REQUEUED = "requeued"
    """It ran, and waits to run again."""
    LOST = "lost"
    """It is gone and has not said how it ended, or its node is gone."""
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True for the phases that nothing follows unless the job is launched again."""
        return self in (JobPhase.LOST, JobPhase.DONE, JobPhase.FAILED)


class Value(BaseModel):
    """Base of the values that records carry: typed, immutable, unknown keys refused.

    NaN and infinities are written as text, which JSON can hold and which is read back.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class Hyperparameters(Value):
    """What a trial really used, after every limit was applied.

    Every optimizer reads the settings that it has and leaves the others. Settings that came
    later than the first records are written only where they are not their default, so that a
    trial without them is written, and drawn in a simulated world, as it always was.
    """

    batch_size: Annotated[int, Field(ge=1)]
    kernel_size: int | None = None
    """The size of all inserted spatial convolutions where HPO chose one."""
    optimizer: str = "sgd"
    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    precision: str = "fp32"
    beta1: float = 0.9
    """Of adam, adamw and lamb: what a step keeps of the mean of gradients."""
    beta2: float = 0.999
    """The same of the mean of their squares."""
    epsilon: float = 1e-8
    """Added to the root of the mean of squares."""
    max_gradient_norm: float | None = None
    """The Euclidean norm of all gradients together, above which they are scaled down to it."""
    averaging_start: int = 0
    """Of asgd: steps before parameters are averaged."""

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = dump(self)
        fields = type(self).model_fields
        left_out = {name for name in _LATER if getattr(self, name) == fields[name].default}
        return {name: value for name, value in values.items() if name not in left_out}


_LATER = ("beta1", "beta2", "epsilon", "max_gradient_norm", "averaging_start")
"""Hyperparameters that the first records do not have."""


class DatasetInfo(Value):
    """What a dataset is, as recorded by who read it."""

    name: str
    sha256: str
    """Of the sample and label bytes; how it is taken is the dataset's to say."""
    classes: Annotated[int, Field(ge=2)]
    sample_shape: tuple[int, ...]
    train_samples: Annotated[int, Field(ge=1)]
    validation_samples: Annotated[int, Field(ge=1)]


class Machine(Value):
    """Where a replica runs."""

    host: str
    cpu: str
    cores: tuple[int, ...]
    """The logical CPUs that the replica's trainer may use."""
    memory_bytes: int
    accelerators: tuple[str, ...]
    versions: dict[str, str]


MorphismData = dict[str, Any]
"""A morphism as plain values; ``morphism.from_data`` makes it a Morphism again."""
