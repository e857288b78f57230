"""The generated references are complete: each setting, command, option, route and field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from aiperf_hpc.cli.command import Deferred, Group
from aiperf_hpc.cli.program import COMMANDS, main
from aiperf_hpc.config import load_config, preset_names
from aiperf_hpc.results.report.document import Report
from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.run_queue import RunQueue
from aiperf_hpc.service.runs import FolderOfRuns

ROW = re.compile(r"<tr>\s*<td><code>([^<]+)</code></td>(.*?)</tr>", re.DOTALL)
CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)


def keys(values: dict[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{key}.")


def test_every_setting_is_described(site: Path) -> None:
    pages = [site / "reference/configuration.html", *site.glob("reference/configuration/*.html")]
    assert all(file.stat().st_size < 300_000 for file in pages), "short enough to find things"
    page = "\n".join(file.read_text("utf-8") for file in pages)
    rows = {key: CELL.findall(cells) for key, cells in ROW.findall(page)}
    written = load_config("quickstart").model_dump(mode="json", exclude_none=True)
    # What a dimension of the search consists of stands in a table of its own.
    whole = {re.sub(r"^hpo[.]space[.][a-z_]+[.]", "", key) for key in keys(written)}
    assert whole - rows.keys() == set()
    assert [key for key, (kind, _, words) in rows.items() if not kind or not words] == []
    assert rows["training.batch_size"][:2] == ["integer ≥ 1, ≤ 1,048,576", "<code>448</code>"]
    assert all(f'id="{name}"' in page for name in preset_names())


@pytest.mark.parametrize("name", [row.name for row in COMMANDS if row.panel])
def test_every_option_of_a_command_is_there(
    name: str, site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # An option begins its line of help then.
    page = unescape((site / "reference" / "commands.html").read_text("utf-8"))
    sections = page.split("<h3 ")
    for words in in_group(name):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        helped = set(re.findall(r"^\W+(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
        heading = f'id="aiperf-{"-".join(words)}"'
        (section,) = (part for part in sections if part.startswith(heading))
        assert helped - set(re.findall(r"<code>(--[a-z-]+)", section)) == {"--help"}


def in_group(name: str) -> list[tuple[str, ...]]:
    row = next(row for row in COMMANDS if row.name == name)
    loaded = Deferred(row).loaded()
    return [(name, each) for each in loaded.commands] if isinstance(loaded, Group) else [(name,)]


def test_every_route_of_the_service_is_there(site: Path, tmp_path: Path) -> None:
    pages = [unescape(file.read_text("utf-8")) for file in (site / "reference/rest").iterdir()]
    headings = [re.findall(r"<h2 [^>]*>([A-Z]+ /[^<]*)<", page) for page in pages]
    described = create_app(FolderOfRuns(tmp_path), queue=RunQueue(tmp_path)).openapi()["paths"]
    routes = [f"{method.upper()} {path}" for path in described for method in described[path]]
    assert sorted(chain(*headings)) == sorted(routes)
    overview = unescape((site / "reference/rest.html").read_text("utf-8"))
    assert all(f"<code>{route}</code>" in overview for route in routes)


def test_every_key_of_a_report_is_there(site: Path) -> None:
    page = (site / "reference" / "report.html").read_text("utf-8")
    rows = {key for key, _ in ROW.findall(page)}
    keys_of_parts = {key for part in parts(Report) for key in part.model_fields}
    assert keys_of_parts <= rows
    linked = set(re.findall(r'href="#([a-z]+)"', page))
    assert linked <= set(re.findall(r' id="([^"]+)"', page))


def parts(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model and those of its fields."""
    yield model
    for field in model.model_fields.values():
        found = (field.annotation, *get_args(field.annotation))
        for each in found:
            if isinstance(each, type) and issubclass(each, BaseModel):
                yield from parts(each)
