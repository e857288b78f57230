"""The vocabulary of a trial: one graph, one set of hyperparameters, one training."""

from __future__ import annotations

import operator
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.untrusted.bounds import MOST_AXES, MOST_COUNT, MOST_SIZE, Bounded, Number


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
    FIXED = "fixed"
    """The round of a run without a search: the initial network is trained as it is."""


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
    """A job that ran, and waits to run again."""
    LOST = "lost"
    """A job that is gone and has not said how it ended, or whose node is gone."""
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """True for the phases that nothing follows unless the job is launched again."""
        return self in (JobPhase.LOST, JobPhase.DONE, JobPhase.FAILED)


class Value(Bounded):
    """Base of the values that records carry: typed, immutable, bounded, unknown keys refused.

    NaN and infinities are written as text, which JSON can hold and which is read back.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    @classmethod
    def fields_from(cls, source: object) -> dict[str, Any]:
        """Return the values of those of its fields that another object has too, by their names."""
        return {name: getattr(source, name) for name in cls.model_fields if hasattr(source, name)}


class ScheduleSettings(Value):
    """Learning rate schedule of a trial."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    name: Literal["constant", "linear", "polynomial", "multi_step", "cosine", "plateau"] = "linear"
    """Learning rate schedule. linear, polynomial and cosine span the trial's epoch limit."""
    interval: Literal["step", "epoch"] = "step"
    """Update the learning rate every step or every epoch."""
    base_batch: int | None = Field(None, ge=1)
    """Batch size that learning_rate refers to; the peak scales linearly with the batch size
    (Goyal et al. 2017)."""
    warmup_epochs: float = Field(0.0, ge=0.0, le=1e6)
    """Length of the linear warm-up in epochs."""
    warmup_steps: int = Field(0, ge=0)
    """Length of the linear warm-up in steps; replaces warmup_epochs."""
    warmup_start: float = Field(0.0, ge=0.0, le=1.0)
    """Learning rate at the start of the warm-up, as a fraction of the peak."""
    power: float = Field(1.0, gt=0.0, le=100.0)
    """Exponent of the decay (polynomial only)."""
    end: float = Field(0.0, ge=0.0, le=1.0)
    """Final or minimum learning rate as a fraction of the peak (polynomial, cosine, plateau)."""
    wave_steps: int | None = Field(None, ge=1)
    """Number of steps of the cosine decay after the warm-up; by default, all remaining steps
    (cosine only)."""
    milestones: tuple[Annotated[int, Field(ge=1)], ...] = Field((), max_length=1_000)
    """Epochs or steps after which the learning rate changes (multi_step only)."""
    milestone_unit: Literal["epoch", "step"] = "epoch"
    """Unit of milestones (multi_step only)."""
    factors: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = Field((), max_length=1_000)
    """Fraction of the peak after each milestone; by default, powers of factor (multi_step only)."""
    factor: float = Field(0.1, gt=0.0, lt=1.0)
    """Factor by which the learning rate is multiplied at each reduction (multi_step, plateau)."""
    patience: int = Field(10, ge=0)
    """Epochs without a lower validation loss before a reduction (plateau only)."""
    threshold: float = Field(1e-4, ge=0.0, lt=1.0)
    """Minimum decrease of the validation loss that counts as an improvement (plateau only)."""
    threshold_mode: Literal["relative", "absolute"] = "relative"
    """Whether threshold is relative to the loss or absolute (plateau only)."""

    @model_validator(mode="after")
    def _makes_sense(self) -> ScheduleSettings:
        for field in type(self).model_fields:
            has = [name for name, fields in _OF_SCHEDULE.items() if field in fields]
            changed = getattr(self, field) != _default(type(self), field)
            if has and self.name not in has and changed:
                raise ValueError(f"{field} is of {' and '.join(has)}, and name is {self.name}")
        if self.warmup_epochs and self.warmup_steps:
            raise ValueError("write warmup_epochs or warmup_steps, not both")
        if self.warmup_start and not (self.warmup_epochs or self.warmup_steps):
            raise ValueError("warmup_start is without a warm-up; write warmup_epochs or _steps too")
        if self.name == "multi_step":
            self._check_milestones()
        return self

    def _check_milestones(self) -> None:
        if not self.milestones or list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError("multi_step has milestones that ascend, such as milestones: [30, 60]")
        if len(self.factors) not in (0, len(self.milestones)):
            raise ValueError(
                f"{len(self.factors)} factors are not one for each of {len(self.milestones)} "
                "milestones"
            )
        if self.factors and self.factor != _default(type(self), "factor"):
            raise ValueError("write factors, of the peak, or factor, of the rate before, not both")


