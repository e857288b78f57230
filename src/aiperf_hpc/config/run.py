"""The configuration of a run, with the checks that concern several of its sections."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from aiperf_hpc.config.search import HpoConfig, RoundsConfig, SearchConfig
from aiperf_hpc.config.sections import (
    DatasetConfig,
    EngineConfig,
    ModelConfig,
    ReplicaConfig,
    Section,
    SlurmConfig,
    TrainingConfig,
)
from aiperf_hpc.errors import raising
from aiperf_hpc.untrusted.bounds import Name

MOST_PRESET = 64
"""Maximum length of a preset's name, which is part of the name of a run and its folder."""


class ScoreConfig(Section):
    """Score over time."""

    interval_hours: float = Field(0.1, ge=0.0005, le=24.0)
    """Interval in hours between points of the score over time."""


class JournalConfig(Section):
    """Intervals at which processes write records."""

    progress_interval_seconds: float = Field(5.0, ge=0.1, le=600.0)
    """Interval in seconds between records of executed samples."""
    heartbeat_interval_seconds: float = Field(10.0, ge=0.5, le=600.0)
    """Interval in seconds between heartbeats of a process."""
    digest_interval_seconds: float = Field(30.0, ge=1.0, le=600.0)
    """Interval in seconds between records of the digests of all journals."""


class RetentionConfig(Section):
    """Checkpoints saved for `aiperf verify --execute`."""

    trials: Literal["none", "best", "all"] = "all"
    """Trials whose best checkpoints are saved for `aiperf verify --execute`: none, the best of
    each replica, or all."""
    max_gib: float = Field(8.0, ge=0.0)
    """Maximum size in GiB of a replica's saved checkpoints; those of its best trial are always
    saved."""


class TelemetryConfig(Section):
    """Sampling of each node's utilization, power and energy."""

    interval_seconds: float = Field(30.0, ge=0.0, le=600.0)
    """Sampling interval in seconds; AIPerf's rules require at most 30; 0 turns telemetry off."""

    @model_validator(mode="after")
    def _not_too_often(self) -> TelemetryConfig:
        seconds = self.interval_seconds
        if 0.0 < seconds < 0.5:
            raise ValueError(f"interval_seconds {seconds:g}: at least 0.5, or 0 for no telemetry")
        return self


PREPARED_DATASETS = ("cifar10", "cosmoflow", "deepcam", "extremeweather", "imagenet")
"""Datasets that ``aiperf data prepare`` makes a folder of."""
PEAK_SECONDS = 4.0


class PeaksConfig(Section):
    """Measurement of each device's peak performance before training."""

    at_start_seconds: float | None = Field(None, ge=0.0, le=60.0)
    """Time in seconds to measure the peak performance of each rank's device before training,
    which counts towards the run's time; 0 to skip. Default: 4 on prepared datasets, else 0."""


MOST_URLS = 16


def _web_address(text: str) -> str:
    with raising(ValueError(f"'{text}' is not a URL"), ValueError):
        parts = urlsplit(text)
        port = parts.port
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"'{text}' is not an http or https URL such as https://host:8766")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"'{text}' has a user, a query or a fragment; leave them out")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("a URL contains only printable ASCII characters and no space")
    return text.rstrip("/")


Url = Annotated[str, Field(max_length=500), AfterValidator(_web_address)]


class WitnessConfig(Section):
    """Witness servers, which sign and date a run's digests (`aiperf witness`)."""

    urls: tuple[Url, ...] = Field((), max_length=MOST_URLS)
    """URLs of witness servers, for example [https://host:8766]."""
    interval_seconds: float = Field(30.0, ge=1.0, le=3600.0)
    """Interval in seconds between digests sent to a witness."""


class TimestampsConfig(Section):
    """Timestamp authorities (RFC 3161)."""

    urls: tuple[Url, ...] = Field((), max_length=MOST_URLS)
    """URLs of timestamp authorities (RFC 3161)."""
    interval_seconds: float = Field(300.0, ge=10.0, le=86_400.0)
    """Interval in seconds between timestamped digests."""


