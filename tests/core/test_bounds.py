"""Numbers, times and names that are read back have bounds."""

from __future__ import annotations

import math
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from aiperf_hpc.untrusted.bounds import (
    LATEST_UTC,
    MOST_REAL,
    MOST_WHOLE,
    Bounded,
    Name,
    Utc,
    first_fault,
)


class _Values(Bounded):
    whole: int = 0
    at_least: Annotated[int, Field(ge=1)] = 1
    several: dict[str, tuple[int | None, ...]] = {}
    finite: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    loss: float = 0.0


@pytest.mark.parametrize(
    "text",
    [f'{{"whole": {10**310}}}', f'{{"whole": {-(10**310)}}}', f'{{"at_least": {10**310}}}',
     f'{{"several": {{"a": [null, {10**310}]}}}}', '{"finite": 1e300}', '{"finite": -1e300}'],
)  # fmt: skip
def test_a_number_beyond_all_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        _Values.model_validate_json(text)


def test_what_may_be_infinite_stays_so_and_schemas_do_not_repeat_the_bounds() -> None:
    assert _Values.model_validate_json('{"loss": "-Infinity"}').loss == -math.inf
    assert _Values(whole=MOST_WHOLE, finite=-MOST_REAL).whole == MOST_WHOLE
    shown = str(_Values.model_json_schema())
    assert "maximum" not in shown
    assert "'minimum': 1" in shown


def test_a_time_is_a_date_and_a_name_is_a_file_name() -> None:
    times, names = TypeAdapter(Utc), TypeAdapter(Name)
    assert times.validate_python(LATEST_UTC) == LATEST_UTC
    for utc in (LATEST_UTC + 1, -1.0, math.nan, math.inf):
        with pytest.raises(ValidationError):
            times.validate_python(utc)
    for name in ("r0-t001", "nobody's", "Ü 2", "a.b"):
        assert names.validate_python(name) == name
    for name in ("", ".", "..", "../x", "a/b", "a\0b", "a\n", ".hidden", "\ud800", "x" * 201):
        with pytest.raises(ValidationError):
            names.validate_python(name)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"whole": "x", "finite": "y"}', "whole: should be a whole number"),
        ('{"several": {"a": [1, "x"]}}', "several.a.1: should be a whole number"),
        ('{"at_least": 0}', "at_least: should be greater than or equal to 1"),
        ("[]", "the file: should be a mapping of keys to values"),
        ("{", "the file: invalid JSON: EOF while parsing an object at line 1 column 1"),
    ],
)
def test_the_first_fault_is_described_with_its_place(text: str, fault: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Values.model_validate_json(text)
    assert first_fault(caught.value, "the file") == fault
    assert first_fault(caught.value).removeprefix("the file: ") == fault.removeprefix("the file: ")
