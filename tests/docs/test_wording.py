"""Texts that users read have the field's words: pages, help, messages, templates, schemas."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.cli.test_command_line import ALL
from tests.docs.test_commands import FENCED, INLINE, PAGES, ROOT
from tests.docs.test_troubleshooting import CODE

from aiperf_hpc.config import RunConfig
from aiperf_hpc.results.report.schema import report_schema
from aiperf_hpc.service.app import create_app
from aiperf_hpc.service.run_queue import RunQueue
from aiperf_hpc.service.runs import FolderOfRuns

BETTER = {
    r"(go|goes|going|gone|went) on with": "resume, continue",
    r"(end|ends|ended|stop|stops|stopped)( \w+)? in order(?! to)": "shut down, graceful stop",
    r"(?<!end of )li(fe|ves)": "attempt, alive, heartbeat",
    r"(is|are|was|were|be|been) gone": "exited, missing",
    r"(tell|tells|told|say|says|said)": "report, record, print, state",
    r"heads? of (a |the |its |each )?journals?|journal heads?": "journal digest",
    r"who is at work|working side": "active replica, workers",
    r"stock(?![.=:])": "candidate queue, queue depth",
    r"of before|earlier lives": "previous",
    r"beside (a |the |another |each |its )?(runs?|trainer|trainings?)": "concurrently",
    r"(keeps?|kept) ((all|its|the|these|those) )?(\w+'s )?rules?|rules? ((are|is|that|not) )*kept":
        "satisfied, violated",
    r"asked for": "requested",
    r"drawn (again|anew|at random|by|from|with)|draws? (again|anew|at random|lots)": "sampled",
    r"(became|become|becomes) of": "outcome, status",
    r"in vain": "timed out",
    r"(made|makes|making) up|invented": "fabricated",
    r"(memory|seconds|time) (it )?(taken|takes|took)|takes? [\d.,]+ [KMGkT]i?B": "elapsed, uses",
    r"shares? of (all |its |that |the )?(\w+ )?(peak|seconds|steps?|time)": "fraction",
    r"(?<!of )courses?": "training curve, history",
    r"household|house": "architecture, package",
}  # fmt: skip
"""Better words for the patterns of odd ones."""
ODD = {re.compile(rf"\b(?:{odd})\b", re.IGNORECASE): better for odd, better in BETTER.items()}
PRINTING = [file for file in CODE if file.parent.name != "records"]
"""All modules but those of records, whose texts are a format."""
TEMPLATES = [
    file
    for kind in ("*.html", "*.js")
    for folder in ("analysis", "results", "service")
    for file in sorted((ROOT / folder).rglob(kind))
]
COMMENT = re.compile(r"/\*.*?\*/|^\s*//.*?$|{#.*?#}|<style>.*?</style>", re.DOTALL | re.MULTILINE)
CODE_OF_TEMPLATES = re.compile(r"{[{%].*?[}%]}|<[^>]*>", re.DOTALL)
QUOTED = re.compile(r'"[^"\n]*"|`[^`]*`')


def found(text: str) -> list[str]:
    """The odd words of a text, each with what is around it and what is better."""
    plain = " ".join(text.split())
    return [
        f"{plain[max(0, hit.start() - 30) : hit.end() + 20]} -> {better}"
        for odd, better in ODD.items()
        for hit in odd.finditer(plain)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_odd_words(page: Path) -> None:
    assert found(INLINE.sub("`", FENCED.sub("", page.read_text("utf-8")))) == []


@pytest.mark.parametrize("file", PRINTING, ids=lambda file: str(file.relative_to(ROOT)))
def test_messages_have_no_odd_words(file: Path) -> None:
    texts = (INLINE.sub("`", text) for text in _printed(ast.parse(file.read_text("utf-8"))))
    assert [odd for text in texts for odd in found(text)] == []


def _printed(module: ast.Module) -> Iterator[str]:
    """Yield the literals that can be printed: all but docstrings."""
    skipped: set[int] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            skipped |= {id(part) for part in node.values}
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in skipped and " " in str(node.value):
            yield str(node.value)


@pytest.mark.parametrize("words", ALL)
def test_the_help_of_a_command_has_no_odd_words(words: str) -> None:
    assert found(INLINE.sub("`", inspect.getdoc(ALL[words]) or "")) == []


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_template_has_no_odd_words(file: Path) -> None:
    text = COMMENT.sub("", file.read_text("utf-8"))
    if file.suffix == ".html":
        shown = CODE_OF_TEMPLATES.sub(lambda code: " ".join(_phrases(code[0])), text)
    else:
        shown = "\n".join(_phrases(text))
    assert found(shown) == []


def _phrases(code: str) -> Iterator[str]:
    """Yield the quoted texts that are more than a name."""
    quoted = (re.sub(r"\${[^}]*}", "…", text) for text in QUOTED.findall(code))
    return (text for text in quoted if " " in text)


@cache
def schemas() -> dict[str, object]:
    folder = Path(ROOT / "docs")
    return {
        "configuration": RunConfig.model_json_schema(),
        "report": report_schema(),
        "REST": create_app(FolderOfRuns(folder), queue=RunQueue(folder)).openapi(),
    }


@pytest.mark.parametrize("name", ["configuration", "report", "REST"])
def test_the_descriptions_of_a_schema_have_no_odd_words(name: str) -> None:
    texts = (INLINE.sub("`", text) for text in _described(schemas()[name]))
    assert [odd for text in texts for odd in found(text)] == []


def _described(schema: object) -> Iterator[str]:
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in ("description", "summary") and isinstance(value, str):
            yield value
        yield from _described(value)
    for value in schema if isinstance(schema, list) else ():
        yield from _described(value)


def test_odd_words_are_found() -> None:
    assert found("A replica that died is told to go on with its trial") != []
    assert found("It takes an argument, uses the first value and keeps the rest.") == []
