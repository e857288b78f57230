"""Files from strangers: only regular ones inside a run, and nothing that takes long or for ever."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from aiperf_hpc.errors import UsageError
from aiperf_hpc.untrusted.files import (
    MOST_LEVELS,
    MOST_YAML_VALUES,
    NotRegularError,
    bytes_inside,
    last_lines_inside,
    open_inside,
    open_regular,
    parsed_json,
    parsed_yaml,
    path_inside,
    yaml_of,
)

BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
"""2^39 values in 600 bytes."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "report").mkdir(parents=True)
    (folder / "report" / "file").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    return folder


def test_a_file_of_a_run_is_read_also_where_the_run_is_named_by_a_link(run: Path) -> None:
    link = run.with_name("last")
    link.symlink_to(run)
    assert bytes_inside(link, link / "report" / "file") == b"inside"
    assert bytes_inside(run, path_inside(run, "report/file")) == b"inside"


@pytest.mark.parametrize(
    ("content", "most", "expected"),
    [
        ("one\ntwo\nthree\n", 100, ["two", "three"]),
        ("one\ntwo\nthree", 9, ["two", "three"]),
        ("one\ntwo\nthree", 8, ["three"]),
        ("one\ntwo\nthree", 3, ["hree"]),
        ("a\x0cb\u2028c\nd\r\n", 100, ["a\x0cb\u2028c", "d"]),
        ("\r 0%\r 50%\r100%\nend\n", 100, ["100%", "end"]),
        ("\r 0%\r 50%\r100%", 8, ["100%"]),
        ("one\n\n", 100, ["one", ""]),
        ("", 100, []),
    ],
)
def test_only_newlines_end_lines_and_a_cut_line_is_left_out(
    run: Path, content: str, most: int, expected: list[str]
) -> None:
    (run / "log").write_bytes(content.encode())
    assert last_lines_inside(run, run / "log", 2, most) == expected


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../secret", "report/../../secret", "report//file", "./report/file",
     "report/fi\0le", "report/\ud800"],
)  # fmt: skip
def test_a_name_that_leads_out_of_a_run_or_is_none_is_refused(run: Path, name: str) -> None:
    with pytest.raises(NotRegularError, match="is not the name of a file in the run"):
        path_inside(run, name)


def test_what_is_no_regular_file_of_the_run_is_refused_at_once(run: Path) -> None:
    os.mkfifo(run / "fifo")
    (run / "link").symlink_to("report/file")
    (run / "zero").symlink_to("/dev/zero")
    (run / "away").symlink_to(run.parent)
    (run / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.open(run, os.O_PATH)  # A socket's name is of 107 bytes at most.
        listening.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        for name in ("fifo", "link", "zero", "away/secret", "loop", "loop/x", "report", "socket"):
            with pytest.raises(NotRegularError) as refused:
                open_inside(run, run / name)
            assert str(run) in str(refused.value.filename), name
    with pytest.raises(FileNotFoundError):
        open_inside(run, run / "report" / "other")
    with pytest.raises(NotRegularError):
        open_regular(run / "zero")


def test_a_file_that_is_read_whole_is_of_bounded_size(run: Path) -> None:
    with pytest.raises(NotRegularError, match="larger than 5 bytes"):
        bytes_inside(run, run / "report" / "file", 5)
    huge = run / "huge.yaml"
    huge.touch()
    os.truncate(huge, 10**12)
    with pytest.raises(UsageError, match="larger than"):
        yaml_of(huge)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "too many values after alias expansion"),
        ("a: &a {b: 1}\nc: {<<: [" + "*a, " * MOST_YAML_VALUES + "]}", "too many values"),
        ("a: [" + "1," * MOST_YAML_VALUES + "]", "too many values"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
        ("a: " + "{b: " * 3000 + "}" * 3000, "nested too deeply"),
        ("".join(f"a{n}: &a{n} [{f'*a{n - 1}' if n else ''}]\n" for n in range(MOST_LEVELS + 1)),
         "nested too deeply by aliases"),
        ("a: &a [*a]", "a value that contains itself"),
        ("a: &a {b: {c: *a}}", "a value that contains itself"),
        ("a: *b", "undefined alias"),
        ("a: " + "9" * 5000, "a number with too many digits"),
        ("a: 0x" + "f" * 5000, "a number with too many digits"),
        ("a: 1" + ":00" * 5000, "a number with too many digits"),
        ("a: 1\na: 2", "the key 'a' occurs twice"),
        ("a:\n  b: [1, 2\nc: 3", "line 3: "),
        ("a:\n  b: [1, 2\n", "line 2: a bracket is not closed"),
        ("a: {b: [1,", "line 1: a bracket is not closed"),
        ("a: !!int x", "not YAML"),
        ("a: !!float ''", "not YAML"),
        ("a: !!timestamp x", "not YAML"),
        ("? [a]\n: 1", "not YAML"),
        ("a: !!python/object/apply:os.getcwd []", "not YAML"),
    ],
)  # fmt: skip
def test_yaml_that_would_take_long_or_for_ever_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        parsed_yaml(text)
    assert len(str(refused.value)) < 250
    assert "\n" not in str(refused.value)


def test_yaml_may_have_aliases_and_merged_keys() -> None:
    said = parsed_yaml("a: &a {x: 1}\nb: {<<: *a, y: 0x10}\nc: [*a, *a]")
    assert said == {"a": {"x": 1}, "b": {"x": 1, "y": 16}, "c": [{"x": 1}, {"x": 1}]}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 200 + "]" * 200, "9" * 5000, "", "{", b"\xff"]
)
def test_json_that_is_none_or_nested_too_deep_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="."):
        parsed_json(text)


@pytest.mark.parametrize("value", [["\\", "[[[", '"{', {"]}": "[\n", "é[": []}], {}, "[", 7])
def test_brackets_in_strings_are_no_levels(value: object) -> None:
    deep = value
    for _ in range(97):
        deep = [deep]
    for ascii_only in (True, False):
        text = json.dumps(deep, ensure_ascii=ascii_only)
        assert parsed_json(text) == parsed_json(text.encode()) == deep
        with pytest.raises(ValueError, match="nested too deeply"):
            parsed_json("[" * 4 + text + "]" * 4)
