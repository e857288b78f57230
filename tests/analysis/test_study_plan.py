"""What a study's file may say, and which runs follow from it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiperf_hpc.analysis.study import Study, read_study, schedule, variations
from aiperf_hpc.cli import study as study_command
from aiperf_hpc.cli.study import check
from aiperf_hpc.config import load_config
from aiperf_hpc.errors import ConfigError, UsageError

ROOT = Path(__file__).parents[2]
FILE = """
name: cache and batch
hours: 0.01
launcher: local
settings: {engine.name: simulated}
factors:
  batch: {training.batch_size: 96}
  width: {model.base_width: 32, training.learning_rate: 0.01}
"""


def study(tmp_path: Path, text: str = FILE) -> Study:
    path = tmp_path / "study.yaml"
    path.write_text(text, "utf-8")
    return read_study(path)


THREE = FILE + "  decay: {training.weight_decay: 0.001}\n"


@pytest.mark.parametrize(
    ("text", "systems"),
    [
        (THREE, {
            "none": "", "all": "batch width decay", "only-batch": "batch", "only-width": "width",
            "only-decay": "decay", "without-batch": "width decay", "without-width": "batch decay",
            "without-decay": "batch width",
        }),
        # Of two factors, one removed is the other alone.
        (FILE, {"none": "", "all": "batch width", "only-batch": "batch", "only-width": "width"}),
        (FILE.partition("  width")[0], {"none": "", "only-batch": "batch"}),
    ],
)  # fmt: skip
def test_each_factor_is_added_alone_and_removed_from_all(
    text: str, systems: dict[str, str], tmp_path: Path
) -> None:
    found = variations(study(tmp_path, text))
    assert {v.name: v.factors for v in found} == {k: set(v.split()) for k, v in systems.items()}


def test_repeats_take_turns_over_all_systems(tmp_path: Path) -> None:
    twice = study(tmp_path, FILE + "repeats: 2\n")
    runs = [(v.name, repeat) for v, repeat in schedule(twice)]
    assert runs[:4] == [("none", 1), ("all", 1), ("only-batch", 1), ("only-width", 1)]
    assert [repeat for _, repeat in runs[4:]] == [2, 2, 2, 2]


def test_a_variation_is_set_as_a_command_would(tmp_path: Path) -> None:
    asked = study(tmp_path)
    (only,) = (v for v in variations(asked) if v.name == "only-width")
    assert only.assignments(asked) == [
        'engine.name="simulated"', "model.base_width=32", "training.learning_rate=0.01",
    ]  # fmt: skip


def test_a_configuration_beside_the_study_is_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("training: {batch_size: 8}\n", "utf-8")
    asked = study(tmp_path, FILE + "config: mine.yaml\n")
    assert asked.config == str(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "not a mapping"),
        ("factors: {}\nhours: 1", "factors: "),
        ("hours: 1", "factors: "),
        (FILE.replace("0.01\nlauncher", "-1\nlauncher"), "hours: "),
        (FILE.replace("0.01\nlauncher", ".nan\nlauncher"), "hours: "),
        (FILE.replace("batch:", "../up:"), "letters, digits"),
        (FILE.replace("{training.batch_size: 96}", "{}"), "sets nothing"),
        (FILE + "metric: happiness\n", "metric: "),
        (FILE + "metric: time_to_quality\n", "if and only if"),
        (FILE + "quality: 0.9\n", "if and only if"),
        (FILE + "speed: 2\n", "speed: "),
    ],
)
def test_an_invalid_study_is_rejected_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        study(tmp_path, text)
    assert len(str(raised.value).splitlines()) == 1
    with pytest.raises(ConfigError, match="cannot read the study"):
        read_study(tmp_path / "none.yaml")


def test_a_variation_that_no_run_can_have_is_refused_before_any_starts(tmp_path: Path) -> None:
    check(study(tmp_path))
    with pytest.raises(ConfigError, match=r"variation .all.: .*unknown key"):
        check(study(tmp_path, FILE.replace("batch_size: 96", "batch_sice: 96")))
    preset = load_config("quickstart").training.batch_size
    with pytest.raises(UsageError, match="the factor 'batch' changes nothing"):
        check(study(tmp_path, FILE.replace("batch_size: 96", f"batch_size: {preset}")))


def test_the_documented_study_is_valid(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "analysis.md").read_text("utf-8")
    (example,) = re.findall(r"```yaml\n(name: .*?)```", text, re.DOTALL)
    check(study(tmp_path, f"{example}launcher: local\n"))


def test_the_launcher_is_detected_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def made(config: object, nodes: int, hours: float, launcher: str) -> SimpleNamespace:
        asked.append(launcher)
        return SimpleNamespace(launcher="local")

    monkeypatch.setattr(study_command, "make_manifest", made)
    check(study(tmp_path, FILE.replace("launcher: local", "launcher: auto")))
    assert asked == ["auto", "local", "local", "local"]
