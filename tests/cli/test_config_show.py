"""``aiperf config``: what it prints can be loaded again, and in which division it is official."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.support.command import aiperf, printed
from tests.support.refusals import refused_line

from aiperf_hpc.config import load_config, preset_names


@pytest.mark.parametrize("how", ["--resolved", "--changed"])
@pytest.mark.parametrize("preset", preset_names())
def test_what_is_shown_is_the_same_configuration(preset: str, how: str, tmp_path: Path) -> None:
    file = tmp_path / "shown.yaml"
    file.write_text(printed("config", "show", preset, how))
    assert load_config(file) == load_config(preset)


def test_what_differs_from_the_defaults_is_shown_alone_and_described(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("dataset: {name: digits}\nseed: 7\ntraining: {batch_size: 448}\n")
    text = printed("config", "show", file, "--changed")
    assert yaml.safe_load(text) == {"seed": 7, "dataset": {"name": "digits"}}
    assert "seed: 7  # Random seed of initial weights, sample order, search and TPE.\n" in text
    assert "  name: digits  # Dataset. Only runs on imagenet can be VALID.\n" in text


def test_any_path_can_be_loaded_again(tmp_path: Path) -> None:
    file, shown = tmp_path / "mine.yaml", tmp_path / "shown.yaml"
    file.write_text('dataset: {name: digits, path: "/data\\n\\U0001F600"}\n')
    shown.write_text(printed("config", "show", file, "--resolved"))
    assert load_config(shown) == load_config(file)
    assert str(load_config(shown).dataset.path) == "/data\n\U0001f600"


def test_less_and_all_do_not_go_together() -> None:
    refused = refused_line("config", "show", "quickstart", "--changed", "--resolved")
    assert "mutually exclusive" in refused


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ((), 0, "Division: closed"),
        (("--set", "training.batch_size=64"), 0, "  training.batch_size is 64; 448 is required"),
        (("--set", "training.batch_size=64"), 0, "Division: open"),
        (("--set", "training.batch_size=64", "--division", "closed"), 1, "Division: open"),
        (("--set", "training.batch_size=64", "--division", "open"), 0, "Division: open"),
        (("--set", "training.target=0.7"), 1, "Division: none"),
    ],
)
def test_a_configuration_is_checked_against_the_divisions(
    words: tuple[str, ...], status: int, told: str
) -> None:
    done = aiperf("config", "check", "imagenet", *words)
    assert done.returncode == status
    assert told in done.stdout.splitlines()


def test_what_a_file_changes_of_the_preset_that_it_names_is_said_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    changed = ("config", "show", file, "--changed")
    text = printed("config", "show", "quickstart")
    file.write_text(text)
    assert printed(*changed).endswith("# No differences from the preset quickstart.\n")
    file.write_text(text.replace("batch_size: 80", "batch_size: 32"))
    said = printed(*changed)
    assert said.endswith(
        "# Differences from the preset quickstart:\n#   training.batch_size: 32 (preset: 80)\n"
    )
    assert yaml.safe_load(said)["training"]["batch_size"] == 32
    assert "preset quickstart" not in printed("config", "show", "quickstart", "--changed")


def test_a_new_file_has_all_settings_and_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    command = ("config", "init", path, "--preset")
    assert f"aiperf start --config {path}" in printed(*command, "imagenet")
    before = path.read_text("utf-8")
    settings = [line for line in before.splitlines() if not line.endswith(":")]
    assert len(settings) > 100
    assert [line for line in settings if "  # " not in line] == []
    assert f"{path} exists" in refused_line(*command, "quickstart")
    assert path.read_text("utf-8") == before
    assert printed("config", "show", "imagenet", "--resolved") == before
