"""What is analysed as JSON, whatever names logs and files have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def as_json(values: Mapping[str, Any]) -> str:
    """Return a document of plain values in ASCII.

    Pydantic's own writer refuses names of files that are no text, and halves of characters, which
    JSON may escape.
    """
    return json.dumps(values, indent=1)
