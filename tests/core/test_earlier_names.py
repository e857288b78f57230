"""Manifests and records of earlier versions, and what their names are now."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.official_run import IMAGENET
from tests.support.run_writer import trial_started

from aiperf_hpc.config import load_config
from aiperf_hpc.earlier_names import RECORDS, SETTINGS, renamed
from aiperf_hpc.errors import ConfigError
from aiperf_hpc.replica.data.staging import Plan
from aiperf_hpc.run import records
from aiperf_hpc.run.journal_digest import JournalDigest
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.records.parsing import model_of
from aiperf_hpc.telemetry.values import AcceleratorUse, NodeUse, Sample
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


ZEROS = "0" * 64
DIGEST = {"bytes": 7, "sha256": ZEROS}
HEAD = JournalDigest(bytes=7, sha256=ZEROS)
FILE, OTHER_FILE = {"bytes": 1, "sha256": ZEROS}, {"bytes": 2, "sha256": ZEROS}
CORRECT = {"sums": {"correct": 3.0}, "samples": 4}
STARTED = trial_started()
USED = STARTED.hyperparameters.model_copy(
    update={
        "schedule": ScheduleSettings(
            name="cosine", warmup_steps=5, base_batch_size=6, warmup_start_factor=0.1,
            end_factor=0.2, decay_steps=7,
        )
    }
)  # fmt: skip
EARLIER_USED = {
    **STARTED.hyperparameters.model_dump(mode="json"),
    "schedule": {
        "name": "cosine", "warmup_steps": 5, "base_batch": 6, "warmup_start": 0.1, "end": 0.2,
        "wave_steps": 7,
    },
}  # fmt: skip
SUMMARY: dict[str, Any] = {
    "trial": "t",
    "replica": "r0",
    "graph": "g",
    "parent": None,
    "morphisms": [],
}
OF_SUMMARY = {**SUMMARY, "ended": True, "checkpoint": False}
PROPOSED = {**SUMMARY, "proposal": "p", "parent": "t", "seed": 1, "seconds": 2.0}
OF_PROPOSED = {key: PROPOSED[key] for key in PROPOSED.keys() - {"trial", "replica"}}
EPOCH = {"trial": "t", "epoch": 1, "learning_rate": 0.1, "train_loss": 1.0, "validation_loss": 1.0}
EVENTS: list[tuple[dict[str, Any], records.Event]] = [
    (
        {"type": "storage_waited", "began_utc": 1.5, "seconds": 2.0, "why": "full"},
        records.StorageWaited(started_utc=1.5, seconds=2.0, reason="full"),
    ),
    (
        {"type": "nodes_asked", "nodes": 3, "why": "--nodes 2-4"},
        records.NodesRequested(nodes=3, reason="--nodes 2-4"),
    ),
    (
        {"type": "nodes_refused", "nodes": 9, "kept": 4, "reason": "no"},
        records.NodesRefused(nodes=9, current_nodes=4, reason="no"),
    ),
    ({"type": "scheduler_state", "answers": True}, records.SchedulerState(reachable=True)),
    (
        {"type": "witness_state", "url": "https://w", "answers": False},
        records.WitnessState(url="https://w", reachable=False),
    ),
    (
        {
            "type": "journal_heads", "anew": True, "names": ["a"], "grown": [7], "marks": "0123",
            "sha256": ZEROS,
        },
        records.JournalDigestsRecord(
            new_primary=True, new_journals=("a",), appended_bytes=(7,), digest_prefixes="0123",
            sha256=ZEROS,
        ),
    ),
    (
        {"type": "heads_taken", "heads": DIGEST},
        records.DigestsRecorded(digest=HEAD),
    ),
    (
        {"type": "primary_head_seen", "head": DIGEST},
        records.PrimaryDigestSeen(digest=HEAD),
    ),
    (
        {"type": "time_stamped", "url": "https://t", "head": DIGEST, "response": "MAA="},
        records.TimeStamped(url="https://t", digest=HEAD, response="MAA="),
    ),
    (
        {
            "type": "telemetry",
            "sample": {"seconds": 1.0, "node": {}, "accelerators": {"utilisation": [9.0]}},
        },
        records.TelemetrySampled(
            sample=Sample(
                seconds=1.0, node=NodeUse(), accelerators=AcceleratorUse(utilization=(9.0,))
            )
        ),
    ),
    (
        {"type": "proposed", **OF_PROPOSED, "belief": {"mean": "NaN", "confidence": 0.5}},
        records.Proposed.model_validate(
            {**OF_PROPOSED, "prediction": {"mean": float("nan"), "kappa": 0.5}}
        ),
    ),
    (
        {"type": "trial_summary", **OF_SUMMARY, "merit": 0.5, "hyperparameters": EARLIER_USED},
        records.TrialSummary.model_validate(
            {**OF_SUMMARY, "objective": 0.5, "hyperparameters": USED}
        ),
    ),
    (
        {**STARTED.model_dump(mode="json"), "hyperparameters": EARLIER_USED},
        STARTED.model_copy(update={"hyperparameters": USED}),
    ),
    (
        {"type": "evaluated", **EPOCH, "measure": "accuracy", **CORRECT},
        records.Evaluated.model_validate({**EPOCH, "metric": "accuracy", **CORRECT}),
    ),
    (
        {"type": "baseline_measured", "measure": "accuracy", **CORRECT},
        records.BaselineMeasured.model_validate({"metric": "accuracy", **CORRECT}),
    ),
    (
        {"type": "predictions_kept", "trial": "t", "epoch": 1, "samples": 4, "sha256": ZEROS},
        records.PredictionsSaved(trial="t", epoch=1, samples=4, sha256=ZEROS),
    ),
    (
        {
            "type": "best_epoch_kept", "trial": "t", "epoch": 1, "began": FILE,
            "evaluated": OTHER_FILE,
        },
        records.BestEpochSaved(
            trial="t",
            epoch=1,
            start_checkpoint=records.SavedFile.model_validate(FILE),
            end_checkpoint=records.SavedFile.model_validate(OTHER_FILE),
        ),
    ),
    ({"type": "best_epoch_dropped", "trial": "t"}, records.BestEpochDeleted(trial="t")),
    ({"type": "checkpoint_dropped", "trial": "t"}, records.CheckpointDeleted(trial="t")),
]  # fmt: skip


def line(version: int, event: object) -> bytes:
    return json.dumps({"v": version, "seq": 0, "utc": 1.0, "mono": 2.0, "event": event}).encode()


def names_of(value: object, above: str) -> set[str]:
    """Return the dotted names of a mapping and of all that is in it."""
    inner = value.items() if isinstance(value, dict) else ()
    return {above}.union(*(names_of(part, f"{above}.{key}") for key, part in inner))


def test_each_earlier_name_of_a_record_is_in_an_event_here() -> None:
    assert set(RECORDS) <= set().union(*(names_of(event, event["type"]) for event, _ in EVENTS))


@pytest.mark.parametrize(("earlier", "now"), EVENTS, ids=[event["type"] for event, _ in EVENTS])
def test_a_record_of_version_1_is_read_by_its_present_names(
    earlier: dict[str, Any], now: records.Event
) -> None:
    assert repr(model_of(line(1, earlier)).event) == repr(now)
    assert repr(model_of(line(2, now.model_dump(mode="json"))).event) == repr(now)
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


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (DatasetInfo, IMAGENET.model_dump(mode="json")),
        (Plan, {"dataset": "imagenet", "source": "s", "names_sha256": ZEROS, "shards": [1, 1]}),
    ],
)
def test_a_datasets_storage_format_is_read_by_its_earlier_name(
    model: type[DatasetInfo | Plan], data: dict[str, Any]
) -> None:
    assert model.model_validate({**data, "stored": "raw"}).storage_format == "raw"
