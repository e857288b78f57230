"""The configuration of a run: resolved once, checked once, then frozen.

Sources, later ones win: the defaults of the sections (those of Ren et al. 2021, where
it gives one), a preset or YAML file, ``--set key=value``.
"""

from aiperf_hpc.config.dataset import DatasetConfig
from aiperf_hpc.config.engine import EngineConfig, SimulationConfig
from aiperf_hpc.config.loading import (
    Difference,
    differences,
    load_config,
    preset_names,
    preset_of,
    preset_text,
    validate,
)
from aiperf_hpc.config.model import (
    CosmoFlowConfig,
    DeepCAMConfig,
    ExtremeWeatherConfig,
    ModelConfig,
    ResNet50Config,
)
from aiperf_hpc.config.replica import ReplicaConfig
from aiperf_hpc.config.run import JournalConfig, KeepConfig, RunConfig, ScoreConfig
from aiperf_hpc.config.search import (
    KERNELS,
    HpoConfig,
    Integers,
    Reals,
    RoundsConfig,
    SearchConfig,
    SpaceConfig,
)
from aiperf_hpc.config.section import Fraction, Positive, Section
from aiperf_hpc.config.slurm import SlurmConfig, SlurmNodeGroup
from aiperf_hpc.config.training import TrainingConfig

__all__ = [
    "CosmoFlowConfig",
    "DatasetConfig",
    "DeepCAMConfig",
    "Difference",
    "EngineConfig",
    "ExtremeWeatherConfig",
    "Fraction",
    "HpoConfig",
    "Integers",
    "JournalConfig",
    "KERNELS",
    "KeepConfig",
    "ModelConfig",
    "Positive",
    "Reals",
    "ReplicaConfig",
    "ResNet50Config",
    "RoundsConfig",
    "RunConfig",
    "ScoreConfig",
    "SearchConfig",
    "Section",
    "SimulationConfig",
    "SlurmConfig",
    "SlurmNodeGroup",
    "SpaceConfig",
    "TrainingConfig",
    "differences",
    "load_config",
    "preset_names",
    "preset_of",
    "preset_text",
    "validate",
]