_OF_SCHEDULE: dict[str, tuple[str, ...]] = {
    "polynomial": ("power", "end"),
    "cosine": ("end", "wave_steps"),
    "multi_step": ("milestones", "milestone_unit", "factors", "factor"),
    "plateau": ("factor", "end", "patience", "threshold", "threshold_mode"),
}
"""Settings that not every schedule has."""


def _default(model: type[BaseModel], field: str) -> object:
    return model.model_fields[field].default


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
    """What a step of adam, adamw and lamb keeps of the mean of gradients."""
    beta2: float = 0.999
    """What such a step keeps of the mean of the gradients' squares."""
    epsilon: float = 1e-8
    """What such a step adds to the root of the mean of squares."""
    max_gradient_norm: float | None = None
    """The Euclidean norm of all gradients together, above which they are scaled down to it."""
    averaging_start: int = 0
    """Steps of asgd before parameters are averaged."""
    schedule: ScheduleSettings = ScheduleSettings()
    """The schedule whose peak is the learning rate."""
    weight_decay_of: Literal["kernels", "all"] = "kernels"
    """The parameters that weight decay is of."""
    weight_decay_in: Literal["update", "loss"] = "update"
    """Where it is: in the optimizer's update, as that has it, or as half of it times the squares
    of the parameters in what is minimized, whichever optimizer minimizes it."""

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = dump(self)
        values["schedule"] = self.schedule.model_dump(mode="json", exclude_defaults=True)
        left_out = {n for n in _LATER if getattr(self, n) == _default(type(self), n)}
        return {name: value for name, value in values.items() if name not in left_out}


_LATER = (
    "beta1", "beta2", "epsilon", "max_gradient_norm", "averaging_start", "schedule",
    "weight_decay_of", "weight_decay_in",
)  # fmt: skip
"""Hyperparameters that the first records do not have."""


Size = Annotated[int, Field(ge=1, le=MOST_SIZE)]


class TensorSpec(Value):
    """Shape and type of one array of a sample."""

    shape: Annotated[tuple[Size | None, ...], Field(max_length=MOST_AXES)]
    """The sizes of its axes, without the samples'; None where batches differ, and a mask among
    the arrays marks the valid ones of the padded values."""
    dtype: Literal["float32", "int32", "bool"] = "float32"


LABEL = TensorSpec(shape=(), dtype="int32")
"""A class, by its number."""

Stored = Literal["jpeg", "resized", "raw"]
"""Formats of stored images: their JPEG files, JPEG files of smaller images, or their pixels."""


