"""Extreme Weather Analytics as a workload. [Jiang et al. 2020, HPC AI500 V2.0]"""

from __future__ import annotations

from functools import partial

from aiperf_hpc.config import ExtremeWeatherConfig, ModelConfig
from aiperf_hpc.extras import DETECTION
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import detection
from aiperf_hpc.ops_counter.valid_flops import Weight
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.base import Definition, Workload
from aiperf_hpc.workloads.extreme_weather import rules
from aiperf_hpc.workloads.extreme_weather.network import BOXES, INPUT, extreme_weather

CLASSES = 4
"""Tropical depression, tropical cyclone, extratropical cyclone, atmospheric river."""
MOST_BOXES = 15
"""Rows for the boxes of a sample in the official files."""


def _network(model: ModelConfig, dataset: DatasetInfo) -> Graph:
    return extreme_weather(
        dataset.input_shape(INPUT), dataset.input_shape(BOXES), CLASSES, model.extreme_weather
    )


def _official(variant: str) -> Graph:
    settings = ExtremeWeatherConfig.model_validate(rules.VARIANTS[variant])
    return extreme_weather(rules.OFFICIAL.shape, (MOST_BOXES, 5), CLASSES, settings)


WORKLOAD = Workload(
    name="extreme-weather",
    summary="detection in maps of weather: boxes about cyclones and atmospheric rivers",
    definition=Definition(
        benchmark="HPC AI500 V2.0, extreme weather analytics",
        task="detection of 4 classes in maps of 16 channels",
        network="Faster R-CNN on ResNet-50, trained from the start; its code is not public: this "
        "is tensorpack's, with a feature pyramid or without one",
        data="ExtremeWeather: 1,460 maps of 768 x 1152 x 16 a year, HDF5, 62 GB a year; the paper "
        "has 9 years, 13,140 maps",
        target="mean average precision at IoU 0.5 >= 0.35, in 50 epochs",
        scoring="valid FLOPS: operations per second x (precision / 0.35)^10; time to quality",
        source="arXiv 2007.00279; extremeweatherdataset.github.io; "
        "github.com/tensorpack/tensorpack, examples/FasterRCNN",
    ),
    objective=detection(MOST_BOXES),
    datasets=("extremeweather", "weather_boxes"),
    network=_network,
    searchable=False,
    presets=("extreme_weather", "extreme_weather_c4", "extreme_weather_laptop"),
    official={
        "feature pyramid, 512 regions": partial(_official, "fpn"),
        "fourth stage (C4), 512 regions": partial(_official, "c4"),
    },
    closed={
        "dataset": "the official maps of 768 x 1152, 13,140 at least",
        "model.extreme_weather": "either variant as its preset has it",
        "training.optimizer": "sgd",
        "training.momentum": "0.9",
        "training.weight_decay": "0.0001, of kernels, in the loss",
        "training.precision": "fp32",
        "training.max_epochs": "50",
        "training.target": "0.35, or none: all 50 epochs are trained",
        "training.batch_size": "any",
        "training.learning_rate": "any",
        "training.schedule": "any",
    },
    engines=("torch",),
    needs=(DETECTION,),
    settings_rules=rules.OF_SETTINGS,
    data_rule=rules.data,
    record_rules=rules.OF_RECORDS,
    valid_flops=Weight(rules.TARGET, 10),
    opened="everything but the dataset, the target and the epochs (HPC AI500's free level)",
)
