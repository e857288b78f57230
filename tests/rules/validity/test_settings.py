"""Each setting, set to its extremes, is official in no division that fixes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from tests.support.official_run import official_evidence

from aiperf_hpc.config import Integers, Reals, RunConfig, SlurmNodeGroup, load_config
from aiperf_hpc.rules.judgement import check_settings, division_of, judge
from aiperf_hpc.rules.rule import Division, violations_of
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.rules.validity.settings import CLOSED, FREE, declared, flat
from aiperf_hpc.run.records import AnyEvent, DatasetLoaded
from aiperf_hpc.trial import StorageFormat

ROOT = Path(__file__).parents[3]
OFFICIAL = load_config("imagenet")


def fields(section: BaseModel, above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting of a configuration with its dotted key."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel) and not isinstance(value, Integers | Reals):
            yield from fields(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", field


FIELDS = dict(fields(OFFICIAL))
VALUES: dict[str, list[Any]] = {
    "hpo.space.batch_size": [Integers(low=1, high=1_000_000), Integers(choices=(256, 320))],
    "hpo.space.kernel_size": [Integers(choices=(1,)), Integers(choices=(3, 5, 7))],
    "replica.ranks_per_node": [1, 1024],
    "slurm.extra_directives": [("--nice=100",)],
    "slurm.node_groups": [(SlurmNodeGroup(partition="gpu", nodes=1),)],
}


def extremes(key: str) -> list[Any]:
    """Return the ends of what a setting may be, and each other choice."""
    if key in VALUES:
        return VALUES[key]
    field, now = FIELDS[key], flat(OFFICIAL)[key]
    kinds = [field.annotation, *get_args(field.annotation)]
    choices = [c for kind in kinds if get_origin(kind) is Literal for c in get_args(kind)]
    bounds = [
        getattr(limit, name)
        for limit in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(limit, name, None) is not None
    ]
    if bool in kinds:
        values: list[Any] = [not now]
    elif choices:
        values = choices
    elif Reals in kinds:
        values = [Reals(low=0.01, high=0.5)]
    elif key.endswith(".urls"):
        values = [("https://another",)]
    elif isinstance(now, list):
        length = len(now) or 1
        values = [(1,) * length, (100_000,) * length]
    elif int in kinds or float in kinds:
        values = [*bounds, 1 + (bounds[-1] if bounds else 10**6)]
    else:
        values = ["/another", "another"]
    return [value for value in values if value != now]


def changed(section: BaseModel, key: str, value: object) -> Any:  # noqa: ANN401 -- as given
    """Return a configuration with one setting changed, whether or not it would be let through."""
    first, _, rest = key.partition(".")
    new = changed(getattr(section, first), rest, value) if rest else value
    return section.model_copy(update={first: new})


def free(key: str) -> bool:
    return key in FREE or key.partition(".")[0] in FREE


def test_the_papers_configuration_is_closed() -> None:
    assert violations_of(check_settings(OFFICIAL, Division.CLOSED)) == []
    assert division_of(OFFICIAL) is Division.CLOSED
    assert declared(OFFICIAL) == ()


def test_the_preset_for_gpus_is_the_same_benchmark() -> None:
    on_gpus = load_config("imagenet_gpu")
    assert division_of(on_gpus) is Division.CLOSED
    mine, theirs = flat(on_gpus), flat(OFFICIAL)
    assert {key.partition(".")[0] for key in mine if mine[key] != theirs[key]} == {
        "preset", "engine", "replica", "slurm",
    }  # fmt: skip
    assert on_gpus.engine.device == "cuda"  # A broken driver is an error, and no CPU trains.


def test_each_setting_has_an_extreme_and_each_row_a_setting() -> None:
    assert [key for key in FIELDS if not extremes(key)] == ["model.initial"]  # It has one choice.
    assert set(CLOSED) < set(FIELDS)
    sections = {key.partition(".")[0] for key in FIELDS}
    assert set(FREE) < set(FIELDS) | sections
    assert not any(free(key) for key in CLOSED)


@pytest.mark.parametrize("key", FIELDS)
def test_no_division_lets_more_through_than_it_lists(key: str) -> None:
    for value in extremes(key):
        config = changed(OFFICIAL, key, value)
        closed, opened = (violations_of(check_settings(config, each)) for each in Division)
        if key in CLOSED:
            assert [v for v in closed if v.rule == "closed settings" and v.reason.startswith(key)]
            assert [each.key for each in declared(config)] == [key]
        elif not free(key):
            assert [v for v in closed if v.reason.startswith(f"{key} is ")]
            assert opened
        assert all(v.reason.startswith(f"{key} is ") for v in opened)


def test_no_finished_run_is_official_by_a_setting_that_is_not_listed(tmp_path: Path) -> None:
    run = official_evidence(tmp_path)
    found: defaultdict[Division | None, set[str]] = defaultdict(set)
    for key in FIELDS:
        for value in extremes(key):
            found[_division(run, changed(run.config, key, value))].add(key)
    assert all(map(free, found[Division.CLOSED]))
    # The run's replicas loaded JPEG files.
    assert found[Division.OPEN] == set(CLOSED) - {"dataset.storage_format"}


@pytest.mark.parametrize("stored", ["resized", "raw"])
def test_a_run_on_resized_images_is_official_in_the_open_division_alone(
    stored: StorageFormat, tmp_path: Path
) -> None:
    def resized(_: str, __: float, event: AnyEvent) -> AnyEvent:
        if not isinstance(event, DatasetLoaded):
            return event
        return DatasetLoaded(dataset=event.dataset.model_copy(update={"storage_format": stored}))

    run = official_evidence(tmp_path, resized)
    assert _division(run, run.config) is None
    assert _division(run, changed(run.config, "dataset.storage_format", stored)) is Division.OPEN


def _division(run: RunEvidence, config: RunConfig) -> Division | None:
    manifest = run.manifest.model_copy(update={"config": config})
    return judge(RunEvidence(run.history, manifest, run.final, run.now)).division


@pytest.mark.parametrize(
    ("key", "last", "beyond"),
    [
        ("engine.name", "torch", "simulated"),
        ("retention.max_gib", 8.0, 7.9),
        ("training.checkpoint_interval_seconds", 120.0, 120.1),
        ("journal.progress_interval_seconds", 5.0, 5.1),
        ("journal.heartbeat_interval_seconds", 10.0, 10.1),
        ("journal.digest_interval_seconds", 30.0, 30.1),
        ("witness.interval_seconds", 30.0, 30.1),
        ("timestamps.interval_seconds", 300.0, 300.1),
        ("telemetry.interval_seconds", 30.0, 30.1),
        ("telemetry.interval_seconds", 0.1, 0.0),
    ],
)
def test_what_is_free_has_its_limits_too(key: str, last: object, beyond: object) -> None:
    assert division_of(changed(OFFICIAL, key, last)) is Division.CLOSED
    assert division_of(changed(OFFICIAL, key, beyond)) is None


def test_without_any_search_it_is_not_open_either() -> None:
    assert division_of(changed(OFFICIAL, "search.method", "greedy")) is Division.OPEN
    assert division_of(changed(OFFICIAL, "search.method", "fixed")) is None


def test_the_page_names_every_setting_that_is_not_fixed() -> None:
    page = (ROOT / "docs" / "divisions.md").read_text("utf-8")
    sections = [key for key in (*CLOSED, *FREE) if f"`{key}`" not in page]
    assert [key for key in sections if f"`{key.rpartition('.')[0]}.*`" not in page] == []
