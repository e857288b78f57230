"""The data types of a trial: one graph, one set of hyperparameters, one training run."""

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

from aiperf_hpc.earlier_names import DATASET, renamed
from aiperf_hpc.errors import DatasetError
from aiperf_hpc.untrusted.bounds import MOST_AXES, MOST_COUNT, MOST_SIZE, Bounded, Number


class TrialState(StrEnum):
    """States of a trial, in order."""

    COMPILING = "compiling"
    TRAINING = "training"
    COMPLETED = "completed"
    STOPPED = "stopped early"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self in (TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED)


class RoundPhase(StrEnum):
    """Phase of a run that a round belongs to."""

    WARMUP = "warm-up"
    HPO = "hpo"
    FIXED = "fixed"
    """Round of a run without a search: trains the unmodified initial network."""


class TimePhase(StrEnum):
    """Phases of the wall time of a replica's trainer. Every second belongs to exactly one phase."""

    START = "start"
    SEARCH_WAIT = "search wait"
    BUILD = "build"
    DATA = "data"
    TRAIN = "train"
    EVALUATE = "evaluate"
    STORE = "store"
    OTHER = "other"


class StepPart(StrEnum):
    """Parts of a training step's wall time on one of several ranks.

    They follow the communication table of HPC AI500; docs/decisions/ranks.md defines them.
    """

    COMPUTE = "compute"
    WAIT = "wait"
    QUEUE = "queue"
    COPY_IN = "copy in"
    COPY_OUT = "copy out"
    REDUCE = "reduce"


class JobPhase(StrEnum):
    """Status of a replica's job, as known to the launcher."""

    PENDING = "pending"
    RUNNING = "running"
    REQUEUED = "requeued"
    """The job ran and is queued again."""
    LOST = "lost"
    """The job disappeared without an exit status, or its node failed."""
    DONE = "done"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the phase is final unless the job is launched again."""
        return self in (JobPhase.LOST, JobPhase.DONE, JobPhase.FAILED)


class Value(Bounded):
    """Base class of recorded values: typed, immutable and bounded; unknown keys are rejected.

    NaN and infinities are written as strings, because JSON has no numbers for them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    @classmethod
    def fields_from(cls, source: object) -> dict[str, Any]:
        """Return the values of ``source`` for the fields that it has in common with this class.

        The caller gives the other fields; the constructor rejects a missing one.
        """
        return {name: getattr(source, name) for name in cls.model_fields if hasattr(source, name)}


class ScheduleSettings(Value):
    """Learning rate schedule of a trial."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    name: Literal["constant", "linear", "polynomial", "multi_step", "cosine", "plateau"] = "linear"
    """Learning rate schedule. linear, polynomial and cosine span the trial's epoch limit."""
    interval: Literal["step", "epoch"] = "step"
    """Update the learning rate every step or every epoch."""
    base_batch_size: int | None = Field(None, ge=1)
    """Batch size to which learning_rate refers; the peak scales linearly with the batch size (Goyal
    et al. 2017)."""
    warmup_epochs: float = Field(0.0, ge=0.0, le=1e6)
    """Length of the linear warm-up in epochs."""
    warmup_steps: int = Field(0, ge=0)
    """Length of the linear warm-up in steps; replaces warmup_epochs."""
    warmup_start_factor: float = Field(0.0, ge=0.0, le=1.0)
    """Learning rate at the start of the warm-up, as a fraction of the peak."""
    power: float = Field(1.0, gt=0.0, le=100.0)
    """Exponent of the decay (polynomial only)."""
    end_factor: float = Field(0.0, ge=0.0, le=1.0)
    """Final or minimum learning rate as a fraction of the peak (polynomial, cosine, plateau)."""
    decay_steps: int | None = Field(None, ge=1)
    """Number of steps of the cosine decay after the warm-up; by default, it spans all steps of the
    trial, including the warm-up (cosine only)."""
    milestones: tuple[Annotated[int, Field(ge=1)], ...] = Field((), max_length=1_000)
    """Epochs or steps after which the learning rate changes (multi_step only)."""
    milestone_unit: Literal["epoch", "step"] = "epoch"
    """Unit of milestones (multi_step only)."""
    factors: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = Field((), max_length=1_000)
    """Fraction of the peak after each milestone; by default, powers of factor (multi_step only)."""
    factor: float = Field(0.1, gt=0.0, lt=1.0)
    """Factor by which the learning rate is multiplied at each reduction (multi_step, plateau)."""
    patience: int = Field(10, ge=0)
    """Number of epochs without a lower validation loss that are tolerated; the next one reduces the
    learning rate (plateau only)."""
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
                raise ValueError(f"{field} applies to {' and '.join(has)}, not to {self.name}")
        if self.warmup_epochs and self.warmup_steps:
            raise ValueError("write warmup_epochs or warmup_steps, not both")
        if self.warmup_start_factor and not (self.warmup_epochs or self.warmup_steps):
            raise ValueError(
                "warmup_start_factor is without a warm-up; set warmup_epochs or _steps too"
            )
        if self.name == "multi_step":
            self._check_milestones()
        return self

    def _check_milestones(self) -> None:
        if not self.milestones or list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError("multi_step needs ascending milestones, such as milestones: [30, 60]")
        if len(self.factors) not in (0, len(self.milestones)):
            raise ValueError(
                f"{len(self.factors)} factors for {len(self.milestones)} milestones; "
                "their numbers must be equal"
            )
        if self.factors and self.factor != _default(type(self), "factor"):
            raise ValueError("set either factors, relative to the peak, or factor, per reduction")


