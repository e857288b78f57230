"""What a study's file may say, and which runs follow from it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from aiperf_hpc.analysis.study.plan import Study, read_study, schedule, variations
from aiperf_hpc.cli import study as study_command
from aiperf_hpc.cli.study import check
from aiperf_hpc.errors import ConfigError, UsageError

ROOT = Path(__file__).parents[3]
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


def test_each_factor_is_added_alone_and_removed_from_all(tmp_path: Path) -> None:
    three = study(tmp_path, FILE + "  decay: {training.weight_decay: 0.001}\n")
    assert {v.name: set(v.factors) for v in variations(three)} == {
        "none": set(),
        "all": {"batch", "width", "decay"},
        "only-batch": {"batch"},
        "only-width": {"width"},
        "only-decay": {"decay"},
        "without-batch": {"width", "decay"},
        "without-width": {"batch", "decay"},
        "without-decay": {"batch", "width"},
    }


def test_of_two_factors_one_removed_is_the_other_alone(tmp_path: Path) -> None:
    assert [v.name for v in variations(study(tmp_path))] == [
        "none", "all", "only-batch", "only-width",
    ]  # fmt: skip


def test_of_one_factor_there_are_two_systems(tmp_path: Path) -> None:
    one = study(tmp_path, FILE.partition("  width")[0])
    assert [v.name for v in variations(one)] == ["none", "only-batch"]


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
        ("", "not a mapping"),
        ("[1, 2]", "not a mapping"),
        ("{", "not YAML"),
        ("[" * 5000, "nested too deep"),
        (FILE + "hours: 1\n", "the key 'hours' stands twice"),
        ("factors: {}\nhours: 1", "factors: "),
        ("hours: 1", "factors: "),
        (FILE.replace("0.01\nlauncher", "-1\nlauncher"), "hours: "),
        (FILE.replace("0.01\nlauncher", ".nan\nlauncher"), "hours: "),
        (FILE.replace("batch:", "../up:"), "letters, digits"),
        (FILE.replace("{training.batch_size: 96}", "{}"), "sets nothing"),
        (FILE + "measure: happiness\n", "measure: "),
        (FILE + "measure: time_to_quality\n", "'quality' goes with"),
        (FILE + "quality: 0.9\n", "'quality' goes with"),
        (FILE + "speed: 2\n", "speed: "),
    ],
)
def test_a_file_that_is_no_study_is_refused_in_a_line(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        study(tmp_path, text)
    assert len(str(raised.value).splitlines()) == 1


def test_a_file_that_is_not_there_or_endless_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the study"):
        read_study(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_study(Path("/dev/zero"))


def test_a_variation_that_no_run_can_have_is_refused_before_any_starts(tmp_path: Path) -> None:
    check(study(tmp_path))
    wrong = study(tmp_path, FILE.replace("batch_size: 96", "batch_sice: 96"))
    with pytest.raises(ConfigError, match=r"variation .all.: .*unknown key"):
        check(wrong)


def test_a_factor_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    same = study(tmp_path, FILE.replace("batch_size: 96", "batch_size: 64"))
    with pytest.raises(UsageError, match="the factor 'batch' changes nothing"):
        check(same)


def test_the_documented_study_can_be_made(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "analysis.md").read_text("utf-8")
    (example,) = re.findall(r"```yaml\n(name: .*?)```", text, re.DOTALL)
    check(study(tmp_path, f"{example}launcher: local\n"))


def test_a_launcher_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def made(config: object, nodes: int, hours: float, launcher: str) -> SimpleNamespace:
        asked.append(launcher)
        return SimpleNamespace(launcher="local")

    monkeypatch.setattr(study_command, "make_manifest", made)
    check(study(tmp_path, FILE.replace("launcher: local", "launcher: auto")))
    assert asked == ["auto", "local", "local", "local"]
