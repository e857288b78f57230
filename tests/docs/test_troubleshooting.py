"""Every message that the page explains is one that the program says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
LINKS = [link for link in (ROOT / "src" / "aiperf_hpc").iterdir() if link.is_symlink()]
CODE = [
    *(file for link in LINKS for file in link.resolve().rglob("*.py")),
    *(ROOT / "src" / "aiperf_hpc").rglob("*.py"),
]


def messages() -> list[str]:
    """The first cells of the page's tables that are code."""
    return re.findall(r"^\| `([^`]+)`", PAGE.read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def said() -> list[str]:
    """The texts in the program's code, with … in the place of each value."""
    return [text for file in CODE for text in texts(ast.parse(file.read_text("utf-8")))]


def texts(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_page_explains_messages() -> None:
    assert len(messages()) > 40


@pytest.mark.parametrize("message", messages())
def test_the_program_says_it(message: str, said: list[str]) -> None:
    fragments = [fragment for fragment in message.split("…") if fragment]
    pattern = re.compile(".*".join(map(re.escape, fragments)), re.DOTALL)
    assert any(pattern.search(text) for text in said)
