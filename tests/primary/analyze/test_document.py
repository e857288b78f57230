"""Analyses as JSON."""

from __future__ import annotations

import json
import math

from aiperf_hpc.primary.analyze.document import as_json


def test_whatever_a_log_says_becomes_json() -> None:
    values = {"name": "\udcff\ud800×", "rates": [1.5, math.nan, {"most": -math.inf}], "none": None}
    text = as_json(values)
    assert text.isascii()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    read = json.loads(text, parse_constant=refuse)
    assert read == {**values, "rates": [1.5, "NaN", {"most": "-Infinity"}]}
