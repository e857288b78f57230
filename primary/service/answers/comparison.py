"""Several runs beside each other: what they reached, and in what they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aiperf_hpc.primary.monitor.run_catalog import RunRow
from aiperf_hpc.primary.monitor.run_view import RunState, RunView
from aiperf_hpc.primary.service.answers.base import Answer
from aiperf_hpc.system.words import machine_line


class Compared(Answer):
    """What one of the runs reached."""

    run: RunRow
    """The run as in the list."""
    ops_ratio: float | None
    """Its score by the first run's; null where that is 0."""
    time_shares: dict[str, float]
    """The shares of its trainers' time by what it was spent on."""


class Difference(Answer):
    """Something in which the runs differ."""

    name: str
    """The key, with dots between sections."""
    values: tuple[Any, ...]
    """Its value in each run, in their order; null where it has none."""


class Comparison(Answer):
    """Several runs beside each other."""

    runs: tuple[Compared, ...]
    """The runs, in the order that was asked for."""
    comparable: bool
    """Whether their scores measure the same."""
    reasons: tuple[str, ...]
    """Why not, a line each."""
    configuration: tuple[Difference, ...]
    """Keys of the configuration in which they differ."""
    machine: tuple[Difference, ...]
    """What of the machine and the software differs."""


class Facts(Answer):
    """What is compared of a run."""

    row: RunRow
    """The run as in the list."""
    workload: dict[str, str]
    """What a score depends on besides the machine."""
    configuration: dict[str, Any]
    """The configuration by keys with dots."""
    machine: dict[str, str]
    """The machine and the software in words."""
    time_shares: dict[str, float]
    """The shares of its trainers' time by what it was spent on."""


def facts(view: RunView) -> Facts:
    """Return what is compared of a run."""
    manifest, summary = view.manifest, view.machine.summary()
    dataset = manifest.dataset
    spent: Counter[str] = Counter()
    for replica in view.history.replicas.values():
        spent.update({str(phase): seconds for phase, seconds in replica.seconds.items()})
    return Facts(
        row=RunRow.of(view),
        workload={
            "workload": manifest.config.workload,
            "dataset": manifest.config.dataset.name if dataset is None else dataset.sha256,
            "measure of quality": view.measure.name,
            "kind of time": "simulated" if manifest.simulated else "real",
        },
        configuration=dict(_flat(manifest.config.model_dump(mode="json"))),
        machine={
            "nodes": str(manifest.nodes),
            "hardware": machine_line(summary),
            **{name: ", ".join(versions) for name, versions in summary.libraries.items()},
            "aiperf-hpc": manifest.versions.get("aiperf-hpc", ""),
        },
        time_shares={k: v / spent.total() for k, v in spent.items()} if spent.total() else {},
    )


def compare(runs: Sequence[Facts]) -> Comparison:
    """Compare runs with the first one."""
    base = runs[0].row.score.ops
    reasons = tuple(_reasons(runs))
    return Comparison(
        runs=tuple(
            Compared(
                run=each.row,
                ops_ratio=each.row.score.ops / base if base else None,
                time_shares=each.time_shares,
            )
            for each in runs
        ),
        comparable=not reasons,
        reasons=reasons,
        configuration=tuple(_differences([each.configuration for each in runs])),
        machine=tuple(_differences([each.machine for each in runs])),
    )


def _reasons(runs: Sequence[Facts]) -> Iterator[str]:
    for difference in _differences([each.workload for each in runs]):
        yield f"they differ in {difference.name}: {', '.join(map(str, difference.values))}"
    for each in runs:
        if each.row.state is not RunState.ENDED:
            yield f"{each.row.name} has not ended"
        if each.row.broken:
            yield f"{each.row.name} does not keep the rules: {', '.join(each.row.broken)}"


def _differences(values: Sequence[Mapping[str, Any]]) -> Iterator[Difference]:
    for name in dict.fromkeys(key for each in values for key in each):
        found = tuple(each.get(name) for each in values)
        if any(value != found[0] for value in found):
            yield Difference(name=name, values=found)


def _flat(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
