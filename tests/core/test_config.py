from __future__ import annotations

import re
from pathlib import Path

import pytest

from aiperf_hpc.config import (
    RunConfig,
    differences,
    load_config,
    preset_names,
    preset_of,
    preset_text,
    validate,
)
from aiperf_hpc.errors import ConfigError

DIGITS = "dataset: {name: digits}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text, "utf-8")
    return path


def load(folder: Path, *assignments: str, text: str = DIGITS) -> RunConfig:
    return load_config(write(folder, text), assignments)


def test_a_source_that_is_neither_preset_nor_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="no preset and no file 'nowhere'.*presets:"):
        load_config("nowhere")
    with pytest.raises(ConfigError, match="no preset 'nowhere'"):
        preset_text("nowhere")


def test_a_file_that_is_missing_or_unreadable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*absent\.yaml"):
        load_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_config(tmp_path)  # A folder.
    (tmp_path / "latin.yaml").write_bytes(b"preset: \xe9")
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*latin\.yaml"):
        load_config(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("dataset", "given", "seconds"),
    [
        ("imagenet", None, 4.0),
        ("deepcam", None, 4.0),
        ("digits", None, 0.0),
        ("imagenet", 0.0, 0.0),
        ("digits", 2.5, 2.5),
    ],
)
def test_peaks_are_measured_where_a_run_is_no_test(
    dataset: str, given: float | None, seconds: float
) -> None:
    values = {
        "dataset": {"name": dataset, "path": "/data"},
        "peaks": {"at_start_seconds": given},
    }
    assert validate(values, "here").peak_seconds == seconds


def test_the_defaults_are_the_papers(tmp_path: Path) -> None:
    config = load(tmp_path)
    training = config.training
    assert (training.batch_size, training.max_epochs) == (448, 60)
    assert (training.optimizer, training.learning_rate) == ("sgd", 0.1)
    assert config.rounds.warmup_epochs == (15, 30, 45)
    assert config.rounds.predict_at_epoch == 90
    assert config.dataset.parallel_transforms == 48
    assert tuple(config.hpo.space.batch_size.values) == (256, 320, 384, 448)
    assert tuple(config.hpo.space.kernel_size.values) == (3, 5, 7)
    assert config.hpo.space.learning_rate is None
    assert config.score.interval_hours == 0.1


def test_an_empty_file_is_the_defaults_which_lack_a_dataset_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset 'imagenet' needs dataset\.path.*--set"):
        load(tmp_path, text="")


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_a_dataset_that_is_read_from_a_folder_needs_its_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"`aiperf data prepare {name} --from SOURCE"):
        load(tmp_path, f"dataset.name={name}")
    assert load(tmp_path, f"dataset.name={name}", "dataset.path=/d").dataset.path == Path("/d")


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["dataset.path=/d", "dataset.cache=disk"], "cache disk and cache_path go together"),
        (["dataset.path=/d", "dataset.cache_path=/c"], "cache disk and cache_path go together"),
        (["dataset.decoded_cache_gib=1"], "imagenet and synthetic, not 'digits'"),
        (
            ["dataset.name=imagenet", "dataset.path=/d", "dataset.decoded_cache_gib=1"],
            "dataset.decoded_cache_gib is for images that Pillow decodes",
        ),
        (["dataset.storage_format=raw"], "storage_format is for the images of imagenet"),
        (["dataset.name=digits", "dataset.cache=memory"], "cache memory is for a dataset in a fo"),
    ],
)
def test_a_cache_needs_what_it_takes(tmp_path: Path, assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, *assignments)


