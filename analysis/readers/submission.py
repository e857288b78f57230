"""MLPerf submissions: entries from result logs and their paths.

A submission has ``ORG/results/SYSTEM/[strong|weak/]BENCHMARK/result_*.txt``,
``ORG/systems/SYSTEM.json`` and, from HPC v3.0 on, a ``scaling.json`` next to the logs. Other logs
are grouped by their content.
[mlcommons/policies, submission_rules.adoc; mlcommons/logging, result_summarizer]
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from aiperf_hpc.analysis.readers.descriptions import (
    finite_number,
    one_line,
    read_object,
    whole_number,
)
from aiperf_hpc.analysis.readers.mllog import ReadLog, SubmissionInfo, benchmark_name, read_logs
from aiperf_hpc.analysis.training_log import Entry, ReadResult, System, TrainingLog, Unreadable
from aiperf_hpc.errors import UsageError
from aiperf_hpc.formatting import few

PRUNED = "pruned_results"
"""Folder, next to the logs, of the training runs that a weak-scaling entry omits."""
HPC_BENCHMARKS = frozenset({"cosmoflow", "deepcam", "oc20", "openfold"})


class Layout(NamedTuple):
    """Location of a log in a submission."""

    organization: str
    system: str
    scenario: Literal["strong", "weak"]
    benchmark: str
    description: Path


class _Group(NamedTuple):
    """Key of an entry by which logs are grouped; in a submission, it is their location."""

    folder: Path
    benchmark: str | None
    division: str | None
    organization: str | None
    platform: str | None
    layout: Layout | None
    """Location in a submission; None outside a submission."""


def layout_of(path: Path) -> Layout | None:
    """Return a log's location in a submission, or None if it is outside."""
    parts = path.parts
    at = next((at for at in range(len(parts) - 4, 0, -1) if parts[at] == "results"), None)
    if at is None:
        return None
    below, organization = parts[at + 1 : -1], Path(*parts[:at])
    scaled = len(below) == 3 and below[1] in ("strong", "weak")
    if len(below) != 2 and not scaled:
        return None
    return Layout(
        organization=organization.name,
        system=below[0],
        scenario="weak" if scaled and below[1] == "weak" else "strong",
        benchmark=benchmark_name(below[-1]),
        description=organization / "systems" / f"{below[0]}.json",
    )


def read_results(paths: Sequence[Path], accelerators: int | None = None) -> ReadResult:
    """Read result logs and group them into entries.

    ``accelerators`` is the user's count for logs and systems that do not state theirs.
    """
    pruned = [path for path in paths if path.parent.name == PRUNED]
    whole = [path for path in paths if path.parent.name != PRUNED]
    groups: dict[_Group, list[ReadLog]] = defaultdict(list)
    lost: dict[Path, list[Unreadable]] = defaultdict(list)
    for path, read in zip(whole, read_logs(whole), strict=True):
        if isinstance(read, Unreadable):
            lost[path.parent].append(read)
        else:
            groups[_group(path, read.submission)].append(read)
    entries = []
    for group, reads in groups.items():
        left_out = sum(path.parent.parent == group.folder for path in pruned)
        entries.append(_entry(group, reads, lost[group.folder], left_out, accelerators))
    unreadable = tuple(one for folder in lost.values() for one in folder)
    return ReadResult(tuple(entries), unreadable)


def _group(path: Path, stated: SubmissionInfo) -> _Group:
    layout = layout_of(path.absolute())
    benchmark = stated.benchmark or (layout.benchmark if layout else None)
    organization, platform = stated.organization, stated.platform
    if layout is not None:
        organization, platform = layout.organization, layout.system
    return _Group(path.parent, benchmark, stated.division, organization, platform, layout)


def _entry(
    group: _Group,
    reads: Sequence[ReadLog],
    lost: Sequence[Unreadable],
    pruned: int,
    accelerators: int | None,
) -> Entry:
    layout = group.layout
    problems: list[str] = []
    system, described = _system(group, problems)
    scale = _convergence_scale(group.folder, problems)
    silent = any(read.log.accelerators is None for read in reads)
    number = _accelerators_of_silent(system, accelerators, problems) if silent else None
    logs = tuple(
        read.log.model_copy(
            update={
                "convergence_scale": scale,
                "accelerators": read.log.accelerators or number,
            }
        )
        for read in sorted(reads, key=_in_order)
    )
    benchmark = group.benchmark or "unknown"
    scenario = layout.scenario if layout else _scenario(group, reads)
    if layout is not None and layout.benchmark != benchmark:
        problems.append(f"its folder is called {layout.benchmark}, its logs state {benchmark}")
    if lost:
        files = few([Path(one.path).name for one in lost])
        problems.append(f"{len(lost)} logs could not be read and count as failed: {files}")
    if system.accelerators is None:
        system = system.model_copy(update=_sizes(logs, scenario))
    return Entry(
        name=_name(group, benchmark, scenario),
        format="mllog",
        benchmark=benchmark,
        division=_division(group, system.name, described, problems),
        scenario=scenario,
        round=round_of(group.folder, benchmark, reads[0].submission, logs),
        organization=group.organization,
        system=system,
        path=str(group.folder),
        logs=logs,
        lost=len(lost),
        pruned=pruned,
        convergence_scale=scale,
        problems=tuple(problems),
    )


def _in_order(read: ReadLog) -> tuple[int, str]:
    """Return a sort key that places result_10 after result_9."""
    name = Path(read.log.source).name
    number = re.search(r"(\d+)(?=\D*$)", name)
    return (int(number[1]) if number else -1, name)


