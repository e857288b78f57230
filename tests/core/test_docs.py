"""What the documentation says is where, is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "deploy" / "README.md"])
PLACES = (ROOT, ROOT / "src" / "aiperf_hpc")
FILE = re.compile(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+\.(?:py|yaml|sh|md|html))(?::([A-Za-z_.]+))?`")
LINK = re.compile(r"\]\(((?!https?:)[^)#]+)")


def found(name: str) -> Path | None:
    return next((place / name for place in PLACES if (place / name).exists()), None)


@cache
def names_in(file: Path) -> set[str]:
    """The functions, classes, constants and methods of a module, methods as ``Class.method``."""
    names: set[str] = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            members = [m for m in node.body if isinstance(m, ast.FunctionDef)]
            names |= {node.name} | {f"{node.name}.{member.name}" for member in members}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_name_that_a_page_mentions_is_there(page: Path) -> None:
    missing = []
    for name, member in FILE.findall(page.read_text("utf-8")):
        file = found(name)
        if file is None or (member and member not in names_in(file)):
            missing.append(f"{name}:{member}" if member else name)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = LINK.findall(page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_walks_name_functions() -> None:
    text = (ROOT / "docs" / "structure.md").read_text("utf-8")
    assert sum(bool(member) for _, member in FILE.findall(text)) > 30
