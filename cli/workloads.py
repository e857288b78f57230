"""``aiperf workloads``: the workloads and the benchmarks that define them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

from typer import Argument

from aiperf_hpc.analysis.layout import tables_as_lines, wrapped
from aiperf_hpc.cli.output import say_json, say_lines
from aiperf_hpc.cli.parameters import Json
from aiperf_hpc.formatting import si
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.results.table import Table
from aiperf_hpc.streams import window_columns
from aiperf_hpc.workloads.base import Workload
from aiperf_hpc.workloads.registry import WORKLOADS, workload_named

Document = dict[str, Any]


def workloads(
    name: Annotated[str | None, Argument(metavar="NAME", help="Workload. Default: all.")] = None,
    json: Json = False,
) -> int:
    """List workloads or describe one.

    Operations are per training sample at the official size. `aiperf start --workload NAME` uses the
    first preset.

    Examples:
      $ aiperf workloads
      $ aiperf workloads cosmoflow
    """
    chosen = list(WORKLOADS.values()) if name is None else [workload_named(name)]
    if json:
        described = [_document(each) for each in chosen]
        say_json(described if name is None else described[0])
        return 0
    lines = (
        _whole(chosen[0])
        if name is not None
        else tables_as_lines([_table(chosen)], window_columns())
    )
    say_lines(lines)
    return 0


def _document(workload: Workload) -> Document:
    """Return all information about a workload for JSON."""
    return {
        "name": workload.name,
        "summary": workload.summary,
        **asdict(workload.definition),
        "engines": workload.engines,
        "datasets": workload.datasets,
        "presets": workload.presets,
        "objective": workload.objective.model_dump(mode="json"),
        "networks": [_network(workload, which) for which in workload.official],
        "closed": dict(workload.closed),
        "open": workload.opened,
    }


def _network(workload: Workload, which: str) -> Document:
    graph = workload.official[which]()
    counted = count(graph)
    return {
        "network": which,
        "parameters": graph.parameter_count,
        "forward": counted.forward,
        "training": counted.training,
        "hash": graph.hash,
    }


def _table(chosen: list[Workload]) -> Table:
    """Return one row per workload, with parameters and operations of its first network."""
    columns = (
        "workload", "benchmark", "task", "network", "data", "target", "parameters",
        "operations per sample", "engines",
    )  # fmt: skip
    return Table(columns, tuple(_row(each) for each in chosen), words=(1, 2, 3, 4, 5, 8))


def _row(workload: Workload) -> tuple[str, ...]:
    definition = workload.definition
    first = _network(workload, next(iter(workload.official)))
    return (
        workload.name,
        definition.benchmark,
        definition.task,
        definition.network,
        definition.data,
        definition.target,
        f"{first['parameters']:,}",
        si(first["training"], "OP"),
        ", ".join(workload.engines),
    )


def _whole(workload: Workload) -> Iterator[str]:
    """Yield lines with all information about a workload."""
    yield from wrapped(f"{workload.name}: {workload.summary}", window_columns(), 0)
    for key, value in asdict(workload.definition).items():
        yield from wrapped(f"{key:<11} {value}", window_columns())
    yield from wrapped(f"{'engines':<11} {', '.join(workload.engines)}", window_columns())
    yield from wrapped(f"{'datasets':<11} {', '.join(workload.datasets)}", window_columns())
    yield from wrapped(f"{'presets':<11} {', '.join(workload.presets)}", window_columns())
    yield "Networks of the official size"
    for which in workload.official:
        found = _network(workload, which)
        yield from wrapped(
            f"{which}: {found['parameters']:,} parameters; {found['forward']:,} operations a "
            f"validation sample, {found['training']:,} a training sample",
            window_columns(),
        )
    yield "The closed division requires"
    for key, value in workload.closed.items():
        yield from wrapped(f"{key}: {value}", window_columns())
    if not workload.closed:
        yield "  nothing: there is none"
    yield "A run of the open division may change"
    yield from wrapped(workload.opened, window_columns())
