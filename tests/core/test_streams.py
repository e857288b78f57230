"""What is printed can be printed in every locale, and what is read is read in none."""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.run_factory import Plan, write_run
from tests.support.source_tree import ROOT, package_texts

from aiperf_hpc import cli
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.run.journal import JournalReader, JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import RunEnded
from aiperf_hpc.run.requests import requested_stop
from aiperf_hpc.streams import (
    READABLE,
    as_line,
    as_printed,
    ascii_json,
    cut,
    readable,
    warn,
    width,
    without_controls,
)

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
UNDECODABLE = os.fsdecode(b"r\xff")


def test_what_an_encoding_lacks_is_written_readably() -> None:
    text = "1 – 3×3 ± ü 中 \udcff"
    assert text.encode("ascii", READABLE) == rb"1 - 3x3 +- \xfc \u4e2d \xff"
    assert text.encode("iso-8859-1", READABLE) == b"1 - 3\xd73 \xb1 \xfc \\u4e2d \\xff"
    assert text.encode("utf-8", READABLE) == "1 – 3×3 ± ü 中 \\xff".encode()
    assert readable("plain") == "plain"


def test_json_is_the_same_document_in_every_locale() -> None:
    document = {"reason": 'a "–" 中 and 😀'}
    text = ascii_json(json.dumps(document, ensure_ascii=False))
    assert text.isascii()
    assert json.loads(text) == document


def test_a_text_is_as_wide_as_it_looks() -> None:
    assert [width(text) for text in ("ab", "–", "中", "e\u0301", "")] == [2, 1, 2, 1, 0]
    assert cut("a中b", 0) == ""
    assert cut("a中b", 2) == "a"
    assert cut("a中b", 3) == "a中"
    assert cut("e\u0301a", 1) == "e\u0301"


def test_one_line_stays_one_and_is_measured_as_it_is_printed() -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    assert as_printed("a\nb\x1b[2J\t中", ascii_only) == r"a b [2J \u4e2d"


def test_an_error_that_names_a_file_of_no_encoding_can_be_recorded(tmp_path: Path) -> None:
    error = AIPerfError(f"cannot read {UNDECODABLE}")
    assert str(error) == r"cannot read r\xff"
    with JournalWriter(tmp_path / "j.jsonl") as journal:
        journal.append(RunEnded(reason=f"not started: {error}"))
    (record,) = JournalReader(tmp_path / "j.jsonl").read()
    assert record.event == RunEnded(reason=r"not started: cannot read r\xff")


def mains() -> Iterator[str]:
    """Yield the modules of the package that have a function ``main``."""
    for path, text in package_texts().items():
        if "\ndef main(" in text:
            name = path.removesuffix(".py").replace("/", ".")
            yield f"aiperf_hpc.{name.removeprefix('src.aiperf_hpc.')}"


