"""Manifests and records of earlier versions, and what their names are now."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from aiperf_hpc.config import load_config
from aiperf_hpc.earlier_names import SETTINGS, renamed
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.run.manifest import RunManifest

BASE: dict[str, Any] = {
    "dataset": {"name": "imagenet", "path": "/data"},
    "search": {"method": "fixed"},
    "engine": {"name": "torch"},
    "training": {"schedule": {"name": "cosine", "warmup_steps": 9}},
}
CHANGED: dict[str, tuple[str, Any, Any]] = {
    "dataset.stored": ("dataset.storage_format", "raw", "raw"),
    "dataset.least_crop": ("dataset.min_crop_area", 0.3, 0.3),
    "dataset.decoded_gib": ("dataset.decoded_cache_gib", 7.0, 7.0),
    "model.resnet50.spare_outputs": ("model.resnet50.unused_outputs", 1, 1),
    "model.cosmoflow.kernel": ("model.cosmoflow.kernel_size", 2, 2),
    "model.cosmoflow.convolutions": ("model.cosmoflow.conv_layers", 4, 4),
    "model.extreme_weather.pyramid": ("model.extreme_weather.fpn_channels", 11, 11),
    "model.extreme_weather.hidden": ("model.extreme_weather.box_head_width", 12, 12),
    "model.extreme_weather.proposals": ("model.extreme_weather.pre_nms_top_n", 13, 13),
    "model.extreme_weather.kept": ("model.extreme_weather.post_nms_top_n", 14, 14),
    "model.extreme_weather.regions": ("model.extreme_weather.regions_per_image", 15, 15),
    "training.schedule.base_batch": ("training.schedule.base_batch_size", 16, 16),
    "training.schedule.warmup_start": ("training.schedule.warmup_start_factor", 0.17, 0.17),
    "training.schedule.end": ("training.schedule.end_factor", 0.18, 0.18),
    "training.schedule.wave_steps": ("training.schedule.decay_steps", 19, 19),
    "training.checkpoint_seconds": ("training.checkpoint_interval_seconds", 20.0, 20.0),
    "search.stock": ("search.queue_depth", 21, 21),
    "search.trainings": ("search.max_trainings", 22, 22),
    "search.confidence": ("search.kappa", 23.0, 23.0),
    "search.expansions": ("search.acquisition_evaluations", 24, 24),
    "search.levels": ("search.max_morphisms", 25, 25),
    "search.exploration": ("search.random_parent_probability", 0.26, 0.26),
    "search.noise": ("search.weight_noise", 27.0, 27.0),
    "engine.memory_gib": ("engine.memory_limit_gib", 28.0, 28.0),
    "engine.on_memory": ("engine.on_out_of_memory", "refuse", "fail"),
    "journal.progress_seconds": ("journal.progress_interval_seconds", 29.0, 29.0),
    "journal.heartbeat_seconds": ("journal.heartbeat_interval_seconds", 30.0, 30.0),
    "journal.heads_seconds": ("journal.digest_interval_seconds", 31.0, 31.0),
    "telemetry.seconds": ("telemetry.interval_seconds", 3.2, 3.2),
    "witness.seconds": ("witness.interval_seconds", 33.0, 33.0),
    "timestamps.seconds": ("timestamps.interval_seconds", 34.0, 34.0),
    "keep": ("retention", {"trials": "none"}, {"trials": "none"}),
    "keep.gib": ("retention.max_gib", 36.0, 36.0),
    "slurm.extra": ("slurm.extra_directives", ["--nice=100"], ["--nice=100"]),
}


def manifest(version: int, key: str, value: object) -> RunManifest:
    """Read one with one more setting than the base."""
    config: dict[str, Any] = {**BASE}
    *sections, last = key.split(".")
    inner = config
    for section in sections:
        inner[section] = {**inner.get(section, {})}
        inner = inner[section]
    inner[last] = value
    facts = {"run_id": "run", "nodes": 1, "hours": 1.0, "launcher": "local", "versions": {}}
    return RunManifest.model_validate(
        {"schema_version": version, **facts, "commit": None, "config": config}
    )


def test_each_earlier_setting_is_listed_here() -> None:
    assert {key: now for key, (now, _, _) in CHANGED.items()} == dict(SETTINGS)


@pytest.mark.parametrize("earlier", CHANGED)
def test_a_manifest_of_version_1_is_read_by_its_present_names(earlier: str) -> None:
    now, before, value = CHANGED[earlier]
    assert manifest(1, earlier, before) == manifest(2, now, value) != manifest(2, "seed", 0)
    with pytest.raises(ValidationError, match=r"Extra inputs"):
        manifest(2, earlier, before)


def test_a_manifest_with_both_names_of_a_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="stock"):
        manifest(1, "search", {"method": "guided", "stock": 3, "queue_depth": 4})


@pytest.mark.parametrize("data", [None, 3, "keep", [], {1: {"a.b": "keep"}}])
def test_what_has_no_earlier_names_stays(data: object) -> None:
    assert renamed(data, SETTINGS) == data


@pytest.mark.parametrize("earlier", CHANGED)
def test_a_users_earlier_setting_is_refused_with_its_present_name(earlier: str) -> None:
    now, before, _ = CHANGED[earlier]
    if earlier == "keep.gib":
        earlier, now = "keep", "retention"
    with pytest.raises(ConfigError, match=rf"unknown key '{earlier}'; did you mean '{now}'\?"):
        load_config("simulated", [f"{earlier}={before}"])
