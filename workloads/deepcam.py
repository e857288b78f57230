"""DeepCAM of MLPerf HPC: cyclones and atmospheric rivers in the output of a climate model.

[mlcommons/training_policies, hpc_training_rules.adoc; mlcommons/logging,
compliance_checker/hpc_3.0.0; mlcommons/hpc, deepcam/src/deepCam/train.py and
utils/optimizer_helpers.py]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from aiperf_hpc.config import DeepCAMConfig, RunConfig
from aiperf_hpc.objective import INTERSECTION_OVER_UNION, segmentation
from aiperf_hpc.rules.rule import Findings, Found, Rule
from aiperf_hpc.trial import Hyperparameters, ScheduleSettings
from aiperf_hpc.workloads import requirements
from aiperf_hpc.workloads.base import Definition, Workload
from aiperf_hpc.workloads.networks.deepcam import INPUT, deepcam

CLASSES = 3
"""Number of classes: background, tropical cyclone, atmospheric river."""
FREQUENCIES = (0.986267818390377, 0.0004578708870701058, 0.01327431072255291)
"""Fraction of the official pixels in each class. [deepcam/src/deepCam/train.py]"""
WEIGHTS = tuple(frequency**-0.125 for frequency in FREQUENCIES)
"""Loss weights of the classes: 1.0017, 2.6146 and 1.7164."""


# Rules of the closed division.

TARGET: Final = 0.82
OFFICIAL: Final = requirements.OfficialData(
    "deepcam", "maps", "image", (768, 1152, 16), (121_266, 15_158), classes=3
)
OPTIMIZERS: Final = ("adam", "adamw", "lamb")
EPSILON: Final = 1e-6
LAMB_NORM: Final = 1.0
"""Maximum gradient norm with LAMB; the other optimizers do not clip."""


def _network_rule(config: RunConfig) -> Findings:
    """Require the reference network."""
    chosen, official = config.model.deepcam, DeepCAMConfig()
    yield Found(f"{chosen.middle_blocks} middle blocks, width {chosen.width}")
    yield from requirements.differing(chosen, "model.deepcam", dict(official))


def _optimizer(config: RunConfig) -> Findings:
    """Require the reference's Adam, AdamW or LAMB, with weight decay of all parameters."""
    training = config.training
    yield Found(training.optimizer)
    if training.optimizer not in OPTIMIZERS:
        yield f"training.optimizer is {training.optimizer}; adam, adamw or lamb is required"
    norm = LAMB_NORM if training.optimizer == "lamb" else None
    wanted = {
        "epsilon": EPSILON,
        "weight_decay_of": "all",
        "weight_decay_in": "update",
        "max_gradient_norm": norm,
    }
    yield from requirements.differing(training, "training", wanted)


def _schedule(config: RunConfig) -> Findings:
    """Require a linear warm-up in steps, then decays at steps by one factor or a cosine decay."""
    chosen = config.training.schedule
    yield Found(chosen.name)
    if chosen.interval != "step":
        yield "the rate changes per epoch; it must change per step (interval: step)"
    if chosen.warmup_epochs:
        yield f"a warm-up of {chosen.warmup_epochs:g} epochs; state it in steps (warmup_steps)"
    if chosen.name == "multi_step":
        if chosen.milestone_unit != "step":
            yield "decays after epochs; they must be stated in steps (milestone_unit: step)"
        if chosen.factors:
            yield "decays to fractions of the peak; a single decay factor is required (factor)"
    elif chosen.name == "cosine":
        if chosen.decay_steps is None:
            yield "a cosine over the length of the trial; state its number of steps (decay_steps)"
    else:
        yield f"{chosen.name}; multi_step or cosine is required"


OPTIMIZER_NAMES = {"adam": "Adam", "adamw": "AdamW", "lamb": "LAMB"}