@pytest.mark.parametrize("module", list(mains()))
def test_every_entry_point_prints_in_any_locale(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = importlib.import_module(module).main
    streams = [io.TextIOWrapper(io.BytesIO(), "ascii") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    with pytest.raises(SystemExit):
        main(["--help"])
    for stream in streams:
        stream.write("– × ü \udcff")
        stream.flush()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """A run without an accuracy, whose status has a dash in it."""
    folder = tmp_path_factory.mktemp("run") / UNDECODABLE
    return write_run(folder, Plan(replicas=1, trials=5, evaluated=False))


def printed(
    monkeypatch: pytest.MonkeyPatch, encoding: str, status: int, *arguments: object
) -> tuple[bytes, bytes]:
    """Carry out a command that ends with a status; return its output and its errors."""
    with monkeypatch.context() as patch:
        buffers = io.BytesIO(), io.BytesIO()
        out, err = (io.TextIOWrapper(buffer, encoding) for buffer in buffers)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        assert cli.main([str(argument) for argument in arguments]) == status
        out.flush()
        err.flush()
        return buffers[0].getvalue(), buffers[1].getvalue()


@pytest.mark.parametrize(
    ("encoding", "dash"), [("ascii", b"-"), ("iso-8859-1", b"-"), ("utf-8", "–".encode())]
)
def test_the_command_line_prints_in_any_locale(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, encoding: str, dash: bytes
) -> None:
    out, _ = printed(monkeypatch, encoding, 0, "status", run.root)
    assert b"regulated %b  best accuracy %b" % (dash, dash) in out
    out, _ = printed(monkeypatch, encoding, 0, "status", run.root, "--json")
    assert json.loads(out)["best_accuracy"] is None
    _, err = printed(monkeypatch, encoding, 2, "count", run.root / "missing.json")
    assert err.startswith(b"aiperf: cannot read the graph ")
    assert rb"r\xff/missing.json" in err
    assert err.count(b"\n") == 1


def test_a_file_name_that_a_locale_does_not_have_is_one_clear_line(tmp_path: Path) -> None:
    graph = tmp_path / "run.yaml"
    graph.write_text('dataset: {name: cifar10, path: "/nowhere/ü–"}\n', "utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "aiperf_hpc.cli", "start", "--nodes", "1"),
            *("--hours", "1", "--config", graph, "--launcher", "local", "--yes"),
        ],
        capture_output=True,
        check=False,
        env=os.environ | ASCII,
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr
    assert rb"/nowhere/\xfc" in done.stderr


def unspecified(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of calls that would read or write text by the locale's encoding."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else None
        name = call.func.id if isinstance(call.func, ast.Name) else name
        words = {word.arg: word.value for word in call.keywords}
        if "encoding" in words:
            continue
        values = [a.value for a in (*call.args, *words.values()) if isinstance(a, ast.Constant)]
        texts = [value for value in values if isinstance(value, str)]
        text = words.get("text", words.get("universal_newlines"))
        by_locale = (
            isinstance(text, ast.Constant) and text.value is True,
            name == "read_text" and not texts and ast.unparse(call.func) != METADATA,
            name == "write_text" and "utf-8" not in texts,
            name == "open" and not opens_bytes(call, texts),
        )
        if any(by_locale):
            yield call.lineno


METADATA = "distribution.read_text"
"""What reads an installed distribution's metadata, always as UTF-8."""
NO_FILES = ("self", "self.only", "served", "browser")
"""What opens a run that is served, or a page."""


def opens_bytes(call: ast.Call, texts: list[str]) -> bool:
    """Return whether a call of some ``open`` is for bytes, or of no file."""
    owner = ast.unparse(call.func).rpartition(".")[0]
    return owner in ("os", "tarfile", "Image", *NO_FILES) or any("b" in mode for mode in texts)


def test_nothing_is_read_or_written_by_the_locales_encoding() -> None:
    others = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    assert others
    texts = package_texts() | {str(path): path.read_text("utf-8") for path in others}
    found = [f"{p}:{line}" for p, text in texts.items() for line in unspecified(ast.parse(text))]
    assert found == []


def test_a_stop_request_says_who_in_any_locale(tmp_path: Path) -> None:
    """The one file that a person may write by hand."""
    request = RunPaths(tmp_path).stop_request
    request.parent.mkdir()
    request.write_bytes("für heute genug\n".encode("iso-8859-1"))
    assert requested_stop(request) == r"f\xfcr heute genug"


def test_a_terminal_obeys_nothing_of_a_text() -> None:
    hostile = "\x1b[31mred\x07 \r\x9b2J\u202etxt.exe"
    assert without_controls(hostile) == r"\x1b[31mred\x07 \r\x9b2J\u202etxt.exe"
    assert without_controls("two lines\n\tand a tab: ü × –") == "two lines\n\tand a tab: ü × –"
    assert as_line("two\nlines\u2028\u2029") == r"two\nlines\u2028\u2029"


def test_only_indented_lines_follow_the_first_of_a_message(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warn("not started:\n  the name\nPASSED\x1b")
    assert capsys.readouterr().err == "aiperf: not started:\n  the name\\nPASSED\\x1b\n"


def test_json_of_a_delete_character_stays_json() -> None:
    assert ascii_json('"\x7f"') == r'"\u007f"'