_OF_SCHEDULE: dict[str, tuple[str, ...]] = {
    "polynomial": ("power", "end_factor"),
    "cosine": ("end_factor", "decay_steps"),
    "multi_step": ("milestones", "milestone_unit", "factors", "factor"),
    "plateau": ("factor", "end_factor", "patience", "threshold", "threshold_mode"),
}
"""Settings that apply only to some schedules."""


def _default(model: type[BaseModel], field: str) -> object:
    return model.model_fields[field].default


class Hyperparameters(Value):
    """Effective hyperparameters of a trial, after all limits were applied.

    An optimizer ignores settings that it does not have. Settings introduced after the first record
    format are written only if they differ from their default, so that the records of other trials,
    and their samples in a simulation, do not change.
    """

    batch_size: Annotated[int, Field(ge=1)]
    kernel_size: int | None = None
    """Kernel size of all inserted spatial convolutions, if HPO chose one."""
    optimizer: str = "sgd"
    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    precision: str = "fp32"
    beta1: float = 0.9
    """Decay rate of the running mean of gradients (adam, adamw, lamb)."""
    beta2: float = 0.999
    """Decay rate of the running mean of squared gradients (adam, adamw, lamb)."""
    epsilon: float = 1e-8
    """Number added to the root of the mean of squared gradients (adam, adamw, lamb)."""
    max_gradient_norm: float | None = None
    """Maximum global L2 norm of the gradients; larger gradients are scaled down to it."""
    averaging_start: int = 0
    """Number of steps before parameter averaging starts (asgd)."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Learning rate schedule, with learning_rate as its peak."""
    weight_decay_of: Literal["kernels", "all"] = "kernels"
    """Parameters that weight decay applies to."""
    weight_decay_in: Literal["update", "loss"] = "update"
    """Form of weight decay: in the optimizer's own update, or as a term of the loss for any
    optimizer: half of weight_decay times the sum of squared parameters."""

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
"""Hyperparameters introduced after the first record format."""


Size = Annotated[int, Field(ge=1, le=MOST_SIZE)]


class TensorSpec(Value):
    """Shape and type of one array of a sample."""

    shape: Annotated[tuple[Size | None, ...], Field(max_length=MOST_AXES)]
    """Sizes of the axes, without the batch axis. None for a size that varies between batches; a
    mask among the arrays then marks the values that are not padding."""
    dtype: Literal["float32", "int32", "bool"] = "float32"


LABEL = TensorSpec(shape=(), dtype="int32")
"""Class label: the number of the class."""

StorageFormat = Literal["jpeg", "resized", "raw"]
"""Formats of stored images: their JPEG files, JPEG files of smaller images, or their pixels."""


