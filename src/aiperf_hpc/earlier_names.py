"""Present names of renamed settings and fields of records.

A ``run.yaml`` of schema version 1 and records of version 1 are converted when they are read, so
that no other module knows the earlier names. Descriptions of datasets, which have no version, are
converted always.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

HYPERPARAMETERS: Final[Mapping[str, str]] = {
    f"schedule.{earlier}": f"schedule.{now}"
    for earlier, now in (
        ("base_batch", "base_batch_size"),
        ("warmup_start", "warmup_start_factor"),
        ("end", "end_factor"),
        ("wave_steps", "decay_steps"),
    )
}
"""Present names of the fields of a trial's hyperparameters by earlier ones."""
SETTINGS: Final[Mapping[str, str]] = {
    "dataset.stored": "dataset.storage_format",
    "dataset.least_crop": "dataset.min_crop_area",
    "dataset.decoded_gib": "dataset.decoded_cache_gib",
    "model.resnet50.spare_outputs": "model.resnet50.unused_outputs",
    "model.cosmoflow.kernel": "model.cosmoflow.kernel_size",
    "model.cosmoflow.convolutions": "model.cosmoflow.conv_layers",
    "model.extreme_weather.pyramid": "model.extreme_weather.fpn_channels",
    "model.extreme_weather.hidden": "model.extreme_weather.box_head_width",
    "model.extreme_weather.proposals": "model.extreme_weather.pre_nms_top_n",
    "model.extreme_weather.kept": "model.extreme_weather.post_nms_top_n",
    "model.extreme_weather.regions": "model.extreme_weather.regions_per_image",
    **{f"training.{earlier}": f"training.{now}" for earlier, now in HYPERPARAMETERS.items()},
    "training.checkpoint_seconds": "training.checkpoint_interval_seconds",
    "search.stock": "search.queue_depth",
    "search.trainings": "search.max_trainings",
    "search.confidence": "search.kappa",
    "search.expansions": "search.acquisition_evaluations",
    "search.levels": "search.max_morphisms",
    "search.exploration": "search.random_parent_probability",
    "search.noise": "search.weight_noise",
    "engine.memory_gib": "engine.memory_limit_gib",
    "engine.on_memory": "engine.on_out_of_memory",
    "journal.progress_seconds": "journal.progress_interval_seconds",
    "journal.heartbeat_seconds": "journal.heartbeat_interval_seconds",
    "journal.heads_seconds": "journal.digest_interval_seconds",
    "telemetry.seconds": "telemetry.interval_seconds",
    "witness.seconds": "witness.interval_seconds",
    "timestamps.seconds": "timestamps.interval_seconds",
    "keep": "retention",
    "keep.gib": "retention.max_gib",
    "slurm.extra": "slurm.extra_directives",
}
"""Present names of settings by earlier ones; only the last part of a name differs from the present
name of its section."""
VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "engine.on_memory": {"shrink": "reduce_batch", "refuse": "fail"},
}
"""Present values by earlier ones, by the earlier name of the setting."""
RECORDS: Final[Mapping[str, str]] = {
    "storage_waited.began_utc": "storage_waited.started_utc",
    "storage_waited.why": "storage_waited.reason",
    "nodes_asked": "nodes_requested",
    "nodes_asked.why": "nodes_requested.reason",
    "nodes_refused.kept": "nodes_refused.current_nodes",
    "scheduler_state.answers": "scheduler_state.reachable",
    "witness_state.answers": "witness_state.reachable",
    "journal_heads": "journal_digests",
    "journal_heads.anew": "journal_digests.new_primary",
    "journal_heads.names": "journal_digests.new_journals",
    "journal_heads.grown": "journal_digests.appended_bytes",
    "journal_heads.marks": "journal_digests.digest_prefixes",
    "heads_taken": "digests_recorded",
    "heads_taken.heads": "digests_recorded.digest",
    "primary_head_seen": "primary_digest_seen",
    "primary_head_seen.head": "primary_digest_seen.digest",
    "time_stamped.head": "time_stamped.digest",
    "telemetry.sample.accelerators.utilisation": "telemetry.sample.accelerators.utilization",
    "proposed.belief": "proposed.prediction",
    "proposed.belief.confidence": "proposed.prediction.kappa",
    "trial_summary.merit": "trial_summary.objective",
    "evaluated.measure": "evaluated.metric",
    "baseline_measured.measure": "baseline_measured.metric",
    "predictions_kept": "predictions_saved",
    "best_epoch_kept": "best_epoch_saved",
    "best_epoch_kept.began": "best_epoch_saved.start_checkpoint",
    "best_epoch_kept.evaluated": "best_epoch_saved.end_checkpoint",
    "best_epoch_dropped": "best_epoch_deleted",
    "checkpoint_dropped": "checkpoint_deleted",
    **{
        f"{event}.hyperparameters.{earlier}": f"{event}.hyperparameters.{now}"
        for event in ("trial_started", "trial_summary")
        for earlier, now in HYPERPARAMETERS.items()
    },
}
"""Present names of events and of their fields by earlier ones, as in ``SETTINGS``."""
DATASET: Final[Mapping[str, str]] = {"stored": "storage_format"}
"""Present names of the fields of a dataset's description by earlier ones."""


def renamed(data: Any, names: Mapping[str, str], above: str = "") -> Any:  # noqa: ANN401 -- as read
    """Return plain data with the present names of its keys and values.

    A mapping that has a key by both names is returned unchanged, so that a reader with fixed keys
    rejects it.

    Args:
        data: data as read; only mappings are converted.
        names: present dotted names by earlier ones.
        above: dotted name of the data, with a dot at its end.
    """
    if not isinstance(data, dict):
        values = VALUES.get(above[:-1], {})
        return values.get(data, data) if isinstance(data, str) else data
    made = {
        _last(names.get(f"{above}{key}"), key): renamed(value, names, f"{above}{key}.")
        for key, value in data.items()
    }
    return made if len(made) == len(data) else data


def _last(name: str | None, key: object) -> object:
    return key if name is None else name.rpartition(".")[2]
