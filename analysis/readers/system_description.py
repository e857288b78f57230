"""A submission's description of a machine: ``ORG/systems/SYSTEM.json``.

[mlcommons/policies, submission_rules.adoc, System description]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiperf_hpc.analysis.readers.descriptions import one_line
from aiperf_hpc.analysis.readers.numbers import finite_number, whole_number
from aiperf_hpc.analysis.training_log import System


def system_of(name: str, document: Mapping[str, Any]) -> System:
    """Return the machine of a description. Numbers in it are text as often as not.

    A node without accelerators counts as one.
    """
    nodes = whole_number(document.get("number_of_nodes"))
    each = finite_number(document.get("accelerators_per_node"))
    return System(
        name=name,
        nodes=nodes,
        accelerators=None if nodes is None or each is None else nodes * max(int(each), 1),
        accelerator=one_line(document.get("accelerator_model_name"))
        or one_line(document.get("host_processor_model_name")),
        framework=one_line(document.get("framework")),
    )