class DatasetInfo(Value):
    """Description of a dataset, as recorded by the replica that reads it."""

    name: str
    sha256: str
    """SHA-256 of the sample and target bytes; the dataset defines how it is computed."""
    inputs: dict[str, TensorSpec]
    """Arrays that networks read, by name of the input node."""
    targets: dict[str, TensorSpec]
    """Arrays that a loss compares outputs with."""
    classes: Annotated[int, Field(ge=2, le=MOST_SIZE)] | None = None
    """Number of classes, if samples are classified."""
    train_samples: Number
    validation_samples: Number
    archives: Annotated[dict[str, str], Field(exclude_if=operator.not_)] = {}
    """MD5 of the official archives that the dataset was prepared from, by file name; recorded only
    if there are any."""
    storage_format: Annotated[StorageFormat, Field(exclude_if=lambda value: value == "jpeg")] = (
        "jpeg"
    )
    """Format of the stored images; recorded only if it is not ``jpeg``."""

    def __hash__(self) -> int:
        """Hash by content, because mappings are not hashable."""
        return hash((self.name, self.sha256, self.train_samples, self.validation_samples))

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, data: Any) -> Any:  # noqa: ANN401 -- whatever was recorded
        """Convert earlier formats; the first was limited to labeled images."""
        data = renamed(data, DATASET)
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
        """Return the description of a dataset of images with one label each.

        Args:
            name: name of the dataset.
            sha256: SHA-256 of the content.
            shape: shape of an image, (height, width, channels).
            classes: number of classes.
            train_samples: number of training samples.
            validation_samples: number of validation samples.
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
            DatasetError: there is no such input, or its shape varies between samples.
        """
        if name not in self.inputs:
            raise DatasetError(f"dataset '{self.name}' has no input '{name}'")
        shape = self.inputs[name].shape
        sizes = tuple(size for size in shape if size is not None)
        if len(sizes) < len(shape):
            raise DatasetError(f"dataset '{self.name}': '{name}' differs in shape: {shape}")
        return sizes


class Machine(Value):
    """The machine that a replica runs on."""

    host: str
    """Host name."""
    cpu: str
    """Model of the processor."""
    cores: tuple[int, ...]
    """Logical CPUs that the replica's trainer may use."""
    memory_bytes: int
    """Size of the main memory in bytes."""
    accelerators: tuple[str, ...]
    """Accelerators of the replica."""
    versions: dict[str, str]
    """Software versions by name."""


class DevicePeak(Value):
    """Peak rates of one rank's device, as measured by its replica."""

    device: str
    """Device name in the framework, such as cpu or cuda:0."""
    model: str
    """Model of the processor or accelerator."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """Number of threads of a CPU; None for an accelerator."""
    precision: str
    """Precision of the multiplications: the trial's, or tf32 if fp32 is computed in tf32."""
    rates: dict[str, Annotated[float, Field(gt=0.0, allow_inf_nan=False)]]
    """Operations per second of the fastest repetition, by kernel: ``matrix product`` (2 n^3
    operations) and ``convolution`` (3 x 3, counted by the operations counter)."""
    absent: dict[str, str] = {}
    """Reasons for missing rates, by kernel."""
    seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
    """Duration of the measurement in seconds."""


MOST_MORPHISMS = 1_000
"""Maximum number of morphisms between a graph and its parent: at most 64 by the search, and one per
inserted convolution with a resized kernel, in a network that is at most 400 layers deep."""


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    """Return a morphism's values unchanged. Raises ValueError if one is not plain data."""
    for name, value in data.items():
        number = isinstance(value, int | float) and -MOST_COUNT <= value <= MOST_COUNT
        if not number and not isinstance(value, str | None):
            raise ValueError(f"'{name[:60]}' is neither text nor a bounded number")
    return data


MorphismData = Annotated[dict[str, Any], AfterValidator(_plain)]
"""A morphism as plain data; ``morphism.from_data`` converts it to a ``Morphism``."""
Morphisms = Annotated[tuple[MorphismData, ...], Field(max_length=MOST_MORPHISMS)]
