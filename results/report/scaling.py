"""Weak scaling: the same benchmark on more and more nodes, from the final reports of its runs.

Every node works independently, so twice the nodes should score twice the OPS. The difference is
the overhead of control: starting, waiting for candidates, recording, ending.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import AliasPath, BaseModel, Field, ValidationError

from aiperf_hpc.errors import UsageError, reason_of
from aiperf_hpc.results.report.files import report_document
from aiperf_hpc.results.views.earlier_versions import in_this_version
from aiperf_hpc.results.views.run_catalog import flat
from aiperf_hpc.run.manifest import no_run
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import NotRegularError


class ScalingPoint(Value):
    """Result of one run."""

    run_id: str
    name: str
    nodes: int
    """Number of requested nodes."""
    valid: bool
    elapsed_seconds: float
    ops: float
    """Score of the run."""
    ops_per_node: float
    efficiency: float
    """``ops_per_node`` divided by that of the run with the fewest nodes."""
    train_evaluate_fraction: float
    """Fraction of all replicas' time spent on training and evaluation."""


class Scaling(Value):
    """Runs that differ in their number of nodes, fewest first."""

    points: tuple[ScalingPoint, ...]
    simulated: bool
    """Whether an engine only simulated computation."""


class ScalingRun(BaseModel):
    """Data from a report for the scaling analysis; its other keys are ignored."""

    run_id: str
    name: str
    final: bool
    valid: bool
    nodes: int = Field(validation_alias="nodes_requested")
    hours: float
    ops: float = Field(validation_alias=AliasPath("score", "ops"))
    elapsed_seconds: float = Field(validation_alias=AliasPath("score", "elapsed_seconds"))
    train_evaluate_fraction: float = Field(
        validation_alias=AliasPath("time", "train_evaluate_fraction")
    )
    config: dict[str, Any]

    @classmethod
    def read(cls, paths: RunPaths) -> ScalingRun:
        """Read a run's final report. Raises UsageError if there is none."""
        try:
            found = cls.model_validate(in_this_version(report_document(paths)))
        except NotRegularError as error:
            raise UsageError(f"{paths.report_json}: {reason_of(error)}") from None
        except OSError:
            if not paths.manifest.exists():
                raise no_run(paths.root) from None
            raise UsageError(
                f"{paths.root} has no report; `aiperf report {paths.root}` writes it"
            ) from None
        except ValidationError as error:
            raise UsageError(f"{paths.report_json} is damaged: {first_fault(error)}") from None
        except ValueError as error:
            raise UsageError(f"{paths.report_json} is damaged: {error}") from None
        if not found.final:
            raise UsageError(f"{paths.root}: its report is not final; scaling needs ended runs")
        return found


def make_scaling(runs: Iterable[ScalingRun]) -> Scaling:
    """Compare runs of one configuration.

    Raises:
        UsageError: their configurations or hours differ, or one has no operations.
    """
    apart = {run.run_id: run for run in runs}
    ordered = sorted(apart.values(), key=lambda run: (run.nodes, run.run_id))
    least = ordered[0]
    for run in ordered:
        _require_alike(least, run)
    if least.ops <= 0.0:
        raise UsageError(f"the run {least.name} has no score to compare with")
    return Scaling(
        points=tuple(_point(run, least.ops / least.nodes) for run in ordered),
        simulated=least.config["engine"]["name"] == "simulated",
    )


def read_scaling(folders: Sequence[RunPaths]) -> Scaling:
    """Compare runs by their final reports. Raises UsageError if one has none or they differ."""
    return make_scaling(ScalingRun.read(paths) for paths in folders)


def _point(run: ScalingRun, unit: float) -> ScalingPoint:
    each = run.ops / run.nodes
    found = ScalingPoint.fields_from(run)
    return ScalingPoint(**found, ops_per_node=each, efficiency=each / unit)


def _require_alike(one: ScalingRun, other: ScalingRun) -> None:
    differing = ["hours"] if one.hours != other.hours else []
    left, right = flat(one.config), flat(other.config)
    differing += sorted(key for key in left | right if left.get(key) != right.get(key))
    if differing:
        raise UsageError(f"{one.name} and {other.name} cannot be compared: {differing[0]} differs")
