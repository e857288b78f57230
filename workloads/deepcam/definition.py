"""DeepCAM as a workload. [mlcommons/training_policies, hpc_training_rules.adoc]"""

from __future__ import annotations

from aiperf_hpc.config import DeepCAMConfig, ModelConfig
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import segmentation
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.base import Definition, Workload
from aiperf_hpc.workloads.deepcam import rules
from aiperf_hpc.workloads.deepcam.logged import logged
from aiperf_hpc.workloads.deepcam.network import INPUT, deepcam

CLASSES = 3
"""Background, tropical cyclone, atmospheric river."""
SHARES = (0.986267818390377, 0.0004578708870701058, 0.01327431072255291)
"""The classes' shares of all official pixels. [deepcam/src/deepCam/train.py]"""
WEIGHTS = tuple(share**-0.125 for share in SHARES)
"""By what the loss of a pixel of each class is multiplied: 1.0017, 2.6146 and 1.7164."""


def _network(model: ModelConfig, dataset: DatasetInfo) -> Graph:
    return deepcam(dataset.input_shape(INPUT), CLASSES, model.deepcam)


def _official() -> Graph:
    return deepcam(rules.OFFICIAL.shape, CLASSES, DeepCAMConfig())


WORKLOAD = Workload(
    name="deepcam",
    summary="segmentation of maps: tropical cyclones and atmospheric rivers in a climate model",
    definition=Definition(
        benchmark="MLPerf HPC, DeepCAM",
        task="a class for each pixel of maps of 16 fields",
        network="DeepLabv3+: an Xception of separable convolutions, dilated ones side by side, a "
        "decoder of transposed ones",
        data="121,266 + 15,158 maps of 768 x 1152 x 16, float32, with masks, HDF5, 8.8 TB",
        target="intersection over union >= 0.82",
        scoring="minutes to the target, of 5 runs without the fastest and the slowest; models a "
        "minute where many are trained at once",
        source="github.com/mlcommons/hpc, deepcam; mlcommons/training_policies, "
        "hpc_training_rules.adoc",
    ),
    objective=segmentation(*WEIGHTS),
    datasets=("deepcam", "weather_masks"),
    network=_network,
    searchable=False,
    presets=("deepcam", "deepcam_cosine", "deepcam_laptop"),
    official={"output stride 16": _official},
    closed={
        "dataset": "the official maps, all of them",
        "model.deepcam": "the reference's network",
        "training.optimizer": "adam, adamw or lamb",
        "training.epsilon": "1e-06",
        "training.weight_decay": "any of at least 0, of all parameters (weight_decay_of: all)",
        "training.max_gradient_norm": "1 with lamb, none otherwise",
        "training.target": "0.82",
        "training.batch_size": "any",
        "training.learning_rate": "any",
        "training.schedule": "a linear warm-up of any number of steps, from 0 or from any share "
        "of the peak; then multi_step, by steps and one factor, or cosine, of wave_steps",
    },
    settings_rules=rules.OF_SETTINGS,
    data_rule=rules.data,
    record_rules=rules.OF_RECORDS,
    logged=logged,
    opened="the optimizer and all hyperparameters; the network must be equivalent to the "
    "reference's",
)
