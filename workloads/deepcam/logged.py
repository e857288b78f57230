"""What MLPerf HPC's logs of DeepCAM state of a training, by their keys.

[mlcommons/hpc, deepcam/src/deepCam/train.py and utils/optimizer_helpers.py; mlcommons/logging,
compliance_checker/hpc_3.0.0]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from aiperf_hpc.config import RunConfig
from aiperf_hpc.trial import Hyperparameters, ScheduleSettings

OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "lamb": "LAMB"}


def logged(config: RunConfig, used: Hyperparameters) -> Mapping[str, object]:
    """Return the settings of a training.

    The rate is that of before the warm-up's factor: a warm-up of factor 1 begins at 0, any other at
    the rate itself, and ends at the factor times it. Normalisations go by a rank's own samples, and
    gradients are applied in each step.
    """
    del config
    schedule = used.schedule
    factor = 1.0 / schedule.warmup_start if schedule.warmup_start else 1.0
    scale = 1.0 if schedule.base_batch is None else used.batch_size / schedule.base_batch
    rate = used.learning_rate * scale / factor
    return {
        "batchnorm_group_size": 1,
        "gradient_accumulation_frequency": 1,
        "opt_name": OPTIMIZERS.get(used.optimizer, used.optimizer),
        "opt_lr": rate,
        "opt_betas": [used.beta1, used.beta2],
        "opt_eps": used.epsilon,
        "opt_weight_decay": used.weight_decay,
        **_of_lamb(used),
        "scheduler_lr_warmup_steps": schedule.warmup_steps,
        "scheduler_lr_warmup_factor": factor,
        **dict(_of_schedule(schedule, rate * factor)),
    }


def _of_lamb(used: Hyperparameters) -> dict[str, object]:
    if used.optimizer != "lamb":
        return {}
    return {
        "opt_bias_correction": True,
        "opt_grad_averaging": True,
        "opt_max_grad_norm": used.max_gradient_norm,
    }


def _of_schedule(schedule: ScheduleSettings, peak: float) -> Iterator[tuple[str, object]]:
    """Yield what tells the decay. The reference's milestones count from behind the warm-up, and
    one step more, where there is one; ours from the first step."""
    if schedule.name == "multi_step":
        shift = schedule.warmup_steps + 1 if schedule.warmup_steps else 0
        yield "scheduler_type", "multistep"
        yield "scheduler_milestones", [each - shift for each in schedule.milestones]
        yield "scheduler_decay_rate", schedule.factor
    elif schedule.name == "cosine":
        yield "scheduler_type", "cosine_annealing"
        yield "scheduler_t_max", schedule.wave_steps
        yield "scheduler_eta_min", schedule.end * peak
    else:
        yield "scheduler_type", schedule.name
