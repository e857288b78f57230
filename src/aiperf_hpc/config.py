"""The configuration of a run: resolved once, checked once, then frozen.

Sources, later ones win: the defaults below (those of Ren et al. 2021, where
it gives one), a preset or YAML file, ``--set key=value``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from aiperf_hpc.errors import ConfigError, reason_of
from aiperf_hpc.trial import ScheduleSettings

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
KERNELS = (1, 3, 5, 7)
"""Sizes of convolutions that a network may have."""


class Section(BaseModel):
    """Base of all configuration sections: unknown keys refused, immutable once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DatasetConfig(Section):
    """Which samples are trained on, and how they are prepared."""

    name: Literal["digits", "cifar10", "imagenet", "simulated", "synthetic", "volumes"] = "imagenet"
    path: Path | None = Field(None, description="folder made by `aiperf data prepare`")
    augment: bool = Field(True, description="the dataset's standard augmentation in training")
    parallel_transforms: int = Field(48, ge=1, le=1024, description="bounded by the cores")
    cache: Literal["none", "memory", "disk"] = Field(
        "none",
        description="what the folder is brought to first: the page cache, or cache_path; takes "
        "time of the run",
    )
    cache_path: Path | None = Field(None, description="folder on a disk of the node")
    image_size: int = Field(
        224, ge=8, le=1024, description="imagenet and made-up, pixels or cells a side"
    )
    classes: int = Field(
        10, ge=2, le=100_000, description="made-up data only: synthetic, simulated"
    )
    train_samples: int = Field(
        512, ge=1, description="made-up data only: synthetic, simulated, volumes"
    )
    validation_samples: int = Field(
        128, ge=1, description="made-up data only: synthetic, simulated, volumes"
    )

    @model_validator(mode="after")
    def _has_a_place_for_its_copy(self) -> DatasetConfig:
        if (self.cache == "disk") != (self.cache_path is not None):
            raise ValueError(
                "cache disk and cache_path go together: write cache: disk and cache_path: FOLDER, "
                "or neither"
            )
        if self.cache != "none" and self.path is None:
            raise ValueError(f"cache {self.cache} is for a dataset in a folder, and path is none")
        return self


class ModelConfig(Section):
    """The initial network."""

    initial: Literal["resnet50"] = "resnet50"
    stem: Literal["imagenet", "cifar"] = Field(
        "imagenet", description="imagenet: 7x7 stride 2 and max-pool; cifar: 3x3 stride 1"
    )
    base_width: int = Field(64, ge=1, le=1024, description="channels of the stem; 64 is ResNet-50")
    blocks: tuple[Positive, Positive, Positive, Positive] = Field(
        (3, 4, 6, 3), description="blocks a stage; ResNet-50 has 3, 4, 6 and 3"
    )


class TrainingConfig(Section):
    """How one trial is trained."""

    batch_size: int = Field(448, ge=1, le=1_048_576)
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
    label_smoothing: float = Field(0.0, ge=0.0, lt=1.0)
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
    checkpoint_seconds: float = Field(
        120.0, ge=0.0, le=86_400.0, description="between checkpoints of a trial under way"
    )


class Integers(Section):
    """A dimension of integers: ``choices`` without an order, or ``low`` to ``high`` by ``step``."""

    choices: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    low: Positive | None = None
    high: Positive | None = None
    step: Positive = 1

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
    def values(self) -> tuple[int, ...]:
        """All that can be chosen, ascending."""
        if self.low is not None and self.high is not None:
            return tuple(range(self.low, self.high + 1, self.step))
        return tuple(sorted(self.choices or ()))


class Reals(Section):
    """A dimension of real numbers, by default searched by their logarithm."""

    low: float = Field(ge=0.0, le=100.0)
    high: float = Field(gt=0.0, le=100.0)
    log: bool = True

    @model_validator(mode="after")
    def _ascending(self) -> Reals:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        if self.log and self.low == 0.0:
            raise ValueError("low 0 has no logarithm; write log: false or a larger low")
        return self