@pytest.mark.parametrize(
    ("assignment", "key", "nearest"),
    [
        ("training.batch_siz=1", "training.batch_siz", "training.batch_size"),
        ("trainin.batch_size=1", "trainin", "training"),
        ("sead=1", "sead", "seed"),
        ("hpo.space.kernel_sizes=[3]", "hpo.space.kernel_sizes", "hpo.space.kernel_size"),
        ("hpo.space.momentum.hihg=1", "hpo.space.momentum.hihg", "hpo.space.momentum.high"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known(
    tmp_path: Path, assignment: str, key: str, nearest: str
) -> None:
    message = re.escape(f"unknown key '{key}'; did you mean '{nearest}'?")
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, assignment)


@pytest.mark.parametrize("key", ["xyzzy", "training.", "training.1", "dataset.path.deep"])
def test_a_key_like_no_other_is_refused_too(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(key.rsplit(".deep")[0])):
        load(tmp_path, f"{key}=1")


def test_a_key_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keys should be strings"):
        load(tmp_path, text=f"{DIGITS}training: {{1: 2}}")


@pytest.mark.parametrize(
    ("assignment", "limits"),
    [
        ("training.batch_size=0", ">= 1 and <= 1048576"),
        ("training.batch_size=many", ">= 1 and <= 1048576"),
        ("training.momentum=-0.1", ">= 0 and < 1"),
        ("search.weight_noise=-0.1", ">= 0"),
        ("score.interval_hours=0", ">= 0.0005 and <= 24"),
    ],
)
def test_a_value_out_of_its_range_is_refused_with_the_range(
    tmp_path: Path, assignment: str, limits: str
) -> None:
    key, _, value = assignment.partition("=")
    message = f"{re.escape(key)}: .*got '?{re.escape(value)}'?; the range is {re.escape(limits)}\\)"
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, assignment)


@pytest.mark.parametrize("value", [".inf", ".nan"])
def test_infinity_and_nan_are_no_values(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.memory_limit_gib"):
        load(tmp_path, f"engine.memory_limit_gib={value}")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("dataset.name=cifar", r"dataset.name: should be 'digits', .*did you mean 'cifar10'\?"),
        ("hpo.space.kernel_size.choices=[3, 4]", "hpo.space: kernel_size: sizes are of .1, 3"),
        ("hpo.space.batch_size.choices=[8, 8]", "hpo.space.batch_size: write distinct choices"),
        ("hpo.space.batch_size={choices: [8], low: 4}", "batch_size: write .*, not both"),
        ("hpo.space.batch_size={low: 8}", "hpo.space.batch_size: write choices, or low and high"),
        (
            "hpo.space.batch_size={low: 8, high: 4}",
            "batch_size: high 4 is not low 8 plus a multiple",
        ),
        ("hpo.space.batch_size={low: 8, high: 12, step: 3}", "batch_size: high 12 is not low 8"),
        ("hpo.space.learning_rate={low: 0.5, high: 0.1}", "learning_rate: low 0.5 is not below"),
        ("hpo.space.learning_rate={low: 0, high: 0.1}", "learning_rate: low 0 has no logarithm"),
        ("hpo.space.momentum={low: 0.5, high: 1}", "momentum: high 1 is not below 1"),
        ("hpo.space.weight_decay={low: 0.5, high: 2}", "weight_decay: high 2 is above 1"),
        (
            "replica.ranks_per_node=0",
            "replica.ranks_per_node: give auto, or a number from 1 to 1024",
        ),
        ("training.batch_size=", "training.batch_size: .*got None"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_key(
    tmp_path: Path, assignment: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, assignment)


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batch_size.*; .*momentum"):
        load(tmp_path, "training.batch_size=0", "training.momentum=2")


def test_set_reads_its_values_as_yaml(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        "training.batch_size=64",
        "training.learning_rate=1e-3",
        "hpo.space.batch_size.choices=[32, 16]",
        "dataset.augment=false",
        "engine.memory_limit_gib=null",
        "dataset.path=/data/with=equals",
        " seed =7",
    )
    assert config.training.batch_size == 64
    assert config.training.learning_rate == 0.001
    assert config.hpo.space.batch_size.values == (16, 32)
    assert config.dataset.augment is False
    assert config.engine.memory_limit_gib is None
    assert config.dataset.path == Path("/data/with=equals")
    assert config.seed == 7


def test_set_wins_over_the_file_and_the_last_over_the_first(tmp_path: Path) -> None:
    text = DIGITS + "training: {batch_size: 8, momentum: 0.5}\n"
    config = load(tmp_path, "training.batch_size=16", "training.batch_size=32", text=text)
    assert config.training.batch_size == 32
    assert config.training.momentum == 0.5


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        *((each, "write it as key=value") for each in ("training.batch_size", "=3", "")),
        *(
            (f"seed={value}", rf"--set seed={re.escape(value)} is not YAML")
            for value in ("[1,", "2001-99-99")
        ),
        ("seed.deep=1", "'seed' is a value, not a section"),
    ],
)
def test_a_malformed_assignment_is_refused(tmp_path: Path, assignment: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, assignment, text=DIGITS + "seed: 3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", r"run\.yaml is not YAML"),
        ("preset: \x00", r"run\.yaml is not YAML"),
        ("- 1\n- 2", "must be a mapping of sections, not a list"),
        (f"{DIGITS}training:", "training: should be a mapping of keys to values"),
    ],
)
def test_a_file_that_is_no_mapping_of_sections_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text=text)


