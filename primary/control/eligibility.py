"""Whether a run can become official in the division that was asked for, before it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping

from aiperf_hpc.errors import UsageError
from aiperf_hpc.ops_counter.divisions import Division, violations_of
from aiperf_hpc.ops_counter.divisions.plan import Code, check_plan, clock_rule
from aiperf_hpc.ops_counter.divisions.rule import RuleCheck
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.system.software import recorded_variables
from aiperf_hpc.trial import DatasetInfo


def require_eligible(
    manifest: RunManifest,
    dataset: DatasetInfo | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Require that a run may become official in its division, if one was asked for.

    Args:
        manifest: what is to run.
        dataset: what is there; None before that has been looked at.
        environment: the variables that replicas may inherit.

    Raises:
        UsageError: it cannot, with a line for each reason.
    """
    if manifest.division is None:
        return
    checks = [
        _constant_nodes(manifest),
        *([] if manifest.start_when == "first" else [clock_rule(manifest.start_when)]),
        *check_plan(
            manifest.config,
            Division(manifest.division),
            hours=manifest.hours,
            code=Code(manifest.versions, manifest.release_changes),
            variables=recorded_variables(environment),
            dataset=dataset,
        ),
    ]
    if broken := violations_of(checks):
        lines = "\n".join(f"  {each}" for each in broken)
        raise UsageError(
            f"not started: it could not become official in the {manifest.division} division:\n"
            f"{lines}"
        )


def _constant_nodes(manifest: RunManifest) -> RuleCheck:
    """Return whether a run is to keep the nodes that it begins with."""
    most = manifest.nodes_max
    asked = f"{manifest.nodes:,}" if most is None else f"{manifest.nodes:,}-{most:,}"
    changes = () if most is None else (f"{asked} nodes; official runs keep theirs",)
    return RuleCheck("nodes", asked, "constant", changes)
