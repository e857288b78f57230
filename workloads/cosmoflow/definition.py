"""CosmoFlow as a workload. [mlcommons/training_policies, hpc_training_rules.adoc]"""

from __future__ import annotations

from functools import partial

from aiperf_hpc.config import CosmoFlowConfig, ModelConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import regression
from aiperf_hpc.trial import DatasetInfo
from aiperf_hpc.workloads.base import Definition, Workload
from aiperf_hpc.workloads.cosmoflow import rules
from aiperf_hpc.workloads.cosmoflow.logged import logged
from aiperf_hpc.workloads.cosmoflow.network import INPUT, TARGETS, cosmoflow

PARAMETERS = 4
"""Omega_m, sigma_8, n_s and H_0, each scaled to [-1, 1]."""

STAND_IN_PARAMETERS = 2
"""Omega_m and sigma_8: of small volumes the others can hardly be told."""


def _network(model: ModelConfig, dataset: DatasetInfo) -> Graph:
    outputs = dataset.targets[TARGETS].shape
    if len(outputs) != 1 or outputs[0] is None:
        raise GraphError(f"dataset '{dataset.name}' has targets {outputs}, not a row of numbers")
    return cosmoflow(dataset.input_shape(INPUT), outputs[0], model.cosmoflow)


def _official(kernel: int) -> Graph:
    return cosmoflow(rules.VOLUME, PARAMETERS, CosmoFlowConfig.model_validate({"kernel": kernel}))


WORKLOAD = Workload(
    name="cosmoflow",
    summary="regression on volumes: cosmological parameters from the distribution of matter",
    definition=Definition(
        benchmark="MLPerf HPC, CosmoFlow",
        task="regression of 4 numbers on volumes of 4 channels",
        network="5 convolutions in 3-D, 3 dense layers, no normalisation",
        data="524,288 + 65,536 volumes of 128^3 x 4, int16, TFRecord in GZIP, 1.7 TB (v1.0 on); "
        "262,144 + 65,536, not compressed, 5.1 TB (v0.7)",
        target="mean absolute error <= 0.124",
        scoring="minutes to the target, of 10 runs without the fastest and the slowest; models a "
        "minute where many are trained at once",
        source="github.com/mlcommons/hpc, cosmoflow; mlcommons/training_policies, "
        "hpc_training_rules.adoc",
    ),
    objective=regression(PARAMETERS),
    datasets=("cosmoflow", "density"),
    network=_network,
    searchable=False,
    presets=("cosmoflow", "cosmoflow_v07", "cosmoflow_laptop"),
    official={
        "kernels of 3, since v1.0": partial(_official, 3),
        "kernels of 2, v0.7": partial(_official, 2),
    },
    closed={
        "dataset": "the official volumes, all of them",
        "model.cosmoflow": "the reference's network; dropout from 0 to below 1 and l2 of at least "
        "0 are free",
        "training.optimizer": "sgd",
        "training.momentum": "0.9",
        "training.weight_decay": "0: the penalty is model.cosmoflow.l2",
        "training.target": "0.124",
        "training.batch_size": "any",
        "training.learning_rate": "any",
        "training.schedule": "a linear warm-up of any length, then multi_step with factors below 1",
    },
    settings_rules=rules.OF_SETTINGS,
    data_rule=rules.data,
    record_rules=rules.OF_RECORDS,
    logged=logged,
    edition=lambda config: "v0.7" if config.model.cosmoflow.kernel == rules.KERNEL_V07 else "",
    objectives={"density": regression(STAND_IN_PARAMETERS)},
    opened="the optimizer and all hyperparameters; the network must be equivalent to the "
    "reference's",
)