class DatasetInfo(Value):
    """What a dataset is, as recorded by who read it."""

    name: str
    sha256: str
    """SHA-256 of the sample and target bytes; the dataset defines how it is computed."""
    inputs: dict[str, TensorSpec]
    """The arrays that networks read, by the names of their input nodes."""
    targets: dict[str, TensorSpec]
    """The arrays that a loss compares outputs with."""
    classes: Annotated[int, Field(ge=2, le=MOST_SIZE)] | None = None
    """The number of classes, where samples have one."""
    train_samples: Number
    validation_samples: Number
    archives: Annotated[dict[str, str], Field(exclude_if=operator.not_)] = {}
    """The MD5 of the official archives that it was prepared from, by their files; in records only
    where it was."""
    stored: Annotated[Stored, Field(exclude_if=lambda stored: stored == "jpeg")] = "jpeg"
    """Format of the stored images; recorded only if it is not ``jpeg``."""

    def __hash__(self) -> int:
        """Hash by the content, since mappings have no hash."""
        return hash((self.name, self.sha256, self.train_samples, self.validation_samples))

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, data: Any) -> Any:  # noqa: ANN401 -- whatever was recorded
        """Read what was written when all datasets were labelled images."""
        if not isinstance(data, dict) or "sample_shape" not in data:
            return data
        shape = {"shape": data["sample_shape"]}
        rest = {key: value for key, value in data.items() if key != "sample_shape"}
        return {**rest, "inputs": {"image": shape}, "targets": {"label": LABEL}}

    @classmethod
    def of_labelled_images(
        cls,
        name: str,
        sha256: str,
        shape: tuple[int, ...],
        classes: int,
        train_samples: int,
        validation_samples: int,
    ) -> DatasetInfo:
        """Return what a dataset of images is that each have one label.

        Args:
            name: its name.
            sha256: of its content.
            shape: of an image, (height, width, channels).
            classes: how many there are.
            train_samples: how many.
            validation_samples: how many.
        """
        return cls(
            name=name,
            sha256=sha256,
            inputs={"image": TensorSpec(shape=shape)},
            targets={"label": LABEL},
            classes=classes,
            train_samples=train_samples,
            validation_samples=validation_samples,
        )

    def input_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input whose samples all have one shape.

        Raises:
            DatasetError: there is no such input, or its shape is not the same for all samples.
        """
        if name not in self.inputs:
            raise DatasetError(f"dataset '{self.name}' has no input '{name}'")
        shape = self.inputs[name].shape
        sizes = tuple(size for size in shape if size is not None)
        if len(sizes) < len(shape):
            raise DatasetError(f"dataset '{self.name}': '{name}' differs in shape: {shape}")
        return sizes


class Machine(Value):
    """Where a replica runs."""

    host: str
    """The host's name."""
    cpu: str
    """The model of the processor."""
    cores: tuple[int, ...]
    """The logical CPUs that the replica's trainer may use."""
    memory_bytes: int
    """Bytes of memory."""
    accelerators: tuple[str, ...]
    """Its accelerators."""
    versions: dict[str, str]
    """Versions of what it works with, by name."""


class DevicePeak(Value):
    """The highest rates of what one rank computes on, as its replica measured them."""

    device: str
    """As the framework calls it, such as cpu or cuda:0."""
    model: str
    """The processor's name, or the accelerator's."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """Of a CPU; None of an accelerator."""
    precision: str
    """What was multiplied: a trial's precision, or tf32 where fp32 is computed so."""
    rates: dict[str, Annotated[float, Field(gt=0.0, allow_inf_nan=False)]]
    """Operations a second by kernel, of the fastest repetition: ``matrix product``, 2 n^3, and
    ``convolution``, 3 x 3, as it is counted."""
    absent: dict[str, str] = {}
    """Why a kernel has no rate."""
    seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    """How long measuring took."""


MOST_MORPHISMS = 1_000
"""Morphisms between a graph and its parent: the search's, 64 at most, and one for each inserted
convolution whose kernel is resized, of a network that is 400 layers deep."""


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Return a morphism's values as they are. Raises ValueError unless they are plain ones."""
    for name, value in data.items():
        number = isinstance(value, int | float) and -MOST_COUNT <= value <= MOST_COUNT
        if not number and not isinstance(value, str | None):
            raise ValueError(f"'{name[:60]}' is no text and no bounded number")
    return data


MorphismData = Annotated[dict[str, Any], AfterValidator(_plain)]
"""A morphism as plain values; ``morphism.from_data`` makes it a Morphism again."""
Morphisms = Annotated[tuple[MorphismData, ...], Field(max_length=MOST_MORPHISMS)]
