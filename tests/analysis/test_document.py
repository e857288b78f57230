"""Analyses as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from aiperf_hpc.analysis.document import as_json, json_parts


def test_whatever_a_log_says_becomes_json() -> None:
    values = {"name": "\udcff\ud800×", "rates": [1.5, math.nan, {"most": -math.inf}], "none": None}
    text = as_json(values)
    assert text.isascii()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    read = json.loads(text, parse_constant=refuse)
    assert read == {**values, "rates": [1.5, "NaN", {"most": "-Infinity"}]}


def test_a_list_may_be_made_while_it_is_written() -> None:
    def values(listed: Callable[[list[Any]], Any]) -> dict[str, Any]:
        logs = [{"b\n": [1, {"c": math.inf}]}, {}, []]
        return {"a": listed([{"logs": listed(logs), "d": {}}, 2]), "none": listed([]), "e": [3]}

    parts = list(json_parts(values(iter)))
    assert len(parts) > 5
    assert "".join(parts) == as_json(values(list))
    assert json.loads("".join(parts))["a"][0]["logs"][0] == {"b\n": [1, {"c": "Infinity"}]}
