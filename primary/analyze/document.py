"""What is analysed as JSON, whatever names logs and files have."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def as_json(values: Mapping[str, Any]) -> str:
    """Return a document of plain values in ASCII.

    Pydantic's own writer refuses names of files that are no text, and halves of characters, which
    JSON may escape. As it does, this writes NaN and infinities as text, which JSON can hold.
    """
    return json.dumps(_finite(values), indent=1)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return _WORDS[str(value)]
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
