"""Sections of the configuration on the network, its data, its training, and where it runs."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from aiperf_hpc.errors import raising
from aiperf_hpc.trial import ScheduleSettings, StorageFormat
from aiperf_hpc.untrusted.bounds import MOST_NODES, Bounded, in_words

Positive = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(Bounded):
    """Base of all configuration sections: immutable, and unknown keys are rejected."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class DatasetConfig(Section):
    """Dataset and its preprocessing."""

    name: Literal[
        "digits",
        "cifar10",
        "cosmoflow",
        "deepcam",
        "density",
        "extremeweather",
        "imagenet",
        "simulated",
        "synthetic",
        "volumes",
        "weather_boxes",
        "weather_masks",
    ] = "imagenet"
    """Dataset. Only runs on imagenet can be VALID."""
    path: Path | None = None
    """Folder created by `aiperf data prepare`."""
    storage_format: StorageFormat = "jpeg"
    """Format of the images in the folder (imagenet only)."""
    augment: bool = True
    """Apply the dataset's standard augmentation in training."""
    min_crop_area: float = Field(0.08, gt=0.0, le=1.0)
    """Minimum fraction of the image area that a random training crop covers (imagenet only)."""
    parallel_transforms: int = Field(48, ge=1, le=1024)
    """Maximum number of samples that are transformed concurrently; at most the number of cores."""
    cache: Literal["none", "memory", "disk"] = "none"
    """Where to copy the dataset before training: nowhere, into the page cache, or to cache_path.
    The time for copying is charged to the run."""
    cache_path: Path | None = None
    """Folder on a local disk of the node, for cache: disk."""
    decoded_cache_gib: float = Field(0.0, ge=0.0, le=65_536.0)
    """Memory in GiB in which a rank keeps decoded images (imagenet and synthetic with engine
    torch)."""
    image_size: int = Field(224, ge=8, le=1024)
    """Height and width in pixels (imagenet and generated images), side in cells (volumes), or
    rows of a 2:3 map (weather)."""
    classes: int = Field(10, ge=2, le=100_000)
    """Number of classes of generated data (synthetic, simulated)."""
    train_samples: int = Field(512, ge=1)
    """Number of training samples of generated data (density, synthetic, simulated, volumes,
    weather)."""
    validation_samples: int = Field(128, ge=1)
    """Number of validation samples of generated data (density, synthetic, simulated, volumes,
    weather)."""

    @model_validator(mode="after")
    def _has_a_place_for_its_copy(self) -> DatasetConfig:
        if (self.cache == "disk") != (self.cache_path is not None):
            raise ValueError(
                "cache disk and cache_path go together: write cache: disk and cache_path: FOLDER, "
                "or neither"
            )
        if self.cache != "none" and self.path is None:
            raise ValueError(f"cache {self.cache} is for a dataset in a folder, and path is none")
        if self.decoded_cache_gib and self.name not in ("imagenet", "synthetic"):
            raise ValueError(
                f"decoded_cache_gib is for the datasets imagenet and synthetic, not '{self.name}'; "
                "leave it out"
            )
        if self.storage_format != "jpeg" and self.name != "imagenet":
            raise ValueError(
                f"storage_format is for the images of imagenet, and the dataset is '{self.name}'; "
                "leave it out"
            )
        return self


class SimulationConfig(Section):
    """Simulated machine and training curves of the engine ``simulated``."""

    operations_per_second: float = Field(1e12, gt=0.0)
    """Counted operations that a simulated replica executes per second."""
    step_seconds: float = Field(0.0, ge=0.0, le=3600.0)
    """Fixed overhead of a step in seconds."""
    build_seconds: float = Field(2.0, ge=0.0, le=3600.0)
    """Time in seconds to build a network."""
    peak_accuracy: Fraction = 0.8
    """Approximate accuracy of the largest networks."""
    rise_epochs: float = Field(6.0, gt=0.0, le=1e6)
    """Time constant of the training curve in epochs (63 % of the final accuracy)."""
    noise: float = Field(0.003, ge=0.0, le=1.0)
    """Standard deviation of a measured accuracy."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Random seed of the accuracies of simulated networks."""
    accelerators: int = Field(0, ge=0, le=1024)
    """Number of simulated accelerators per node."""
    # The settings below apply to ``aiperf simulate`` only.
    dispatches_per_second: float = Field(200.0, gt=0.0)
    """Replicas that the simulated scheduler starts per second."""
    sync_seconds: float = Field(0.002, ge=0.0, le=60.0)
    """Latency in seconds of a synchronous write to the shared file system."""
    syncs_per_second: float = Field(10_000.0, gt=0.0)
    """Synchronous writes that the file server completes per second."""
    charge_cpu: bool = True
    """Advance the virtual clock by the CPU time that the code uses on this machine."""


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    found = util.find_spec(package)
    # A folder of that name in the working directory is found too, but has no code.
    return found is not None and found.origin is not None


