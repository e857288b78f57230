"""A submission's description of a machine: ``ORG/systems/SYSTEM.json``.

[mlcommons/policies, submission_rules.adoc, System description]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiperf_hpc.errors import AIPerfError, reason_of
from aiperf_hpc.primary.analyze.training_log import System
from aiperf_hpc.primary.user_files import open_regular

MAX_DESCRIPTION = 1 << 20
"""Bytes of the longest description that is read."""


class DescriptionError(AIPerfError):
    """A JSON file of a submission cannot be used; the message says why, without its name."""


def read_object(path: Path) -> dict[str, Any]:
    """Read a small JSON object.

    Raises:
        DescriptionError: it cannot be read, or is no JSON object.
    """
    try:
        with open_regular(path) as file:
            text = file.read(MAX_DESCRIPTION + 1)
        if len(text) > MAX_DESCRIPTION:
            raise DescriptionError(f"longer than {MAX_DESCRIPTION >> 20} MiB")
        document = json.loads(text.decode("utf-8-sig", "replace"))
    except OSError as error:
        raise DescriptionError(reason_of(error)) from error
    except (ValueError, RecursionError) as error:
        raise DescriptionError("not JSON") from error
    if not isinstance(document, dict):
        raise DescriptionError("not a JSON object")
    return document


def system_of(name: str, document: Mapping[str, Any]) -> System:
    """Return the machine of a description. Numbers in it are text as often as not."""
    nodes = _whole(document.get("number_of_nodes"))
    each = _whole(document.get("accelerators_per_node"))
    known = nodes is not None and each is not None
    return System(
        name=name,
        nodes=nodes or None,
        accelerators=nodes * max(each, 1) if known and nodes and each is not None else None,
        accelerator=_text(document.get("accelerator_model_name"))
        or _text(document.get("host_processor_model_name")),
        framework=_text(document.get("framework")),
    )


def _whole(value: object) -> int | None:
    """Return a whole number, also one written as text."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    found = re.fullmatch(r"\s*(\d{1,9})\s*", str(value))
    return int(found[1]) if found else None


def _text(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None
