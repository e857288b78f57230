"""Lines that are read without their JSON: what is found in them is what JSON gives."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.result_logs import line

from aiperf_hpc.analysis.readers.mllog_lines import find_lines

PLAIN = line(1.5, "eval_error", 0.25, epoch_num=3, step_num=-7, loss=1e-05, why="a, b", last=None)


def test_what_json_gives() -> None:
    text = PLAIN.encode()
    assert find_lines(text) == [(text, b"1600000001500", b"eval_error", b"0.25", b"3")]


@pytest.mark.parametrize("before", ["0: ", "node:1:", "[1] 12:03:04 ::: :: "])
def test_what_a_launcher_writes_before_a_line(before: str) -> None:
    assert find_lines((before + PLAIN).encode())[0][2] == b"eval_error"


def test_each_line_is_one_in_order() -> None:
    text = f"\n{PLAIN}Epoch 1\n\r\n{PLAIN}end"
    found = find_lines(text.encode())
    assert b"".join(line for line, *_ in found) == text.encode()
    assert [key for _, _, key, _, _ in found] == [b"", b"eval_error", b"", b"", b"eval_error", b""]


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (":::MLLOG", ":::ML :::MLLOG"),
        ("0.25", "00.25"), ("0.25", ".25"), ("0.25", "25."), ("0.25", "+1"),
        ("0.25", "NaN"), ("0.25", '"0.2'), ("0.25", "[0.25]"), ("0.25", "1_0"),
        ("1600000001500", "1600000001500.5"), ("1600000001500", "01"), ("1600000001500", "-1"),
        ('"lineno": 1,', '"lineno": 01,'), ('"lineno": 1,', '"lineno": 1'),
        ('"epoch_num": 3', '"epoch_num": 3.5'), ('"epoch_num": 3', '"epoch_num": null'),
        ('"step_num": -7', '"epoch_num": -7'), ('"step_num": -7', '"first_epoch_num": -7'),
        ('"step_num": -7', '"epoch_count": -7'), ('"step_num": -7', '"step_num": {"a": 7}'),
        ("a, b", "a\\u0020b"), ("a, b", "ä"), ("a, b", "a\x00b"), ("a, b", 'a"b'),
        ("eval_error", "eval-error"), ("}}", "}"), ("}}", "}, }"), ("}}", "}} }"), ("}}", ", }}"),
    ],
)  # fmt: skip
def test_a_line_that_is_not_plain_is_left_to_json(part: str, other: str) -> None:
    assert part in PLAIN
    text = PLAIN.replace(part, other).encode()
    assert find_lines(text) == [(text, b"", b"", b"", b"")]


@settings(max_examples=50)
@given(
    value=st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    epoch=st.none() | st.integers(-5, 10**12) | st.floats(),
    more=st.dictionaries(st.text(), st.none() | st.floats() | st.text(), max_size=2),
)
def test_any_line_is_read_as_json_or_left_to_it(
    value: float | str | None, epoch: float | None, more: dict[str, object]
) -> None:
    text = line(0, "eval_error", value, **{"epoch_num": epoch} | more)
    ((whole, _, key, said, of_epoch),) = find_lines(text.encode())
    assert whole.decode() == text
    if key:
        document = json.loads(text.removeprefix(":::MLLOG "))
        assert json.dumps(document["value"]).encode() == said
        assert document["metadata"].get("epoch_num") == (int(of_epoch) if of_epoch else None)
