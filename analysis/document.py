"""JSON output of analyses, for arbitrary names of logs and files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def as_json(values: Mapping[str, Any]) -> str:
    """Return a document as JSON-compatible values in ASCII.

    Pydantic's own writer rejects file names that are not valid text, and lone surrogates, which
    JSON may escape. Like Pydantic, this function writes NaN and infinities as strings.
    """
    return json.dumps(_finite(values), indent=1)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else _WORDS[str(value)]
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