def _system(group: _Group, problems: list[str]) -> tuple[System, str | None]:
    """Return the machine and the division in its description."""
    layout = group.layout
    if layout is None:
        return System(name=group.platform or group.folder.name), None
    if not layout.description.exists():
        return System(name=layout.system), None
    try:
        document = read_object(layout.description)
    except UsageError as error:
        problems.append(f"its system description, {layout.description}: {error}")
        return System(name=layout.system), None
    division = document.get("division")
    return system_of(layout.system, document), division if division in _DIVISIONS else None


_DIVISIONS = ("closed", "open")


def _division(group: _Group, system: str, described: str | None, problems: list[str]) -> str | None:
    """Return the division from the description, the system's name or the logs."""
    named = [division for division in _DIVISIONS if division in re.split(r"[^a-z]+", system)]
    division = described or (named[0] if len(named) == 1 else group.division)
    if group.division is not None and division != group.division:
        where = "its system description" if described else "its system's name"
        problems.append(f"{division} division by {where}; its logs state {group.division}")
    return division


def _scenario(group: _Group, reads: Sequence[ReadLog]) -> Literal["strong", "weak"]:
    """Return weak for logs in a folder of this name or with several instances."""
    instances = {str(read.log.settings.get("instance_id")) for read in reads}
    return "weak" if "weak" in group.folder.parts or len(instances - {"None"}) > 1 else "strong"


def _sizes(logs: Sequence[TrainingLog], scenario: str) -> dict[str, int | None]:
    """Return the machine's size from its logs; all instances of a weak entry run concurrently."""
    nodes = [log.nodes for log in logs if log.nodes is not None]
    accelerators = [log.accelerators for log in logs if log.accelerators is not None]
    whole = sum if scenario == "weak" else max
    return {
        "nodes": whole(nodes) if nodes else None,
        "accelerators": whole(accelerators) if accelerators else None,
    }


def _accelerators_of_silent(system: System, stated: int | None, problems: list[str]) -> int | None:
    """Return the accelerators of logs, from other sources if the logs do not state them."""
    known = system.accelerators or stated
    number = known or accelerators_in_name(system.name)
    if number is None:
        problems.append("its number of accelerators is unknown: give --accelerators N")
    elif known is None:
        problems.append(
            f"{number} accelerators by its name, {system.name}: nothing else states the number;"
            " --accelerators N overrides it"
        )
    return number


def accelerators_in_name(name: str) -> int | None:
    """Return the count in a platform's name: ``512xV100``, ``corigpu_n64``."""
    found = re.search(
        r"(?<!\d)(\d{1,6})x(?:V100|A100|H100|P100|A64FX|TPU)|_n(\d{1,6})(?![\d.])", name
    )
    return int(found[1] or found[2]) if found else None


def _convergence_scale(folder: Path, problems: list[str]) -> float | None:
    """Return the factor of ``scaling.json``."""
    path = folder / "scaling.json"
    if not path.exists():
        return None
    try:
        factor = read_object(path).get("scaling_factor")
    except UsageError as error:
        problems.append(f"scaling.json: {error}")
        return None
    if isinstance(factor, str) or (number := finite_number(factor)) is None:
        problems.append("scaling.json: scaling_factor is not a number")
        return None
    if number < 1:
        problems.append(f"scaling.json: scaling_factor {factor} is below 1")
        return None
    return number


def round_of(
    folder: Path, benchmark: str, stated: SubmissionInfo, logs: Sequence[TrainingLog]
) -> str | None:
    """Return the benchmark's round from the path, the dialect or the content of the logs.

    OpenFold was introduced in HPC v3.0, and only HPC v0.7 had CosmoFlow's smaller dataset.
    Otherwise the date decides, by the rounds' submission deadlines (HPC: November 2020, October
    2021, September 2022, October 2023); Training's rounds are too close together for that.
    """
    found = re.search(r"(hpc|training)[_-](?:results[_-])?v(\d\.\d)", str(folder.absolute()))
    if found:
        return f"{found[1]}-{found[2]}"
    if stated.dialect in ("0.5", "0.6"):
        return f"training-{stated.dialect}"
    if benchmark not in HPC_BENCHMARKS:
        return None
    if benchmark == "openfold":
        return "hpc-3.0"
    if benchmark == "cosmoflow" and any(log.train_samples == 262_144 for log in logs):
        return "hpc-0.7"
    starts = [log.run.started for log in logs if log.run is not None]
    return _hpc_round(max(starts)) if starts else None


_HPC_ROUNDS = ((2021, 1, "0.7"), (2021, 11, "1.0"), (2022, 11, "2.0"), (2023, 12, "3.0"))


def _hpc_round(time: float) -> str | None:
    if not 0 < time < 1 << 32:
        return None
    date = datetime.fromtimestamp(time, UTC)
    for year, month, version in _HPC_ROUNDS:
        if (date.year, date.month) < (year, month):
            return f"hpc-{version}"
    return None


def _name(group: _Group, benchmark: str, scenario: str) -> str:
    """Return a readable name."""
    weak = "weak" if scenario == "weak" else None
    parts = (group.organization, group.platform or group.folder.name, benchmark, weak)
    return " ".join(part for part in parts if part)


def system_of(name: str, document: Mapping[str, Any]) -> System:
    """Return the machine from a description, in which numbers are often text.

    A node without accelerators counts as one. [mlcommons/policies, submission_rules.adoc, System
    description]
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