class EngineConfig(Section):
    """Framework, device and memory that training uses."""

    name: Literal["tensorflow", "torch", "simulated"] = "tensorflow"
    """Framework used for training. auto: torch if it is installed, else tensorflow. simulated: no
    training, for dry runs."""
    device: Literal["auto", "cpu", "cuda", "npu"] = "auto"
    """Device used for training. auto: an accelerator if available. cuda (also for ROCm) and npu
    require engine torch."""
    compile: Literal["auto", "never", "always"] = "auto"
    """Use torch.compile (engine torch). auto: only on cuda, because compilation costs more than it
    saves on other devices."""
    tf32: bool = False
    """Compute fp32 convolutions and matrix products in TF32 on NVIDIA GPUs."""
    simulation: SimulationConfig = SimulationConfig()
    memory_limit_gib: float | None = Field(None, gt=0.0)
    """Memory in GiB that a rank may use; by default, the accelerator's memory or, on CPUs, the
    rank's share of the host's memory."""
    on_out_of_memory: Literal["reduce_batch", "fail"] = "reduce_batch"
    """What to do if a batch is estimated not to fit in memory: reduce the batch size, or fail
    the trial."""

    @field_validator("name", mode="before")
    @classmethod
    def _installed(cls, name: object) -> object:
        """Resolve ``auto`` when a configuration is read, so that a run records its engine."""
        if name != "auto":
            return name
        return "torch" if is_installed("torch") else "tensorflow"

    @model_validator(mode="after")
    def _means_something(self) -> EngineConfig:
        named = self.device in ("cuda", "npu") or self.compile != "auto"
        if self.name != "torch" and named:
            raise ValueError(
                "device and compile are for the engine torch; leave them at auto, or device=cpu"
            )
        return self

    @property
    def uses_accelerators(self) -> bool:
        """Whether it trains on accelerators where there are any."""
        simulated = self.name == "simulated" and self.simulation.accelerators == 0
        return self.device != "cpu" and not simulated


MOST_BLOCKS = 256
"""Maximum number of blocks per stage. The deepest published residual networks (1,202 layers, He et
al. 2016) have 200; four stages of 256 are a graph of 10,000 nodes."""
Blocks = Annotated[int, Field(ge=1, le=MOST_BLOCKS)]


class CosmoFlowConfig(Section):
    """Hyperparameters of CosmoFlow's network; the defaults are those of MLPerf's reference."""

    kernel_size: Literal[2, 3] = 3
    """Kernel size of the convolutions: 3 since MLPerf HPC v1.0, 2 in v0.7."""
    width: int = Field(32, ge=1, le=1024)
    """Channels of the first convolution; each further convolution doubles them."""
    conv_layers: int = Field(5, ge=1, le=8)
    """Number of convolutions; each is followed by a pooling that halves the sides."""
    dropout: float = Field(0.5, ge=0.0, lt=1.0)
    """Dropout rate of the hidden dense layers."""
    l2: float = Field(0.0, ge=0.0, le=1.0)
    """Coefficient of L2 regularization of the hidden dense layers' kernels."""


class DeepCAMConfig(Section):
    """Hyperparameters of DeepCAM's network; the defaults are those of MLPerf's reference."""

    width: int = Field(32, ge=1, le=1024)
    """Channels of the first convolution; all others scale with it."""
    middle_blocks: int = Field(16, ge=0, le=MOST_BLOCKS)
    """Number of 728-channel blocks in the middle flow."""


