"""Manifests and records of earlier versions, and what their names are now."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
from tests.run.test_records import EVENTS
from tests.support.official_run import IMAGENET
from tests.support.run_writer import proposed, trial_started

from aiperf_hpc.config import load_config
from aiperf_hpc.earlier_names import RECORDS, SETTINGS, renamed
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records.parsing import model_of
from aiperf_hpc.trial import DatasetInfo, ScheduleSettings

BASE: dict[str, Any] = {
    "dataset": {"name": "imagenet", "path": "/data"},
    "search": {"method": "fixed"},
    "engine": {"name": "torch"},
    "training": {"schedule": {"name": "cosine", "warmup_steps": 9}},
}
CHANGED: dict[str, tuple[str, Any]] = {
    "dataset.stored": ("dataset.storage_format", "raw"),
    "dataset.least_crop": ("dataset.min_crop_area", 0.3),
    "dataset.decoded_gib": ("dataset.decoded_cache_gib", 7.0),
    "model.resnet50.spare_outputs": ("model.resnet50.unused_outputs", 1),
    "model.cosmoflow.kernel": ("model.cosmoflow.kernel_size", 2),
    "model.cosmoflow.convolutions": ("model.cosmoflow.conv_layers", 4),
    "model.extreme_weather.pyramid": ("model.extreme_weather.fpn_channels", 11),
    "model.extreme_weather.hidden": ("model.extreme_weather.box_head_width", 12),
    "model.extreme_weather.proposals": ("model.extreme_weather.pre_nms_top_n", 13),
    "model.extreme_weather.kept": ("model.extreme_weather.post_nms_top_n", 14),
    "model.extreme_weather.regions": ("model.extreme_weather.regions_per_image", 15),
    "training.schedule.base_batch": ("training.schedule.base_batch_size", 16),
    "training.schedule.warmup_start": ("training.schedule.warmup_start_factor", 0.17),
    "training.schedule.end": ("training.schedule.end_factor", 0.18),
    "training.schedule.wave_steps": ("training.schedule.decay_steps", 19),
    "training.checkpoint_seconds": ("training.checkpoint_interval_seconds", 20.0),
    "search.stock": ("search.queue_depth", 21),
    "search.trainings": ("search.max_trainings", 22),
    "search.confidence": ("search.kappa", 23.0),
    "search.expansions": ("search.acquisition_evaluations", 24),
    "search.levels": ("search.max_morphisms", 25),
    "search.exploration": ("search.random_parent_probability", 0.26),
    "search.noise": ("search.weight_noise", 27.0),
    "engine.memory_gib": ("engine.memory_limit_gib", 28.0),
    "engine.on_memory": ("engine.on_out_of_memory", "fail"),
    "journal.progress_seconds": ("journal.progress_interval_seconds", 29.0),
    "journal.heartbeat_seconds": ("journal.heartbeat_interval_seconds", 30.0),
    "journal.heads_seconds": ("journal.digest_interval_seconds", 31.0),
    "telemetry.seconds": ("telemetry.interval_seconds", 3.2),
    "witness.seconds": ("witness.interval_seconds", 33.0),
    "timestamps.seconds": ("timestamps.interval_seconds", 34.0),
    "keep": ("retention", {"trials": "none"}),
    "keep.gib": ("retention.max_gib", 36.0),
    "slurm.extra": ("slurm.extra_directives", ["--nice=100"]),
}
"""Present name of each earlier setting, and a value that is not the default."""
EARLIER_VALUES = {"engine.on_memory": "refuse"}
"""Earlier values of settings whose values changed too."""


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
    assert {key: now for key, (now, _) in CHANGED.items()} == dict(SETTINGS)


@pytest.mark.parametrize("earlier", CHANGED)
def test_a_manifest_of_version_1_is_read_by_its_present_names(earlier: str) -> None:
    now, value = CHANGED[earlier]
    before = EARLIER_VALUES.get(earlier, value)
    read = manifest(1, earlier, before)
    expected = manifest(2, now, value)
    assert read.model_copy(update={"schema_version": 2}) == expected
    assert expected.config != manifest(2, "seed", 0).config  # Seed 0 is the default.
    assert read.earlier
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
    now, value = CHANGED[earlier]
    before = EARLIER_VALUES.get(earlier, value)
    if earlier == "keep.gib":
        earlier, now = "keep", "retention"
    with pytest.raises(ConfigError, match=rf"unknown key '{earlier}'; did you mean '{now}'\?"):
        load_config("simulated", [f"{earlier}={before}"])


SCHEDULE = {
    "base_batch_size": "base_batch", "warmup_start_factor": "warmup_start", "end_factor": "end",
    "decay_steps": "wave_steps",
}  # fmt: skip
USED = trial_started().hyperparameters.model_copy(
    update={
        "schedule": ScheduleSettings(
            name="cosine", warmup_steps=5, base_batch_size=6, warmup_start_factor=0.1,
            end_factor=0.2, decay_steps=7,
        )
    }
)  # fmt: skip
EXAMPLES = {event.type: event for event in EVENTS}
EXAMPLES["proposed"] = proposed("p", prediction={"mean": float("nan"), "kappa": 0.5})
for name in ("trial_started", "trial_summary"):
    EXAMPLES[name] = EXAMPLES[name].model_copy(update={"hyperparameters": USED})
EARLIER: dict[str, tuple[str, dict[str, str]]] = {
    "storage_waited": ("storage_waited", {"started_utc": "began_utc", "reason": "why"}),
    "nodes_requested": ("nodes_asked", {"reason": "why"}),
    "nodes_refused": ("nodes_refused", {"current_nodes": "kept"}),
    "scheduler_state": ("scheduler_state", {"reachable": "answers"}),
    "witness_state": ("witness_state", {"reachable": "answers"}),
    "journal_digests": (
        "journal_heads",
        {"new_primary": "anew", "new_journals": "names", "appended_bytes": "grown",
         "digest_prefixes": "marks"},
    ),
    "digests_recorded": ("heads_taken", {"digest": "heads"}),
    "primary_digest_seen": ("primary_head_seen", {"digest": "head"}),
    "time_stamped": ("time_stamped", {"digest": "head"}),
    "telemetry": ("telemetry", {"utilization": "utilisation"}),
    "proposed": ("proposed", {"prediction": "belief", "kappa": "confidence"}),
    "trial_summary": ("trial_summary", {"objective": "merit", **SCHEDULE}),
    "trial_started": ("trial_started", SCHEDULE),
    "evaluated": ("evaluated", {"metric": "measure"}),
    "baseline_measured": ("baseline_measured", {"metric": "measure"}),
    "predictions_saved": ("predictions_kept", {}),
    "best_epoch_saved": (
        "best_epoch_kept", {"start_checkpoint": "began", "end_checkpoint": "evaluated"}
    ),
    "best_epoch_deleted": ("best_epoch_dropped", {}),
    "checkpoint_deleted": ("checkpoint_dropped", {}),
}  # fmt: skip
"""Earlier name of each event that was renamed or has renamed fields, and of those fields."""


def as_earlier(value: Any, names: dict[str, str]) -> Any:  # noqa: ANN401 -- any JSON
    """Return plain data with earlier names of its keys."""
    if not isinstance(value, dict):
        return value
    return {names.get(key, key): as_earlier(inner, names) for key, inner in value.items()}


def earlier_form(event: str) -> dict[str, Any]:
    """Return an example of an event as version 1 recorded it."""
    name, names = EARLIER[event]
    data: dict[str, Any] = as_earlier(EXAMPLES[event].model_dump(mode="json"), names)
    return {**data, "type": name}


def line(version: int, event: object) -> bytes:
    return json.dumps({"v": version, "seq": 0, "utc": 1.0, "mono": 2.0, "event": event}).encode()


def names_of(value: object, above: str) -> set[str]:
    """Return the dotted names of a mapping and of all that is in it."""
    inner = value.items() if isinstance(value, dict) else ()
    return {above}.union(*(names_of(part, f"{above}.{key}") for key, part in inner))


def test_each_earlier_name_of_a_record_is_in_an_event_here() -> None:
    events = [earlier_form(event) for event in EARLIER]
    assert set(RECORDS) <= set().union(*(names_of(event, event["type"]) for event in events))


@pytest.mark.parametrize("event", EARLIER)
def test_a_record_of_version_1_is_read_by_its_present_names(event: str) -> None:
    earlier, now = earlier_form(event), EXAMPLES[event]
    assert repr(model_of(line(1, earlier)).event) == repr(now)
    with pytest.raises(ValidationError):
        model_of(line(2, earlier))


def test_a_record_with_both_names_of_a_field_is_none() -> None:
    waited = {"type": "storage_waited", "began_utc": 1.0, "started_utc": 2.0, "seconds": 1.0}
    with pytest.raises(ValidationError, match="began_utc"):
        model_of(line(1, {**waited, "reason": "full"}))


@pytest.mark.parametrize("event", [3, None, {}, {"type": 3}, {"type": "heads_taken"}, {"type": {}}])
def test_no_event_of_version_1_is_no_record(event: object) -> None:
    with pytest.raises(ValidationError):
        model_of(line(1, event))


def test_a_datasets_storage_format_is_read_by_its_earlier_name() -> None:
    data = IMAGENET.model_dump(mode="json")
    assert DatasetInfo.model_validate({**data, "stored": "raw"}).storage_format == "raw"
