"""The file in which people say what a machine cannot tell of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiperf_hpc.errors import UsageError
from aiperf_hpc.results.report.system import read_site


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("submiter: X", "submiter: is not known"),
        ("status: onprem", "status: should be ''"),
        ("division: fast", "division: should be"),
        ("cooling: [air]", "cooling: should be text"),
        ("cooling: {a: b", "not YAML"),
        ("- a list", "not a mapping"),
        ("", "not a mapping"),
        ("cooling: a\ncooling: b", "stands twice"),
        ("hw_notes: " + "x" * 5000, "at most 4000"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "system.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_site(path)
    said = str(refused.value)
    assert words in said
    assert said.startswith(str(path))
    assert "aiperf system --template" in said
    assert "\n" not in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: No such file"):
        read_site(tmp_path / "none.yaml")
