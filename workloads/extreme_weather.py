"""Extreme Weather Analytics of HPC AI500: detection of cyclones and rivers in climate data.

The closed division is HPC AI500's hardware level, which fixes the code but not the machine, the
batch size and the learning rate policy. The original code is not public; the substitute in this
package is required. Every level fixes the problem: the dataset, the target and the number of
epochs. [Jiang et al. 2020, HPC AI500 V2.0]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from aiperf_hpc.config import ExtremeWeatherConfig, RunConfig
from aiperf_hpc.extras import DETECTION
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import MEAN_AVERAGE_PRECISION, detection
from aiperf_hpc.ops_counter.score import Weight
from aiperf_hpc.rules.rule import Findings, Found, Rule
from aiperf_hpc.workloads import requirements
from aiperf_hpc.workloads.base import Definition, Workload
from aiperf_hpc.workloads.networks.extreme_weather import BOXES, INPUT, extreme_weather

CLASSES = 4
"""Tropical depression, tropical cyclone, extratropical cyclone, atmospheric river."""
MOST_BOXES = 15
"""Number of rows for the boxes of a sample in the official files."""


def _official(variant: str) -> Graph:
    settings = ExtremeWeatherConfig.model_validate(VARIANTS[variant])
    return extreme_weather(OFFICIAL.shape, (MOST_BOXES, 5), CLASSES, settings)


# Rules of the closed division.

TARGET: Final = 0.35
EPOCHS: Final = 50
MAPS: Final = 13_140
"""Training and validation maps in total: nine years with four maps per day, as in the paper."""
OFFICIAL: Final = requirements.OfficialData(
    "extremeweather", "maps", "image", (768, 1152, 16), MAPS
)
VARIANTS: Final[Mapping[str, Mapping[str, object]]] = {
    "fpn": {"variant": "fpn"},
    "c4": {"variant": "c4", "pre_nms_top_n": 12_000},
}
"""Settings of ``model.extreme_weather`` for the two networks of the closed division."""
UPDATE: Final = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "weight_decay": 0.0001,
    "weight_decay_of": "kernels",
    "weight_decay_in": "loss",
    "max_gradient_norm": None,
}
"""Optimizer settings of tensorpack, whose loss includes half the weight decay times the sum of
squares of all ``W``."""


def _network_rule(config: RunConfig) -> Findings:
    """Require one of the two substitutes for the benchmark's network, with all its regions."""
    chosen = config.model.extreme_weather
    official = ExtremeWeatherConfig.model_validate(VARIANTS[chosen.variant])
    yield Found(f"{chosen.variant}, {chosen.regions_per_image} regions")
    yield from requirements.differing(chosen, "model.extreme_weather", official.model_dump())


def _precision(config: RunConfig) -> Findings:
    """Require training in fp32, as for the results in the paper."""
    value = config.training.precision
    yield Found(value)
    if value != "fp32":
        yield f"training.precision is {value}; fp32 is required"


WORKLOAD = Workload(
    name="extreme-weather",
    summary="object detection in weather maps: cyclones and atmospheric rivers",
    definition=Definition(
        benchmark="HPC AI500 V2.0, extreme weather analytics",
        task="detection of 4 classes in maps of 16 channels",
        network="Faster R-CNN on ResNet-50, trained from scratch; its code is not public: this is "
        "tensorpack's, with or without a feature pyramid",
        data="ExtremeWeather: 1,460 maps of 768 x 1152 x 16 per year, HDF5, 62 GB per year; the "
        "paper uses 9 years, 13,140 maps",
        target="mean average precision at IoU 0.5 >= 0.35, in 50 epochs",
        scoring="valid FLOPS: operations per second x (precision / 0.35)^10; time to quality",
        source="arXiv 2007.00279; extremeweatherdataset.github.io; "
        "github.com/tensorpack/tensorpack, examples/FasterRCNN",
    ),
    objective=detection(MOST_BOXES),
    datasets=("extremeweather", "weather_boxes"),
    network=lambda model, dataset: extreme_weather(
        dataset.input_shape(INPUT), dataset.input_shape(BOXES), CLASSES, model.extreme_weather
    ),
    searchable=False,
    presets=("extreme_weather", "extreme_weather_c4", "extreme_weather_laptop"),
    official={
        "feature pyramid, 512 regions": partial(_official, "fpn"),
        "fourth stage (C4), 512 regions": partial(_official, "c4"),
    },
    closed={
        "dataset": "the official maps of 768 x 1152, at least 13,140",
        "model.extreme_weather": "either variant with the settings of its preset",
        "training.optimizer": "sgd",
        "training.momentum": "0.9",
        "training.weight_decay": "0.0001, of kernels, in the loss",
        "training.precision": "fp32",
        "training.max_epochs": "50",
        "training.target": "0.35, or none: training always runs for 50 epochs",
        "training.batch_size": "any",
        "training.learning_rate": "any",
        "training.schedule": "any",
    },
    engines=("torch",),
    needs=(DETECTION,),
    settings_rules=(
        Rule("network", "Faster R-CNN, 512 regions", _network_rule),
        requirements.optimizer_rule(UPDATE, "sgd, momentum 0.9, L2 in the loss"),
        Rule("precision", "fp32", _precision),
        requirements.epochs_rule(EPOCHS),
        requirements.target_rule(TARGET, optional=True),
    ),
    data_rule=requirements.data_rule(OFFICIAL),
    record_rules=(requirements.reached_rule(MEAN_AVERAGE_PRECISION, TARGET),),
    valid_flops=Weight(TARGET, 10),
    opened="everything but the dataset, the target and the epochs (HPC AI500's free level)",
)