class RunConfig(Section):
    """Configuration of a run, except its number of nodes and hours."""

    preset: Annotated[Name, Field(max_length=MOST_PRESET)] = "custom"
    """Name of the preset on which the configuration is based; informative only."""
    workload: str = Field("automl", max_length=100)
    """Workload to run; `aiperf workloads` lists them."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Random seed of initial weights, sample order, search and TPE."""
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
    telemetry: TelemetryConfig = TelemetryConfig()
    retention: RetentionConfig = RetentionConfig()
    peaks: PeaksConfig = PeaksConfig()
    witness: WitnessConfig = WitnessConfig()
    timestamps: TimestampsConfig = TimestampsConfig()
    slurm: SlurmConfig = SlurmConfig()

    @property
    def keeps_best_epochs(self) -> bool:
        """Whether replicas store best epochs; simulated trials have none."""
        return self.retention.trials != "none" and self.engine.name != "simulated"

    @property
    def digest_seconds(self) -> float:
        """Seconds between digests of the journals, of which witnesses get each new one."""
        shown = [each.interval_seconds for each in (self.witness, self.timestamps) if each.urls]
        return min([self.journal.digest_interval_seconds, *shown])

    @property
    def peak_seconds(self) -> float:
        """Seconds in which each rank measures its device's peak; 0 to skip the measurement."""
        given = self.peaks.at_start_seconds
        if given is not None:
            return given
        return PEAK_SECONDS if self.dataset.name in PREPARED_DATASETS else 0.0

    def settled(self) -> RunConfig:
        """Return the configuration with a settled replica section (``ReplicaConfig.settled``)."""
        replica = self.replica.settled()
        same = replica == self.replica
        return self if same else self.model_copy(update={"replica": replica})

    @model_validator(mode="after")
    def _has_a_sample_for_each_rank(self) -> RunConfig:
        batches = {"training.batch_size": self.training.batch_size}
        if self.search.searches:
            batches["hpo.space.batch_size"] = self.hpo.space.batch_size.values[0]
        smallest = min(batches.values())
        if smallest < self.replica.ranks:
            raise ValueError(
                f"a batch of {smallest} samples cannot be divided among the {self.replica.ranks} "
                f"ranks of a replica; raise {' and '.join(batches)}"
            )
        return self

    @model_validator(mode="after")
    def _suits_its_engine(self) -> RunConfig:
        if self.replica.collective == "horovod" and self.engine.name != "tensorflow":
            raise ValueError(
                f"replica.collective 'horovod' reduces TensorFlow's tensors, not those of engine "
                f"'{self.engine.name}'; set replica.collective to mpi or torch"
            )
        if self.engine.name == "tensorflow" and self.training.precision == "fp16":
            raise ValueError(
                "training.precision 'fp16' needs loss scaling, which engine 'tensorflow' does not "
                "support; use bf16, or engine.name=torch on an accelerator"
            )
        if self.dataset.decoded_cache_gib and self.engine.name == "tensorflow":
            raise ValueError(
                "dataset.decoded_cache_gib is for images that Pillow decodes, and engine "
                "'tensorflow' reads them by tf.data; leave it out, or set engine.name=torch"
            )
        return self

    @model_validator(mode="after")
    def _has_replicas_of_one_group(self) -> RunConfig:
        each = self.replica.nodes
        for number, group in enumerate(self.slurm.node_groups):
            if group.nodes % each:
                raise ValueError(
                    f"slurm.node_groups.{number}: {group.nodes} nodes; a replica spans {each} "
                    "nodes of one group (replica.nodes); give a multiple of it"
                )
        return self

    @model_validator(mode="after")
    def _needs_a_path(self) -> RunConfig:
        if self.dataset.name in PREPARED_DATASETS and self.dataset.path is None:
            raise ValueError(
                f"dataset '{self.dataset.name}' needs dataset.path: the folder that "
                f"`aiperf data prepare {self.dataset.name} --from SOURCE --to FOLDER` made; "
                "pass --set dataset.path=FOLDER"
            )
        return self
