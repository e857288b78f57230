"""What MLPerf HPC's logs of CosmoFlow state of a training, by their keys.

[mlcommons/hpc, cosmoflow/train.py; mlcommons/logging, compliance_checker/hpc_3.0.0]
"""

from __future__ import annotations

from collections.abc import Mapping

from aiperf_hpc.config import RunConfig
from aiperf_hpc.trial import Hyperparameters


def logged(config: RunConfig, used: Hyperparameters) -> Mapping[str, object]:
    """Return the settings of a training.

    The rate is its peak, the factor of the warm-up what the peak is of the rate for the base batch,
    and of several decays the largest factor, as the reference logs them. Its decays act behind the
    epoch of a boundary, counted from 0, ours after so many epochs: one more.
    """
    schedule, network = used.schedule, config.model.cosmoflow
    scale = 1.0 if schedule.base_batch is None else used.batch_size / schedule.base_batch
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