class SpaceConfig(Section):
    """What is searched, the first two as in Ren et al. 2021; what is not given is not searched."""

    batch_size: Integers = Integers(low=256, high=448, step=64)
    kernel_size: Integers = Field(
        Integers(low=3, high=7, step=2), description="of inserted convolutions; odd, at most 7"
    )
    learning_rate: Reals | None = None
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

    trials_per_round: int = Field(3, ge=1, le=10_000)
    startup_trials: int = Field(4, ge=1, le=10_000, description="random before TPE models")
    space: SpaceConfig = SpaceConfig()


class RoundsConfig(Section):
    """A round is one candidate architecture on one replica."""

    warmup_epochs: Annotated[tuple[Positive, ...], Field(min_length=1)] = Field(
        (15, 30, 45), description="epoch limit of each warm-up round; HPO starts after them"
    )
    predict_at_epoch: int = Field(90, ge=1, description="where warm-up accuracy is extrapolated to")


class SearchConfig(Section):
    """How candidates are grown."""

    workers: int = Field(1, ge=1, le=256, description="search processes a replica")
    stock: int = Field(2, ge=1, le=64, description="candidates kept ready on the shared directory")
    method: Literal["guided", "greedy", "fixed"] = Field(
        "guided",
        description="guided: Bayesian, by a Gaussian process over graphs; greedy: the best; "
        "fixed: none, the initial network is trained as it is",
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

    @property
    def searches(self) -> bool:
        """True unless the initial network is trained as it is."""
        return self.method != "fixed"

    @property
    def processes(self) -> int:
        """The number of search processes that a replica really has."""
        return self.workers if self.searches else 0


class SimulationConfig(Section):
    """The machine and the world that the engine ``simulated`` makes up."""

    operations_per_second: float = Field(
        1e12, gt=0.0, description="counted operations that a replica executes a second"
    )
    step_seconds: float = Field(0.0, ge=0.0, le=3600.0, description="a step takes besides them")
    build_seconds: float = Field(2.0, ge=0.0, le=3600.0, description="building a network")
    peak_accuracy: Fraction = Field(0.8, description="about what the largest networks reach")
    rise_epochs: float = Field(
        6.0, gt=0.0, le=1e6, description="after which 63 % of the way to it is done"
    )
    noise: float = Field(0.003, ge=0.0, le=1.0, description="deviation of a measured accuracy")
    seed: int = Field(0, ge=0, lt=2**32, description="of the world: what each network is worth")
    # What follows is for a virtual clock alone (``aiperf simulate``).
    dispatches_per_second: float = Field(
        200.0, gt=0.0, description="replicas that the scheduler starts a second"
    )
    sync_seconds: float = Field(
        0.002, ge=0.0, le=60.0, description="a synced write to the shared file system takes"
    )
    syncs_per_second: float = Field(
        10_000.0, gt=0.0, description="such writes that the file server carries out a second"
    )
    charge_cpu: bool = Field(
        True, description="whether code takes the time that it really takes on this machine"
    )


class EngineConfig(Section):
    """What trains a network."""

    name: Literal["tensorflow", "torch", "simulated"] = "tensorflow"
    device: Literal["auto", "cpu", "cuda", "npu"] = Field(
        "auto", description="torch only; auto: an accelerator if there is one; cuda: ROCm too"
    )
    compile: Literal["auto", "never", "always"] = Field(
        "auto", description="torch only; auto: on cuda; elsewhere it costs more than it gives"
    )
    simulation: SimulationConfig = SimulationConfig()
    memory_gib: float | None = Field(
        None, gt=0.0, description="memory a replica may use; the machine's share when not given"
    )
    on_memory: Literal["shrink", "refuse"] = Field(
        "shrink", description="what to do with a batch size that is estimated not to fit"
    )

    @model_validator(mode="after")
    def _means_something(self) -> EngineConfig:
        if self.name != "torch" and (self.device, self.compile) != ("auto", "auto"):
            raise ValueError("device and compile are for the engine torch; leave them at auto")
        return self


class ReplicaConfig(Section):
    """What one replica is made of: one rank an accelerator, on one node or several."""

    nodes: int = Field(1, ge=1, le=100_000, description="nodes that a replica spans")
    ranks_per_node: int = Field(1, ge=1, le=1024, description="ranks, accelerators, of each")
    collective: Literal["mpi", "torch", "horovod"] = Field(
        "mpi", description="what sums gradients over ranks"
    )
    rank_timeout_seconds: float = Field(
        25.0, ge=1.0, le=3600.0, description="how long a rank waits for the others in a step"
    )

    @property
    def ranks(self) -> int:
        """The ranks of a replica."""
        return self.nodes * self.ranks_per_node


class ScoreConfig(Section):
    """How often the score is stated."""

    interval_hours: float = Field(0.1, ge=0.0005, le=24.0)


class JournalConfig(Section):
    """How often records are written."""

    progress_seconds: float = Field(5.0, ge=0.1, le=600.0)
    heartbeat_seconds: float = Field(10.0, ge=0.5, le=600.0)


Word = Annotated[str, Field(pattern=r"^[^\s'\"\\`$]+$", max_length=256)]
"""A value for SLURM's command line: one word that no shell would change."""
Directive = Annotated[str, Field(pattern=r"^-[^\r\n]*$", max_length=1024)]


class SlurmConfig(Section):
    """What is asked of SLURM. What is not given is left to the site's defaults."""

    client: Literal["commands", "pyslurm"] = Field(
        "commands", description="how SLURM is looked at; pyslurm is a site's own build"
    )
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    gres: Word | None = Field(None, description="a node's accelerators, e.g. gpu:8 or gpu:h100:8")
    cpus_per_task: int | None = Field(None, ge=1, le=65_536, description="CPUs a rank")
    memory: Annotated[str, Field(pattern=r"^\d+[KMGT]?$")] | None = Field(
        None, description="memory a node, e.g. 64G; 0 is all of it"
    )
    constraint: Word | None = Field(None, description="features of the nodes, e.g. icelake")
    reservation: Word | None = None
    exclusive: bool = Field(True, description="whether a replica has its node to itself")
    time_margin_minutes: int = Field(
        10, ge=2, le=1440, description="time limit beyond the run's hours, for start and end"
    )
    signal_seconds: int = Field(
        120, ge=10, le=3600, description="before the time limit, when replicas are told to end"
    )
    mpi: Word = Field("pmix", description="what srun starts ranks by: see srun --mpi=list")
    template: Path | None = Field(None, description="the site's own batch script")
    extra: tuple[Directive, ...] = Field((), description="more directives, e.g. --nice=100")

    @model_validator(mode="after")
    def _ends_before_it_is_told_to(self) -> SlurmConfig:
        # SLURM sends the signal up to a minute early.
        if self.time_margin_minutes * 60 < self.signal_seconds + 60:
            raise ValueError(
                f"time_margin_minutes {self.time_margin_minutes} is shorter than signal_seconds "
                f"{self.signal_seconds} and a minute: runs would be cut; raise the margin"
            )
        return self


class RunConfig(Section):
    """Everything that decides what a run does, but for its size and length."""

    preset: str = "custom"
    workload: str = Field("automl", description="what is trained: a name in workloads/")
    seed: int = Field(0, ge=0, lt=2**32)
    dataset: DatasetConfig = DatasetConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    rounds: RoundsConfig = RoundsConfig()
    hpo: HpoConfig = HpoConfig()
    search: SearchConfig = SearchConfig()
    engine: EngineConfig = EngineConfig()
    replica: ReplicaConfig = ReplicaConfig()
    score: ScoreConfig = ScoreConfig()
    journal: JournalConfig = JournalConfig()
    slurm: SlurmConfig = SlurmConfig()

    @model_validator(mode="after")
    def _has_a_sample_for_each_rank(self) -> RunConfig:
        smallest = min(self.training.batch_size, *self.hpo.space.batch_size.values)
        if smallest < self.replica.ranks:
            raise ValueError(
                f"a batch of {smallest} samples cannot be divided among the {self.replica.ranks} "
                "ranks of a replica; raise training.batch_size and hpo.space.batch_size"
            )
        return self

    @model_validator(mode="after")
    def _can_reduce_its_tensors(self) -> RunConfig:
        if self.replica.collective == "horovod" and self.engine.name != "tensorflow":
            raise ValueError(
                f"replica.collective 'horovod' reduces TensorFlow's tensors, not those of engine "
                f"'{self.engine.name}'; set replica.collective to mpi or torch"
            )
        return self

    @model_validator(mode="after")
    def _has_a_precision_of_its_engine(self) -> RunConfig:
        if self.engine.name == "tensorflow" and self.training.precision == "fp16":
            raise ValueError(
                "training.precision 'fp16' needs a scaled loss, which the engine 'tensorflow' has "
                "not; use bf16, or engine.name=torch on an accelerator"
            )
        return self

    @model_validator(mode="after")
    def _needs_a_path(self) -> RunConfig:
        if self.dataset.name in ("cifar10", "imagenet") and self.dataset.path is None:
            raise ValueError(
                f"dataset '{self.dataset.name}' needs dataset.path: the folder that "
                f"`aiperf data prepare {self.dataset.name} --from SOURCE --to FOLDER` made; "
                "pass --set dataset.path=FOLDER"
            )
        return self


def preset_names() -> list[str]:
    """Return the names of the presets in ``configs/``."""
    folder = resources.files("aiperf_hpc.configs")
    return sorted(e.name[:-5] for e in folder.iterdir() if e.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """Return a preset's YAML. Raises ConfigError when there is none of that name."""
    if name not in preset_names():
        raise ConfigError(f"no preset '{name}'{_nearest(name, preset_names())}")
    return (resources.files("aiperf_hpc.configs") / f"{name}.yaml").read_text("utf-8")


def load_config(source: str | Path, assignments: Iterable[str] = ()) -> RunConfig:
    """Read a preset or a YAML file and apply ``key=value`` assignments over it.

    Args:
        source: the name of a preset, or the path of a YAML file.
        assignments: each ``section.key=value``, the value in YAML.

    Raises:
        ConfigError: no such preset or file, text that is not YAML, an unknown key (named with
            the nearest known one), or a value out of its range (named with the range).
    """
    name = str(source)
    if name in preset_names():
        values = _parse(preset_text(name), f"preset {name}")
    elif Path(name).suffix in (".yaml", ".yml") or Path(name).exists():
        values = _parse(_read(Path(name)), name)
    else:
        raise ConfigError(
            f"no preset and no file '{name}'{_nearest(name, preset_names())}; "
            f"presets: {', '.join(preset_names())}"
        )
    for assignment in assignments:
        _assign(values, assignment)
    return validate(values, name)


def validate(values: Mapping[str, Any], where: str) -> RunConfig:
    """Make a configuration of plain values. Raises ConfigError naming ``where``."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}: {'; '.join(_describe(e) for e in error.errors())}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {reason_of(error)}") from None


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        detail = " ".join(str(error).split())
        raise ConfigError(f"{where} is not YAML: {detail}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a mapping of sections, not a {type(values).__name__}")
    return cast("dict[str, Any]", values)


def _assign(values: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {assignment}: write it as key=value, e.g. training.batch_size=64")
    value = _parse(f"value: {text}", f"--set {assignment}")["value"]
    *sections, last = key.strip().split(".")
    target = values
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"--set {assignment}: '{section}' is a value, not a section")
    target[last] = value


def _describe(error: ErrorDetails) -> str:
    location = [part for part in error["loc"] if isinstance(part, str)]
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        known = _keys(location[:-1])
        return f"unknown key '{key}'{_nearest(location[-1], known)}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if not key:
        return message
    limits = _range(_field(location))
    got = error.get("input")
    shown = f" (got {got!r}{limits})" if not isinstance(got, dict) else ""
    return f"{key}: {message[0].lower()}{message[1:]}{shown}"


def _model(location: list[str]) -> type[BaseModel]:
    model: type[BaseModel] = RunConfig
    for part in location:
        annotation = model.model_fields[part].annotation
        # A section that may be left out is "Section | None".
        annotation = next(iter(get_args(annotation)), annotation)
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return model


def _keys(location: list[str]) -> list[str]:
    return list(_model(location).model_fields)


def _field(location: list[str]) -> FieldInfo | None:
    return _model(location[:-1]).model_fields.get(location[-1]) if location else None


def _range(field: FieldInfo | None) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    parts = [
        f"{sign} {_plain(getattr(limit, name))}"
        for limit in (field.metadata if field else ())
        for name, sign in signs.items()
        if getattr(limit, name, None) is not None
    ]
    return f"; the range is {' and '.join(parts)}" if parts else ""


def _plain(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"; did you mean '{close[0]}'?" if close else ""