def test_a_configuration_survives_being_written_as_plain_values(tmp_path: Path) -> None:
    config = load(tmp_path, "dataset.path=/data", "hpo.space.batch_size.choices=[1, 2]")
    assert validate(config.model_dump(mode="json"), "again") == config


def test_fp16_is_refused_where_no_loss_is_scaled() -> None:
    with pytest.raises(ConfigError, match=r"'fp16' needs loss scaling.*engine\.name=torch"):
        load_config("quickstart", ["training.precision=fp16"])
    config = load_config("quickstart", ["training.precision=fp16", "engine.name=torch"])
    assert config.training.precision == "fp16"


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("preset=../../x", "preset: should be a file name without '/' or"),
        ("slurm.partition=a b", "slurm.partition: should be one word without spaces"),
        ("slurm.memory=much", "slurm.memory: should be a whole number, optionally followed by K"),
        (
            "slurm.extra_directives=[nice]",
            "slurm.extra_directives.0: should be one option of sbatch",
        ),
    ],
)
def test_what_has_a_form_is_asked_for_in_words(assignment: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        load_config("quickstart", [assignment])
    assert "pattern" not in str(refused.value)


def test_a_fixed_training_needs_a_sample_for_each_rank_of_its_own_batch_alone() -> None:
    """Batches that would be searched for, 256 samples at least by default, are none of it."""
    ranks = "replica.ranks_per_node=1024"
    config = load_config("resnet50_v15", ["dataset.path=/data", ranks])
    assert config.training.batch_size == config.replica.ranks == 1024
    with pytest.raises(ConfigError, match="of 1023 samples .* 1024 ranks.*; raise training.batch_"):
        load_config("resnet50_v15", ["dataset.path=/data", ranks, "training.batch_size=1023"])
    with pytest.raises(ConfigError, match="a batch of 256 .* raise .* and hpo.space.batch_size$"):
        load_config("imagenet", ["dataset.path=/data", ranks, "training.batch_size=1024"])


def test_a_preset_does_not_differ_from_itself() -> None:
    for name in preset_names():
        config = load_config(name)
        assert (config.preset, differences(config)) == (name, [])


def test_what_differs_is_named_as_it_is_set() -> None:
    config = load_config("quickstart", ["training.batch_size=8", "rounds.warmup_epochs=[1, 2]"])
    usual = load_config("quickstart")
    assert differences(config) == [
        ("training.batch_size", 8, usual.training.batch_size),
        ("rounds.warmup_epochs", [1, 2], list(usual.rounds.warmup_epochs)),
    ]


def test_a_configuration_of_no_preset_is_compared_with_the_official_one() -> None:
    own = load_config("imagenet", ["preset=ours", "seed=3"])
    assert preset_of(own) == "imagenet"
    assert [each.key for each in differences(own)] == ["preset", "seed"]