def logged_settings(config: RunConfig, used: Hyperparameters) -> Mapping[str, object]:
    """Return the settings of a trial for MLPerf HPC's logs, by key.

    The logged rate does not include the warm-up factor. A warm-up with factor 1 starts at 0; any
    other starts at the rate. It ends at the rate times the factor. Normalization statistics are per
    rank, and gradients are applied in every step.
    """
    schedule = used.schedule
    factor = 1.0 / schedule.warmup_start_factor if schedule.warmup_start_factor else 1.0
    scale = 1.0 if schedule.base_batch_size is None else used.batch_size / schedule.base_batch_size
    rate = used.learning_rate * scale / factor
    lamb = {
        "opt_bias_correction": True,
        "opt_grad_averaging": True,
        "opt_max_grad_norm": used.max_gradient_norm,
    }
    return {
        "batchnorm_group_size": 1,
        "gradient_accumulation_frequency": 1,
        "opt_name": OPTIMIZER_NAMES.get(used.optimizer, used.optimizer),
        "opt_lr": rate,
        "opt_betas": [used.beta1, used.beta2],
        "opt_eps": used.epsilon,
        "opt_weight_decay": used.weight_decay,
        **(lamb if used.optimizer == "lamb" else {}),
        "scheduler_lr_warmup_steps": schedule.warmup_steps,
        "scheduler_lr_warmup_factor": factor,
        **dict(_of_schedule(schedule, rate * factor)),
    }


def _of_schedule(schedule: ScheduleSettings, peak: float) -> Iterator[tuple[str, object]]:
    """Yield the settings of the decay.

    The reference counts milestones from the step after the warm-up; here they count from the
    first step.
    """
    if schedule.name == "multi_step":
        shift = schedule.warmup_steps + 1 if schedule.warmup_steps else 0
        yield "scheduler_type", "multistep"
        yield "scheduler_milestones", [each - shift for each in schedule.milestones]
        yield "scheduler_decay_rate", schedule.factor
    elif schedule.name == "cosine":
        yield "scheduler_type", "cosine_annealing"
        yield "scheduler_t_max", schedule.decay_steps
        yield "scheduler_eta_min", schedule.end_factor * peak
    else:
        yield "scheduler_type", schedule.name


WORKLOAD = Workload(
    name="deepcam",
    summary="segmentation of maps: tropical cyclones and atmospheric rivers in a climate model",
    definition=Definition(
        benchmark="MLPerf HPC, DeepCAM",
        task="segmentation of maps of 16 fields",
        network="DeepLabv3+: Xception with separable convolutions, parallel dilated convolutions, "
        "a decoder of transposed convolutions",
        data="121,266 + 15,158 maps of 768 x 1152 x 16, float32, with masks, HDF5, 8.8 TB",
        target="intersection over union >= 0.82",
        scoring="mean minutes to the target of 5 runs without the fastest and the slowest; models "
        "per minute if many are trained concurrently",
        source="github.com/mlcommons/hpc, deepcam; mlcommons/training_policies, "
        "hpc_training_rules.adoc",
    ),
    objective=segmentation(*WEIGHTS),
    datasets=("deepcam", "weather_masks"),
    network=lambda model, dataset: deepcam(dataset.input_shape(INPUT), CLASSES, model.deepcam),
    searchable=False,
    presets=("deepcam", "deepcam_cosine", "deepcam_laptop"),
    official={"output stride 16": partial(deepcam, OFFICIAL.shape, CLASSES, DeepCAMConfig())},
    closed={
        "dataset": "all official maps",
        "model.deepcam": "the reference network",
        "training.optimizer": "adam, adamw or lamb",
        "training.epsilon": "1e-06",
        "training.weight_decay": "at least 0, for all parameters (weight_decay_of: all)",
        "training.max_gradient_norm": "1 with lamb, none otherwise",
        "training.target": "0.82",
        "training.batch_size": "any",
        "training.learning_rate": "any",
        "training.schedule": "a linear warm-up of any number of steps, from 0 or from any fraction "
        "of the peak; then multi_step, by steps and one factor, or cosine, of decay_steps",
    },
    settings_rules=(
        Rule("network", "the reference's", _network_rule),
        Rule("optimizer", "adam, adamw or lamb", _optimizer),
        Rule("schedule", "warm-up, then multi_step or cosine", _schedule),
        requirements.target_rule(TARGET),
    ),
    data_rule=requirements.data_rule(OFFICIAL),
    record_rules=(requirements.reached_rule(INTERSECTION_OVER_UNION, TARGET),),
    logged=logged_settings,
    opened="the optimizer and all hyperparameters; the network must be equivalent to the reference",
)