class ResNet50Config(Section):
    """Hyperparameters of ResNet-50 v1.5 in addition to stem, width and blocks."""

    unused_outputs: int = Field(0, ge=0, le=1000)
    """Outputs beyond the number of classes; the code of HPC AI500 has 1 (1,001 outputs)."""


Sizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(min_length=5, max_length=5)
]


class ExtremeWeatherConfig(Section):
    """Hyperparameters of the Faster R-CNN of HPC AI500's Extreme Weather Analytics."""

    variant: Literal["fpn", "c4"] = "fpn"
    """Faster R-CNN variant: a feature pyramid (fpn), or one feature map with a stage for each
    region (c4)."""
    width: int = Field(64, ge=1, le=1024)
    """Channels of the stem; 64 in ResNet-50."""
    blocks: tuple[Blocks, Blocks, Blocks, Blocks] = (3, 4, 6, 3)
    """Residual blocks per stage; 3, 4, 6 and 3 in ResNet-50."""
    fpn_channels: int = Field(256, ge=1, le=4096)
    """Channels of the feature pyramid (fpn only)."""
    box_head_width: int = Field(1024, ge=1, le=65_536)
    """Units of each of the two dense layers (fpn only)."""
    anchors: Sizes = (32, 64, 128, 256, 512)
    """Anchor sizes in pixels: one per pyramid level (fpn), or all at each position (c4)."""
    pre_nms_top_n: int = Field(2000, ge=1, le=100_000)
    """Number of highest-scoring anchors per level before non-maximum suppression."""
    post_nms_top_n: int = Field(2000, ge=1, le=100_000)
    """Number of proposals after non-maximum suppression from which training regions are sampled."""
    regions_per_image: int = Field(512, ge=1, le=10_000)
    """Number of regions of a sample that the second stage processes."""


class ModelConfig(Section):
    """The initial network."""

    initial: Literal["resnet50"] = "resnet50"
    """Initial network of the search."""
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """Stem of the network: 7x7 convolution with stride 2 and max-pooling (imagenet), or 3x3
    convolution with stride 1 (cifar)."""
    base_width: int = Field(64, ge=1, le=1024)
    """Channels of the stem; 64 in ResNet-50."""
    blocks: tuple[Blocks, Blocks, Blocks, Blocks] = (3, 4, 6, 3)
    """Residual blocks per stage; 3, 4, 6 and 3 in ResNet-50."""
    cosmoflow: CosmoFlowConfig = CosmoFlowConfig()
    deepcam: DeepCAMConfig = DeepCAMConfig()
    resnet50: ResNet50Config = ResNet50Config()
    extreme_weather: ExtremeWeatherConfig = ExtremeWeatherConfig()


MOST_RANKS = 1024
"""Maximum number of ranks per node."""


