"""``aiperf config``: what it prints can be loaded again, and in which division it is official."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from aiperf_hpc.cli import main
from aiperf_hpc.config import load_config, preset_names


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["config", "show", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("how", ["--resolved", "--changed"])
@pytest.mark.parametrize("preset", preset_names())
def test_what_is_shown_is_the_same_configuration(
    preset: str, how: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "shown.yaml"
    file.write_text(printed(capsys, preset, how))
    assert load_config(file) == load_config(preset)


def test_what_differs_from_the_defaults_is_shown_alone_and_described(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("dataset: {name: digits}\nseed: 7\ntraining: {batch_size: 448}\n")
    text = printed(capsys, str(file), "--changed")
    assert yaml.safe_load(text) == {"seed": 7, "dataset": {"name": "digits"}}
    assert "seed: 7  # Random seed of initial weights, sample order, search and TPE.\n" in text
    assert "  name: digits  # Dataset. Only runs on imagenet can be VALID.\n" in text


def test_less_and_all_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "quickstart", "--changed", "--resolved"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


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
    words: tuple[str, ...], status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "check", "imagenet", *words]) == status
    assert told in capsys.readouterr().out.splitlines()


def test_what_a_file_changes_of_the_preset_that_it_names_is_said_behind_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    text = printed(capsys, "quickstart")
    file.write_text(text)
    assert printed(capsys, str(file), "--changed").endswith(
        "# Nothing differs from the preset quickstart.\n"
    )
    file.write_text(text.replace("batch_size: 64", "batch_size: 32"))
    said = printed(capsys, str(file), "--changed")
    assert said.endswith(
        "# Other than in the preset quickstart:\n#   training.batch_size: 32, in the preset 64\n"
    )
    assert yaml.safe_load(said)["training"]["batch_size"] == 32
    assert "preset quickstart" not in printed(capsys, "quickstart", "--changed")


def test_a_new_file_has_all_settings_and_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    command = ["config", "init", str(path), "--preset", "imagenet"]
    assert main(command) == 0
    before = path.read_text("utf-8")
    assert f"aiperf start --config {path}" in capsys.readouterr().out
    settings = [line for line in before.splitlines() if not line.endswith(":")]
    assert len(settings) > 100
    assert [line for line in settings if "  # " not in line] == []
    assert main([*command[:3], "--preset", "quickstart"]) == 2
    assert f"{path} exists" in capsys.readouterr().err
    assert path.read_text("utf-8") == before
    assert main(["config", "show", "imagenet", "--resolved"]) == 0
    assert capsys.readouterr().out == before
