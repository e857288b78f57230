"""CosmoFlow of MLPerf HPC: cosmological parameters from the distribution of matter.

[mlcommons/training_policies, hpc_training_rules.adoc; mlcommons/logging,
compliance_checker/hpc_3.0.0; mlcommons/hpc, cosmoflow/train.py]
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from aiperf_hpc.config import CosmoFlowConfig, ModelConfig, RunConfig
from aiperf_hpc.errors import GraphError
from aiperf_hpc.graph import Graph
from aiperf_hpc.objective import MEAN_ABSOLUTE_ERROR, regression
from aiperf_hpc.rules.rule import Findings, Found, Rule
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.trial import DatasetInfo, Hyperparameters
from aiperf_hpc.workloads import requirements
from aiperf_hpc.workloads.base import Definition, Workload
from aiperf_hpc.workloads.networks.volumes import INPUT, TARGETS, cosmoflow

PARAMETERS = 4
"""Number of parameters: Omega_m, sigma_8, n_s and H_0, each scaled to [-1, 1]."""

STAND_IN_PARAMETERS = 2
"""Number of parameters of the substitute: Omega_m and sigma_8; small volumes barely determine the
others."""


def _network(model: ModelConfig, dataset: DatasetInfo) -> Graph:
    outputs = dataset.targets[TARGETS].shape
    if len(outputs) != 1 or outputs[0] is None:
        raise GraphError(f"dataset '{dataset.name}' has targets {outputs}, not a row of numbers")
    return cosmoflow(dataset.input_shape(INPUT), outputs[0], model.cosmoflow)


def _official(kernel: int) -> Graph:
    return cosmoflow(VOLUME, PARAMETERS, CosmoFlowConfig.model_validate({"kernel_size": kernel}))


# Rules of the closed division.

VOLUME: Final = (128, 128, 128, 4)
"""Shape of an official sample: cells and redshifts."""
TARGET: Final = 0.124
KERNEL_V07: Final = 2
"""Kernel size in version 0.7 of the benchmark; later versions have 3."""
SAMPLES: Final = {2: (262_144, 65_536), 3: (524_288, 65_536)}
"""Numbers of official training and validation samples, by kernel size of the version."""
UPDATE: Final = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "weight_decay": 0.0,
    "max_gradient_norm": None,
}
"""Optimizer settings: no weight decay except the network's penalty, and no clipping."""
FREE: Final = ("dropout", "l2", "kernel_size")
"""Unrestricted settings of the network; the version determines the kernel."""


def _data(run: RunEvidence) -> Findings:
    """Require all official volumes of the benchmark version with the configured kernel size."""
    kernel = run.config.model.cosmoflow.kernel_size
    where = f" with kernels of {kernel}"
    wanted = requirements.OfficialData(
        "cosmoflow", "volumes", "volume", VOLUME, SAMPLES[kernel], where
    )
    return requirements.official_data(run, wanted)


def _network_rule(config: RunConfig) -> Findings:
    """Require the reference network of either version; dropout and penalty are unrestricted."""
    chosen, official = config.model.cosmoflow, CosmoFlowConfig()
    wanted = {name: value for name, value in official if name not in FREE}
    yield Found(f"kernels of {chosen.kernel_size}")
    yield from requirements.differing(chosen, "model.cosmoflow", wanted)


def _schedule(config: RunConfig) -> Findings:
    """Require a linear warm-up in epochs, then decays at epochs, each with a factor below 1."""
    chosen = config.training.schedule
    yield Found(chosen.name)
    if chosen.name not in ("constant", "multi_step"):
        yield f"{chosen.name}; multi_step is required, or constant for no decay"
    if chosen.warmup_steps:
        yield f"a warm-up of {chosen.warmup_steps} steps; state it in epochs (warmup_epochs)"
    if chosen.milestone_unit != "epoch":
        yield "decays after steps; they must be stated in epochs (milestone_unit: epoch)"
    for factor in chosen.factors:
        if not 0.0 < factor < 1.0:
            yield f"a decay to {factor:g} of the peak; above 0 and below 1 is required"


def logged_settings(config: RunConfig, used: Hyperparameters) -> Mapping[str, object]:
    """Return the settings of a trial for MLPerf HPC's logs, by key.

    As in the reference, the logged rate is the peak, the warm-up factor is the ratio of the peak to
    the rate for the base batch, and the decay factor is the largest one. The reference decays after
    the boundary epoch, counted from 0; a milestone here is a number of epochs, which is one more.
    """
    schedule, network = used.schedule, config.model.cosmoflow
    scale = 1.0 if schedule.base_batch_size is None else used.batch_size / schedule.base_batch_size
    return {
        "opt_name": used.optimizer,
        "opt_base_learning_rate": used.learning_rate * scale,
        "opt_learning_rate_warmup_epochs": schedule.warmup_epochs,
        "opt_learning_rate_warmup_factor": scale,
        "opt_learning_rate_decay_boundary_epochs": [each - 1 for each in schedule.milestones],
        "opt_learning_rate_decay_factor": max(schedule.factors, default=schedule.factor),
        "opt_weight_decay": network.l2,
        "dropout": network.dropout,
    }


WORKLOAD = Workload(
    name="cosmoflow",
    summary="regression on volumes: cosmological parameters from the distribution of matter",
    definition=Definition(
        benchmark="MLPerf HPC, CosmoFlow",
        task="regression of 4 numbers on volumes of 4 channels",
        network="5 3-D convolutions, 3 dense layers, no normalization",
        data="524,288 + 65,536 volumes of 128^3 x 4, int16, gzipped TFRecord, 1.7 TB (since v1.0); "
        "262,144 + 65,536, uncompressed, 5.1 TB (v0.7)",
        target="mean absolute error <= 0.124",
        scoring="mean minutes to the target of 10 runs without the fastest and the slowest; models "
        "per minute if many are trained concurrently",
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
        "dataset": "all official volumes",
        "model.cosmoflow": "the reference network; any dropout from 0 to below 1 and any l2 of at "
        "least 0",
        "training.optimizer": "sgd",
        "training.momentum": "0.9",
        "training.weight_decay": "0: the penalty is model.cosmoflow.l2",
        "training.target": "0.124",
        "training.batch_size": "any",
        "training.learning_rate": "any",
        "training.schedule": "a linear warm-up of any length, then multi_step with factors below 1",
    },
    settings_rules=(
        Rule("network", "the reference's", _network_rule),
        requirements.optimizer_rule(UPDATE, "sgd, momentum 0.9"),
        Rule("schedule", "warm-up, then decays by factors", _schedule),
        requirements.target_rule(TARGET),
    ),
    data_rule=Rule("data", "the official volumes", _data),
    record_rules=(requirements.reached_rule(MEAN_ABSOLUTE_ERROR, TARGET),),
    logged=logged_settings,
    edition=lambda config: "v0.7" if config.model.cosmoflow.kernel_size == KERNEL_V07 else "",
    objectives={"density": regression(STAND_IN_PARAMETERS)},
    opened="the optimizer and all hyperparameters; the network must be equivalent to the reference",
)