def _ranks(value: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Validate a number of ranks; the error message names all allowed values."""
    with raising(ValueError(f"give auto, or a number from 1 to {MOST_RANKS}"), ValidationError):
        return validate(value)


Ranks = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_RANKS)], WrapValidator(_ranks)
]


class ReplicaConfig(Section):
    """Nodes and ranks of a replica: one rank per accelerator, on one or more nodes."""

    nodes: int = Field(1, ge=1, le=100_000)
    """Number of nodes per replica."""
    ranks_per_node: Ranks = "auto"
    """Ranks per node. auto: one for each accelerator, or 1 on CPUs."""
    collective: Literal["auto", "mpi", "torch", "horovod"] = "auto"
    """Library for the all-reduce of gradients. auto: torch for engine torch on accelerators;
    otherwise mpi, or torch if MPI is not installed."""
    rank_timeout_seconds: float = Field(25.0, ge=1.0, le=3600.0)
    """Maximum time in seconds that a rank waits for the others in a step."""

    @property
    def ranks(self) -> int:
        """Number of ranks of a replica; the minimum while ``ranks_per_node`` is ``auto``."""
        return self.nodes * (1 if self.ranks_per_node == "auto" else self.ranks_per_node)

    def settled(self) -> ReplicaConfig:
        """Return the section without ``auto``: one rank per node, and the collective ``mpi``."""
        ranks = 1 if self.ranks_per_node == "auto" else self.ranks_per_node
        collective = "mpi" if self.collective == "auto" else self.collective
        return self.model_copy(update={"ranks_per_node": ranks, "collective": collective})


_WORD = in_words(r"^[^\s'\"\\`$]+$", "one word without spaces, quotes, '`', '\\' or '$'")
Word = Annotated[str, Field(pattern=_WORD, max_length=256)]
"""A value for SLURM's command line: one word that no shell would change."""
_DIRECTIVE = in_words(r"^-[^\r\n]*$", "one option of sbatch, beginning with '-'")
Directive = Annotated[str, Field(pattern=_DIRECTIVE, max_length=1024)]
_MEMORY = in_words(r"^\d+[KMGT]?$", "a whole number, optionally followed by K, M, G or T, e.g. 64G")


class SlurmNodeGroup(Section):
    """Group of nodes of one kind. Omitted settings default to those of the section."""

    partition: Word
    """Partition (sbatch --partition)."""
    nodes: int = Field(ge=1, le=MOST_NODES)
    """Number of nodes of this group, out of --nodes."""
    gres: Word | None = None
    """Generic resources per node, for example gpu:h100:8."""
    constraint: Word | None = None
    """Required node features, for example icelake."""


class SlurmConfig(Section):
    """Resource requests and submission. Omitted settings use the site's defaults."""

    mode: Literal["array", "allocation"] = "array"
    """How to submit replicas: one job per replica (array), or one job with a step for each
    (allocation)."""
    client: Literal["commands", "pyslurm"] = "commands"
    """Interface to SLURM: its commands, or pyslurm, which a site must build for its SLURM
    version."""
    partition: Word | None = None
    """Partition (sbatch --partition)."""
    account: Word | None = None
    """Account (sbatch --account)."""
    qos: Word | None = None
    """Quality of service (sbatch --qos)."""
    gres: Word | None = None
    """Generic resources per node, for example gpu:8 or gpu:h100:8."""
    cpus_per_task: int | None = Field(None, ge=1, le=65_536)
    """CPUs per rank."""
    memory: Annotated[str, Field(pattern=_MEMORY)] | None = None
    """Memory per node, for example 64G; 0 requests all of it."""
    constraint: Word | None = None
    """Required node features, for example icelake."""
    node_groups: tuple[SlurmNodeGroup, ...] = Field((), max_length=64)
    """Groups of nodes of different kinds, each with its partition, number of nodes, gres and
    constraint."""
    reservation: Word | None = None
    """Reservation (sbatch --reservation)."""
    exclusive: bool = True
    """Allocate whole nodes to a replica."""
    time_margin_minutes: int = Field(10, ge=2, le=1440)
    """Minutes added to the duration of the run to get the time limit of the jobs."""
    signal_seconds: int = Field(120, ge=10, le=3600)
    """Number of seconds before the time limit at which replicas receive the signal to shut down."""
    mpi: Word = "pmix"
    """MPI plugin with which srun starts ranks; `srun --mpi=list` lists them."""
    template: Path | None = None
    """Path of a custom batch script template."""
    extra_directives: tuple[Directive, ...] = ()
    """Additional sbatch options, for example --nice=100."""

    @model_validator(mode="after")
    def _ends_before_it_is_told_to(self) -> SlurmConfig:
        # SLURM sends the signal up to a minute early.
        if self.time_margin_minutes * 60 < self.signal_seconds + 60:
            raise ValueError(
                f"time_margin_minutes {self.time_margin_minutes} is shorter than signal_seconds "
                f"{self.signal_seconds} and a minute: runs would be cut off; raise the margin"
            )
        return self

    @model_validator(mode="after")
    def _tells_its_groups_apart(self) -> SlurmConfig:
        # A primary that resumes a run identifies jobs by their requested resources.
        asked = [(each.partition, each.gres, each.constraint) for each in self.node_groups]
        for number, each in enumerate(asked):
            if each in asked[:number]:
                raise ValueError(
                    f"node_groups.{asked.index(each)} and node_groups.{number} request the same "
                    "nodes; merge them"
                )
        return self

    def of_group(self, group: SlurmNodeGroup) -> SlurmConfig:
        """Return the requests for the nodes of one group."""
        given = group.model_dump(exclude={"nodes"}, exclude_none=True)
        return self.model_copy(update={**given, "node_groups": ()})


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
