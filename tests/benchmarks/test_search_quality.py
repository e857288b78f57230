"""The comparison of searches: `benchmarks/search_quality.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_each_search_has_a_row_of_each_landscape(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import search_quality  # type: ignore[import-not-found]

    monkeypatch.setattr(search_quality, "EVALUATIONS", 4)
    monkeypatch.setattr(search_quality, "SEEDS", 1)
    monkeypatch.setattr("sys.argv", ["search_quality.py", str(tmp_path / "found.json")])
    search_quality.main()
    rows = capsys.readouterr().out.splitlines()
    for landscape in search_quality.LANDSCAPES:
        own = [row for row in rows if row.startswith(f"| {landscape} | ")]
        assert len(own) == 1 + len(search_quality.searchers())  # One is of ResNet-50.
